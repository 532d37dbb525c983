from itertools import product

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from anabranch.errors import UsageError
from anabranch.flow import network
from anabranch.flow.conditioning import NULL, Masking, all_masks, composed, masked_penalty
from anabranch.seeds import generator

NAMES = ["conditional-mlp", "additive-mlp"]
SIZES = (2, 3)


def batch(*shape):
    x = torch.randn(*shape, 2, generator=generator(0, "x"), dtype=torch.float64)
    t = torch.rand(shape, generator=generator(0, "t"), dtype=torch.float64)
    codes = [torch.randint(NULL, size, shape, generator=generator(0, "y", size)) for size in SIZES]
    return x, t, torch.stack(codes, dim=-1)


def test_the_conditional_network_is_the_stack_it_says():
    field = network("conditional-mlp", 2, seed=0, sizes=SIZES, hidden=8, layers=2, embedding=5).double()
    x, t, y = batch(6)
    told = [field.embedding.tables[i].weight[y[:, i] % (size + 1)] for i, size in enumerate(SIZES)]  # null is the last
    torch.testing.assert_close(field(x, t, y), field.stack(torch.cat([x, t[:, None], *told], dim=1)))
    assert field.stack[0].in_features == 2 + 1 + 2 * 5


@pytest.mark.parametrize("name", NAMES)
def test_one_time_serves_all_and_rows_do_not_see_each_other(name):
    field = network(name, 2, seed=0, sizes=SIZES).double()
    x, _, y = batch(6)
    t = torch.tensor(0.3, dtype=torch.float64)
    together = field(x, t, y)
    torch.testing.assert_close(together, field(x, t.expand(6), y))
    torch.testing.assert_close(together[2:3], field(x[2:3], t, y[2:3]))
    assert (field(x, t + 0.4, y) - together).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_every_attribute_and_its_absence_matters(name):
    field = network(name, 2, seed=0, sizes=SIZES).double()
    x, t, _ = batch(1)
    codes = torch.tensor(list(product(range(-1, 2), range(-1, 3))))
    answers = field(x.expand(12, -1), t.expand(12), codes)
    distance = torch.cdist(answers, answers) + torch.eye(12)
    assert distance.min() > 1e-4


def test_the_additive_network_is_additive():
    field = network("additive-mlp", 2, seed=0, sizes=SIZES).double()
    x, t, _ = batch(5)

    def at(a, b):
        return field(x, t, torch.tensor([[a, b]]).expand(5, -1))

    for a, other_a, b, other_b in product(range(-1, 2), range(-1, 2), range(-1, 3), range(-1, 3)):
        torch.testing.assert_close(at(a, b) - at(a, other_b), at(other_a, b) - at(other_a, other_b))
    timed = torch.cat([x, t[:, None]], dim=1)
    torch.testing.assert_close(at(NULL, NULL), field.base(timed))


@pytest.mark.parametrize("name", NAMES)
def test_stacked_experts_train_as_each_alone(name):
    """Gradients of a whole local loss, mapped over the parameters and batches of three experts."""
    experts = [network(name, 2, seed, sizes=SIZES).double() for seed in range(3)]
    parameters, buffers = stack_module_state(experts)
    x, t, y = batch(3, 10)
    masks, weight = Masking().masks(2)

    def local_loss(field, x, t, y):
        velocities = all_masks(field, x, t, y, masks)
        matching = (weight * (velocities - x).square().mean(dim=(1, 2))).sum()
        return matching + 5 * masked_penalty(velocities) + composed(field, [1.0, 2.0])(x, t, y).mean()

    def mapped_loss(parameters, x, t, y):
        return local_loss(lambda *arguments: functional_call(experts[0], parameters, arguments), x, t, y)

    together = vmap(grad(mapped_loss))(parameters, x, t, y)
    assert not buffers
    for place, expert in enumerate(experts):
        local_loss(expert, x[place], t[place], y[place]).backward()
        for key, parameter in expert.named_parameters():
            torch.testing.assert_close(together[key][place], parameter.grad)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_sizes_get_a_sentence(name):
    for sizes in ((2, 0), (2, 1.5), (True, 2)):
        with pytest.raises(UsageError, match="whole numbers"):
            network(name, 2, seed=0, sizes=sizes)
    with pytest.raises(UsageError, match="sizes is empty"):
        network(name, 2, seed=0, sizes=())
    with pytest.raises(UsageError, match="width 0"):
        network(name, 2, seed=0, sizes=SIZES, embedding=0)
