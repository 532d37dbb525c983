from dataclasses import replace

import pytest
import torch
from scene import HELD, LEFT_BOTTOM, LEFT_TOP, NOVEL, RIGHT_BOTTOM, coverage

from anabranch.data.attributes import CORNERS, NULL, Coverage
from anabranch.errors import UsageError
from anabranch.flow.conditioning import composed
from anabranch.methods.experts import Energies, Holders, Learned, Marginals, Mixture, samples_of_experts, train_router

T = torch.tensor(0.5)
X = torch.zeros(1, 2)
COUNTS = Coverage(CORNERS, {"a": torch.tensor([30, 10, 0, 0]), "b": torch.tensor([0, 20, 0, 40])})


def codes(*labels):
    return CORNERS.decode(torch.tensor(labels))


def single(label, place):
    y = torch.full((1, 2), NULL)
    y[0, place] = codes(label)[0, place]
    return y


def never():
    raise AssertionError("The experts' answers are not needed.")


SILENT = Coverage(CORNERS, {**COUNTS.counts, "c": torch.zeros(4, dtype=torch.int64)})  # c tells none of its counts
UNKNOWN = Coverage(CORNERS, {name: torch.zeros(4, dtype=torch.int64) for name in "ab"})


class TestRules:
    def test_a_combination_goes_to_its_holders(self):
        weight = Holders(COUNTS)(X.expand(3, 2), T, codes(LEFT_TOP, LEFT_BOTTOM, RIGHT_BOTTOM), never)
        assert torch.allclose(weight, torch.tensor([[1, 0], [1 / 3, 2 / 3], [0, 1]], dtype=torch.float64))

    def test_an_attribute_goes_to_those_who_have_met_it_and_none_to_all(self):
        right, top = Holders(COUNTS)(X, T, single(NOVEL, 0), never), Holders(COUNTS)(X, T, single(NOVEL, 1), never)
        assert right.tolist() == [[0, 1]] and top.tolist() == [[1, 0]]
        nothing = Holders(COUNTS)(X, T, torch.full((1, 2), NULL), never)
        assert torch.allclose(nothing, torch.tensor([[0.4, 0.6]], dtype=torch.float64))

    def test_marginals_multiply(self):
        weight = Marginals(COUNTS)(X, T, codes(LEFT_BOTTOM), never)[0]
        a, b = 40 * (40 / 40) * (10 / 40), 60 * (20 / 60) * (60 / 60)
        assert torch.allclose(weight, torch.tensor([a, b], dtype=torch.float64) / (a + b))

    def test_marginals_of_what_no_expert_can_be_are_a_mean(self):
        weight = Marginals(COUNTS)(X, T, codes(NOVEL), never)  # only b has met right, only a has met top
        assert torch.allclose(weight, torch.tensor([[0.5, 0.5]], dtype=torch.float64))

    @pytest.mark.parametrize("rule", [Holders, Marginals])
    def test_weights_sum_to_one_and_top_keeps_one(self, rule):
        y = CORNERS.combinations()
        assert torch.allclose(rule(COUNTS)(X.expand(4, 2), T, y, never).sum(1), torch.ones(4, dtype=torch.float64))
        top = rule(COUNTS, top=1)(X.expand(4, 2), T, y, never)
        assert set(top.flatten().tolist()) == {0.0, 1.0} and top.sum(1).tolist() == [1] * 4

    @pytest.mark.parametrize("top", [1, 2])
    def test_ties_keep_the_first_and_no_more_than_top(self, top):
        alike = Coverage(CORNERS, {name: torch.tensor([10, 10, 0, 10]) for name in "abc"})
        weight = Holders(alike, top)(X, T, codes(LEFT_TOP), never)
        assert weight.tolist() == [[1 / top] * top + [0.0] * (3 - top)]

    @pytest.mark.parametrize("rule", [Holders, Marginals, Energies, Learned])
    def test_an_expert_whose_silo_tells_no_count_changes_nothing(self, rule):
        """Neither its own weight nor, by 0 / 0, that of the others."""
        y = torch.cat([CORNERS.combinations(), single(NOVEL, 0), single(NOVEL, 1), torch.full((1, 2), NULL)])
        x = torch.zeros(len(y), 2)

        def weights(coverage):
            count = len(coverage.counts)
            more = {Learned: {"logits": lambda x, t: torch.zeros(len(x), count), "top": 0}}.get(rule, {})
            return rule(coverage, **more)(x, T, y, lambda: torch.zeros(count, len(y), 2))

        without, beside = weights(COUNTS), weights(SILENT)
        assert torch.equal(beside[:, :2], without) and not beside[:, 2].any()
        assert beside[RIGHT_BOTTOM].tolist() == [0, 1, 0]  # only b has met right

    @pytest.mark.parametrize("rule", [Holders, Marginals, Energies])
    def test_where_nothing_is_known_of_any_silo_all_count_alike(self, rule):
        for y in (torch.full((1, 2), NULL), codes(LEFT_TOP)):
            assert rule(UNKNOWN)(X, T, y, lambda: torch.zeros(2, 1, 2)).tolist() == [[0.5, 0.5]]
        assert rule(UNKNOWN, top=1)(X, T, codes(LEFT_TOP), lambda: torch.zeros(2, 1, 2)).tolist() == [[1, 0]]

    def test_energy_prefers_the_expert_whose_density_is_higher(self):
        """Two experts with Gaussian data N(±m, s²): their exact velocities tell whose x is."""
        s, m, t = 0.2, 1.0, torch.tensor(0.7)
        variance = (1 - t) ** 2 + t**2 * s**2

        def velocity(centre, x):  # E[x1 − x0 | x_t] of a Gaussian
            slope = (t * s**2 - (1 - t)) / variance
            return centre + slope * (x - t * centre)

        x = torch.tensor([[0.7, 0.7], [-0.7, -0.7], [0.0, 0.0]])
        answers = torch.stack([velocity(torch.full((2,), m), x), velocity(torch.full((2,), -m), x)])
        both = Coverage(CORNERS, {"a": torch.tensor([10, 10, 0, 10]), "b": torch.tensor([10, 10, 0, 10])})
        weight = Energies(both, 2.0, per_dimension=False)(x, t, torch.full((3, 2), NULL), lambda: answers)
        assert weight[0, 0] > 0.9 and weight[1, 1] > 0.9
        assert weight[2].tolist() == pytest.approx([0.5, 0.5])
        # At x = t·m the first expert's noise is 0, the other's is x − t·v: the log of the ratio is τ E of it.
        noise = x[0] - t * answers[1, 0]
        assert float((weight[0, 0] / weight[0, 1]).log()) == pytest.approx(float(noise.square().sum()), rel=1e-4)

    def test_energies_never_ask_an_expert_that_has_not_met_the_label(self):
        weight = Energies(COUNTS)(X, T, single(NOVEL, 1), lambda: torch.zeros(2, 1, 2))
        assert weight.tolist() == [[1, 0]]


