"""A training step of images as a run takes it: messages, ledger, checks, averages, all silos in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from anabranch.bench.images._silos import pixels_of
from anabranch.bench.images._work import Case, ImageWork
from anabranch.errors import AnabranchError
from anabranch.federation import Envelope, Federation, LocalEngine, Message, Silo
from anabranch.flow import MovingAverage, is_compiled, network
from anabranch.methods.ffm import FlowMatching, FlowServer, FlowVelocity, Progress, half_of
from anabranch.methods.ffm._speed import compiles

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
        self.compiled_words()  # what cannot be compiled is said before it is timed

    def compiled_words(self) -> str:
        """Whether the network is compiled; where it should be and is not, an error."""
        fields = [half_of(silo).field for silo in self.engine.silos.values()]
        return words_of(self.server.settings, self.server.federation.device, fields)

    def step(self) -> Progress:
        """One round. A round that was not served together would be timed as what it is not, and is an error."""
        progress = next(self.rounds)
        if self.engine.apart:
            raise AnabranchError(
                "The silos could not be served in one pass, so this is not the step to be timed; the device may have "
                "too little memory. Take fewer images of each silo with --batch."
            )
        return progress


def our_velocity(work: ImageWork) -> FlowVelocity:
    """The velocity that a run samples from, with the peer's weights; compiled from the first evaluation on, as where
    there are many samples to come."""
    settings = work.settings("vanilla", work.cases[0])
    settings = replace(settings, flow=replace(settings.flow, compile=compiles(settings, work.device)))
    module = network("unet", work.dimension, 0, **work.network)
    average = MovingAverage(dict(module.named_parameters()), settings.flow.average)
    state = {f"average/{name}": tensor for name, tensor in average.state().items()}
    return FlowServer.velocity_of(settings, work.dimension, state, work.device)


def words_of(settings: FlowMatching, device: torch.device, fields: Sequence[nn.Module]) -> str:
    """Whether networks are compiled, for a note. Where they were to be and could not, what was timed is something
    else, and that is an error."""
    if not compiles(settings, device):
        return "not compiled"
    if all(is_compiled(field) for field in fields):
        return "compiled"
    raise AnabranchError(
        "The network could not be compiled here, and is slower without, so this is not what was to be timed; the reason"
        " is in the log. torch compiles for GPUs by triton: see that it can be imported and find a C compiler."
    )


@contextmanager
def told_of_limits(work: ImageWork) -> Iterator[None]:
    """Within, torch fails where it would compile for too many sizes, instead of going on without compiling."""
    if work.device.type != "cuda":
        yield
        return
    from torch._dynamo import config

    with config.patch(fail_on_recompile_limit_hit=True):
        yield
