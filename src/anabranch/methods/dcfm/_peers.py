"""DCFM-A in a silo: its own expert trained until it composes with those of its peers (DCFM, eq. 12–14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anabranch.errors import RefusedError
from anabranch.federation import Done, Silo, answers, same_shapes
from anabranch.flow.conditioning import Field, independence_gap, masked, pair_masks, single_masks, stacked
from anabranch.methods.dcfm._messages import Adopt, PeerSteps
from anabranch.methods.experts import (
    Example,
    Expert,
    ExpertHalf,
    Learner,
    Losses,
    Measured,
    Steps,
    Tally,
    check_steps,
    example,
    expert_of,
    half_of,
    keep_expert,
)


@answers(PeerSteps)
def peer_steps(silo: Silo, question: PeerSteps) -> Expert:
    """The silo's expert after some steps beside its peers, which stay as they are."""
    half = half_of(silo)
    check_steps(silo, half, question.steps)
    question.check(sum(half.space.sizes))
    own = expert_of(silo)
    peers = _peers(silo, question, own)
    learner = Learner(own, half.settings.rule(question.steps, question.rate), half.settings.average)
    turn, which, tally = Turn(half, own, question), silo.generator("peers", "which"), Tally()
    generator = silo.generator("peers", device=half.x.device)
    steps = Steps(half.network, learner, turn.measure, question.penalty, generator)
    names = sorted(peers)
    for _ in range(question.steps):
        # A peer for each term, as in eq. (12), the same for all rows. Peers are frozen, so that the gradient is linear
        # in what they say: a draw for each row has the same mean, and asks every peer in every step.
        drawn = torch.randint(len(names), (len(turn.peers),), generator=which).tolist()
        turn.beside([peers[names[number]] for number in drawn], [question.met[names[number]] for number in drawn])
        tally.add(steps.take())
    keep_expert(silo, learner)
    return Expert(expert_of(silo), *tally.means())


@dataclass(frozen=True)
class Comparison:
    """How a silo's joint velocity, that of the whole label, and the routed composition of its k + 1 terms are compared.

    `masks` are those of the terms, and `weight` π of eq. (8) in the order of all masks, the joint one first; `early`,
    `late` and `held` are those of `PeerSettings`.
    """

    masks: Tensor
    weight: Sequence[float]
    early: float = 0.0
    late: float = 0.0
    held: bool = False

    def drawn(self, compared: int, generator: torch.Generator) -> Comparison:
        """The comparison of so many rows."""
        return self

    def routed(self, met: Tensor, generator: torch.Generator) -> Tensor:
        """Which terms (r, terms) of rows are their peer's: that of each has `met` (peers, r, k) such attributes."""
        return routed(met[:-1].diagonal(dim1=0, dim2=2), generator)

    def labels(self, y: Tensor) -> Tensor:
        """Labels (terms, r, k) of all terms."""
        return masked(y, self.masks[:, None])

    def gap(self, joint: Tensor, terms: Tensor, t: Tensor) -> Tensor:
        """Eq. (12) between joint velocities (r, d) and terms (k + 1, r, d), the last one for ∅: its mean over rows."""
        found = independence_gap(joint.detach() if self.held else joint, terms[:-1], terms[-1]).square().mean(1)
        return (found * t**self.late * (1 - t) ** self.early).mean()

    def losses(self, joint: Tensor, terms: Tensor, means: Tensor, batch: Example) -> Losses:
        """Both losses from whole velocities (n, d), routed terms (terms, r, d), and the mean errors of the own ones."""
        matching = self.weight[0] * (joint - batch.u_t).square().mean()
        for place in range(len(terms)):  # numbers, not a tensor of them: copying one to a GPU cannot be recorded
            matching = matching + self.weight[1 + place] * means[place]
        compared = terms.shape[1]
        return Losses(matching, self.gap(joint[:compared], terms, batch.t[:compared]))


