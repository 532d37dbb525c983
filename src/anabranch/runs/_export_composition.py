"""A composition to hand on: its one flow or its experts, and no more of who has seen what than sampling needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from anabranch.data import Encoder
from anabranch.data.attributes import Coverage
from anabranch.errors import UsageError
from anabranch.methods.dcfm import student_kind
from anabranch.methods.experts import Mixture
from anabranch.runs._config import Config
from anabranch.runs._exported_composition import EXPERT, FEDERATED, ROUTER, STUDENT
from anabranch.runs._folder import Checkpoint
from anabranch.runs._sample_composition import drawn
from anabranch.runs._sample_drawing import Sampling
from anabranch.runs._stored import Stored

_SETTINGS = ("experts", "federated", "peers", "student", "mixture")
_USUAL = 16  # samples of attributes, where no number is given: as of `anabranch sample`
_NAMED = 400  # combinations beyond which a card counts, and names no more
_EXPERTS_REVEAL = (
    "The model's file holds the expert of every silo under the silo's name: whoever has it can draw what looks like"
    " the samples of that silo alone."
)
_COUNTS_REVEAL = (
    "The model's file says how many samples of each combination each silo has: the rule that weighs experts needs it."
)
_ONE_REVEALS = "Of each combination the model's file says whether it was seen; not by which silo, and not how often."


@dataclass(frozen=True)
class ExportedComposition:
    """A composition that was handed on: what `anabranch sample` would have of its run, and its card."""

    stored: Stored = field(repr=False)
    encoder: Encoder | None = field(repr=False)
    card: dict[str, Any] = field(repr=False)

    @property
    def coverage(self) -> Coverage:
        """Which combinations are known: to whom, where there are experts; otherwise to the one "flow"."""
        return self.stored.coverage

    @property
    def dimension(self) -> int:
        """Of a sample."""
        return self.stored.dimension

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width) of a sample that is an image; else nothing."""
        return self.stored.shape

    def sample(
        self,
        attributes: str | Tensor = "",
        count: int | None = None,
        nfe: int | None = 50,
        solver: str = "midpoint",
        seed: int = 0,
        how: str = "auto",
        weights: Sequence[float] | None = None,
        until: float = 1.0,
    ) -> Tensor:
        """Samples (n, d): those of `anabranch sample` with the same seed and options.

        `count` of attributes such as "digit=0,color=yellow", of which what is not named is left open; or one for each
        of the labels (n,), which are numbers of combinations.
        """
        sampling = Sampling(nfe, solver, seed, how, weights, until)
        return drawn(self.stored, self._codes(attributes, count), sampling).x

    def _codes(self, attributes: str | Tensor, count: int | None) -> Tensor:
        space = self.coverage.space
        if isinstance(attributes, str):
            if count is not None and count < 1:
                raise UsageError(f"{count} samples were asked for; ask for at least one.")
            return space.parse(attributes).expand(count or _USUAL, -1)
        if attributes.ndim != 1 or count is not None:
            raise UsageError(
                f"Labels of shape {tuple(attributes.shape)} were given, and {count or 'no'} as their number; give a row"
                " of labels and no number, for one sample each."
            )
        return space.decode(attributes)


def composition_model(
    config: Config, checkpoint: Checkpoint, stored: Stored
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The averaged parameters, by expert and by their names in the network, and the facts that make a field of them.

    Of a run that made one flow that flow alone is taken, not the experts that it learned from.
    """
    one = FEDERATED if config.federated.rounds else STUDENT if config.student.steps else None
    if one is None:
        tensors = {name: t for name, t in checkpoint.state.items() if name.startswith((EXPERT, ROUTER))}
    else:
        (flow,) = stored.mixture.experts
        found = {name: t for name, t in checkpoint.state.items() if name.startswith(one)}
        tensors = {f"{EXPERT}{flow}/{name.removeprefix(one)}": t for name, t in found.items()}
    settings = {"method": config.method, **{name: asdict(getattr(config, name)) for name in _SETTINGS}}
    facts = {
        "settings": json.dumps(settings),
        "dimension": str(stored.dimension),
        "space": stored.coverage.space.to_json(),
        "counts": json.dumps({silo: _sparse(count) for silo, count in _needed(stored.mixture).items()}),
        "shape": json.dumps(stored.shape),
    }
    return tensors, facts


def composition_card(config: Config, stored: Stored) -> dict[str, Any]:
    """What the card says of a composition and not of other flows, by the card's own parts."""
    experts, composed = list(stored.mixture.experts), config.composed
    used = ["experts", *(name for name, on in _stages(config).items() if on), "federation"]
    learned = composed.student.steps and not composed.federated.rounds
    model = {
        "what": "velocity field of a flow that is told attributes: a sample starts at noise and follows it from 0 to 1",
        "network": student_kind(composed) if learned else config.experts.network,
        "made_of": "one flow" if len(experts) == 1 else f"{len(experts)} experts: {', '.join(experts)}",
        "source": "standard normal noise",
    }
    if len(experts) > 1:
        model["rule"] = config.mixture.router
    if stored.shape:
        model["images"] = " x ".join(str(side) for side in stored.shape)
    started = {"every": config.composition.every, "experts_of_an_earlier_run": bool(config.composition.experts_from)}
    return {
        "title": f"A generative flow of attributes for '{config.problem}'",
        "model": model,
        "attributes": _attributes(stored.coverage),
        "method": {**{name: asdict(getattr(config, name)) for name in used}, "composition": started},
        "reveals": [_ONE_REVEALS] if len(experts) == 1 else [_EXPERTS_REVEAL, _COUNTS_REVEAL],
    }


def _needed(mixture: Mixture) -> dict[str, Tensor]:
    """Counts by silo for a rule to weigh experts; one flow needs to know what was seen, not by whom or how often."""
    if len(mixture.experts) > 1:
        return mixture.coverage.counts
    return {next(iter(mixture.experts)): mixture.coverage.observed.long()}


def _sparse(count: Tensor) -> dict[str, int]:
    """The labels that were met, with their numbers: of many combinations few are."""
    return {str(label): int(count[label]) for label in count.nonzero()[:, 0].tolist()}


def _stages(config: Config) -> dict[str, bool]:
    """Which sections beside the experts' the method looked at."""
    one = bool(config.federated.rounds or config.student.steps)
    peers, student = bool(config.peers.rounds), bool(config.student.steps)
    return {"federated": bool(config.federated.rounds), "peers": peers, "student": student, "mixture": not one}


def _attributes(coverage: Coverage) -> dict[str, Any]:
    """What can be asked for, and which of it some silo has seen."""
    labels = {"known": coverage.known.tolist(), "novel": coverage.novel.tolist()}
    return {
        "outcomes": {name: list(outcomes) for name, outcomes in coverage.space.attributes},
        "numbers": {kind: len(found) for kind, found in labels.items()},
        **{kind: [coverage.space.describe(label) for label in found[:_NAMED]] for kind, found in labels.items()},
        "problems": coverage.problems(whose=False),
    }
