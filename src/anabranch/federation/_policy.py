"""What a site is willing to answer, decided by the site alone and enforced in its own process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.errors import RefusedError, UsageError
from anabranch.federation._message import KINDS, Envelope

WITHDRAWN = "WITHDRAWN"  # a file of this name in a site's folder ends all answers


@dataclass(frozen=True)
class Policy:
    """The `kinds` of question that are answered at all, up to round `rounds`.

    `limits` bounds how many answers of a kind are given in a run; `smallest_group` is the least number of points that
    an answer may rest on, `smallest_part` the least behind each part of an answer in parts. `withdrawn` is a file whose
    presence ends all answers.
    """

    kinds: tuple[str, ...]
    rounds: int
    limits: Mapping[str, int] = field(default_factory=dict)
    smallest_group: int = 1
    withdrawn: Path | None = None
    smallest_part: int = 4

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"A policy of {self.rounds} rounds answers nothing; give one or more.")
        for name in ("smallest_group", "smallest_part"):
            if getattr(self, name) < 1:
                raise UsageError(f"Answers over {getattr(self, name)} points cannot be; {name} is one or more.")
        for kind, limit in self.limits.items():
            if limit < 0:
                raise UsageError(f"A limit of {limit} answers to '{kind}' cannot be; give zero or more.")

    def refuse(self, name: str, envelope: Envelope) -> None:
        """Raises RefusedError, with the reason, when the question may not be answered."""
        kind = envelope.question.kind
        if self.withdrawn is not None and self.withdrawn.exists():
            raise RefusedError(f"Site '{name}' has withdrawn from this federation.")
        if kind not in self.kinds:
            raise RefusedError(f"Site '{name}' does not answer '{kind}': its policy does not list it.")
        if envelope.round > self.rounds:
            raise RefusedError(f"Site '{name}' answers up to round {self.rounds}; this is round {envelope.round}.")

    def unknown_kinds(self) -> list[str]:
        """Kinds in the list that no installed method asks: misspelt, or of a method that is not imported."""
        return [kind for kind in self.kinds if kind not in KINDS]
