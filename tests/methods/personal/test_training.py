"""What a silo's epochs do to the parameters, against torch's own layers, loss and optimiser."""

import pytest
import torch
from torch import nn

from anabranch.federation import Envelope, Federation
from anabranch.methods.personal import LocalSteps, PersonalServer, train_personal
from anabranch.methods.personal._networks import HEAD, all_features, initial_body, initial_head, scores
from anabranch.seeds import generator

SEED = 4


def opened(silos, settings):
    federation = Federation(silos, settings.weighting)
    federation.open("run", SEED)
    return PersonalServer(settings, federation)


def first(settings, dimension=6):
    body = initial_body(settings, dimension, SEED)
    return body | initial_head(body, settings.classes, SEED)


def network_of(parameters):
    """The same network of torch's own modules."""
    layers = []
    for name in [name for name in parameters if name.endswith("weight")]:
        weight = parameters[name]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight.clone(), parameters[name.replace("weight", "bias")].clone()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(network, silo, settings, number, epochs, only=None):
    """Plain SGD, epoch by epoch, in the silo's own order of points; `only` trains a part of the layers."""
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    layers = layers if only is None else layers[only]
    optimizer = torch.optim.SGD(
        [
            {"params": [layer.weight for layer in layers], "weight_decay": settings.weight_decay},
            {"params": [layer.bias for layer in layers], "weight_decay": 0.0},
        ],
        lr=settings.rate,
        momentum=settings.momentum,
    )
    for epoch in epochs:
        order = torch.randperm(len(silo), generator=generator(SEED, "silo", silo.name, number, "order", epoch))
        for start in range(0, len(silo), settings.batch):
            rows = order[start : start + settings.batch]
            loss = nn.CrossEntropyLoss()(network(silo.data.x[rows]), silo.data.label[rows])
            network.zero_grad()
            loss.backward()
            optimizer.step()


def parameters_of(network, like):
    return dict(zip(like, (p.detach() for p in network.parameters()), strict=True))


def asked(silo, settings, parameters):
    question = LocalSteps(
        parameters,
        settings.classes,
        settings.epochs,
        settings.epochs_of_head,
        settings.batch,
        settings.rate,
        settings.momentum,
        settings.weight_decay,
    )
    silo.begin(SEED)
    return silo.answer(Envelope("run", 1, 1, question))


def body_of(parameters):
    return {name: tensor for name, tensor in parameters.items() if name not in HEAD}


def test_fedavg_with_one_silo_is_plain_local_training_to_the_bit(lab):
    silo, settings = lab.silo("a", count=33), lab.settings(batch=10, weight_decay=0.01)
    result = train_personal([silo], settings, SEED)
    network = network_of(first(settings))
    for number in range(1, settings.rounds + 1):
        train(network, silo, settings, number, range(settings.epochs))
    for name, tensor in parameters_of(network, result.parameters).items():
        assert torch.equal(result.parameters[name], tensor), name


def test_a_round_of_all_silos_ends_at_the_plain_mean_whatever_their_sizes(lab):
    settings = lab.settings(rounds=1)
    silos = [lab.silo("a", (0, 1), 60), lab.silo("b", (2, 3), 20), lab.silo("c", (4, 5), 40)]
    result = train_personal(silos, settings, SEED)
    ends = []
    for silo in silos:
        network = network_of(first(settings))
        train(network, silo, settings, 1, range(settings.epochs))
        ends.append(parameters_of(network, result.parameters))
    for name, tensor in result.parameters.items():
        torch.testing.assert_close(tensor, torch.stack([end[name] for end in ends]).mean(0))


def test_weights_by_size_count_points(lab):
    settings = lab.settings(rounds=1, weighting="size")
    silos = [lab.silo("a", (0, 1), 60), lab.silo("b", (2, 3), 20)]
    result = train_personal(silos, settings, SEED)
    ends = [asked(silo, settings, first(settings)).parameters for silo in silos]
    for name, tensor in result.parameters.items():
        torch.testing.assert_close(tensor, 0.75 * ends[0][name] + 0.25 * ends[1][name])


