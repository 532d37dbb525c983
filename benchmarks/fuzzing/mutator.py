"""What is made of a real message: bits, cuts, splices, lengths, and edits that keep the rest in order."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

DEEP, LONG = '"@deep@"', '"@long@"'  # JSON that Python would not write, put in afterwards
ODD: list[Any] = [None, True, False, 0, -1, 1, 3, 0.5, -0.0, 2**31, 2**53, 2**62, 2**63, 2**64, -(2**63), 10**12]
ODD += [10**400, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, "", "\ud800", "x" * 5000, "\x1b[2J\n", "NaN"]
ODD += ["@deep@", "@long@", [], {}, [[0, 2**62]], [0, 2**62], [1] * 70, [2**40], {"kind": "join"}, "../../x", "F64"]
ODD += ["F8_E4M3", "BOOL", "I64", "refused", "ffm.award"]
ODD += ["balanced", "minibatch", "semidiscrete", "sinkhorn", "descent"]


class Mutator:
    """Makes bad messages of good ones."""

    def __init__(self, seed: int, originals: list[bytes]) -> None:
        self.random = np.random.default_rng(seed)
        self.originals = originals

    def __call__(self, data: bytes, question: bool) -> bytes:
        for _ in range(int(self.random.integers(1, 3))):
            if self.chance(0.75):
                data = self._edited(data, question)
            else:
                ways: list[Callable[[bytes], bytes]] = [self._flip, self._cut, self._insert, self._splice, self._length]
                data = ways[self._below(len(ways))](data)
        return data

    def chance(self, share: float) -> bool:
        """True in this share of all cases."""
        return float(self.random.random()) < share

    def _below(self, count: int) -> int:
        return int(self.random.integers(max(1, count)))

    def _flip(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(1 + self._below(4)):
            if changed:
                changed[self._below(len(changed))] ^= 1 << self._below(8)
        return bytes(changed)

    def _cut(self, data: bytes) -> bytes:
        first, last = sorted((self._below(len(data)), self._below(len(data))))
        return data[:first] if self.chance(0.5) else data[:first] + data[last:]

    def _insert(self, data: bytes) -> bytes:
        place = self._below(len(data))
        return data[:place] + self.random.bytes(1 + self._below(16)) + data[place:]

    def _splice(self, data: bytes) -> bytes:
        other = self.originals[self._below(len(self.originals))]
        return data[: self._below(len(data))] + other[self._below(len(other)) :]

    def _length(self, data: bytes) -> bytes:
        place = [0, 4 + int.from_bytes(data[:4], "little")][self._below(2)]
        blown = [0, 1, 2**16, 2**31, 2**32 - 1][self._below(5)]
        return data[:place] + blown.to_bytes(4, "little") + data[place + 4 :]

    def _edited(self, data: bytes, question: bool) -> bytes:
        """A change in one of the parts that a message consists of; lengths are mended afterwards."""
        try:
            outer, message = _parted(data) if question else (b"", data)
            header, body = _parted(message)
            listed, numbers = _parted(body, 8) if body else (b"", b"")
            which = self._below(8)
            if which == 0 and question:
                outer = self._text(outer)
            elif which in (1, 2) and listed:
                listed = self._text(listed)
            elif which == 3 and numbers:
                numbers = self._numbers(numbers)
            else:
                header = self._text(header)
            body = len(listed).to_bytes(8, "little") + listed + numbers if listed else b""
            if self.chance(0.95):
                values = json.loads(header)
                header = json.dumps({**values, "bytes": len(body)}).encode()
            message = len(header).to_bytes(4, "little") + header + body
            return len(outer).to_bytes(4, "little") + outer + message if question else message
        except (ValueError, TypeError, RecursionError):
            return self._flip(data)

    def _numbers(self, numbers: bytes) -> bytes:
        place, width = 4 * self._below(len(numbers) // 4), [1, 4, 8][self._below(3)]
        bad = [b"\xff" * 8, b"\x00\x00\xc0\x7f" * 2, b"\x00\x00\x80\x7f" * 2, self.random.bytes(8)][self._below(4)]
        return numbers[:place] + bad[:width] + numbers[place + width :]

    def _text(self, text: bytes) -> bytes:
        values = self._edit(json.loads(text))
        changed = json.dumps(values).replace(DEEP, "[" * 3000 + "]" * 3000).replace(LONG, "9" * 5000)
        if self.chance(0.05):
            changed = changed.replace("{", '{"kind":"join",', 1)  # a key twice
        return changed.encode() + b" " * (-len(changed.encode()) % 8)

    def _edit(self, value: Any) -> Any:
        """One node of the tree replaced, removed, renamed or added; JSON inside a string is a tree as well."""
        if isinstance(value, str) and value[:1] in ("{", "[") and self.chance(0.9):
            return json.dumps(self._edit(json.loads(value))).replace(DEEP, "[" * 3000)
        if not isinstance(value, dict | list) or not value or self.chance(0.05):
            return self._odd(value)
        changed: Any = copy.copy(value)
        key = [*value][self._below(len(value))] if isinstance(value, dict) else self._below(len(value))
        what = self._below(20)
        if what == 0:
            del changed[key]
        elif what == 1 and isinstance(changed, dict):
            changed[str(ODD[self._below(len(ODD))])[:200]] = changed.pop(key)
        elif what == 2:
            extra = ODD[self._below(len(ODD))]
            if isinstance(changed, dict):
                changed.update({"__metadata__": {"a": "b" * 5000}, "extra": extra})
            else:
                changed.append(extra)
        else:
            changed[key] = self._edit(value[key])
        return changed

    def _odd(self, value: Any) -> Any:
        """Something else; mostly of the same type, which gets further."""
        if type(value) is bool and self.chance(0.7):
            return not value
        if type(value) is int and self.chance(0.7):
            return [value + 1, value - 1, -value, 2 ** self._below(64), 10 ** self._below(13)][self._below(5)]
        alike = [odd for odd in ODD if type(odd) is type(value)] if self.chance(0.5) else ODD
        return alike[self._below(len(alike))] if alike else None


def _parted(data: bytes, width: int = 4) -> tuple[bytes, bytes]:
    """The header that a length stands before, and the rest."""
    end = width + int.from_bytes(data[:width], "little")
    return data[width:end], data[end:]