def constant(value):
    return lambda x, t, y: torch.full_like(x, value) + y.clamp_min(0).sum(1, keepdim=True).to(x.dtype)


class TestMixture:
    def test_is_the_weighted_mean_of_its_experts(self):
        mixture = Mixture({"a": constant(1.0), "b": constant(4.0)}, COUNTS, Holders(COUNTS))
        y = codes(LEFT_TOP, LEFT_BOTTOM, RIGHT_BOTTOM)
        value = mixture(torch.zeros(3, 2), T, y)
        expected = torch.tensor([1.0, 3.0, 4.0]) + y.sum(1)
        assert torch.allclose(value, expected[:, None].expand(3, 2))

    def test_experts_are_asked_only_where_they_count(self):
        asked = []

        def noting(x, t, y):
            asked.append(len(x))
            return torch.zeros_like(x)

        mixture = Mixture({"a": constant(0.0), "b": noting}, COUNTS, Holders(COUNTS))
        mixture(torch.zeros(3, 2), torch.full((3,), 0.5), codes(LEFT_TOP, LEFT_BOTTOM, RIGHT_BOTTOM))
        assert asked == [2]

    def test_novel_combinations_are_composed_and_known_ones_are_not(self):
        mixture = Mixture({"a": product, "b": product}, COUNTS, Holders(COUNTS))
        y = codes(NOVEL, LEFT_TOP, RIGHT_BOTTOM)
        x = torch.ones(3, 2)
        value = mixture.field(y)(x, T, y)
        assert torch.allclose(value[1:], mixture(x[1:], T, y[1:]))
        assert torch.allclose(value[:1], composed(mixture)(x[:1], T, y[:1]))
        assert not torch.allclose(mixture.field(y, "joint")(x, T, y)[:1], value[:1])
        assert torch.allclose(mixture.field(y, "composed")(x, T, y), composed(mixture)(x, T, y))

    def test_within_each_expert_adds_up_its_own_and_counts_by_the_whole_label(self):
        able = Coverage(CORNERS, {"a": torch.tensor([30, 10, 0, 20]), "b": torch.tensor([0, 20, 0, 40])})
        experts = {"a": product, "b": lambda x, t, y: 3 * product(x, t, y)}
        mixture, y, x = Mixture(experts, able, Holders(able)), codes(NOVEL, LEFT_BOTTOM), torch.ones(2, 2)
        sums = [composed(expert, [2.0, 1.0])(x, T, y) for expert in experts.values()]
        found = mixture.field(y, "within", [2.0, 1.0])(x, T, y)
        assert torch.allclose(found[0], sums[0][0])  # b has never met top
        assert torch.allclose(found[1], sums[0][1] / 3 + 2 * sums[1][1] / 3)
        assert not torch.allclose(found, mixture.field(y, "composed", [2.0, 1.0])(x, T, y))

    def test_within_composes_where_no_expert_has_met_all_attributes(self):
        mixture = Mixture({"a": product, "b": constant(2.0)}, COUNTS, Holders(COUNTS))
        y, x = codes(NOVEL, LEFT_TOP), torch.ones(2, 2)
        found = mixture.field(y, "within", [2.0, 1.0])(x, T, y)
        assert torch.allclose(found[:1], composed(mixture, [2.0, 1.0])(x[:1], T, y[:1]))
        assert torch.allclose(found[1:], composed(product, [2.0, 1.0])(x[1:], T, y[1:]))
        one = Mixture({"a": product}, Coverage(CORNERS, {"a": torch.ones(4, dtype=torch.int64)}), Holders(COUNTS))
        assert torch.equal(one.field(y, "within")(x, T, y), one.field(y, "composed")(x, T, y))

    def test_an_outcome_that_nobody_has_met_is_refused(self):
        narrow = Coverage(CORNERS, {"a": torch.tensor([1, 1, 0, 0])})
        mixture = Mixture({"a": constant(0.0)}, narrow, Holders(narrow))
        with pytest.raises(
            UsageError, match=r"with horizontal=right, so nothing is known.*; sample what silos tell of\.$"
        ):
            mixture.field(codes(NOVEL))
        silent = replace(narrow, withheld={"a": 3})
        with pytest.raises(UsageError, match=r"tell of\. \(A count below a smallest_group of a silo is told as 0\.\)$"):
            Mixture({"a": constant(0.0)}, silent, Holders(silent)).field(codes(NOVEL))

    def test_samples_follow_the_field(self):
        mixture = Mixture({"a": constant(1.0)}, COUNTS, Holders(COUNTS))
        flow = mixture.sample(codes(LEFT_TOP), torch.Generator().manual_seed(0), 4, dimension=2, how="joint")
        x0 = torch.randn(1, 2, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(flow.x1, x0 + 1) and flow.evaluations == 4


def product(x, t, y):
    return x * (y + 2).prod(1, keepdim=True)


def test_the_router_tells_experts_apart():
    """Experts that move everything to their own place: a router trained on their samples knows whose a point is."""
    places = {"a": torch.tensor([-2.0, 0.0]), "b": torch.tensor([2.0, 0.0])}

    def expert(place):
        return lambda x, t, y: (place - x) / (1 - t).clamp_min(0.05)

    experts = {name: expert(place) for name, place in places.items()}
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randn(300, 2, generator=generator)
    samples = samples_of_experts(experts, coverage(), 300, 20, x0, generator)
    router = train_router(samples, 150, 128, seed=0)
    rule = Learned(coverage(HELD), router, top=0)
    y = torch.full((2, 2), NULL)
    weight = rule(torch.stack(list(places.values())), torch.tensor(0.95), y, never)
    assert weight[0, 0] > 0.95 and weight[1, 1] > 0.95
    assert rule(X + 2, T, single(NOVEL, 1), never).tolist() == [[1, 0]]  # only a has met top


def test_an_expert_whose_silo_tells_no_count_is_asked_for_samples_without_attributes():
    asked = {}

    def noting(name):
        def field(x, t, y):
            asked[name] = sorted(set(map(tuple, y.tolist())))
            return torch.zeros_like(x)

        return field

    experts = {name: noting(name) for name in SILENT.counts}
    generator = torch.Generator().manual_seed(0)
    samples = samples_of_experts(experts, SILENT, 60, 2, torch.zeros(60, 2), generator)
    assert [each.shape for each in samples] == [(60, 2)] * 3
    assert asked == {"a": [(0, 0), (0, 1)], "b": [(0, 1), (1, 1)], "c": [(NULL, NULL)]}
