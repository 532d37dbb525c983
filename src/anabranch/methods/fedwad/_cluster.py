"""Which silos belong together, judged by the distances between them: spectral clustering (FedWAD, Appendix D.5).

Spectral clustering cuts a graph whose heavy links join what is *alike*. Distances say the opposite: used as they are,
they give groups no better than chance. They become affinities here, or a graph of nearest neighbours.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from anabranch.errors import AnabranchError, DataError, UsageError

TOLERANCE = 1e-6  # of the largest distance: what rounding may do to symmetry and to the diagonal
LEAST_AFFINITY = 1e-12  # beyond this silos are strangers; a true zero would tear the graph
PARTS_SHOWN = 6


def affinity(distances: Tensor, scale: float | None = None) -> Tensor:
    """exp(−½ ((D − r)₊ / σ)²): how alike silos are, (n, n), symmetric, in (0, 1], with ones on the diagonal.

    In high dimension even data sets of one kind are far apart, and those of other kinds but little farther. So r, the
    median distance to the nearest neighbour, is what all distances share, and the excess over it decides. σ is the
    `scale`, by default a quarter of the excess that nine pairs in ten stay below: quantiles, and not a mean or a
    minimum, because a single far silo or two equal ones must not set the scale for all.

    >>> affinity(torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 3.0], [3.0, 3.0, 0.0]]), scale=2.0)
    tensor([[1.0000, 1.0000, 0.6065],
            [1.0000, 1.0000, 0.6065],
            [0.6065, 0.6065, 1.0000]], dtype=torch.float64)
    """
    distances = _check(distances)
    if scale is not None and not 0 < scale < float("inf"):
        raise UsageError(f"scale is {scale}; affinities fall off over a positive, finite distance.")
    nearest = _others(distances).min(1).values
    excess = (distances - nearest.quantile(0.5)).clamp_min(0)
    # Where nearly all silos are equal, the quantile is zero or mere rounding.
    sigma = scale or max(float(_others(excess).quantile(0.9)) / 4, TOLERANCE * float(distances.max()))
    alike = torch.exp(-(excess / sigma).square() / 2) if sigma > 0 else torch.ones_like(excess)
    return alike.clamp_min(LEAST_AFFINITY).fill_diagonal_(1)


def neighbour_graph(distances: Tensor, neighbours: int) -> Tensor:
    """The graph of nearest neighbours (n, n): 1 between silos that are among each other's, ½ where only one is so.

    As in scikit-learn, a silo counts as the first of its own `neighbours`. The ½ matters: with 1 in its place, a small
    cluster whose members must look for neighbours outside is tied to others as firmly as within. Silos as near as the
    last neighbour are neighbours too, so that the graph does not depend on the order of the silos.

    >>> neighbour_graph(torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]]), 2).tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 0.5], [0.0, 0.5, 1.0]]
    """
    distances = _check(distances)
    if not 2 <= neighbours < len(distances):
        raise UsageError(
            f"{neighbours} neighbours were asked for, among {len(distances)} silos; a silo counts as its own, so give 2"
            " or more, and fewer than there are silos."
        )
    last = distances.kthvalue(neighbours, dim=1).values
    near = (distances <= last[:, None]).double()
    return (near + near.T) / 2


def cluster(distances: Tensor, clusters: int | None, graph: str | int = "affinity", seed: int = 0) -> Tensor:
    """The cluster of each silo (n,), numbered in order of first appearance.

    By scikit-learn's spectral clustering of the `affinity`, or, with a number as `graph`, of the graph of so many
    neighbours. Without a number of `clusters` it is taken where the eigenvalues of the normalised Laplacian leave the
    widest gap, from one to half as many as there are silos. That finds clear clusters in the affinity, is less sure in
    a graph of neighbours, whose links are few, and proves nothing where there are none.
    """
    distances = _check(distances)
    size = len(distances)
    if clusters is not None and not 1 <= clusters <= size:
        raise UsageError(f"{clusters} clusters were asked for; {size} silos make 1 to {size}.")
    if isinstance(graph, str) and graph != "affinity":
        raise UsageError(f"graph is '{graph}'; give 'affinity', or a number of neighbours, 3 or 5 for example.")
    links = affinity(distances) if isinstance(graph, str) else neighbour_graph(distances, graph)
    parts = _parts(links)
    wanted = _widest_gap(links) if clusters is None else clusters
    found = int(parts.max()) + 1
    if found > wanted:
        raise DataError(
            f"The graph of {graph} neighbours falls into {found} parts, more than the {wanted} clusters asked for:"
            f" silos {_listed(parts)}. Take more neighbours, graph='affinity', or more clusters."
        )
    if wanted == size:
        return torch.arange(size)
    return _renumbered(parts if found == wanted else _spectral(links, wanted, seed))


def groups(labels: Tensor, names: Sequence[str]) -> list[list[str]]:
    """The names in each cluster, in the order of the clusters' numbers.

    >>> groups(torch.tensor([0, 1, 0]), ["north", "south", "west"])
    [['north', 'west'], ['south']]
    """
    if labels.shape != (len(names),):
        raise UsageError(f"{len(names)} names were given for labels of shape {tuple(labels.shape)}; give one each.")
    numbers = labels.tolist()
    return [[name for name, number in zip(names, numbers, strict=True) if number == at] for at in sorted(set(numbers))]


def adjusted_rand_index(first: Tensor | Sequence[Hashable], second: Tensor | Sequence[Hashable]) -> float:
    """How far two clusterings agree: 1 for the same groups under any numbering, 0 on average for chance."""
    if len(first) != len(second):
        raise UsageError(f"One clustering has {len(first)} members, the other {len(second)}; compare them on the same.")
    codes = [_renumbered(side if isinstance(side, Tensor) else list(side)).numpy() for side in (first, second)]
    try:
        from sklearn.metrics import adjusted_rand_score
    except ImportError:
        raise _no_learn() from None
    return float(adjusted_rand_score(*codes))


def _spectral(links: Tensor, clusters: int, seed: int) -> Tensor:
    try:
        from sklearn.cluster import SpectralClustering
    except ImportError:
        raise _no_learn() from None
    with warnings.catch_warnings():  # several parts, fewer than clusters, are in order; the rest is checked below
        warnings.simplefilter("ignore")
        model = SpectralClustering(clusters, affinity="precomputed", random_state=seed % 2**32)
        labels = torch.as_tensor(model.fit(links.numpy()).labels_, dtype=torch.long)
    found = len(torch.unique(labels))
    if found < clusters:
        raise DataError(f"The silos fall into {found} clusters and not {clusters}; ask for {found} or fewer.")
    return labels


def _widest_gap(links: Tensor) -> int:
    """The k ≤ n/2 for which the Laplacian's k-th and next eigenvalue are farthest apart."""
    root = links.sum(1).rsqrt()
    laplacian = torch.eye(len(links), dtype=links.dtype) - root[:, None] * links * root
    gaps = torch.linalg.eigvalsh(laplacian)[: len(links) // 2 + 1].diff()
    return int(gaps.argmax()) + 1


def _parts(links: Tensor) -> Tensor:
    """The connected part that each silo belongs to, (n,)."""
    from scipy.sparse.csgraph import connected_components

    return torch.as_tensor(connected_components(links.numpy(), directed=False)[1], dtype=torch.long)


def _renumbered(labels: Tensor | list[Hashable]) -> Tensor:
    """The same groups, numbered in order of first appearance."""
    values = labels.tolist() if isinstance(labels, Tensor) else labels
    order = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return torch.tensor([order[value] for value in values])


def _listed(parts: Tensor) -> str:
    """The parts, smallest first: who is alone stands in front."""
    members = sorted(((parts == part).nonzero()[:, 0].tolist() for part in range(int(parts.max()) + 1)), key=len)
    shown = "; ".join(", ".join(map(str, part)) for part in members[:PARTS_SHOWN])
    return shown if len(members) <= PARTS_SHOWN else f"{shown}; and {len(members) - PARTS_SHOWN} parts more"


def _others(matrix: Tensor) -> Tensor:
    """The matrix without its diagonal, (n, n − 1)."""
    size = len(matrix)
    return matrix[~torch.eye(size, dtype=torch.bool)].reshape(size, size - 1)


def _check(distances: Tensor) -> Tensor:
    """The distances in float64 on the CPU, exactly symmetric, once they are seen to be distances."""
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1]:
        raise UsageError(f"The distances have shape {tuple(distances.shape)}; give those of all pairs, (n, n).")
    if len(distances) < 2:
        raise UsageError(f"Distances between {len(distances)} silos were given; clustering needs two or more.")
    values = distances.detach().cpu().double()
    if not bool(values.isfinite().all()):
        raise DataError("The distances hold numbers that are not finite; leave out silos whose distances are missing.")
    if bool((values < 0).any()):
        raise DataError(f"The distances hold {float(values.min()):.3g}; give distances, which are never negative.")
    largest = TOLERANCE * float(values.max())
    if bool(((values - values.T).abs() > largest).any()):
        raise DataError("The distances are not symmetric; give (D + Dᵀ)/2 if both directions estimate one distance.")
    if bool((values.diagonal() > largest).any()):
        raise DataError("The distances' diagonal is not zero; a silo is at no distance from itself, so set it to zero.")
    return ((values + values.T) / 2).fill_diagonal_(0)


def _no_learn() -> AnabranchError:
    return AnabranchError('Clustering needs scikit-learn, which is not installed; pip install "anabranch[learn]".')
