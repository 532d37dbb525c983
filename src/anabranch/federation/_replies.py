"""What silos answered to one question, who gave no answer, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch

from anabranch.federation._encoding import decode, encode
from anabranch.federation._message import Message, moved, tensors_of


@dataclass
class Replies:
    """Answers by silo, sorted by name so that sums do not depend on who was first; `failures` says who gave none, and
    `unsound` which of them gave numbers that are not finite."""

    answers: dict[str, Message] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unsound: set[str] = field(default_factory=set)

    def pack(self) -> bytes:
        """All of it as bytes: a length and a JSON header, then every answer as the wire has it."""
        encoded = {name: encode(answer) for name, answer in self.answers.items()}
        header = {
            "lengths": {name: len(data) for name, data in encoded.items()},
            "on_gpu": [name for name, a in self.answers.items() if any(t.is_cuda for t in tensors_of(a).values())],
            "failures": self.failures,
            "unsound": sorted(self.unsound),
        }
        first = json.dumps(header).encode()
        return b"".join([len(first).to_bytes(8, "little"), first, *encoded.values()])

    @staticmethod
    def unpack(data: bytes, device: torch.device) -> Replies:
        """The replies in the bytes; those that were on a GPU come to this device."""
        place = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:place])
        answers: dict[str, Message] = {}
        for name, length in header["lengths"].items():
            answer = decode(data[place : place + length])
            answers[name] = moved(answer, device) if name in header["on_gpu"] else answer
            place += length
        return Replies(answers, header["failures"], set(header["unsound"]))

    @staticmethod
    def of_all(parts: list[Replies]) -> Replies:
        """Those of several askers as one."""
        answers = {name: answer for part in parts for name, answer in part.answers.items()}
        failures = {name: why for part in parts for name, why in part.failures.items()}
        unsound = {name for part in parts for name in part.unsound}
        return Replies(dict(sorted(answers.items())), dict(sorted(failures.items())), unsound)
