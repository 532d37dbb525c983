"""Where two records of settings differ, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

NAMED = 3  # settings that a sentence names
LONG = 60  # characters of a value beyond which it is cut
_UNSET = object()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first settings that differ, with both values, and how many more do.

    >>> differences({"seed": 0, "flow": {"rounds": 12, "rate": 0.1}}, {"seed": 0, "flow": {"rounds": 20, "rate": 0.1}})
    'flow.rounds is 12 there and 20 now'
    """
    before, after = _flat(old), _flat(new)
    keys = [key for key in {**before, **after} if before.get(key, _UNSET) != after.get(key, _UNSET)]
    named = [f"{key} is {_text(before, key)} there and {_text(after, key)} now" for key in keys[:NAMED]]
    more = len(keys) - NAMED
    if more > 0:
        named.append(f"{more} more {'settings differ' if more > 1 else 'setting differs'}")
    return ", ".join(named) or "its settings differ"


def _flat(values: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """By whole names, as in flow.rounds."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{start}{key}.") if isinstance(value, Mapping) else {f"{start}{key}": value}
    return found


def _text(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "not set"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"
