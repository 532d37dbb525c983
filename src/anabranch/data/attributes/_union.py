"""One attribute space for all silos, from what each of them knows."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.data.attributes._space import AttributeSpace
from anabranch.data.attributes._words import not_alike
from anabranch.errors import DataError, UsageError


def union(spaces: Mapping[str, AttributeSpace]) -> AttributeSpace:
    """The space of all silos: the attributes that all have, each with every outcome that any silo knows.

    Outcomes are in order, numbers by their value. Silos with other attributes than the rest are named and refused.

    >>> north = AttributeSpace((("wind", ("weak",)), ("rain", ("no", "yes"))))
    >>> south = AttributeSpace((("rain", ("no",)), ("wind", ("strong",))))
    >>> union({"north": north, "south": south}).attributes
    (('wind', ('strong', 'weak')), ('rain', ('no', 'yes')))
    """
    if not spaces:
        raise UsageError("No attribute spaces were given; there must be at least one silo.")
    first = next(iter(spaces.values()))
    if any(set(space.names) != set(first.names) for space in spaces.values()):
        raise DataError(not_alike({f"silo '{silo}'": space.names for silo, space in spaces.items()}))
    known = {silo: dict(space.attributes) for silo, space in spaces.items()}
    merged = {name: in_order({text for each in known.values() for text in each[name]}) for name in first.names}
    return AttributeSpace.of(merged)


def in_order(outcomes: set[str]) -> tuple[str, ...]:
    """Sorted; by value when all are whole numbers.

    >>> in_order({"10", "9", "-1"}), in_order({"10", "9", "x"})
    (('-1', '9', '10'), ('10', '9', 'x'))
    """
    whole = all(text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 for text in outcomes)
    return tuple(sorted(outcomes, key=lambda text: (int(text), text)) if whole else sorted(outcomes))
