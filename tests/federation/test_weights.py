"""λ and who takes part: sums, refusals, and unbiasedness by enumeration."""

from itertools import combinations

import pytest

from anabranch.errors import UsageError
from anabranch.federation import Participation, weights
from anabranch.seeds import generator

LAMBDA = {"a": 0.6, "b": 0.3, "c": 0.1}
VALUE = {"a": 1.0, "b": -2.0, "c": 10.0}


class TestWeights:
    def test_by_size(self):
        assert weights("size", {"b": 10, "a": 30}) == {"a": 0.75, "b": 0.25}

    def test_uniform(self):
        assert weights("uniform", {"a": 1, "b": 99}) == {"a": 0.5, "b": 0.5}

    def test_as_given(self):
        assert weights({"b": 0.9, "a": 0.1}, {"a": 5, "b": 5}) == {"a": 0.1, "b": 0.9}

    @pytest.mark.parametrize("bad", [0.0, -0.5, float("nan"), float("inf")])
    def test_a_weight_that_is_not_positive_is_refused_by_name(self, bad):
        with pytest.raises(UsageError, match="silo 'a'"):
            weights({"a": bad, "b": 1.0}, {"a": 1, "b": 1})

    def test_weights_must_sum_to_one(self):
        with pytest.raises(UsageError, match=r"sum to 1\.2"):
            weights({"a": 0.6, "b": 0.6}, {"a": 1, "b": 1})

    @pytest.mark.parametrize(("given", "odd"), [({"a": 1.0}, "b"), ({"a": 0.4, "b": 0.4, "z": 0.2}, "z")])
    def test_missing_and_unknown_silos_are_named(self, given, odd):
        with pytest.raises(UsageError, match=rf"\({odd}\)"):
            weights(given, {"a": 1, "b": 1})

    def test_an_unknown_rule_is_refused_with_the_nearest(self):
        with pytest.raises(UsageError, match="did you mean 'uniform'"):
            weights("unifrom", {"a": 1})


def chosen_often(participation, times=4000, weight=LAMBDA):
    draws = generator(0, "participation")
    return [participation.choose(weight, draws) for _ in range(times)]


def aggregate(participation, names):
    return sum(s * VALUE[n] for s, n in zip(participation.share(LAMBDA, names), names, strict=True))


class TestParticipation:
    def test_all_takes_all(self):
        assert Participation().choose(LAMBDA, generator(0)) == ["a", "b", "c"]

    @pytest.mark.parametrize("rule", ["random", "weighted"])
    def test_so_many_different_ones_sorted(self, rule):
        for names in chosen_often(Participation(rule, 2), 100):
            assert len(set(names)) == 2 and names == sorted(names)

    def test_random_takes_every_pair_equally_often(self):
        seen = [tuple(names) for names in chosen_often(Participation("random", 2))]
        for pair in combinations("abc", 2):
            assert seen.count(pair) / len(seen) == pytest.approx(1 / 3, abs=0.04)

    def test_weighted_takes_one_with_the_chance_of_its_weight(self):
        seen = [names[0] for names in chosen_often(Participation("weighted", 1))]
        for name, chance in LAMBDA.items():
            assert seen.count(name) / len(seen) == pytest.approx(chance, abs=0.03)

    @pytest.mark.parametrize(
        "participation", [Participation(), Participation("random", 2), Participation("weighted", 2)]
    )
    @pytest.mark.parametrize("answered", [["a"], ["a", "c"], ["a", "b", "c"]])
    def test_renormalised_shares_sum_to_one(self, participation, answered):
        assert sum(participation.share(LAMBDA, answered)) == pytest.approx(1)

    def test_renormalised_shares_keep_the_proportions(self):
        assert Participation().share(LAMBDA, ["a", "b"]) == pytest.approx([2 / 3, 1 / 3])

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_the_unbiased_aggregate_of_random_silos_is_that_of_all_on_average(self, count):
        participation = Participation("random", count, unbiased=True)
        every = [aggregate(participation, list(names)) for names in combinations("abc", count)]
        assert sum(every) / len(every) == pytest.approx(sum(LAMBDA[n] * VALUE[n] for n in LAMBDA))

    def test_the_renormalised_aggregate_of_random_silos_is_biased(self):
        """Why the other one is offered."""
        every = [aggregate(Participation("random", 1), [name]) for name in "abc"]
        assert abs(sum(every) / 3 - sum(LAMBDA[n] * VALUE[n] for n in LAMBDA)) > 1

    def weighted(self, count):
        """The expectation over draws one after the other without replacement, by enumeration."""
        participation = Participation("weighted", count, unbiased=True)

        def walk(taken, chance):
            if len(taken) == count:
                return chance * aggregate(participation, sorted(taken))
            left = 1 - sum(LAMBDA[n] for n in taken)
            return sum(walk([*taken, n], chance * LAMBDA[n] / left) for n in LAMBDA if n not in taken)

        return walk([], 1.0)

    def test_one_silo_drawn_by_weight_is_unbiased(self):
        assert self.weighted(1) == pytest.approx(sum(LAMBDA[n] * VALUE[n] for n in LAMBDA))

    def test_several_silos_drawn_by_weight_do_not_pass_for_unbiased(self):
        with pytest.raises(UsageError, match="not quite unbiased"):
            Participation("weighted", 2, unbiased=True)

    def test_impossible_choices_are_refused(self):
        with pytest.raises(UsageError, match="did you mean 'random'"):
            Participation("randon", 2)
        for count in (None, 0):
            with pytest.raises(UsageError, match="count of at least 1"):
                Participation("random", count)
        with pytest.raises(UsageError, match="only 3"):
            Participation("random", 4).choose(LAMBDA, generator(0))

    def test_equal_generators_choose_alike(self):
        one, two = (chosen_often(Participation("weighted", 2), 20) for _ in range(2))
        assert one == two
