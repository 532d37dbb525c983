"""Clusters of silos: planted ones are found, and what are no distances is refused."""

import math
import sys
import warnings

import numpy as np
import pytest
import torch

from anabranch.errors import AnabranchError, DataError, UsageError
from anabranch.methods.fedwad._cluster import adjusted_rand_index, affinity, cluster, groups, neighbour_graph
from anabranch.seeds import generator

sklearn_cluster = pytest.importorskip("sklearn.cluster")


def planted(seed, sizes, within=0.7, noise=0.03):
    """Distances about `within` inside each cluster and 1 to 1.3 between them, and the clusters, in random order."""
    random = generator(seed, "cluster")
    truth = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    truth = truth[torch.randperm(len(truth), generator=random)]
    means = 1 + 0.3 * torch.rand(len(sizes), len(sizes), generator=random, dtype=torch.float64)
    means.fill_diagonal_(within)
    rough = means[truth][:, truth] * (1 + noise * torch.randn(len(truth), len(truth), generator=random))
    upper = rough.triu(1)
    return upper + upper.T, truth


@pytest.fixture(autouse=True)
def no_warning_leaks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("within", [0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("sizes", [[2] * 5, [4] * 5, [12] * 5, [2, 3, 4, 5, 6], [15, 5], [18, 2]])
def test_planted_clusters_are_found(sizes, within):
    distances, truth = planted(0, sizes, within, noise=0.03 if within < 0.9 else 0.01)
    labels = cluster(distances, len(sizes))
    assert labels.dtype == torch.long
    assert adjusted_rand_index(labels, truth) == 1.0


@pytest.mark.parametrize("neighbours", [3, 5])
def test_planted_clusters_are_found_in_the_graph_of_neighbours(neighbours):
    for sizes in ([12] * 5, [8, 10, 12]):
        distances, truth = planted(1, sizes)
        assert adjusted_rand_index(cluster(distances, len(sizes), neighbours), truth) == 1.0


def test_distances_used_as_affinities_find_nothing():
    distances, truth = planted(2, [4] * 5)
    model = sklearn_cluster.SpectralClustering(5, affinity="precomputed", random_state=0)
    assert adjusted_rand_index(torch.tensor(model.fit(distances.numpy()).labels_), truth) < 0.3
    assert adjusted_rand_index(cluster(distances, 5), truth) == 1.0


@pytest.mark.parametrize("sizes", [[4] * 5, [12] * 5, [3] * 10, [10, 10], [15, 5], [20]])
def test_the_number_of_planted_clusters_is_found(sizes):
    distances, truth = planted(3, sizes)
    assert adjusted_rand_index(cluster(distances, None), truth) == 1.0


@pytest.mark.parametrize("neighbours", [3, 5])
def test_the_number_is_found_in_the_graph_of_neighbours_where_clusters_are_as_large(neighbours):
    distances, truth = planted(4, [neighbours] * 4)  # every cluster is a complete graph: eigenvalues 0 and 1 only
    assert adjusted_rand_index(cluster(distances, None, neighbours), truth) == 1.0


@pytest.mark.parametrize("graph", ["affinity", 3, 5])
def test_the_order_and_the_unit_of_the_distances_do_not_matter(graph):
    distances, _ = planted(5, [6, 7, 8])
    order = torch.randperm(21, generator=generator(6))
    labels = cluster(distances, 3, graph)
    assert torch.equal(cluster(1e4 * distances, 3, graph), labels)
    moved = cluster(distances[order][:, order], 3, graph)
    assert adjusted_rand_index(moved, labels[order]) == 1.0
    for found in (labels, moved):  # numbered in order of first appearance
        assert list(dict.fromkeys(found.tolist())) == [0, 1, 2]


def test_a_far_silo_does_not_hide_the_others():
    distances, truth = planted(7, [6] * 4, within=0.9, noise=0.01)
    far = torch.nn.functional.pad(distances, (0, 1, 0, 1), value=100.0)
    far[-1, -1] = 0
    assert float(affinity(far).min()) > 0
    assert adjusted_rand_index(cluster(far, 5), [*truth.tolist(), 9]) == 1.0


def test_two_equal_silos_do_not_hide_the_others():
    for seed in range(5):
        distances, truth = planted(seed, [12] * 5, within=0.9, noise=0.01)
        order = torch.tensor([0, *range(60)])
        assert adjusted_rand_index(cluster(distances[order][:, order], None), truth[order]) == 1.0


def test_affinities_fall_with_the_distance():
    distances, _ = planted(8, [3, 4, 5])
    alike = affinity(distances)
    assert torch.equal(alike, alike.T) and bool((alike.diagonal() == 1).all())
    assert bool((alike > 0).all()) and bool((alike <= 1).all())
    order = distances.flatten().argsort()
    assert bool((alike.flatten()[order].diff() <= 0).all())
    assert torch.equal(affinity(distances.float()).round(decimals=4), alike.round(decimals=4))


def test_the_scale_is_where_affinities_fall_off():
    distances = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 5.0], [3.0, 5.0, 0.0]])  # nearest: 1, 1, 3; the median is 1
    found = affinity(distances, scale=2.0)
    assert float(found[0, 1]) == 1.0
    assert float(found[0, 2]) == pytest.approx(math.exp(-1 / 2))
    assert float(found[1, 2]) == pytest.approx(math.exp(-2))
    with pytest.raises(UsageError, match="positive, finite"):
        affinity(distances, scale=0.0)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-300])
