"""FedWAD against its theorems and against exact distances."""

from itertools import pairwise

import pytest
import torch

from anabranch import Federation, Silo
from anabranch.errors import QuorumError, UsageError
from anabranch.methods.fedwad import WadSettings, distance, distances
from anabranch.transport import measure, wasserstein


def points(size, dimension=2, seed=0, shift=0.0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, dimension, generator=generator) * scale + shift


def federation(trusting=True, **data):
    part = 1 if trusting else 4
    return Federation([Silo(name, x, secret=k, smallest_part=part) for k, (name, x) in enumerate(data.items())])


def exact(x, y, power=2.0):
    return float(wasserstein(measure(x.double()), measure(y.double()), power))


def test_translated_copies_halve_the_gap_each_round():
    """Theorem 3: with t = ½ and ξ a translate as well, ξ comes half as near to the middle in every round."""
    a = points(40)
    shift, offset = torch.tensor([4.0, 0.0]), torch.tensor([1.0, 3.0], dtype=torch.float64)
    start = measure(a.double() + offset)
    middle = measure(a.double() + shift.double() / 2)
    before = float(wasserstein(start, middle))
    for rounds in range(1, 8):
        settings = WadSettings(rounds=rounds, t=0.5, bounds=False, precision="float64")
        found = distance(federation(a=a, b=a + shift), "a", "b", settings, start=start)
        gap = float(wasserstein(found.measure, middle))
        assert gap == pytest.approx(before / 2**rounds, rel=1e-6)


def test_translated_copies_are_known_after_one_round():
    """Theorem 3: twice the distance between the two answers of the first round is the distance."""
    a, shift = points(40), torch.tensor([4.0, 2.0])
    start = measure(a.double() + torch.tensor([1.0, 3.0]))
    both = federation(a=a, b=a + shift)
    found = distance(both, "a", "b", WadSettings(rounds=1, t=0.5, bounds=False, precision="float64"), start=start)
    ends = [(a.double() + start.points) / 2, (a.double() + shift + start.points) / 2]
    assert 2 * float(wasserstein(measure(ends[0]), measure(ends[1]))) == pytest.approx(exact(a, a + shift), rel=1e-6)
    assert torch.allclose(found.measure.points.mean(0), (ends[0] + ends[1]).mean(0) / 2, atol=1e-6)


@pytest.mark.parametrize("block", range(4))
def test_the_bound_never_rises_with_exact_interpolation(block):
    """Theorem 2, on 200 random instances of all kinds."""
    for seed in range(block * 50, block * 50 + 50):
        generator = torch.Generator().manual_seed(seed)
        n, m, dimension = (int(torch.randint(*ends, (1,), generator=generator)) for ends in ((4, 14), (4, 14), (1, 4)))
        power = (1.0, 2.0, 3.0)[seed % 3]
        data = {"a": points(n, dimension, seed), "b": points(m, dimension, seed + 1000, shift=1.0)}
        settings = WadSettings(
            support=5, rounds=6, power=power, exact=True, reveal="each round", bounds=False, precision="float64"
        )
        found = distance(federation(**data), "a", "b", settings, seed)
        bounds = [r.bound for r in found.rounds] + [found.value]
        assert all(later <= earlier + 1e-6 for earlier, later in pairwise(bounds)), seed
        assert found.value >= exact(data["a"], data["b"], power) - 1e-9


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize(("n", "m"), [(40, 40), (60, 25)])
def test_exact_interpolation_reaches_the_exact_distance(power, n, m):
    a, b = points(n, seed=1), points(m, seed=2, shift=1.5)
    settings = WadSettings(support=30, rounds=15, power=power, exact=True, precision="float64")
    found = distance(federation(a=a, b=b), "a", "b", settings)
    truth = exact(a, b, power)
    assert truth - 1e-9 <= found.value <= 1.002 * truth
    assert found.lower <= truth
    assert max(r.support for r in found.rounds) <= 4 * (n + m)


def test_weights_of_a_measure_that_the_server_holds_count():
    a = points(50, seed=1)
    held = measure(points(20, seed=2, shift=1.0).double(), torch.arange(1.0, 21.0) / 210)
    settings = WadSettings(support=30, rounds=15, exact=True, precision="float64")
    found = distance(federation(a=a), "a", held, settings)
    truth = float(wasserstein(measure(a.double()), held))
    assert truth - 1e-9 <= found.value <= 1.002 * truth


def test_identical_data_is_at_distance_nothing():
    a = points(30)
    settings = WadSettings(support=30, rounds=40, t=0.5, exact=True, precision="float64")
    found = distance(federation(a=a, b=a.clone()), "a", "b", settings)
    assert found.value < 1e-6 and found.lower == 0
    assert distance(federation(a=a, b=a), "a", "a").value == 0


def test_random_places_reach_what_a_fixed_one_does_not():
    """With t = ½ the iteration rests where S = n and d is large, far from the optimum."""
    a, b = points(120, 20, seed=1), points(120, 20, seed=2, shift=0.5)
    value = {}
    for t in (0.5, None):
        settings = WadSettings(support=120, rounds=30, t=t, bounds=False, start="gaussian", precision="float64")
        value[t] = distance(federation(a=a, b=b), "a", "b", settings).value / exact(a, b)
    assert value[0.5] > 1.05 and value[None] < 1.03


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_in_high_dimension_the_three_values_enclose_the_truth(shift):
    a, b = points(300, 40, seed=1), points(300, 40, seed=2, shift=shift)
    found = distance(federation(False, a=a, b=b), "a", "b", WadSettings(support=30, rounds=15))
    truth = exact(a, b)
    assert found.lower <= truth <= found.value
    assert found.value > 1.15 * truth  # few atoms overstate,
    assert abs(found.debiased / truth - 1) < 0.06  # by what the silos can tell
    assert found.lower >= shift * 40**0.5 * 0.95


