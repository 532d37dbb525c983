import numpy as np
import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import integrate, network
from anabranch.flow.conditioning import NULL, composed, conditioned, guided
from anabranch.seeds import generator


def points(count, dimension):
    x = 2 * torch.randn(count, dimension, generator=generator(0, "x"), dtype=torch.float64)
    return x, 0.02 + 0.96 * torch.rand(count, generator=generator(0, "t"), dtype=torch.float64)


class Counted:
    """A field that remembers how many rows each of its evaluations had."""

    def __init__(self, field):
        self.field, self.rows = field, []

    def __call__(self, x, t, y):
        self.rows.append(len(x))
        return self.field(x, t, y)


@pytest.mark.parametrize("sizes", [(3, 2), (2, 3, 2)])
def test_independent_attributes_compose_to_the_true_conditional_velocity(mixture, sizes):
    gaussians = mixture(sizes)
    x, t = points(60, len(sizes))
    codes = [torch.randint(NULL, size, (60,), generator=generator(0, i)) for i, size in enumerate(sizes)]
    y = torch.stack(codes, dim=1)
    torch.testing.assert_close(composed(gaussians.velocity)(x, t, y), gaussians.velocity(x, t, y))


def test_attributes_that_depend_on_each_other_do_not(mixture):
    gaussians = mixture(missing=[(2, 1), (0, 0)])
    x, t = points(60, 2)
    y = torch.tensor([[1, 1]]).expand(60, -1)
    assert (composed(gaussians.velocity)(x, t, y) - gaussians.velocity(x, t, y)).abs().max() > 0.1


def test_composed_samples_reach_a_combination_of_marginals(mixture):
    gaussians = mixture()
    x0 = torch.randn(4000, 2, generator=generator(1), dtype=torch.float64)
    code = torch.tensor([2, 1])
    generated = integrate(conditioned(composed(gaussians.velocity), code), x0, nfe=200, solver="midpoint").x1
    component = (gaussians.code == code).all(dim=1)
    torch.testing.assert_close(generated.mean(dim=0), gaussians.mean[component][0], atol=0.05, rtol=0)
    torch.testing.assert_close(generated.std(dim=0), gaussians.deviation[component][0], atol=0.03, rtol=0)


def test_weights_scale_each_attribute_and_one_weight_serves_all():
    effect = torch.tensor([[5.0, 7.0, 0.0], [11.0, 13.0, 0.0]])  # the last column is the null token

    def field(x, t, y):
        return x + effect[0][y[:, :1]] * effect[1][y[:, 1:]] + effect[0][y[:, :1]] + 3 * effect[1][y[:, 1:]]

    x, t, y = torch.ones(1, 1), torch.tensor(0.5), torch.tensor([[1, 0]])
    assert composed(field)(x, t, y).item() == 1 + 7 + 33
    assert composed(field, [2.0, 0.5])(x, t, y).item() == 1 + 14 + 16.5
    assert composed(field, 3.0)(x, t, y).item() == 1 + 21 + 99
    assert composed(field, [2.0, 0.5])(x, t, torch.tensor([[NULL, 0]])).item() == 1 + 16.5
    assert composed(field, 3.0)(x, t, torch.tensor([[NULL, NULL]])).item() == 1


@pytest.mark.parametrize("name", ["conditional-mlp", "additive-mlp"])
def test_without_attributes_it_is_the_unconditional_field(name):
    field = network(name, 2, seed=0, sizes=(3, 4))
    x, t = (value.float() for value in points(9, 2))
    nothing = torch.full((9, 2), NULL)
    torch.testing.assert_close(composed(field, 5.0)(x, t, nothing), field(x, t, nothing))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_it_is_one_pass_of_k_plus_one_rows_a_point(k):
    counted = Counted(network("conditional-mlp", 2, seed=0, sizes=[3] * k))
    x, t = (value.float() for value in points(10, 2))
    composed(counted)(x, t, torch.zeros(10, k, dtype=torch.int64))
    assert counted.rows == [10 * (k + 1)]


def test_an_attribute_that_is_not_given_has_no_weight_however_the_pass_rounds():
    def uneven(x, t, y):
        return x + torch.arange(len(x))[:, None]  # rows that differ by their place alone, as rounding may

    x, t = torch.zeros(1, 1), torch.tensor(0.5)
    assert composed(uneven, 9.0)(x, t, torch.tensor([[NULL, NULL]])).item() == 2
    assert composed(uneven, 9.0)(x, t, torch.tensor([[NULL, 0]])).item() == 2 + 9 * (1 - 2)


