"""Coverage: which combinations were seen, by whom, and whether the others can follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from anabranch.data.attributes._design import follows, groups
from anabranch.data.attributes._space import AttributeSpace
from anabranch.data.attributes._words import named, quoted
from anabranch.errors import DataError, UsageError, unknown


@dataclass(frozen=True, eq=False)
class Coverage:
    """Who has seen which combination of the attribute space, from counts alone (DCFM, section 3.1).

    `counts` holds for each silo how many of its samples (|Y|,) each combination has; no sample is needed. The total
    coverage is C = #observed / |Y|, the marginal coverage M_i the share of observed outcomes of attribute i, and

        C_min = (1 + Σ_i (|Y_i| − 1)) / |Y|                                                    (DCFM, eq. 2).

    C ≥ C_min and M_i = 1 are necessary, not sufficient. `determined` asks what they stand for: whether a model of main
    effects a + Σ_i b_i(y_i) known on the observed combinations is known on another one, that is whether the row
    (1, e_{y_1}, …, e_{y_k}) lies in the span of the observed rows of the design matrix.

    A silo tells a count below its `smallest_group` as 0. `withheld` says of how many samples silos tell no count for
    that reason, where it is known; they may be of any combination.

    >>> space = AttributeSpace.of({"horizontal": ["left", "right"], "vertical": ["top", "bottom"]})
    >>> coverage = Coverage.of(space, {"a": torch.tensor([0, 0, 1]), "b": torch.tensor([3])})
    >>> coverage.share, coverage.minimum, coverage.marginal, coverage.novel
    (0.75, 0.75, {'horizontal': 1.0, 'vertical': 1.0}, tensor([2]))
    >>> coverage.problems(), coverage.holds("a").tolist(), [seen.tolist() for seen in coverage.seen("a")]
    ([], [True, True, False, False], [[True, False], [True, True]])
    """

    space: AttributeSpace
    counts: dict[str, Tensor]
    withheld: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.space.check()
        if not self.counts:
            raise UsageError("No silo gave its counts; there must be at least one.")
        for silo, count in self.counts.items():
            if count.shape != (len(self.space),) or count.dtype != torch.int64 or bool((count < 0).any()):
                raise DataError(
                    f"Silo '{silo}' gave counts of shape {tuple(count.shape)} and type {count.dtype}; it must give"
                    f" {len(self.space)} whole numbers, none below 0, one for each combination."
                )

    @staticmethod
    def of(space: AttributeSpace, labels: Mapping[str, Tensor]) -> Coverage:
        """The coverage of silos whose samples have these labels (n,)."""
        counts = {}
        for silo, label in labels.items():
            space.check_labels(label, f"Silo '{silo}'")
            counts[silo] = torch.bincount(label.cpu(), minlength=len(space))
        return Coverage(space, counts)

    @cached_property
    def total(self) -> Tensor:
        """Samples (|Y|,) of each combination, in all silos together."""
        return torch.stack([count.cpu() for count in self.counts.values()]).sum(0)

    @cached_property
    def observed(self) -> Tensor:
        """Whether some silo has seen a combination (|Y|,)."""
        return self.total > 0

    @property
    def known(self) -> Tensor:
        """Labels of the observed combinations."""
        return self.observed.nonzero()[:, 0]

    @property
    def novel(self) -> Tensor:
        """Labels of the combinations that no silo has seen."""
        return (~self.observed).nonzero()[:, 0]

    @property
    def needed(self) -> int:
        """1 + Σ_i (|Y_i| − 1): so many combinations must be observed at least (DCFM, eq. 2)."""
        return 1 + sum(size - 1 for size in self.space.sizes)

    @property
    def share(self) -> float:
        """C, the share of combinations that are observed."""
        return int(self.observed.sum()) / len(self.space)

    @property
    def minimum(self) -> float:
        """C_min (DCFM, eq. 2)."""
        return self.needed / len(self.space)

    @property
    def marginal(self) -> dict[str, float]:
        """M_i, the share of outcomes of each attribute that are observed."""
        seen = self._outcomes(self.observed)
        return {name: float(each.double().mean()) for name, each in zip(self.space.names, seen, strict=True)}

    def holds(self, silo: str) -> Tensor:
        """Whether a silo has seen a combination (|Y|,)."""
        if silo not in self.counts:
            raise unknown("silo", silo, self.counts)
        return self.counts[silo].cpu() > 0

    def seen(self, silo: str) -> list[Tensor]:
        """Of each attribute, whether a silo has met an outcome (|Y_i|,)."""
        return self._outcomes(self.holds(silo))

    @cached_property
    def determined(self) -> Tensor:
        """Whether the main effects of a combination follow from the observed ones (|Y|,)."""
        return follows(self.space.combinations(), self.observed, self.space.sizes)

    def problems(self, whose: bool = True) -> list[str]:
        """In words, what is missing for all combinations to be composed; nothing when the regime is feasible.

        Without `whose` it is not told which silos withhold how many counts.
        """
        found = [*self._unseen(), *self._too_few(), *self._undetermined()]
        return [*found, *self._untold()] if found and whose else found

    def check(self, force: bool = False) -> list[str]:
        """Refuses an infeasible regime with the explanation; with `force`, returns it as warnings instead."""
        problems = self.problems()
        if problems and not force:
            raise DataError(" ".join([*problems, "To try all the same, use --force (in Python, force=True)."]))
        return problems

    def _outcomes(self, combinations: Tensor) -> list[Tensor]:
        table = combinations.reshape(self.space.sizes)
        axes = range(self.space.k)
        return [table.movedim(axis, 0).flatten(1).any(dim=1) for axis in axes]

    def _unseen(self) -> list[str]:
        sentences, where = [], "no silo's counts" if any(self.withheld.values()) else "no silo"
        for (name, outcomes), seen in zip(self.space.attributes, self._outcomes(self.observed), strict=True):
            lost = [outcomes[number] for number in (~seen).nonzero()[:, 0].tolist()]
            if lost:
                words = ("Outcome", "occurs") if len(lost) == 1 else ("Outcomes", "occur")
                sentences.append(f"{words[0]} {quoted(named(name, lost))} {words[1]} in {where}.")
        return sentences

    def _untold(self) -> list[str]:
        """About samples of which no count is told: they may be of what is missing."""
        silos = [silo for silo, number in self.withheld.items() if number]
        if not silos:
            return []
        count = sum(self.withheld.values())
        whose = f"Silo {quoted(silos)} tells" if len(silos) == 1 else f"Silos {quoted(silos)} tell"
        return [
            f"{whose} no count of {count} {'sample' if count == 1 else 'samples'}, which may be what is missing: a"
            " count below a silo's smallest_group is told as 0. Bring more samples of each combination, or lower"
            " smallest_group there."
        ]

    def _too_few(self) -> list[str]:
        found, all_of_them = int(self.observed.sum()), len(self.space)
        if found >= self.needed:
            return []
        return [
            f"The coverage C = {found}/{all_of_them} is below C_min = {self.needed}/{all_of_them}: {self.needed}"
            f" combinations are needed, {found} are observed."
        ]

    def _undetermined(self) -> list[str]:
        """About combinations whose outcomes were all seen; of the others `_unseen` speaks."""
        met = torch.ones(self.space.sizes, dtype=torch.bool)
        for axis, seen in enumerate(self._outcomes(self.observed)):
            met &= seen.reshape([-1 if other == axis else 1 for other in range(self.space.k)])
        lost = (met.flatten() & ~self.determined).nonzero()[:, 0]
        if not len(lost):
            return []
        examples = " / ".join(self.space.describe(label) for label in lost[:3].tolist())
        some = "1 combination does" if len(lost) == 1 else f"{len(lost)} combinations do"
        sentence = f"{some} not follow from the observed ones, although their outcomes were all seen: {examples}"
        return [sentence + (" / …" if len(lost) > 3 else "."), *self._groups()]

    def _groups(self) -> list[str]:
        """For two attributes: the groups of outcomes that never occur together (a graph that is not connected)."""
        if self.space.k != 2:
            return []
        (first, rows), (second, columns) = self.space.attributes
        parts = groups(self.observed.reshape(self.space.sizes))
        said = [
            f"{quoted(named(first, [rows[i] for i in part.rows]), 3)} with"
            f" {quoted(named(second, [columns[j] for j in part.columns]), 3)}"
            for part in parts[:4]
        ]
        more = " | …" if len(parts) > 4 else ""
        missing = "1 combination that joins" if len(parts) == 2 else f"{len(parts) - 1} combinations that join"
        return [
            f"The outcomes fall into {len(parts)} groups that no observed combination connects:"
            f" {' | '.join(said)}{more}. Observe {missing} them."
        ]
