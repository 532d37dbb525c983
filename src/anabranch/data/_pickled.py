"""A pickle as a description: what it would build and call is written down, and nothing is built or called."""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from anabranch.errors import DataError

PROGRAM = "__torch__."  # where TorchScript keeps the classes of its program


@dataclass(frozen=True)
class Name:
    """A name that a pickle asks for, as in "torch FloatStorage": module and name. It is never looked up."""

    text: str


@dataclass(frozen=True, eq=False)
class Call:
    """What a pickle wants to call, and the arguments."""

    name: Name
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Object:
    """An object of a class of the program: its attributes by name, none before they are given."""

    attributes: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Reference:
    """A tuple that stands for something outside the pickle, such as the bytes of a tensor."""

    words: tuple[Any, ...]


def describe(content: bytes, names: Container[str]) -> Any:
    """What a pickle holds: numbers, texts, tuples, lists, dictionaries and the records above.

    `pickletools.genops` takes the bytes apart, and the opcodes that TorchScript writes move plain values over a stack.
    Another opcode, or a name that is neither one of `names` nor of the program, is refused with a DataError; a
    pickle that is none raises a ValueError, IndexError or KeyError. Time and memory grow with its length alone.

    >>> describe(b"K\\x01K\\x02\\x86.", names=())
    Traceback (most recent call last):
    ...
    anabranch.errors.DataError: A file of weights holds the opcode TUPLE2, which weights do not need. It was refused.
    >>> describe(b"(K\\x01K\\x02t.", names=())
    (1, 2)
    """
    machine = _Machine(names)
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name not in _STEPS:
            raise DataError(
                f"A file of weights holds the opcode {opcode.name}, which weights do not need. It was refused."
            )
        _STEPS[opcode.name](machine, argument)
    if len(machine.stack) != 1:
        raise ValueError(f"it ends with {len(machine.stack)} values instead of one")
    return machine.stack[0]


@dataclass
class _Machine:
    """The stack, where its marks are, and what was put aside by number. A method is what one opcode does."""

    names: Container[str]
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)

    def name(self, text: str) -> None:
        if not text.startswith(PROGRAM) and text not in self.names:
            asked = text.replace(" ", ".", 1)
            raise DataError(f"A file of weights asks for '{asked}', which weights do not need. It was refused.")
        self.stack.append(Name(text))

    def put(self, number: int) -> None:
        self.memory[number] = self.stack[-1]

    def get(self, number: int) -> None:
        self.stack.append(self.memory[number])

    def mark(self, _: None) -> None:
        self.marks.append(len(self.stack))

    def bundle(self, _: None) -> None:
        self.stack.append(tuple(self._marked()))

    def extend(self, _: None) -> None:
        items = self._marked()
        _of(list, self.stack[-1]).extend(items)

    def update(self, _: None) -> None:
        items = self._marked()
        keys = [_of(str, key) for key in items[::2]]
        _of(dict, self.stack[-1]).update(zip(keys, items[1::2], strict=True))

    def call(self, _: None) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        self.stack.append(Call(_of(Name, name), _of(tuple, arguments)))

    def create(self, _: None) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if arguments != () or not _of(Name, name).text.startswith(PROGRAM):
            raise ValueError("an object is not made from a class of the program alone")
        self.stack.append(Object())

    def build(self, _: None) -> None:
        attributes, bare = self.stack.pop(), self.stack.pop()
        if _of(Object, bare).attributes is not None:
            raise ValueError("an object gets its attributes twice")
        self.stack.append(Object(_of(dict, attributes)))

    def reference(self, _: None) -> None:
        self.stack.append(Reference(_of(tuple, self.stack.pop())))

    def _marked(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{type(value).__name__} stands where {kind.__name__} should")
    return value


def _value(make: Callable[[Any], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, argument: machine.stack.append(make(argument))


def _nothing(machine: _Machine, argument: Any) -> None:
    """Of a pickle's first opcode, its version, and of the last."""


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _nothing,
    "STOP": _nothing,
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "BINUNICODE"), _value(lambda argument: argument)),
    "NONE": _value(lambda _: None),
    "NEWTRUE": _value(lambda _: True),
    "NEWFALSE": _value(lambda _: False),
    "EMPTY_TUPLE": _value(lambda _: ()),
    "EMPTY_LIST": _value(lambda _: []),
    "EMPTY_DICT": _value(lambda _: {}),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
    "MARK": _Machine.mark,
    "TUPLE": _Machine.bundle,
    "APPENDS": _Machine.extend,
    "SETITEMS": _Machine.update,
    "GLOBAL": _Machine.name,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.create,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.reference,
}
