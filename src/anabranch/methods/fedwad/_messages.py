"""Everything that a federated Wasserstein distance sends. This page is its whole privacy surface.

Every question may serve several comparisons at once: its tensors begin with one entry for each pair (P, …) that the
silo belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from anabranch.errors import MessageError
from anabranch.federation import Message


@dataclass(frozen=True)
class Moments(Message, kind="fedwad.moments"):
    """Asks for the mean and the scale of a silo's data in a view.

    Reveals: nothing of the data.
    """

    view: str


@dataclass(frozen=True)
class MomentsReply(Message, kind="fedwad.moments.reply"):
    """Mean and standard deviation of every coordinate (d,).

    Reveals: those averages over all of the silo's points; the mean of each class as well, where the view holds it.
    """

    mean: Tensor
    deviation: Tensor

    def validate(self, question: Message) -> None:
        """As many deviations as means."""
        if self.mean.ndim != 1 or self.mean.shape != self.deviation.shape or not self.mean.is_floating_point():
            raise MessageError("Moments arrived that are not one mean and one deviation for each coordinate.")


@dataclass(frozen=True)
class Interpolate(Message, kind="fedwad.interpolate"):
    """Gives ξ, as points (P, S, d) and weights (P, S), and asks for a measure between it and the silo's data.

    With `exact` every cell of the optimal plan is answered, at most `most` of them (FedWAD, eq. 5), otherwise one atom
    for each of ξ (eq. 10). Where `t` is missing the silo draws its own, which it tells nobody.

    Reveals: nothing of the data beyond what ξ has learned from all silos.
    """

    points: Tensor
    weight: Tensor
    view: str
    power: float
    exact: bool
    most: int
    reveal: bool
    t: float | None = None

    def answers(self) -> int:
        """One for each ξ."""
        return len(self.points)


@dataclass(frozen=True)
class InterpolateReply(Message, kind="fedwad.interpolate.reply"):
    """The measures between ξ and the data; where asked for, W_p from the data to ξ and to the answer itself, (P,).

    Reveals: each atom is a mean of the n/S points matched with one atom of ξ, moved towards that atom by 1 − t. Who
    knows t, as the server does when it sets it, has those means; who does not can often guess it. With S ≥ n, or
    `exact`, a mean rests on one point: **then the data itself is rebuilt.** So a silo refuses more than one atom for
    each `smallest_part` points, four by default. Many rounds give many different means of the same points.
    """

    points: Tensor
    weight: Tensor
    distance: Tensor | None = None
    apart: Tensor | None = None

    def validate(self, question: Message) -> None:
        """As many measures as were asked for, in the same space, with weights that sum to one."""
        if not isinstance(question, Interpolate):
            return
        pairs, size, dimension = question.points.shape
        fits = size if not question.exact else self.weight.shape[-1]
        if self.points.shape != (pairs, fits, dimension) or self.weight.shape != (pairs, fits):
            raise MessageError(
                f"Measures arrived as {tuple(self.points.shape)}, {(pairs, size, dimension)} were asked."
            )
        if fits > max(question.most, size) or self.points.dtype != question.points.dtype:
            raise MessageError(f"A measure of {fits} atoms in {self.points.dtype} arrived, which was not asked for.")
        if bool((self.weight < 0).any()) or bool(((self.weight.double().sum(1) - 1).abs() > 1e-3).any()):
            raise MessageError("A measure arrived whose weights are negative or do not sum to one.")
        for values in (self.distance, self.apart):
            _check_scalars(values, pairs if question.reveal else None, "distances")


@dataclass(frozen=True)
class Demand(Message, kind="fedwad.demand"):
    """Gives ξ with a price on every atom (S,), and asks how much of the silo's mass would go to each at these prices.

    `softness` ε > 0 spreads a point over atoms that cost it about the same.

    Reveals: nothing of the data beyond what ξ and the prices have learned from all silos.
    """

    points: Tensor
    weight: Tensor
    price: Tensor
    view: str
    power: float
    softness: float


@dataclass(frozen=True)
class DemandReply(Message, kind="fedwad.demand.reply"):
    """The share of the mass that would go to each atom (S,), and the mean of what points would pay.

    Reveals: how the silo's points are spread over the cells that the prices make, and one average cost. Many such
    answers at prices of the server's choice are a histogram of the silo's data; a silo limits their number.
    """

    usage: Tensor
    value: float

    def validate(self, question: Message) -> None:
        """A share for each atom; they sum to one."""
        if isinstance(question, Demand):
            whole = self.usage.shape == question.price.shape and self.usage.is_floating_point()
            if not whole or bool((self.usage < 0).any()) or abs(float(self.usage.double().sum()) - 1) > 1e-3:
                raise MessageError("A demand arrived that does not divide a whole between the atoms.")


@dataclass(frozen=True)
class Settle(Message, kind="fedwad.settle"):
    """Gives the last ξ and asks how far the data is from it.

    With `rounds` > 0 it also asks what ξ cannot tell: how the points behind an atom scatter about their mean, in
    `count` directions at most, and how alike two halves of the data are after so many rounds with each other.

    Reveals: nothing of the data beyond what ξ has learned from all silos.
    """

    points: Tensor
    weight: Tensor
    view: str
    power: float
    rounds: int
    count: int = 0

    def answers(self) -> int:
        """One for each ξ."""
        return len(self.points)


@dataclass(frozen=True)
class SettleReply(Message, kind="fedwad.settle.reply"):
    """W_p from each ξ to the data (P,). Where asked for, the scatter behind the atoms (P,), its principal directions
    with their strengths (r, d), and κ, how much of a likeness halves of the data can use.

    Reveals: one or two numbers for each ξ, and once, in which directions the silo's points differ from their
    neighbours, and how much: averages over all points.
    """

    distance: Tensor
    scatter: Tensor | None = None
    factor: Tensor | None = None
    alignment: float | None = None

    def validate(self, question: Message) -> None:
        """One distance for each measure, and the rest exactly where it was asked for."""
        if not isinstance(question, Settle):
            return
        _check_scalars(self.distance, len(question.points), "distances")
        _check_scalars(self.scatter, len(question.points) if question.rounds else None, "scatters")
        if (self.factor is None or self.alignment is None) != (question.rounds == 0):
            raise MessageError("The scatter of a silo arrived where it was not asked for, or did not arrive.")
        if self.factor is not None and (self.factor.ndim != 2 or self.factor.shape[1] != question.points.shape[2]):
            raise MessageError(f"Directions of a scatter arrived as {tuple(self.factor.shape)}.")


@dataclass(frozen=True)
class Profile(Message, kind="fedwad.profile"):
    """Asks how the data lies along directions (P, r, d): the mean of each successive 1/bins of the points.

    Reveals: nothing of the data beyond what ξ has learned from all silos.
    """

    directions: Tensor
    view: str
    bins: int

    def answers(self) -> int:
        """One for each set of directions."""
        return len(self.directions)


@dataclass(frozen=True)
class ProfileReply(Message, kind="fedwad.profile.reply"):
    """The means of the portions, (P, r, bins).

    Reveals: averages of n/bins projected points each. A silo refuses more portions than one for `smallest_part` points.
    """

    portions: Tensor

    def validate(self, question: Message) -> None:
        """One mean for each portion of each direction."""
        if isinstance(question, Profile):
            wanted = (*question.directions.shape[:2], question.bins)
            if self.portions.shape != wanted or not self.portions.is_floating_point():
                raise MessageError(f"A profile arrived as {tuple(self.portions.shape)}; {wanted} was asked for.")


def _check_scalars(values: Tensor | None, count: int | None, what: str) -> None:
    """Refuses anything but `count` numbers, none negative; nothing at all where none were asked for."""
    if count is None and values is None:
        return
    if values is None or count is None or values.shape != (count,) or not values.is_floating_point():
        raise MessageError(f"Other {what} arrived than were asked for.")
    if bool((values < 0).any()):
        raise MessageError(f"Negative {what} arrived.")
