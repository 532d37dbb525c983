"""Flows that are told the class of each point."""

from dataclasses import replace

import pytest
import torch

from anabranch.data import Pixels
from anabranch.errors import QuorumError, UsageError
from anabranch.federation import Federation, Silo
from anabranch.flow import _compiled as compiled
from anabranch.flow import integrate
from anabranch.flow.conditioning import NULL
from anabranch.methods.ffm import FlowServer, Gradient, ImageSettings, half_of, preset, train_flow
from anabranch.methods.ffm import _half as halves
from anabranch.methods.ffm._passes import forget_pass
from anabranch.seeds import derive, generator
from tests.methods.ffm.test_fused import assert_close, both

CENTRES = torch.tensor([[3.0, 0.0], [-3.0, 0.0]])


def silos_of(sizes=(90, 60), centres=CENTRES, labels=None):
    """Every silo has all classes, each of which lies at a place of its own."""
    made = []
    for number, size in enumerate(sizes):
        label = torch.arange(size) % len(centres)
        x = centres[label] + 0.3 * torch.randn(size, 2, generator=generator(number, "data"))
        name = "abc"[number]
        made.append(Silo(name, x, label if labels is None else labels(label), secret=derive(3, name)))
    return made


@pytest.mark.parametrize("sigma", [0.0, 0.1], ids=["straight", "with noise"])
@pytest.mark.parametrize("name", ["independent", "minibatch", "sinkhorn"])
def test_one_pass_for_all_silos_gives_what_their_own_passes_give(lab, name, sigma):
    server = lab.ready(lab.settings(name, classes=2, withheld=0.3, sigma=sigma), silos_of())
    for number in (1001, 1002):
        server.federation.start_round(number)
        assert_close(*both(server, Gradient(server.parameters, {})), "loss")


def test_a_share_of_the_labels_is_withheld_and_the_others_are_those_of_the_points(lab):
    silos = silos_of((400,))
    lab.ready(lab.settings("minibatch", classes=2, withheld=0.3, batch=4000), silos)
    half = half_of(silos[0])
    pairs = half.draw(silos[0], silos[0].generator("batch", 0))
    told = half.told(pairs.label, [generator(1)], [1])[:, 0]
    assert float((told == NULL).double().mean()) == pytest.approx(0.3, abs=0.03)
    given = told != NULL
    assert torch.equal(told[given], (pairs.x1[given, 0] < 0).long())


def test_a_class_of_which_a_batch_has_too_few_points_is_withheld(lab):
    """Rows of the table get a gradient only where it rests on as many points as the silo's answers must."""
    silos = silos_of((90,), labels=lambda label: (torch.arange(90) % 30 == 0).long())  # three points of class 1
    silos[0].smallest_group = 10
    server = lab.ready(lab.settings("minibatch", classes=3, batch=60), silos)
    for number in range(2001, 2006):
        server.federation.start_round(number)
        reply = server.federation.mean(Gradient(server.parameters, {})).reply
        rows = reply.gradients["embedding.tables.0.weight"].abs().amax(1) > 0
        assert rows.tolist() == [True, False, False, True]  # the class that all have, and what is withheld
    label = torch.tensor([0] * 12 + [1] * 9 + [2] * 10).to(torch.uint8)
    half = half_of(silos[0])
    codes = half.told(label.repeat(2), [generator(0), generator(1)], [1, 9])[:, 0].reshape(2, -1)
    counts = [[int((own == value).sum()) for value in range(3)] for own in codes]
    assert min(counts[0]) > 0 and all(count == 0 or count >= 9 for count in counts[1]) and 0 in counts[1]


def test_one_class_is_a_class_too_where_it_is_said_so(lab):
    x = torch.randn(30, 2, generator=generator(0))
    silo = Silo("a", x, torch.zeros(30).long(), secret=1)
    lab.server(lab.settings(classes=2), [silo])
    assert not half_of(silo).example(silo).y.clamp_min(0).any()  # class 0, or withheld


def test_noise_is_the_sources_given_a_class(lab):
    """One plan for all would give the class on the right the noise on the right."""
    means = {}
    for classes in (2, 0):
        silos = silos_of((400,))
        lab.ready(lab.settings("minibatch", classes=classes, batch=500), silos)
        pairs = half_of(silos[0]).draw(silos[0], silos[0].generator("batch", 0))
        means[classes] = float(pairs.x0[pairs.label == 0, 0].mean())
    assert abs(means[2]) < 4 / 250**0.5 and means[0] > 0.6  # E |N(0, 1)| is 0.8


def test_samples_of_a_class_are_of_that_class():
    settings = preset("lot")
    settings = replace(settings, flow=replace(settings.flow, classes=2, withheld=0.2, rate=1e-2))
    flow = train_flow(silos_of(), settings, rounds=250, batch=64)
    for label, centre in enumerate(CENTRES):
        x = flow.sample(300, label=label)
        assert (x.mean(0) - centre).norm() < 0.4
        assert ((x[:, 0] > 0) == (centre[0] > 0)).double().mean() > 0.97
    right = (flow.sample(600)[:, 0] > 0).double().mean()  # without a class: both
    assert 0.35 < float(right) < 0.65


