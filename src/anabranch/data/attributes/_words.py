"""What is refused of names and outcomes, and how lists of them are said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from anabranch.errors import DataError

MOST_ATTRIBUTES = 64
MOST_OUTCOMES = 256  # of one attribute: more are a measurement, and the design matrix stays small
MOST_COMBINATIONS = 2**20
LONGEST = 100  # characters of a name or an outcome


def check_attributes(attributes: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """Refuses what is not an attribute space, or one too large to count in; it may come from elsewhere."""
    if len(attributes) < 2:
        given = f"one attribute, '{attributes[0][0]}'," if attributes else "no attributes"
        verb = "was" if attributes else "were"
        raise DataError(f"{given.capitalize()} {verb} given; there is nothing to compose. Give two or more.")
    if len(attributes) > MOST_ATTRIBUTES:
        raise DataError(f"{len(attributes)} attributes were given; there may be at most {MOST_ATTRIBUTES}.")
    _check_texts("An attribute", [name for name, _ in attributes])
    for name, outcomes in attributes:
        if not outcomes:
            raise DataError(f"The attribute '{name}' has no outcomes; give it two or more.")
        if len(outcomes) > MOST_OUTCOMES:
            raise DataError(
                f"The attribute '{name}' has {len(outcomes)} outcomes, more than {MOST_OUTCOMES}; is it a measurement?"
                " Gather its values in a few classes."
            )
        _check_texts(f"An outcome of '{name}'", outcomes)
    size = prod(len(outcomes) for _, outcomes in attributes)
    if size > MOST_COMBINATIONS:
        raise DataError(f"The attributes have {size} combinations, more than {MOST_COMBINATIONS}; take fewer of them.")


def _check_texts(what: str, texts: Sequence[str]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{what} is {text!r}, not a text; give it a name.")
        if not text or len(text) > LONGEST:
            raise DataError(f"{what} has a name of {len(text)} characters; give it one of 1 to {LONGEST}.")
        if "=" in text or "," in text or text != text.strip() or not text.isprintable():
            raise DataError(
                f"{what} is named {text!r}; a name has no '=' or ',', no blanks at its ends and nothing unprintable,"
                " so that combinations can be written as 'digit=0,color=red'. Rename it."
            )
    if len(set(texts)) < len(texts):
        twice = next(text for number, text in enumerate(texts) if text in texts[:number])
        raise DataError(f"{what} is named '{twice}' twice; name each once.")


def not_alike(names: Mapping[str, Sequence[str]]) -> str:
    """The sentence that says who has which attributes."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for who, each in names.items():
        groups.setdefault(tuple(sorted(each)), []).append(who)
    said = "; ".join(f"{quoted(who, marks='')} with {quoted(each)}" for each, who in groups.items())
    return f"The attributes are not the same everywhere: {said}. All need the same ones."


def named(name: str, outcomes: Sequence[str]) -> list[str]:
    """`name=outcome` of each outcome."""
    return [f"{name}={outcome}" for outcome in outcomes]


def quoted(texts: Sequence[str], most: int = 5, marks: str = "'") -> str:
    """The texts in quotation marks; of many, the first few and how many more there are.

    >>> quoted(["a", "b"]), quoted(list("abcdefgh"), most=3)
    ("'a', 'b'", "'a', 'b', 'c' and 5 more")
    """
    shown = ", ".join(f"{marks}{text}{marks}" for text in texts[:most])
    return shown + (f" and {len(texts) - most} more" if len(texts) > most else "")
