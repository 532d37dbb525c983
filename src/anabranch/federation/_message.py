"""What crosses the wire: frozen dataclasses of tensors, numbers and strings."""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from anabranch.errors import MessageError, NotFiniteError
from anabranch.federation._finite import not_finite

KINDS: dict[str, type[Message]] = {}
SCALARS: tuple[type, ...] = (bool, int, float, str)
# What a message may hold: code and bytes a number, in the order in which safetensors lays tensors out.
WIRE_DTYPES: dict[torch.dtype, tuple[str, int]] = {
    torch.int64: ("I64", 8),
    torch.float64: ("F64", 8),
    torch.float32: ("F32", 4),
    torch.int32: ("I32", 4),
    torch.bfloat16: ("BF16", 2),
    torch.float16: ("F16", 2),
    torch.uint8: ("U8", 1),
    torch.bool: ("BOOL", 1),
}
MOST_SIDES = 8  # of a tensor
LONGEST_SIDE = 2**32  # no message holds as many numbers, but an empty tensor may claim to


class Message:
    """A question to a silo or its answer.

    A subclass is a frozen dataclass with a `kind` of its own; its fields are tensors, dictionaries of tensors,
    numbers or strings, each of them optional. Its docstring says, after the word "Reveals:", what the message
    tells the other side about the data; so the whole privacy surface of a method is the list of its messages.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str) -> None:
        if KINDS.setdefault(kind, cls).__qualname__ != cls.__qualname__:
            raise TypeError(f"Two messages are of the kind '{kind}': {KINDS[kind]} and {cls}.")
        KINDS[kind] = cls
        cls.kind = kind

    def validate(self, question: Message) -> None:
        """Raises MessageError when this is no possible answer to `question`, in shape above all."""

    def answers(self) -> int:
        """How many answers this question asks for, as counted against a silo's limit."""
        return 1


@dataclass(frozen=True)
class Envelope:
    """A question with its place in the run. A silo that meets the same place again repeats its stored reply."""

    run: str
    round: int
    sequence: int
    question: Message
    session: int = 0

    @property
    def place(self) -> tuple[str, int, int, int, str]:
        """Where in the run it stands; the session tells a restarted server's questions from those before."""
        return self.run, self.session, self.round, self.sequence, self.question.kind


_FIELDS: dict[type[Message], dict[str, tuple[Any, bool]]] = {}


def field_types(cls: type[Message]) -> dict[str, tuple[Any, bool]]:
    """Each field's type, less None, and whether None is allowed."""
    if cls not in _FIELDS:
        _FIELDS[cls] = _read_fields(cls)
    return _FIELDS[cls]


def _read_fields(cls: type[Message]) -> dict[str, tuple[Any, bool]]:
    hints = get_type_hints(cls)
    result = {}
    for field in fields(cls):  # type: ignore[arg-type]
        hint, optional = hints[field.name], False
        if get_origin(hint) in (Union, types.UnionType):
            rest = [arg for arg in get_args(hint) if arg is not type(None)]
            hint, optional = rest[0], len(rest) < len(get_args(hint))
        result[field.name] = (hint, optional)
    return result


def tensors_of(message: Message) -> dict[str, Tensor]:
    """Every tensor in the message: `field`, or `field/key` for those in a dictionary."""
    found: dict[str, Tensor] = {}
    for name in field_types(type(message)):
        value = getattr(message, name)
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, dict):
            found.update({f"{name}/{key}": tensor for key, tensor in value.items()})
    return found


def numbers_of(message: Message) -> dict[str, Tensor]:
    """Every floating-point number of the message, those in fields of their own as tensors without dimension."""
    found: dict[str, Tensor] = {}
    for name in field_types(type(message)):
        value = getattr(message, name)
        if isinstance(value, float):
            found[name] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, Tensor) and value.is_floating_point():
            found[name] = value
        elif isinstance(value, dict):
            found.update({f"{name}/{key}": t for key, t in value.items() if t.is_floating_point()})
    return found