def test_fedrep_trains_the_head_on_a_frozen_body_and_then_the_body_under_a_frozen_head(lab):
    silo, settings = lab.silo("a", count=33), lab.settings("fedrep", weight_decay=0.01)
    start = first(settings)
    reply = asked(silo, settings, body_of(start))
    network = network_of(start)
    train(network, silo, settings, 1, range(4), only=slice(-1, None))
    head = {name: tensor.clone() for name, tensor in parameters_of(network, start).items() if name in HEAD}
    train(network, silo, settings, 1, range(4, 5), only=slice(0, -1))
    end = parameters_of(network, start)
    for name in HEAD:
        assert torch.equal(end[name], head[name])
        torch.testing.assert_close(silo.state[f"personal/{name}"], end[name], atol=1e-6, rtol=1e-5)
    for name in body_of(start):
        torch.testing.assert_close(reply.parameters[name], end[name], atol=1e-6, rtol=1e-5)


def test_head_epochs_leave_the_body_and_body_epochs_the_head_as_they_were_to_the_bit(lab):
    start = first(lab.settings())
    # The head after 4 of 5 epochs is the head after 4 of 6: the body's epochs do not touch it.
    heads = []
    for epochs in (5, 6):
        silo = lab.silo("a")
        asked(silo, lab.settings("fedrep", epochs=epochs), body_of(start))
        heads.append({name: silo.state[f"personal/{name}"] for name in HEAD})
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in HEAD)
    assert not torch.equal(heads[0]["head.weight"], start["head.weight"])
    # A head without features to learn from gives the body no gradient: what head epochs left is what arrived.
    silo = lab.silo("a")
    silo.begin(SEED)
    silo.state |= {"personal/head.weight": torch.zeros(6, 8), "personal/head.bias": torch.zeros(6)}
    silo.data.label.zero_()
    body = {name: torch.zeros_like(tensor) for name, tensor in body_of(start).items()}
    reply = _without_begin(silo, lab.settings("fedrep", weight_decay=0.0), body)
    assert all(torch.equal(reply.parameters[name], body[name]) for name in body)
    assert silo.state["personal/head.bias"][0] > 0


def _without_begin(silo, settings, parameters):
    begin, silo.begin = silo.begin, lambda seed: None
    try:
        return asked(silo, settings, parameters)
    finally:
        silo.begin = begin


def test_fedper_trains_both_at_once_and_sends_the_body(lab):
    silo, settings = lab.silo("a", count=33), lab.settings("fedper")
    start = first(settings)
    reply = asked(silo, settings, body_of(start))
    network = network_of(start)
    train(network, silo, settings, 1, range(5))
    end = parameters_of(network, start)
    assert reply.parameters.keys() == body_of(start).keys()
    assert all(torch.equal(reply.parameters[name], end[name]) for name in reply.parameters)
    assert all(torch.equal(silo.state[f"personal/{name}"], end[name]) for name in HEAD)


def test_questions_are_not_changed_by_answering_them(lab):
    settings = lab.settings()
    start = first(settings)
    before = {name: tensor.clone() for name, tensor in start.items()}
    asked(lab.silo("a"), settings, start)
    assert all(torch.equal(start[name], before[name]) for name in start)


@pytest.mark.parametrize(("network", "dimension", "count"), [("mlp", 784, 550_346), ("cnn", 3072, 307_842)])
def test_the_public_networks_have_their_sizes_and_torch_computes_the_same(network, dimension, count, lab):
    parameters = first(lab.settings(network=network, hidden=None, classes=10), dimension)
    assert sum(tensor.numel() for tensor in parameters.values()) == count
    x = torch.randn(3, dimension, generator=generator(0, "images"))
    if network == "mlp":
        expected = network_of(parameters)(x)
    else:
        p = parameters
        pool, relu = nn.MaxPool2d(2), nn.ReLU()
        y = pool(relu(nn.functional.conv2d(x.view(3, 3, 32, 32), p["body.0.weight"], p["body.0.bias"])))
        y = pool(relu(nn.functional.conv2d(y, p["body.1.weight"], p["body.1.bias"]))).flatten(1)
        for layer in ("body.2", "body.3"):
            y = relu(y @ p[f"{layer}.weight"].T + p[f"{layer}.bias"])
        expected = y @ p["head.weight"].T + p["head.bias"]
    torch.testing.assert_close(scores(parameters, x), expected, atol=1e-5, rtol=1e-4)
    assert all_features(parameters, x).shape == (3, 64)


def test_the_network_for_images_trains(lab):
    silo = lab.silo("a", count=12)
    x = torch.randn(12, 3 * 16 * 16, generator=generator(0, "images"))
    silo = type(silo)("a", x, torch.arange(12) % 2, x[:4], held_out_label=torch.arange(4) % 2)
    settings = lab.settings("fedrep", network="cnn", hidden=(8,), rounds=1)
    assert train_personal([silo], settings).parameters["body.0.weight"].shape == (64, 3, 5, 5)
