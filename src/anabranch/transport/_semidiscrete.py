"""Semi-discrete optimal transport: a continuous source, finitely many atoms, one dual number an atom.

    max_g  E_{x0 ~ q0} [ min_j c(x0, x_j) − g_j ] + Σ_j ν_j g_j,        c(x0, x1) = ½‖x0 − x1‖²

Its supergradient in g_j is ν_j less the share of noises whose minimum is at j, so noises, looked up a batch at a time,
are all that fitting needs. The atoms may be spread over many holders: a noise belongs to the holder with the
smallest minimum, and each holder updates its own duals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.transport._atoms import Atoms
from anabranch.transport._cost import Nearest, half_squared_cost

_FEW = 64  # dimensions, in which groups of neighbours speed ascent up; beyond, points hardly have neighbours
_SLACKS = 2**24  # of starved atoms at noises, held at once
_TRIED, _HALVINGS = 512, 12  # noises, and how often the start halves its doubt


def bisect(points: Tensor, smallest: int) -> list[Tensor]:
    """Groups of neighbouring points by repeated halving along the widest axis: labels (n,), coarse to fine.

    The first level holds one group, each next twice as many, until a further halving would leave fewer than
    `smallest` points in a group. Groups of one level differ in size by at most one.
    """
    count = len(points)
    levels = [torch.zeros(count, dtype=torch.long)]
    groups = [torch.arange(count)]
    while count // (2 * len(groups)) >= smallest:
        halves: list[Tensor] = []
        for group in groups:
            x = points[group]
            axis = int((x.amax(0) - x.amin(0)).argmax())
            order = group[x[:, axis].argsort(stable=True)]
            halves += [order[: len(order) // 2], order[len(order) // 2 :]]
        groups = halves
        label = torch.empty(count, dtype=torch.long)
        for number, group in enumerate(groups):
            label[group] = number
        levels.append(label)
    return levels


@dataclass
class SemiDual:
    """One holder's part of the dual: atoms x (n, d), their masses ν (n,), duals g (n,) and their running average.

    Plain ascent moves every g_j by its own residual and takes for ever to lift a whole region. In few dimensions the
    residual of every group of a hierarchy therefore moves the group as one: coarse errors vanish in a few rounds, fine
    ones as fast as the sampling noise of the wins allows. In many there are no regions to lift, but a holder as a whole
    and single atoms, each by a step of its own size. It is the same ascent in other coordinates; the optimum is
    untouched.
    """

    atoms: Tensor
    masses: Tensor
    duals: Tensor
    average: Tensor
    recent: Tensor  # wins of each atom since starved ones were last looked for, and the noises asked since then
    averaged: int = 0
    unit: float = 1.0  # of steps, in many dimensions: what about parts a noise's best atom from the next

    def __post_init__(self) -> None:
        levels = [] if self.wide else bisect(self.atoms.cpu(), smallest=4)
        self._levels = [label.to(self.atoms.device) for label in levels]

    @property
    def wide(self) -> bool:
        """Whether these are many dimensions, in which duals start and move otherwise."""
        return self.atoms.shape[1] > _FEW

    @staticmethod
    def start(atoms: Tensor, masses: Tensor) -> SemiDual:
        """Duals of zero on these atoms."""
        if masses.shape != (len(atoms),) or not bool((masses > 0).all()):
            raise UsageError(f"{len(atoms)} atoms need as many positive masses; {tuple(masses.shape)} were given.")
        zeros = torch.zeros(len(atoms) + 1, dtype=torch.float64, device=atoms.device)
        return SemiDual(atoms, masses.to(zeros), zeros[1:].clone(), zeros[1:].clone(), zeros)

    @cached_property
    def _ready(self) -> Atoms:
        return Atoms(self.atoms)

    def begin(self, noise: Tensor) -> None:
        """In many dimensions, leaves zero for duals under which atoms of every length win; a few noises (m, d) tell.

        There x0·x_j is normal with a spread of r_j = ‖x_j − mean‖, whose largest values are those of the longest atoms:
        under duals of zero a few images win all noises, and ascent takes thousands of rounds to undo it. With
        g_j = ½‖x_j‖² − κ r_j a length is made up for; κ is where winners are as long as atoms are on average, which is
        where the dual is highest along this line. It is a start and no more; the optimum is untouched.

        The largest and the next of N such numbers differ by about r / (2 log N)^½, which is the unit of steps.
        """
        if not self.wide or bool(self.duals.any()):
            return
        some, x = noise[:_TRIED], self.atoms
        length = (x - x.mean(0)).norm(dim=1).double() * float(some.std())
        due = (self.masses * length).sum() / self.masses.sum()
        level = (x.square().sum(1) / 2 - x @ _centre(noise).to(x)).double()
        low, high = 0.0, (6 * math.log(len(x) + 1)) ** 0.5  # the longest of n normal numbers is near (2 log n)^½
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            self.duals = level - middle * length
            found = self.lookup(some)
            low, high = (middle, high) if length[found.index].mean() > due else (low, middle)
        self.duals = self.duals + found.value.double().mean()  # holders that start alone are then on one height
        reach, alone = float(due), float(x.norm(dim=1).mean() * some.std())
        reach = reach if reach > 1e-3 * alone else alone  # an atom alone, or among its like, is at the mean
        atoms_in_all = 1 / float(self.masses.mean())
        self.unit = reach / (2 * math.log(atoms_in_all + 1)) ** 0.5 or 1.0

    def lookup(self, noise: Tensor, average: bool = False) -> Nearest:
        """For each noise (m, d): min_j c(x0, x_j) − g_j, and the j that reaches it.

        While duals move a near tie may fall either way: a GPU then compares rounded numbers. With the average it does
        not.
        """
        return self._ready.lookup(noise, self.average if average else self.duals, rough=not average)

    def ascend(self, wins: Tensor, count: int, step: float, average: bool) -> None:
        """One step on the residual ν_j − wins_j / count; with `average`, g enters the average.

        In few dimensions a `step` of 1 moves g by the mass that is missing, in units of cost, on every level. In many
        it moves g by about one `unit` where an atom's share is off by as much as chance makes of it, see `step_at`.
        """
        residual = self.masses - wins.double() / count
        self.duals = self.duals + step * (self._own_steps(residual, count) if self.wide else self._levelled(residual))
        if average:
            self.averaged = int(self.averaged) + 1
            self.average = self.average + (self.duals - self.average) / self.averaged
        self.recent = self.recent + torch.cat([wins.double(), self.recent.new_tensor([count])])

    def _levelled(self, residual: Tensor) -> Tensor:
        """Each group's residual with a weight that falls with the fourth root of its size, over all levels."""
        move = residual.clone()
        for depth, label in enumerate(self._levels):
            groups = 2**depth
            missing = torch.zeros(groups, dtype=torch.float64, device=label.device).index_add_(0, label, residual)
            move += (missing * (groups / len(label)) ** 0.25)[label]
        return move

    def _own_steps(self, residual: Tensor, count: int) -> Tensor:
        """Residuals of atoms and of the holder, each over its deviation by chance, (ν / count)^½, and at most over ν.

        A share ν changes by about ν when its duals move by a unit: over ν alone is Newton's step, but where few noises
        or none are an atom's due, that would be a step on noise.
        """
        holder = self.masses.sum()
        mine = residual / torch.maximum((self.masses / count).sqrt(), self.masses)
        return self.unit * (mine + residual.sum() / torch.maximum((holder / count).sqrt(), holder))

    def feed(self, noise: Tensor, value: Tensor) -> None:
        """Raises the duals of starved atoms until each just reaches one of these noises, whose minima are `value`.

        An atom is starved when it won nothing since the last look, although twenty noises were its due. Ascent alone
        would lift it by its tiny mass a round. For one holder this is the c-transform of the c-transform, and so never
        lowers the dual.
        """
        if self.recent[-1] * self.masses.min() < 20:
            return
        starved = (self.recent[:-1] == 0).nonzero()[:, 0]
        self.duals = self.duals.clone()
        for some in torch.split(starved, max(1, _SLACKS // len(noise))) if len(starved) else ():
            slack = half_squared_cost(self.atoms[some], noise) - value - self.duals[some, None]
            self.duals[some] += slack.min(1).values.clamp_min(0)
        self.recent = torch.zeros_like(self.recent)

    def fit(self, draw: Callable[[int], Tensor], rounds: int, count: int, first: float, last: float) -> None:
        """Fits alone, for one holder of all atoms: `rounds` lookups of `count` noises from `draw`.

        Steps are those of `step_at`, with the spread of the first answers; the second half of the rounds is averaged.
        """
        spread = 0.0
        for number in range(1, rounds + 1):
            noise = draw(count)
            if number == 1:
                self.begin(noise)
            found = self.lookup(noise)
            self.feed(noise, found.value)
            spread = spread or float(found.value.std())
            step = step_at(number, rounds, first * spread, last * spread, self.atoms.shape[1])
            wins = torch.bincount(found.index, minlength=len(self.atoms))
            self.ascend(wins, count, step, average=number > rounds // 2)


def step_at(number: int, rounds: int, first: float, last: float, dimension: int) -> float:
    """The step of `ascend` in round 1, 2, … of `rounds`: from `first` to `last`, in equal ratios.

    In many dimensions it is t^(−⅔) in round t instead, of a unit that each holder finds itself: the fall that is known
    for averaged stochastic ascent on semi-discrete duals.
    """
    if dimension > _FEW:
        return math.pow(number, -2 / 3)
    return first * math.pow(last / first, (number - 1) / max(1, rounds - 1))


def _centre(noise: Tensor) -> Tensor:
    """The mean of a source (d,) from some of its points (m, d), drawn to zero by as much as chance makes of it."""
    mean = noise.mean(0)
    chance = noise.var(0, correction=0).sum() / max(1, len(noise) - 1)
    return mean * (1 - chance / mean.square().sum().clamp_min(1e-30)).clamp_min(0)


def lookup(noise: Tensor, atoms: Tensor, duals: Tensor) -> Nearest:
    """min_j ½‖x0 − x_j‖² − g_j and its argmin for each noise; where atoms are asked often, see `SemiDual.lookup`."""
    return Atoms(atoms).lookup(noise, duals)
