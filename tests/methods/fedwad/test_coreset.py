"""Coresets against closed forms and exact slopes; what their messages carry; labels and the classifier on them."""

import pytest
import torch

from anabranch import Federation, Silo
from anabranch.errors import DataError, QuorumError, UsageError
from anabranch.federation import Participation
from anabranch.methods.fedwad import (
    Coreset,
    CoresetSettings,
    exact_coreset,
    exact_slope,
    federated_slopes,
    label_coresets,
    learn_coreset,
    nearest_neighbour,
    silo_coresets,
)
from anabranch.transport import measure

sklearn = pytest.importorskip("sklearn.cluster")
pytest.importorskip("ot")


def points(size, dimension=2, seed=0, shift=0.0):
    return torch.randn(size, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


def federation(data, **options):
    return Federation([Silo(name, x, secret=7, **options) for name, x in data.items()])


def three(dimension=2, size=40):
    return {name: points(size, dimension, seed=k, shift=k).float() for k, name in enumerate("abc")}


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize("support", [4, 8])
def test_on_the_line_a_coreset_is_the_means_of_quantile_bins(support):
    """In one dimension the plan is monotone: the k-th point's best place is the mean of the k-th n/size samples."""
    x = points(80, 1).exp().float()
    settings = CoresetSettings(size=4, support=support, rounds=100)
    found = learn_coreset(federation({"a": x}), settings).points.flatten().sort().values
    assert torch.allclose(found, x.double().flatten().sort().values.reshape(4, 20).mean(1), atol=2e-3)


def test_the_exact_coreset_on_the_line_is_the_means_of_quantile_bins():
    x = points(80, 1).exp()
    found = exact_coreset({"a": x}, CoresetSettings(size=4, support=4, rounds=100, rate=0.5)).points
    assert torch.allclose(found.flatten().sort().values, x.flatten().sort().values.reshape(4, 20).mean(1), atol=1e-4)


def test_on_even_clusters_a_coreset_is_what_k_means_finds():
    centres = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    x = torch.cat([centre + points(20, seed=k).float() for k, centre in enumerate(centres)])
    found = learn_coreset(federation({"a": x}), CoresetSettings(size=4, support=4, rounds=100)).points
    best = torch.as_tensor(sklearn.KMeans(4, n_init=5, random_state=0).fit(x.numpy()).cluster_centers_).double()
    assert float(torch.cdist(best, found).min(1).values.max()) < 5e-3


@pytest.mark.parametrize("support", [3, 9])
@pytest.mark.parametrize("dimension", [2, 30])
def test_a_measure_that_begins_as_the_coreset_gives_the_exact_direction_in_one_round(support, dimension):
    data, place = three(dimension), points(3, dimension, seed=9, shift=4.0)
    silos = federation(data)
    silos.open("slopes", 0)
    slopes = federated_slopes(silos, dict.fromkeys(data, place), CoresetSettings(size=3, support=support))
    for name, x in data.items():
        exact = exact_slope(place, measure(x.double()))
        assert cosine(slopes[name].gradient, exact.gradient) > 1 - 1e-6
        assert slopes[name].distance == pytest.approx(exact.distance, rel=1e-6)


def test_a_measure_that_begins_as_a_gaussian_comes_near_the_direction():
    data, place = three(10), points(3, 10, seed=9, shift=2.0)
    silos = federation(data)
    silos.open("slopes", 0)
    settings = CoresetSettings(size=3, support=3, start="gaussian", inner_rounds=20)
    slopes = federated_slopes(silos, dict.fromkeys(data, place), settings)
    assert all(
        cosine(slopes[n].gradient, exact_slope(place, measure(x.double())).gradient) > 0.9 for n, x in data.items()
    )


def test_the_slope_is_that_of_the_distance():
    """Against differences of W₂ itself."""
    x, place = measure(points(12)), points(3, seed=5)
    slope = exact_slope(place, x)
    for k, axis in ((0, 0), (2, 1)):
        step = torch.zeros_like(place)
        step[k, axis] = 1e-5
        rise = (exact_slope(place + step, x).distance - exact_slope(place - step, x).distance) / 2e-5
        assert rise == pytest.approx(float(slope.gradient[k, axis]), abs=1e-6)


def test_the_objective_falls_to_that_of_exact_distances():
    data, settings = three(5), CoresetSettings(size=5, support=5, rounds=60)
    found, exact = learn_coreset(federation(data), settings), exact_coreset(data, settings)
    assert found.objective[0] == pytest.approx(exact.objective[0], rel=1e-5)  # one start, the same silos
    assert found.objective[-1] < 0.8 * found.objective[0]
    assert found.objective[-1] == pytest.approx(exact.objective[-1], rel=0.02)


def test_a_coreset_moves_with_the_data_and_scales_with_it():
    data, settings = three(), CoresetSettings(size=4, support=4, rounds=30)
    here, there = (
        learn_coreset(federation({n: factor * x + shift for n, x in data.items()}), settings, start=start)
        for factor, shift, start in ((1, 0, points(4, seed=3)), (4, 8, 4 * points(4, seed=3) + 8))
    )
    assert torch.allclose(there.points, 4 * here.points + 8, atol=1e-3)


def test_the_same_seed_gives_the_same_coreset_and_another_one_another():
    settings = CoresetSettings(size=2, support=2, rounds=5, active=2)
    first, again, other = (learn_coreset(federation(three()), settings, seed) for seed in (0, 0, 1))
    assert torch.equal(first.points, again.points)
    assert not torch.equal(first.points, other.points)


def test_every_round_asks_so_many_silos_and_other_ones():
    silos = federation(three())
    learn_coreset(silos, CoresetSettings(size=2, support=2, rounds=12, active=1))
    asked = {line.silo: line.messages for line in silos.ledger.entries() if line.kind == "fedwad.settle"}
    assert set(asked) == {"a", "b", "c"}
    assert sum(asked.values()) == 12


def test_silo_coresets_stand_for_one_silo_each():
    data = {"a": points(40).float(), "b": points(40, shift=50.0).float()}
    found = silo_coresets(federation(data), CoresetSettings(size=4, support=4, rounds=80))
    alone = learn_coreset(federation({"b": data["b"]}), CoresetSettings(size=4, support=4, rounds=80))
    for name, x in data.items():
        assert torch.allclose(found[name].points.mean(0), x.double().mean(0), atol=0.01)
        assert set(found[name].bytes) == {name}
    assert found["b"].objective[-1] == pytest.approx(alone.objective[-1], rel=0.05)


def test_messages_carry_no_more_than_documented():
    silos = federation(three(), smallest_part=10)
    found = learn_coreset(silos, CoresetSettings(size=4, support=4, rounds=5, active=2))
    lines = [line for line in silos.ledger.entries() if line.kind.startswith("fedwad")]
    assert {line.kind for line in lines} == {
        f"fedwad.{kind}{reply}" for kind in ("moments", "interpolate", "settle") for reply in ("", ".reply")
    }
    # Up go, in five rounds of two silos, four means of ten points each, and one distance: the rest are headers.
    for kind, numbers in (("interpolate", 4 * 2 + 4), ("settle", 2)):
        up = [line for line in lines if line.kind == f"fedwad.{kind}.reply"]
        assert sum(line.messages for line in up) == 10
        assert sum(line.bytes for line in up) < 10 * (4 * numbers + 400)
    assert found.bytes == {name: silos.ledger.bytes(silo=name) for name in "abc"}


def test_a_silo_refuses_a_coreset_that_would_be_its_points():
    with pytest.raises(QuorumError, match="gives no answer in 20 parts"):
        learn_coreset(federation(three()), CoresetSettings(size=20, support=20, rounds=1))


def labelled(smallest_group=1):
    x = torch.cat([points(20).float(), points(20, shift=10.0).float()])
    label = torch.tensor([0] * 20 + [1] * 20)
    return Federation([Silo("a", x, label, smallest_group=smallest_group, secret=1), Silo("b", x, label + 2, secret=2)])


def test_labels_are_those_of_the_nearest_samples():
    silos = labelled()
    coresets = silo_coresets(silos, CoresetSettings(size=2, support=2, rounds=40))
    labels = label_coresets(silos, coresets)
    for name, shift in (("a", 0), ("b", 2)):
        upper = coresets[name].points.mean(1) > 5
        assert torch.equal(labels[name], upper.long() + shift)
    assert torch.equal(label_coresets(silos, coresets, neighbours=5)["a"], labels["a"])
    one = {"a": coresets["a"]}
    x = torch.tensor([[0.0, 0.0], [11.0, 9.0]])
    assert nearest_neighbour(one, {"a": labels["a"]}, x).tolist() == [0, 1]


def test_a_silo_that_answers_for_groups_labels_by_majority_only():
    silos = labelled(smallest_group=5)
    coresets = silo_coresets(silos, CoresetSettings(size=2, support=2, rounds=2))
    with pytest.raises(QuorumError, match="fewer than 5 points"):
        label_coresets(silos, coresets)
    assert label_coresets(silos, coresets, neighbours=5)["a"].shape == (2,)


def test_a_silo_labels_no_more_points_than_it_has_parts():
    silos = labelled()
    x = torch.zeros(11, 2)
    with pytest.raises(QuorumError, match="gives no answer in 11 parts"):
        label_coresets(silos, {"a": Coreset(x, torch.full((11,), 1 / 11), ())})


def test_a_silo_without_labels_says_so():
    silos = federation(three())
    coresets = silo_coresets(silos, CoresetSettings(size=2, support=2, rounds=1))
    with pytest.raises(QuorumError, match="has no labels"):
        label_coresets(silos, coresets)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "size is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"active": -1}, "active is -1"),
        ({"size": 10, "support": 25}, "multiple of 10"),
        ({"start": "corset"}, "did you mean 'coreset'"),
        ({"rate": 1.5}, "share of the distance"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        CoresetSettings(**options)


def test_what_cannot_be_learned_from_is_refused():
    settings = CoresetSettings(size=2, support=2, rounds=1)
    with pytest.raises(UsageError, match="start of shape"):
        learn_coreset(federation(three()), settings, start=torch.zeros(3, 2))
    with pytest.raises(UsageError, match="without a participation"):
        learn_coreset(Federation([Silo("a", points(9))], participation=Participation("random", 1)), settings)
    with pytest.raises(UsageError, match="No data"):
        exact_coreset({}, settings)
    with pytest.raises(DataError, match="no points"):
        exact_coreset({"a": torch.zeros(0, 2)}, settings)
    with pytest.raises(UsageError, match="same silos"):
        nearest_neighbour({}, {}, torch.zeros(1, 2))
    with pytest.raises(UsageError, match="0 neighbours"):
        label_coresets(federation(three()), {}, 0)