@dataclass(frozen=True)
class PairComparison(Comparison):
    """The same of two attributes, drawn for each row: their velocity is the first of four terms, always the silo's own,
    and `masks` (4, r, k) are those of `pair_masks`."""

    def drawn(self, compared: int, generator: torch.Generator) -> Comparison:
        return replace(self, masks=pair_masks(compared, self.masks.shape[-1], generator).to(self.masks.device))

    def routed(self, met: Tensor, generator: torch.Generator) -> Tensor:
        theirs = routed((met[:-1] & self.masks[1:-1]).any(2).T, generator)
        return torch.cat([torch.zeros_like(theirs[:, :1]), theirs], dim=1)

    def labels(self, y: Tensor) -> Tensor:
        return masked(y, self.masks)

    def gap(self, joint: Tensor, terms: Tensor, t: Tensor) -> Tensor:
        return super().gap(terms[0], terms[1:], t)


class Turn:
    """What a silo's steps beside its peers read: its samples, and the peers of the moment, always in the same place.

    `peers` has one for each term that can be a peer's, the last one for ∅.
    """

    def __init__(self, half: ExpertHalf, like: Mapping[str, Tensor], question: PeerSteps) -> None:
        self.half, device = half, half.x.device
        k, powers = half.space.k, (question.early, question.late)
        masking, compare = half.settings.masking, (*powers, question.held)
        if half.settings.independence == "pairs" and k > 2:
            self.comparison: Comparison = PairComparison(single_masks(k, device), masking.pairs(), *compare)
        else:
            self.comparison = Comparison(single_masks(k, device), masking.masks(k)[1].tolist(), *compare)
        terms = 3 if isinstance(self.comparison, PairComparison) else k + 1
        self.peers = [{name: torch.zeros_like(tensor) for name, tensor in like.items()} for _ in range(terms)]
        self.met = torch.zeros(terms, sum(half.space.sizes), dtype=torch.bool, device=device)
        self.whole = replace(half.settings, penalty=0.0, full=1.0, marginal=0.0, unconditional=0.0)

    def beside(self, peers: Sequence[Mapping[str, Tensor]], met: Sequence[Tensor]) -> None:
        """Takes other peers, and which outcomes each of them has met."""
        places = [(own[name], peer[name]) for own, peer in zip(self.peers, peers, strict=True) for name in own]
        torch._foreach_copy_([place for place, _ in places], [tensor for _, tensor in places])
        self.met.copy_(torch.stack(list(met)))

    def measure(self, parameters: Mapping[str, Tensor], generator: torch.Generator) -> Measured:
        """The losses of a batch beside that peer."""
        half = self.half
        batch = example(half.x, half.codes, self.whole, generator)
        compared = batch.y[: max(1, round(half.settings.compared * len(batch.y)))]
        comparison = self.comparison.drawn(len(compared), generator)
        theirs = comparison.routed(_met(self.met, compared, half.space.sizes), generator)
        routes = peer_losses_everywhere if half.x.is_cuda else peer_losses
        return routes(half.field(parameters), [half.field(peer) for peer in self.peers], batch, theirs, comparison)


@answers(Adopt)
def adopt(silo: Silo, question: Adopt) -> Done:
    """Keeps the student."""
    silo.state.update({f"dcfm/student/{name}": tensor for name, tensor in question.parameters.items()})
    return Done()


def routed(met: Tensor, generator: torch.Generator) -> Tensor:
    """The routing r of eq. (12) for each row: (n, k + 1), true where a term is a peer's, the last one for ∅.

    A peer is only asked about outcomes that it has met, `met` (n, k), and at least one term is the silo's own. Which
    one is drawn without looking at `met`: a term's flow matching is on the rows where it is own, and those must be a
    fair draw of what the term does not see, as in eq. (9).
    """
    rows, k = met.shape
    theirs = torch.rand(rows, k + 1, generator=generator, device=generator.device).to(met.device) < 0.5
    keep = torch.randint(k + 1, (rows, 1), generator=generator, device=generator.device).to(met.device)
    own = torch.zeros_like(theirs).scatter_(1, keep, True)
    theirs = theirs & ~(own & theirs.all(1, keepdim=True))
    return theirs & torch.cat([met, met.new_ones(rows, 1)], dim=1)


