"""The local engine: every silo in this process, nothing copied, many silos answered in one pass where possible."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import torch

from anabranch.errors import AnabranchError, NotFiniteError, RecordingError, UsageError, brief, out_of_memory
from anabranch.federation._exhausted import exhausted
from anabranch.federation._halves import beginning, fused_answer
from anabranch.federation._message import Envelope, Message
from anabranch.federation._privacy import Postprocessor, guarded_answer
from anabranch.federation._replies import Replies
from anabranch.federation._silo import Silo
from anabranch.federation._verdict import Verdict

LOG = logging.getLogger(__name__)


class LocalEngine:
    """Asks silos that live in this process.

    `fused` allows a method's fused half to serve all asked silos in one pass. Replies pass through the
    postprocessors and are checked on arrival, as from any other engine. Memory that runs out, runs out for all: it is
    nobody's failure, and raised as an ExhaustedError. `verdict` says whether the last fused mean is finite.
    """

    def __init__(self, silos: Sequence[Silo], fused: bool = True, postprocessors: Sequence[Postprocessor] = ()) -> None:
        if not silos:
            raise UsageError("A federation needs at least one silo; none was given.")
        for silo in silos:
            if not isinstance(silo, Silo):
                raise UsageError(f"A {type(silo).__name__} was given as a silo; wrap points as Silo(name, points).")
        self.silos = {silo.name: silo for silo in sorted(silos, key=lambda silo: silo.name)}
        if len(self.silos) < len(silos):
            raise UsageError("Two silos have the same name; every silo needs its own.")
        self.fused = fused
        self.postprocessors = tuple(postprocessors)
        self.verdict: Verdict | None = None
        self._told: set[tuple[str, type[Exception]]] = set()

    @property
    def names(self) -> list[str]:
        """The silos that can be asked, sorted."""
        return list(self.silos)

    @property
    def device(self) -> torch.device:
        """Where all silos hold their points; the CPU where they differ, or hold tables."""
        found = {silo.device for silo in self.silos.values()}
        return found.pop() if len(found) == 1 else torch.device("cpu")

    def ask(self, envelopes: Mapping[str, Envelope], timeout: float | None = None) -> Replies:
        """One question to each named silo. Who raises, is late or answers nonsense is listed under `failures`."""
        replies = Replies()
        for name in sorted(envelopes):
            started = time.monotonic()
            try:
                replies.answers[name] = guarded_answer(self.silos[name], envelopes[name], self.postprocessors)
            except AnabranchError as error:
                replies.failures[name] = str(error)
                if isinstance(error, NotFiniteError):
                    replies.failures[name] = f"The answer of silo '{name}' was refused: {error}"
                    replies.unsound.add(name)
            except Exception as error:  # a silo's fault must not end the run of the others
                if out_of_memory(error):
                    raise exhausted(envelopes[name].question.kind) from error
                replies.failures[name] = f"Silo '{name}' raised {type(error).__name__}: {error}"
            late = time.monotonic() - started
            if timeout is not None and late > timeout and name in replies.answers:
                del replies.answers[name]
                replies.failures[name] = f"Silo '{name}' answered after {late:.1f} s; {timeout:g} s were allowed."
        return replies

    def fused_mean(self, envelope: Envelope, names: Sequence[str], share: Sequence[float]) -> Message | None:
        """The weighted mean of the replies in one pass, which `verdict` says may be used; None where that cannot be."""
        if not self.fused or not self.can_fuse(envelope.question):
            return None
        reply = self.weighted_sum(envelope, names, share)
        if reply is None:
            return None
        guarded = any(reply.kind in postprocessor.kinds for postprocessor in self.postprocessors)
        self.verdict = Verdict(reply)
        return None if guarded else reply

    def weighted_sum(self, envelope: Envelope, names: Sequence[str], share: Sequence[float]) -> Message | None:
        """What the fused half makes of these silos; None where there is none, or where it fails."""
        half = fused_answer(type(envelope.question))
        if half is None:
            return None
        silos = [self.silos[name] for name in names]
        for silo in silos:
            silo.round = envelope.round
        try:
            return half(silos, envelope.question, torch.tensor(share))
        except RecordingError:  # the device can compute nothing more
            raise
        except Exception as error:  # whoever is at fault is found, and named, by asking one by one
            if out_of_memory(error):
                raise exhausted(envelope.question.kind) from error
            self._tell(envelope.question.kind, error)
            return None

    def _tell(self, kind: str, error: Exception) -> None:
        """Says why silos are not served together: aloud, where that is not what one of them refuses, and once."""
        found = (kind, type(error))
        expected = isinstance(error, AnabranchError) or found in self._told
        self._told.add(found)
        level = logging.INFO if expected else logging.WARNING
        LOG.log(level, "Silos are asked '%s' in turn, which takes longer: together it raised %s", kind, brief(error))

    def begin(self, question: Message, names: Sequence[str], number: int) -> None:
        """Lets silos begin what they will do when they are asked this in round `number`, if they serve it together."""
        half = beginning(type(question))
        if half is not None and self.fused and self.can_fuse(question):
            half([self.silos[name] for name in names], number)

    def can_fuse(self, question: Message) -> bool:
        """Whether no postprocessor or limit needs the silos' own answers to this question."""
        touched = {kind for postprocessor in self.postprocessors for kind in postprocessor.kinds}
        limited = any(question.kind in silo.limits for silo in self.silos.values())
        return not limited and not any(kind == question.kind or kind == f"{question.kind}.reply" for kind in touched)
