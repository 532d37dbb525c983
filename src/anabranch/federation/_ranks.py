"""Several processes that serve the silos of one run together, as torchrun starts them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anabranch.errors import GOES_ON, AnabranchError, UsageError, out_of_memory

PATIENCE = timedelta(hours=1)  # a process that ended is missed at once; this is for one that lives and does not answer
BETWEEN = timedelta(days=1)  # runs, while rank 0 judges the one before


class Ranks:
    """This process among the `count` of a run, by its `number` from 0, and what they tell one another.

    Whatever exchanges something must be called by all of them, at the same place of the run, and gives each the same. A
    process that is alone exchanges nothing, and never loads torch.distributed.

    >>> Ranks(1, 3).share(["a", "b", "c", "d", "e"])
    ['b', 'e']
    >>> ALONE.gather(b"mine"), ALONE.any(True)
    ([b'mine'], True)
    """

    def __init__(self, number: int = 0, count: int = 1, local: int = 0) -> None:
        self.number, self.count, self.local = number, count, local
        self._sessions = 0

    @staticmethod
    def here() -> Ranks:
        """Those that torchrun started this process with; else this one alone."""
        return _here()

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one that writes and speaks."""
        return self.number == 0

    def share(self, names: Collection[str]) -> list[str]:
        """The silos that this process answers for: of the sorted names, number i goes to rank i mod count."""
        return sorted(names)[self.number :: self.count]

    def device(self, wanted: torch.device) -> torch.device:
        """Where this process computes: of several GPUs its own."""
        if self.count == 1 or wanted.type != "cuda":
            return wanted
        if self.local >= torch.cuda.device_count():
            raise UsageError(
                f"Rank {self.number} has no GPU of its own: there are {torch.cuda.device_count()} here, and"
                f" {self.local + 1} processes or more. Start as many as there are GPUs, or set run.device to 'cpu'."
            )
        return torch.device("cuda", self.local)

    def any(self, flag: bool) -> bool:
        """Whether it is so on one of them."""
        return self.largest(int(flag)) > 0

    def decided(self, flag: bool) -> bool:
        """What rank 0 says: for what follows from a clock or a person."""
        return self.any(flag and self.first)

    def clock(self, seconds: float) -> float:
        """What rank 0's clock shows, to a microsecond; that of a process which is alone as it is."""
        return seconds if self.count == 1 else self.largest(int(1e6 * seconds) if self.first else 0) / 1e6

    def largest(self, value: int) -> int:
        """The largest of all their values."""
        if self.count == 1:
            return value
        found = torch.tensor(value)
        with self._exchange() as distributed:
            distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    def gather(self, data: bytes) -> list[bytes]:
        """What each of them gave, in their order."""
        if self.count == 1:
            return [data]
        with self._exchange() as distributed:
            lengths = torch.zeros(self.count, dtype=torch.long)
            lengths[self.number] = len(data)
            distributed.all_reduce(lengths)
            own = torch.zeros(int(lengths.max()), dtype=torch.uint8)  # all must be of one length
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
            found = [torch.empty_like(own) for _ in range(self.count)]
            distributed.all_gather(found, own)
        return [part[:length].numpy().tobytes() for part, length in zip(found, lengths.tolist(), strict=True)]

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Σ of each tensor over all of them, in one exchange for all of a type."""
        if self.count == 1:
            return list(tensors)
        alike: defaultdict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
        for place, tensor in enumerate(tensors):
            alike[tensor.device, tensor.dtype].append(place)
        result = list(tensors)
        for places in alike.values():
            flat = torch.cat([tensors[place].detach().reshape(-1) for place in places])
            with self._exchange() as distributed:
                distributed.all_reduce(flat)
            parts = torch.split(flat, [tensors[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                result[place] = part.view(tensors[place].shape)
        return result

    def wait(self) -> None:
        """Until all of them are here."""
        self.largest(0)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Within, rank 0 is done before the others begin: what it writes down, they find."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def leave(self) -> None:
        """Ends their exchange, all at the same time; the next one begins another."""
        if self.count > 1:
            import torch.distributed

            self.wait()
            torch.distributed.destroy_process_group()

    def speaks(self) -> bool:
        """Whether an error is for this process to report: the first that fails does, the others fail because of it."""
        if self.count == 1:
            return True
        with suppress(Exception):  # whoever kept the count may be gone
            return bool(self._store().add("anabranch/failures", 1) == 1)
        return self.first

    @contextmanager
    def _exchange(self) -> Iterator[Any]:
        """torch.distributed, once all have joined; another process that is missed becomes a sentence."""
        import torch.distributed

        try:
            if not torch.distributed.is_initialized():
                self._join()
            yield torch.distributed
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise AnabranchError(
                f"Rank {self.number} of {self.count} cannot reach another one: it ended, or did not answer for"
                f" {PATIENCE.total_seconds() / 60:g} minutes ({_first_line(error)}). What that one said, or its log,"
                f" tells why; {GOES_ON} goes on from the last checkpoint, started the same way."
            ) from error

    def _join(self) -> None:
        """Small things and CPUs by gloo, GPUs by NCCL."""
        import torch.distributed

        # Imported later, by torch's compiler say, its functions would have the group as a default and keep it for ever:
        # threads of the group would be at work while the interpreter ends, which aborts it now and then.
        import torch.distributed.nn.functional

        if self.local < torch.cuda.device_count():
            torch.cuda.set_device(self.local)
        self._sessions += 1
        name = f"anabranch/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{self._sessions}"
        ready = f"{name}/ready"
        if self.first:
            self._store().set(ready, b"1")
        else:
            self._store().wait([ready], BETWEEN)
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and torch.distributed.is_nccl_available() else "gloo",
            store=torch.distributed.PrefixStore(name, self._store()),  # type: ignore[attr-defined]
            rank=self.number,
            world_size=self.count,
            timeout=PATIENCE,
        )

    def _store(self) -> Any:
        return _store(self.number, self.count)


ALONE = Ranks()


@cache
def _here() -> Ranks:
    """torchrun tells its processes who they are in these variables; WORLD_SIZE alone may be another program's."""
    count = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if count == 1:
        return ALONE
    return Ranks(int(os.environ["RANK"]), count, int(os.environ.get("LOCAL_RANK", "0")))


@cache
def _store(number: int, count: int) -> Any:
    """Where processes find one another: torchrun's own."""
    import torch.distributed

    found = torch.distributed.rendezvous("env://", number, count, timeout=PATIENCE)  # type: ignore[attr-defined]
    store, _, _ = next(found)
    return store


def _first_line(error: RuntimeError) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