def test_many_pairs_at_once_are_the_pairs_one_by_one_but_in_fewer_messages():
    data = {name: points(80, 3, seed=k, shift=k * 0.5) for k, name in enumerate("abc")}
    settings = WadSettings(support=10, rounds=5, t=0.4, bounds=False)
    together = federation(**data)
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    found = distances(together, pairs, settings, start=measure(points(10, 3, seed=9)))
    for pair, one in zip(pairs, found, strict=True):
        alone = distance(federation(**data), *pair, settings, start=measure(points(10, 3, seed=9)))
        assert one.value == pytest.approx(alone.value, rel=1e-5)
    asked = {e.kind: e.messages for e in together.ledger.entries() if e.silo == "a"}
    assert asked["fedwad.interpolate"] == 5


def test_the_result_repeats_and_does_not_depend_on_the_order_of_silos():
    a, b = points(100, seed=1), points(100, seed=2)
    found = [
        distance(Federation(silos), "a", "b", WadSettings(support=10, rounds=4)).value
        for silos in (
            [Silo("a", a, secret=1), Silo("b", b, secret=2)],
            [Silo("b", b, secret=2), Silo("a", a, secret=1)],
        )
    ]
    assert found[0] == found[1]


def test_distances_are_revealed_only_when_asked_for():
    a, b = points(100, seed=1), points(100, seed=2)
    quiet, open_ = (
        distance(federation(a=a, b=b), "a", "b", WadSettings(support=10, rounds=3, t=0.4, bounds=False, reveal=reveal))
        for reveal in ("end", "each round")
    )
    assert all(r.value is None and r.bound is None for r in quiet.rounds)
    assert all(r.value is not None and r.bound is not None for r in open_.rounds)
    assert quiet.value == open_.value


def test_a_fixed_place_lets_the_iteration_rest():
    a = points(60)
    settings = WadSettings(support=15, rounds=50, t=0.5, tolerance=1e-3, bounds=False)
    found = distance(federation(a=a, b=a + 2), "a", "b", settings)
    assert found.converged and len(found.rounds) < 50 and found.rounds[-1].moved < 1e-3 * found.value


def test_bytes_are_counted_and_stay_below_the_data():
    a, b = points(10_000, 3, seed=1), points(10_000, 3, seed=2)
    found = distance(federation(False, a=a, b=b), "a", "b", WadSettings(support=100, rounds=20, bounds=False))
    assert all(0 < spent / 4 < 10_000 * 3 for spent in found.bytes.values())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"t": 0.0}, "strictly inside"),
        ({"t": 1.0}, "strictly inside"),
        ({"support": 0}, "support is 0"),
        ({"power": 0.9}, "p ≥ 1"),
        ({"rounds": 0}, "rounds is 0"),
        ({"start": "zero"}, "no start 'zero'"),
        ({"view": "klasses"}, "did you mean 'classes'"),
        ({"tolerance": 1.0}, "tolerance is 1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        WadSettings(**settings)


def test_unknown_silos_are_named():
    with pytest.raises(UsageError, match="no silo 'c'"):
        distance(federation(a=points(10), b=points(10)), "a", "c")


def test_data_without_classes_has_no_distance_between_classes():
    both = federation(a=points(100), b=points(100))
    with pytest.raises(QuorumError, match="has no labels"):
        distance(both, "a", "b", WadSettings(support=10, view="classes"))


def test_a_target_that_many_silos_hold_is_the_target_in_one_place():
    """Whoever holds which part: the value is an upper bound, and near that of the pooled data."""
    a = points(400, seed=1)
    whole = torch.cat([points(400, seed=2, shift=2.0), points(200, seed=3, shift=-2.0)])
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    settings = WadSettings(support=20, rounds=10, precision="float64")
    truth = exact(a, whole)
    pooled = distance(federation(a=a, b=whole), "a", "b", settings).value
    for parts in ((whole[:400], whole[400:]), tuple(whole[order].split(200))):
        silos = {f"b{k}": part for k, part in enumerate(parts)}
        found = distance(federation(False, a=a, **silos), "a", list(silos), settings)
        assert found.lower <= truth <= found.value
        assert found.value <= 1.03 * pooled
        assert set(found.bytes) == {"a", *silos}


def test_a_group_can_be_compared_with_a_measure_that_the_server_holds():
    held, parts = measure(points(300, seed=1).double()), points(600, seed=2, shift=1.0).split(300)
    both = federation(False, b=parts[0], c=parts[1])
    found = distance(both, held, ["b", "c"], WadSettings(support=20, rounds=10))
    truth = float(wasserstein(held, measure(torch.cat(parts).double())))
    assert truth <= found.value <= 1.25 * truth


def test_what_a_group_cannot_do_is_said():
    with pytest.raises(UsageError, match="one atom for each"):
        distance(federation(a=points(40), b=points(40)), "a", ["b"], WadSettings(exact=True))
