"""Rules: which expert counts how much. By labels alone, by a learned router, or by energy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.data.attributes import NULL, Coverage
from anabranch.errors import UsageError
from anabranch.methods.experts._mixture import Answers


@dataclass(frozen=True)
class Holders:
    """A label goes to the experts that have seen it, in proportion to how many of their samples have it (DCFM-A).

    A whole combination goes to its holders; one attribute to those who have met its outcome; no attribute to all, by
    size. A combination that nobody holds is left to `Marginals`. `top` > 0 keeps only so many of the largest.
    """

    coverage: Coverage
    top: int = 0

    def __call__(self, x: Tensor, t: Tensor, y: Tensor, answers: Answers) -> Tensor:
        matching = counts_of(self.coverage, y)
        lost = matching.sum(1) == 0
        if bool(lost.any()):
            matching[lost] = Marginals(self.coverage)(x, t, y, answers)[lost]
        return kept(matching, self.top)


@dataclass(frozen=True)
class Marginals:
    """DDM's router from label statistics alone: p(e | y) ∝ p(e) Π_i p(y_i | e) over the given attributes.

    It knows how often an expert has met each outcome, not which outcomes it met together. Where the product is zero for
    every expert, because none has met all of them, it is their mean over attributes. An expert whose counts are all
    zero, because its silo tells none, is not known to have met anything: p(e) = 0.
    """

    coverage: Coverage
    top: int = 0

    def __call__(self, x: Tensor, t: Tensor, y: Tensor, answers: Answers) -> Tensor:
        size = _table(self.coverage, y.device).flatten(1).sum(1)
        product = size.expand(len(y), -1).clone()
        total = torch.zeros_like(product)
        for place in range(y.shape[1]):
            alone = torch.full_like(y, NULL)
            alone[:, place] = y[:, place]
            met = counts_of(self.coverage, alone)
            product = product * met / size.clamp_min(1)  # who told no count has met nothing, and 0 / 0 is no share
            total = total + met / met.sum(1, keepdim=True).clamp_min(1)
        return kept(torch.where(product.sum(1, keepdim=True) > 0, product, total), self.top)


@dataclass(frozen=True)
class Learned:
    """DDM's learned router: p(e | x_t, t), a classifier of noised points, among the experts that have met the label.

    `logits` (x, t) → (n, experts) is trained by the server on the experts' own samples (McAllister et al. 2025).
    """

    coverage: Coverage
    logits: Router
    top: int = 1

    def __call__(self, x: Tensor, t: Tensor, y: Tensor, answers: Answers) -> Tensor:
        can = Marginals(self.coverage)(x, t, y, answers) > 0
        share = self.logits(x, t).double().masked_fill(~can, -torch.inf).softmax(1)
        return kept(share, self.top)


class Router(torch.nn.Module):
    """Which expert would have made this point? Logits (n, experts) from x (n, d) and t.

    An MLP: small beside an expert, so that asking it costs next to nothing.
    """

    def __init__(self, dimension: int, experts: int, hidden: int = 256) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(dimension + 1, hidden),
            torch.nn.SiLU(),
            torch.nn.Linear(hidden, hidden),
            torch.nn.SiLU(),
            torch.nn.Linear(hidden, experts),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        times = t.to(x.dtype).expand(len(x)).unsqueeze(1)
        logits: Tensor = self.layers(torch.cat([x, times], dim=1))
        return logits


@dataclass(frozen=True)
class Energies:
    """DFD: p(e | x, y) ∝ p(e | y) exp(−τ E_e(x, t, y)), with the energy E_e = ‖ε_e(x, t, y)‖² / 2 (Hahn and Lee 2025).

    ε_e is the noise that the expert sees in x. For the linear path it follows from the velocity, ε = x − t v. If x is
    likely under the expert's p_t, ε_e is close to a draw of N(0, I) and E_e to d/2; far from its data the noise it sees
    is larger. The energy is an estimate of −log p_t(x | e) up to a constant: exact where p_t is a Gaussian with the
    path's own deviation, and biased otherwise. In d dimensions energies differ by multiples of d, and the softmax would
    be an argmax: `per_dimension` divides by d.
    """

    coverage: Coverage
    temperature: float = 2.0
    per_dimension: bool = True
    top: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"The energies' factor τ is {self.temperature}; it must be 0 or a positive number.")

    def __call__(self, x: Tensor, t: Tensor, y: Tensor, answers: Answers) -> Tensor:
        prior = Marginals(self.coverage)(x, t, y, answers).double()
        times = t.to(x.dtype).expand(len(x)).unsqueeze(1)
        noise = x - times * answers()
        energy = noise.double().square().sum(2).T / 2
        if self.per_dimension:
            energy = energy / x.shape[1]
        return kept((prior.log() - self.temperature * energy).softmax(1), self.top)


def counts_of(coverage: Coverage, y: Tensor) -> Tensor:
    """How many samples of each expert (n, experts) have the given part of a label y (n, k)."""
    table = _table(coverage, y.device)
    sizes = coverage.space.sizes
    found = torch.zeros(len(y), len(table), dtype=torch.float64, device=y.device)
    for row in torch.unique(y != NULL, dim=0):  # the same attributes are given in few ways
        same = ((y != NULL) == row).all(1)
        given: list[int] = row.nonzero()[:, 0].tolist()
        rest = [place + 1 for place in range(len(sizes)) if place not in given]
        counts = table.sum(rest) if rest else table
        place_in_table = torch.zeros(int(same.sum()), dtype=torch.long, device=y.device)
        for place in given:
            place_in_table = place_in_table * sizes[place] + y[same][:, place]
        found[same] = counts.reshape(len(table), -1)[:, place_in_table].T
    return found


def _table(coverage: Coverage, device: torch.device) -> Tensor:
    """Counts (experts, |Y1|, …, |Yk|)."""
    counts = torch.stack([count.to(device, torch.float64) for count in coverage.counts.values()])
    return counts.reshape(len(counts), *coverage.space.sizes)


def kept(weight: Tensor, top: int) -> Tensor:
    """Rows that sum to one, of the `top` largest entries only (0: all); of equal ones the first.

    A row of zeros is one of which nothing is known: there all count alike.

    >>> kept(torch.tensor([[1.0, 3.0, 1.0], [0.0, 0.0, 0.0]]), top=2).tolist()
    [[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]]
    """
    weight = torch.where(weight.sum(1, keepdim=True) == 0, 1, weight)
    if top and top < weight.shape[1]:
        largest = weight.sort(dim=1, descending=True, stable=True).indices[:, :top]
        weight = torch.zeros_like(weight).scatter(1, largest, weight.gather(1, largest))
    return weight / weight.sum(1, keepdim=True)