def peer_losses(own: Field, peers: Sequence[Field], batch: Example, theirs: Tensor, comparison: Comparison) -> Measured:
    """Flow matching on the silo's own terms, and how far its joint velocity is from the routed composition.

    Every term is evaluated once, by whom it was routed to: a little more than 1 + (k + 1)/2 passes of the own network
    on average, and fewer than (k + 1)/2 of the `peers` without a gradient, which speak of the last terms. `theirs`
    (r, terms) may be about the first r rows only: the others are asked for their whole velocity alone.
    """
    count, compared, masks = len(batch.x_t), len(theirs), comparison.masks
    labels = comparison.labels(batch.y[:compared])
    term, row = (~theirs.T).nonzero(as_tuple=True)
    x = torch.cat([batch.x_t, batch.x_t[row]])
    values = own(x, torch.cat([batch.t, batch.t[row]]), torch.cat([batch.y, labels[term, row]]))
    joint, mine = values[:count], values[count:]
    terms = torch.zeros(len(masks), *joint[:compared].shape, dtype=joint.dtype, device=joint.device)
    terms = terms.index_put((term, row), mine)
    for place, peer in enumerate(peers, start=len(masks) - len(peers)):
        if len(asked := theirs[:, place].nonzero()[:, 0]):
            with torch.no_grad():
                answer = peer(batch.x_t[asked], batch.t[asked], labels[place, asked])
            terms = terms.index_put((torch.full_like(asked, place), asked), answer)
    error = (mine - batch.u_t[row]).square().mean(1)
    share = torch.zeros(len(masks), dtype=error.dtype, device=error.device)
    means = share.index_add(0, term, error) / torch.bincount(term, minlength=len(masks)).clamp_min(1)
    passes = (len(x) + int(theirs.sum())) / count, len(x) / count
    return Measured(comparison.losses(joint, terms, means, batch), *passes)


def peer_losses_everywhere(
    own: Field, peers: Sequence[Field], batch: Example, theirs: Tensor, comparison: Comparison
) -> Measured:
    """The same losses from every term by both networks, of which half are thrown away: (k + 2) and (k + 1) passes.

    Shapes do not depend on the routing, so that a GPU can replay the step, which is worth more than what is wasted.
    """
    count, compared, masks = len(batch.x_t), len(theirs), comparison.masks
    rows = stacked(batch.x_t[:compared], batch.t[:compared], batch.y[:compared], masks)
    whole = (batch.x_t, batch.t, batch.y)
    values = own(*(torch.cat(both) for both in zip(whole, rows, strict=True)))
    joint, mine = values[:count], values[count:].reshape(len(masks), compared, -1)
    answer = mine.detach().clone()
    for place, peer in enumerate(peers, start=len(masks) - len(peers)):
        part = slice(place * compared, (place + 1) * compared)
        with torch.no_grad():
            answer[place] = peer(*(tensor[part] for tensor in rows))
    share = (~theirs.T).to(mine.dtype)
    error = (mine - batch.u_t[:compared]).square().mean(2)
    means = (share * error).sum(1) / share.sum(1).clamp_min(1)
    terms = torch.where(theirs.T[:, :, None], answer, mine)
    passes = len(rows[0]) / count
    asked = len(peers) * compared / count
    return Measured(comparison.losses(joint, terms, means, batch), 1 + passes + asked, 1 + passes)


def _peers(silo: Silo, question: PeerSteps, own: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The experts that the silo was handed, of the peers that the question names."""
    found = {name: e.parameters for name, e in silo.gathered.get(Expert.kind, {}).items() if isinstance(e, Expert)}
    chosen = {name: found[name] for name in question.met if name in found and name != silo.name}
    if not chosen:
        raise RefusedError(f"Silo '{silo.name}' was asked to train beside peers, and has no expert of any of them.")
    for parameters in chosen.values():
        same_shapes(Expert.kind, parameters, own)
    device = next(iter(own.values())).device
    return {name: {key: t.to(device) for key, t in p.items()} for name, p in chosen.items()}


def _met(outcomes: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    """Whether peers have met the attributes of labels y (n, k): (…, n, k) from their `outcomes` (…, |Y1| + …)."""
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return torch.stack([outcomes[..., start + y[:, place]] for place, start in enumerate(starts)], dim=-1)
