"""Records of settings: the types that they declare are the types that they take."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from anabranch.errors import UsageError, unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def fill(kind: type[T], section: str, values: Mapping[str, Any]) -> T:
    """A section's record with these values: keys must be its fields, values of their types."""
    return kind(**checked(kind, section, values))


def checked(kind: type, section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Some values of a section, as the types that its record declares; unknown keys are refused."""
    hints = _hints(kind)
    for key in values:
        if key not in hints:
            raise unknown(f"key in [{section}]", key, hints)
    return {key: converted(f"{section}.{key}", value, hints[key]) for key, value in values.items()}


def check_types(record: DataclassInstance, section: str = "") -> None:
    """Refuses a record of which a field has not its type; to be called before values are compared with anything."""
    hints = _hints(type(record))
    for each in fields(record):
        name = f"{section}.{each.name}" if section else each.name
        converted(name, getattr(record, each.name), hints[each.name])


def converted(name: str, value: Any, hint: Any) -> Any:
    """The value as the declared type: whole numbers may stand for floats, lists for tuples, nothing else.

    >>> converted("experts.shape", [3, 28, 28], tuple[int, ...]), converted("experts.penalty", 5, float)
    ((3, 28, 28), 5.0)
    >>> converted("experts.penalty", "5", float)
    Traceback (most recent call last):
    anabranch.errors.UsageError: experts.penalty is '5'; a value of type float is needed.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        choices = [arg for arg in get_args(hint) if arg is not type(None)]
        hint = next((arg for arg in choices if type(value) is arg), choices[-1])
        origin = get_origin(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(converted(name, item, get_args(hint)[0]) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {str(key): converted(f"{name}.{key}", item, get_args(hint)[1]) for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is None and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = getattr(hint, "__name__", str(hint)) if origin is None else origin.__name__
    raise UsageError(f"{name} is {value!r}; a value of type {wanted} is needed.")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