def only_numbers(message: Message) -> bool:
    """Whether the message holds nothing but floating-point numbers, so that messages of its kind can be added."""
    known = numbers_of(message)
    return tensors_of(message).keys() <= known.keys() and all(
        name in known or isinstance(getattr(message, name), dict | None) for name in field_types(type(message))
    )


def with_numbers(message: Message, numbers: dict[str, Tensor]) -> Message:
    """The message with its floating-point numbers replaced, named as `numbers_of` names them."""
    changed: dict[str, Any] = {}
    for name in field_types(type(message)):
        value = getattr(message, name)
        if isinstance(value, dict):
            changed[name] = {key: numbers.get(f"{name}/{key}", tensor) for key, tensor in value.items()}
        elif name in numbers:
            changed[name] = float(numbers[name]) if isinstance(value, float) else numbers[name]
    return replace(message, **changed)  # type: ignore[type-var]


def moved(message: Message, device: torch.device) -> Message:
    """The message with all its tensors on the device."""
    changed: dict[str, Any] = {}
    for name in field_types(type(message)):
        value = getattr(message, name)
        if isinstance(value, Tensor):
            changed[name] = value.to(device)
        elif isinstance(value, dict):
            changed[name] = {key: tensor.to(device) for key, tensor in value.items()}
    return replace(message, **changed)  # type: ignore[type-var]


def check(message: object, question: Message | None = None) -> None:
    """Refuses, with a sentence, what is not a message of finite numbers of the declared types.

    With the `question` it answers, the message's own idea of a fitting answer is checked as well.
    """
    if not isinstance(message, Message):
        raise MessageError(f"A message was expected, {type(message).__name__} arrived.")
    for name, (hint, optional) in field_types(type(message)).items():
        value = getattr(message, name)
        if value is None and optional:
            continue
        expected = dict if get_origin(hint) is dict else hint
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise MessageError(
                f"'{message.kind}' arrived with {name} of type {type(value).__name__};"
                f" {getattr(expected, '__name__', expected)} was expected."
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise MessageError(f"'{message.kind}' arrived with {name} of more than 64 bits.")
        if isinstance(value, float) and not math.isfinite(value):
            raise NotFiniteError(f"'{message.kind}' arrived with {name} = {value}, which is not a finite number.")
        if isinstance(value, str) and not _is_text(value):
            raise MessageError(
                f"'{message.kind}' arrived with {name} that is no text: half of a character stands alone."
            )
    arrived, tensors = f"'{message.kind}' arrived with", tensors_of(message)
    for name, tensor in tensors.items():
        _check_tensor(arrived, name, tensor)
    bad = not_finite({name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()})
    if bad is not None:
        raise NotFiniteError(f"{arrived} numbers in {bad} that are not finite.")
    if question is not None:
        message.validate(question)


def _is_text(value: str) -> bool:
    """Whether it can be written down: JSON can spell lone surrogates, which no file and no screen takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_tensor(arrived: str, name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise MessageError(f"{arrived} {name}, which is no tensor.")
    if tensor.dtype not in WIRE_DTYPES:
        raise MessageError(f"{arrived} {name} of {tensor.dtype}, which no message may hold.")
    if tensor.ndim > MOST_SIDES or max(tensor.shape, default=0) >= LONGEST_SIDE:
        raise MessageError(f"{arrived} {name} of a shape that no message may hold: {tensor.ndim} sides.")
    if tensor.dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
        raise MessageError(f"{arrived} bytes in {name} that are neither true nor false.")


def same_shapes(kind: str, got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Refuses a dictionary of tensors whose names, shapes or dtypes are not those of another."""
    if got.keys() != wanted.keys():
        odd = sorted(got.keys() ^ wanted.keys())
        raise MessageError(f"'{kind}' arrived with other tensors than were asked for: {', '.join(odd[:4])}.")
    for name, tensor in got.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            raise MessageError(
                f"'{kind}' arrived with {name} as {tensor.dtype} {tuple(tensor.shape)};"
                f" {wanted[name].dtype} {tuple(wanted[name].shape)} was expected."
            )