@pytest.mark.parametrize("name", ["conditional-mlp", "additive-mlp"])
def test_weights_may_end_early(name):
    field = network(name, 2, seed=0, sizes=(3, 4)).double()
    x, _ = points(8, 2)
    times = torch.linspace(0, 1, 8, dtype=torch.float64)
    y = torch.tensor([[1, 2], [NULL, 2]] * 4)
    found, early = composed(field, [3.0, 2.0], until=0.5)(x, times, y), times <= 0.5
    torch.testing.assert_close(found[early], composed(field, [3.0, 2.0])(x, times, y)[early])
    torch.testing.assert_close(found[~early], composed(field)(x, times, y)[~early])
    for place in (0, -1):
        alone = composed(field, [3.0, 2.0], until=0.5)(x, times[place], y)
        torch.testing.assert_close(alone, composed(field, [3.0, 2.0] if place == 0 else None)(x, times[place], y))
    with pytest.raises(UsageError, match="last until"):
        composed(field, 2.0, until=1.5)


def test_guidance_sharpens_the_whole_label_in_one_pass():
    counted = Counted(network("conditional-mlp", 2, seed=0, sizes=(3, 4)))
    x, t = (value.float() for value in points(6, 2))
    y, nothing = torch.tensor([[1, 2]] * 5 + [[NULL, NULL]]), torch.full((6, 2), NULL)
    found = guided(counted, 3.0)(x, t, y)
    assert counted.rows == [12]
    field = counted.field
    torch.testing.assert_close(found, field(x, t, nothing) + 3 * (field(x, t, y) - field(x, t, nothing)))
    torch.testing.assert_close(guided(field)(x, t, y), field(x, t, y))
    additive = network("additive-mlp", 2, seed=0, sizes=(3, 4))
    torch.testing.assert_close(guided(additive, 3.0)(x, t, y), composed(additive, 3.0)(x, t, y))
    early = torch.arange(6) < 3
    times = torch.where(early, 0.2, 0.8)
    ending = guided(counted, 3.0, until=0.5)(x, times, y)
    torch.testing.assert_close(ending[early], guided(field, 3.0)(x, times, y)[early])
    torch.testing.assert_close(ending[~early], field(x, times, y)[~early])
    guided(counted, 3.0, until=0.5)(x, torch.tensor(0.8), y)
    assert counted.rows[-1] == 6
    with pytest.raises(UsageError, match="last until"):
        guided(field, 3.0, until=-0.5)
    with pytest.raises(UsageError, match="weight of guidance"):
        guided(field, float("inf"))


def test_an_additive_field_composes_to_itself():
    field = network("additive-mlp", 2, seed=0, sizes=(3, 4)).double()
    x, t = points(9, 2)
    y = torch.stack([torch.arange(9) % 4 - 1, torch.arange(9) % 5 - 1], dim=1)
    torch.testing.assert_close(composed(field)(x, t, y), field(x, t, y))
    plain = composed(lambda *arguments: field(*arguments), [2.0, 0.5])  # by passes, not by its terms
    torch.testing.assert_close(composed(field, [2.0, 0.5])(x, t, y), plain(x, t, y))


def test_a_point_may_have_its_own_attributes_or_all_the_same():
    field = network("conditional-mlp", 2, seed=0, sizes=(3, 4))
    x0 = torch.randn(5, 2, generator=generator(0))
    same = integrate(conditioned(field, torch.tensor([1, 2])), x0, nfe=3).x1
    each = integrate(conditioned(field, torch.tensor([[1, 2]] * 5)), x0, nfe=3).x1
    torch.testing.assert_close(same, each)


def test_wrong_weights_get_a_sentence():
    for weights in ([], [float("nan")], float("inf")):
        with pytest.raises(UsageError, match="finite number for each attribute"):
            composed(lambda x, t, y: x, weights)
    for weights in ("a", "12", ["1", "2"], [None, 1.0], object(), np.array("a"), torch.tensor(1j), 10**400):
        with pytest.raises(UsageError, match="Give a finite number for each attribute"):
            composed(lambda x, t, y: x, weights)
    for make in (composed, guided):
        with pytest.raises(UsageError, match="cannot last until t = a"):
            make(lambda x, t, y: x, 2.0, "a")
    for weight in ("a", np.array("a"), torch.tensor(1j), 10**400):
        with pytest.raises(UsageError, match="The weight of guidance cannot be"):
            guided(lambda x, t, y: x, weight)
    with pytest.raises(UsageError, match="3 weights for 2 attributes"):
        composed(lambda x, t, y: x, [1.0, 1.0, 1.0])(torch.zeros(1, 2), torch.tensor(0.0), torch.zeros(1, 2).long())


def test_arrays_without_dimensions_are_numbers():
    x, t = points(5, 2)
    y = torch.zeros(5, 2, dtype=torch.long)
    field = lambda x, t, y: x * (y + 2).sum(1, keepdim=True)  # noqa: E731
    for two, half in ((torch.tensor(2.0), torch.tensor(0.5)), (np.float32(2.0), np.array(0.5))):
        for make in (composed, guided):
            assert torch.equal(make(field, two, half)(x, t, y), make(field, 2.0, 0.5)(x, t, y))