def test_a_weight_sharpens_by_what_the_class_adds():
    """v(∅) + w (v(y) − v(∅)) until the time `until`, v(y) after it."""
    settings = preset("vanilla")
    flow = train_flow(silos_of(), replace(settings, flow=replace(settings.flow, classes=2)), rounds=3, batch=8)
    v, x = flow.velocity, torch.randn(5, 2, generator=generator(0))
    early, late = torch.tensor(0.2), torch.tensor(0.7)
    told, none = (lambda t: v(x, t, torch.ones(5, 1).long())), (lambda t: v(x, t))
    assert (told(early) - none(early)).abs().max() > 1e-3
    sharpened = v.of_class(1, weight=3.0, until=0.5)
    torch.testing.assert_close(sharpened(x, early), none(early) + 3 * (told(early) - none(early)))
    torch.testing.assert_close(sharpened(x, late), told(late))
    torch.testing.assert_close(v.of_class(1)(x, early), told(early))
    each = v.of_class(torch.tensor([0, 1, 0, 1, 0]))(x, late)
    torch.testing.assert_close(each[1::2], told(late)[1::2])
    torch.testing.assert_close(each[::2], v.of_class(0)(x, late)[::2])


class TestImages:
    images = ImageSettings(shape=(1, 4, 4), channels=4, multipliers=(1, 2), blocks=1, attention=(), dropout=0.0)

    def server(self, fused=True, classes=3, **flow):
        silos = []
        for number in range(2):
            x = torch.randint(256, (20, 16), generator=generator(number), dtype=torch.uint8)
            silos.append(Silo(f"s{number}", Pixels(x, torch.arange(20) % 3, (1, 4, 4)), secret=number))
        federation = Federation(silos, fused=fused)
        federation.open("classes", 0)
        options = {"network": "unet", "precision": "float64", "rounds": 4, "batch": 8, "classes": classes, **flow}
        base = preset("lot")
        return FlowServer(replace(base, flow=replace(base.flow, **options), images=self.images), federation)

    def trained(self, **options):
        server = self.server(**options)
        for _ in server.run():
            pass
        return server

    def test_recorded_passes_and_several_are_told_classes_as_well(self, monkeypatch):
        plain = self.trained(fused=False)
        parts = self.trained(fused=False, passes=3)
        monkeypatch.setattr(halves, "records", lambda *_: True)
        forget_pass()
        recorded = self.trained()
        forget_pass()
        for name, tensor in plain.parameters.items():
            torch.testing.assert_close(recorded.parameters[name], tensor, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(parts.parameters[name], tensor, rtol=1e-9, atol=1e-9)
        table = plain.network.embedding.tables[0].weight
        assert len(table) == 4  # and one row for a label that is withheld
        before = self.server().network.embedding.tables[0].weight
        assert ((table - before).abs().amax(1) > 0).all()  # all of them were trained

    def test_samples_are_compiled_in_parts_of_one_size(self, monkeypatch):
        monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
        torch._dynamo.reset()
        found = []
        for choice in (False, True):
            velocity = self.trained(compile=choice).velocity()
            velocity.prepare(torch.zeros(4, 16), 0)
            x = torch.randn(7, 16, generator=generator(3)).double()
            labels = torch.tensor([0, 1, 2, 0, 1, 2, 2])
            found.append(integrate(velocity.of_class(labels, weight=2.0), x, 3).x1)
            assert velocity.compiled is choice
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


class TestRefused:
    @pytest.mark.parametrize("method", ["got", "got-entropic", "got-balanced", "sd", "sd-protected"])
    def test_couplings_that_know_no_classes(self, method):
        settings = preset(method)
        with pytest.raises(UsageError, match="given a class, noise would no longer be distributed as the source"):
            replace(settings, flow=replace(settings.flow, classes=3))

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"classes": -1}, "flow.classes is -1"),
            ({"classes": 10**6}, "16384 at most"),
            ({"classes": 2, "withheld": 1.0}, "flow.withheld is 1.0"),
            ({"classes": 2, "withheld": 0.0}, "learned from those"),
        ],
    )
    def test_numbers_that_cannot_be(self, lab, change, why):
        with pytest.raises(UsageError, match=why):
            lab.settings(**change)

    def test_labels_that_are_none_of_the_classes(self, lab):
        with pytest.raises(QuorumError, match="silo 'a' has labels outside of 0 to 1"):
            lab.server(lab.settings(classes=2), silos_of(labels=lambda label: 5 * label))

    def test_points_without_labels(self, lab):
        with pytest.raises(QuorumError, match="the points of silo 'a' have no labels"):
            lab.server(lab.settings(classes=2), lab.silos())

    def test_classes_that_a_silo_counted_itself(self, lab):
        silos = silos_of()
        silos[1].own_classes = True
        with pytest.raises(QuorumError, match="silo 'b' has counted those of its samples itself"):
            lab.server(lab.settings(classes=2), silos)

    def test_networks_that_cannot_be_told(self, lab):
        with pytest.raises(UsageError, match="sizes"):
            lab.server(lab.settings(classes=2, network="potential-mlp"), silos_of())

    @pytest.mark.parametrize("label", [-1, 2, 0.5])
    def test_a_class_that_there_is_not(self, lab, label):
        velocity = lab.server(lab.settings(classes=2), silos_of()).velocity()
        with pytest.raises(UsageError, match="a number from 0 to 1"):
            velocity.of_class(label)

    def test_a_class_of_a_flow_that_knows_none(self, lab):
        velocity = lab.server(lab.settings(), lab.silos()).velocity()
        for ask in (
            lambda: velocity.of_class(0),
            lambda: velocity(torch.zeros(1, 2), torch.tensor(0.5), torch.zeros(1, 1)),
        ):
            with pytest.raises(UsageError, match="told no classes"):
                ask()

    def test_a_weight_without_a_class_or_that_lasts_too_long(self, lab):
        velocity = lab.server(lab.settings(classes=2), silos_of()).velocity()
        with pytest.raises(UsageError, match="sharpens a class, and none is given"):
            velocity.of_class(None, weight=2.0)
        with pytest.raises(UsageError, match="until t = 7"):
            velocity.of_class(1, until=7.0)
