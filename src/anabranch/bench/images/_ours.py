"""A training step of images as a run takes it: messages, ledger, checks, averages, all silos in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.bench.images._silos import pixels_of
from anabranch.bench.images._work import Case, ImageWork
from anabranch.errors import AnabranchError
from anabranch.federation import Envelope, Federation, LocalEngine, Message, Silo
from anabranch.methods.ffm import FlowServer, Progress

UNBOUNDED = 2**62


class _Watched(LocalEngine):
    """A local engine that counts how often silos had to be asked in turn although they were to be served together."""

    apart = 0

    def fused_mean(self, envelope: Envelope, names: Sequence[str], share: Sequence[float]) -> Message | None:
        reply = super().fused_mean(envelope, names, share)
        self.apart += self.fused and reply is None
        return reply


class OurTraining:
    """A server and its silos in one process. Building it fits semi-discrete duals, where the method has some,
    and takes the `first` step.

    With `fused=False` every silo is asked in turn; `precision` is that of the work unless given. The rate rises over
    `warm_up` steps.
    """

    def __init__(
        self,
        work: ImageWork,
        case: Case,
        method: str,
        fused: bool = True,
        precision: str | None = None,
        warm_up: int = 500,
    ) -> None:
        flip = "points" if method == "sd" else "random"
        holders = pixels_of(work, case, flip).items()
        silos = [Silo(name, held, secret=number) for number, (name, held) in enumerate(holders)]
        for silo in silos:  # bounds against questions from outside; here who asks and who answers are one
            silo.most_numbers = silo.most_work = UNBOUNDED
        self.engine = _Watched(silos, fused)
        federation = Federation(self.engine)
        federation.open("bench", seed=0)
        self.server = FlowServer(work.settings(method, case, precision, warm_up), federation)
        self.rounds = self.server.run()
        self.first = self.step()
        while self.first.phase != "flow":
            self.first = self.step()

    def step(self) -> Progress:
        """One round. A round that was not served together would be timed as what it is not, and is an error."""
        progress = next(self.rounds)
        if self.engine.apart:
            raise AnabranchError(
                "The silos could not be served in one pass, so this is not the step to be timed; the device may have "
                "too little memory. Take fewer images of each silo with --batch."
            )
        return progress