def test_silos_that_are_all_alike_are_one_cluster(value):
    distances = value * (1 - torch.eye(6, dtype=torch.float64))
    assert torch.equal(affinity(distances), torch.ones(6, 6, dtype=torch.float64))
    assert cluster(distances, None).tolist() == [0] * 6


def test_equal_silos_and_a_stranger():
    distances = torch.zeros(21, 21)
    distances[20, :20] = distances[:20, 20] = 1.0
    assert cluster(distances, 2).tolist() == [0] * 20 + [1]


@pytest.mark.parametrize("neighbours", [2, 3, 5])
def test_the_graph_of_neighbours_is_scikit_learns(neighbours):
    distances, _ = planted(9, [5, 6, 7])
    model = sklearn_cluster.SpectralClustering(3, affinity="precomputed_nearest_neighbors", n_neighbors=neighbours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.fit(distances.numpy()).affinity_matrix_.toarray()
    np.testing.assert_array_equal(neighbour_graph(distances, neighbours).numpy(), expected)


def test_equally_near_silos_are_all_neighbours():
    distances = 1 - torch.eye(5)
    assert torch.equal(neighbour_graph(distances, 2), torch.ones(5, 5, dtype=torch.float64))


def test_a_graph_in_as_many_parts_as_clusters_needs_no_search(monkeypatch):
    distances, truth = planted(10, [3] * 4)
    assert int(cluster(distances, 6, 3).max()) == 5  # fewer parts than clusters: some part is cut
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    assert adjusted_rand_index(cluster(distances, 4, 3), truth) == 1.0


def test_a_graph_in_too_many_parts_says_who_is_alone():
    distances = torch.full((7, 7), 10.0)
    distances[:2, :2] = 1.0
    distances[2:, 2:] = 1.0
    distances.fill_diagonal_(0)
    distances[2:, 2:] += 0.1 * (torch.arange(5)[:, None] - torch.arange(5)).abs()
    with pytest.raises(DataError, match=r"2 parts, more than the 1 clusters.*silos 0, 1; 2, 3, 4, 5, 6\. Take more"):
        cluster(distances, 1, 2)
    assert cluster(distances, 2, 2).tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_one_cluster_for_all_and_one_for_each():
    distances, _ = planted(11, [3, 3])
    assert cluster(distances, 1).tolist() == [0] * 6
    assert cluster(distances, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert sorted(set(cluster(distances, 5).tolist())) == [0, 1, 2, 3, 4]
    two = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert cluster(two, None).tolist() == [0, 0] and cluster(two, 2).tolist() == [0, 1]


def test_rounding_is_forgiven():
    distances, truth = planted(12, [4] * 3)
    rough = distances + 1e-8 * torch.rand(12, 12, generator=generator(13))
    assert adjusted_rand_index(cluster(rough, 3), truth) == 1.0


def bad(**changes):
    distances = 1 - torch.eye(4)
    for place, value in changes.items():
        i, j = map(int, place.removeprefix("at"))
        distances[i, j] = value
    return distances


@pytest.mark.parametrize(
    ("distances", "sentence"),
    [
        (torch.zeros(3, 4), r"shape \(3, 4\)"),
        (torch.zeros(4), r"shape \(4,\)"),
        (torch.zeros(1, 1), "two or more"),
        (torch.zeros(0, 0), "two or more"),
        (bad(at01=1.1), "not symmetric"),
        (bad(at01=-1.0, at10=-1.0), "never negative"),
        (bad(at01=math.nan, at10=math.nan), "not finite"),
        (bad(at01=math.inf, at10=math.inf), "not finite"),
        (bad(at11=0.5), "diagonal is not zero"),
    ],
)
@pytest.mark.parametrize("use", [affinity, lambda d: neighbour_graph(d, 2), lambda d: cluster(d, 2)])
def test_what_are_no_distances_is_refused(use, distances, sentence):
    with pytest.raises((DataError, UsageError), match=sentence):
        use(distances)


def test_numbers_out_of_range_are_refused():
    distances = bad()
    for clusters in (0, 5):
        with pytest.raises(UsageError, match=f"{clusters} clusters were asked for; 4 silos make 1 to 4"):
            cluster(distances, clusters)
    for neighbours in (1, 4):
        with pytest.raises(UsageError, match=f"{neighbours} neighbours were asked for, among 4 silos"):
            cluster(distances, 2, neighbours)
    with pytest.raises(UsageError, match="give 'affinity'"):
        cluster(distances, 2, "distance")


def test_groups_are_lists_of_names():
    assert groups(torch.tensor([0, 1, 0, 2]), ["a", "b", "c", "d"]) == [["a", "c"], ["b"], ["d"]]
    with pytest.raises(UsageError, match="give one each"):
        groups(torch.tensor([0, 1]), ["a"])


def test_the_adjusted_rand_index_knows_no_numbering():
    assert adjusted_rand_index(torch.tensor([0, 0, 1, 1]), ["b", "b", "a", "a"]) == 1.0
    assert adjusted_rand_index([(0, 1), (2, 3), (0, 1), (2, 3)], [0, 0, 1, 1]) == pytest.approx(-0.5)
    with pytest.raises(UsageError, match="on the same"):
        adjusted_rand_index([0, 1], [0])


def test_without_scikit_learn_a_sentence_says_what_to_install(monkeypatch):
    distances, _ = planted(14, [3, 3])
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(AnabranchError, match=r"anabranch\[learn\]"):
        cluster(distances, 2)
