"""The attribute space Y = Y1 × … × Yk: which attributes a sample has, and what each can be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from anabranch.data.attributes._words import check_attributes, named, not_alike, quoted
from anabranch.errors import DataError, UsageError, unknown

NULL = -1
"""The code of an attribute that is not given."""

MOST_TEXT = 2**22  # characters of a space in JSON: one of the largest takes half of it


@dataclass(frozen=True)
class AttributeSpace:
    """Y = Y1 × … × Yk (DCFM, section 3.1): attributes by name, each with the outcomes that it can have.

    A combination y is a row of k *codes*, the places of its outcomes, or one *label*, its place among all |Y|
    combinations, the last attribute running fastest. A silo may know one outcome of an attribute only; `check` refuses
    that for a space in which flows are to be composed.

    >>> space = AttributeSpace.of({"digit": ["0", "1", "2"], "color": ["red", "blue"]})
    >>> space.names, space.sizes, space.k, len(space)
    (('digit', 'color'), (3, 2), 2, 6)
    >>> space.encode(torch.tensor([[2, 1], [0, 0]])), space.decode(torch.tensor([5, 0])).tolist()
    (tensor([5, 0]), [[2, 1], [0, 0]])
    >>> space.parse("color=blue").tolist(), space.describe(5)
    ([-1, 1], 'digit=2, color=blue')
    """

    attributes: tuple[tuple[str, tuple[str, ...]], ...]

    def __post_init__(self) -> None:
        check_attributes(self.attributes)

    @staticmethod
    def of(attributes: Mapping[str, Sequence[str]]) -> AttributeSpace:
        """The space of these names and outcomes, in their order, in which flows can be composed."""
        pairs = tuple((name, tuple(outcomes)) for name, outcomes in attributes.items())
        return AttributeSpace(pairs).check()

    def check(self) -> AttributeSpace:
        """The space itself; refuses an attribute with one outcome, which has nothing to tell apart."""
        for name, outcomes in self.attributes:
            if len(outcomes) < 2:
                raise DataError(
                    f"The attribute '{name}' has one outcome, '{outcomes[0]}', in all silos; an attribute needs two"
                    " or more to be composed. Leave it out."
                )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes."""
        return tuple(name for name, _ in self.attributes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """(|Y1|, …, |Yk|)."""
        return tuple(len(outcomes) for _, outcomes in self.attributes)

    @property
    def k(self) -> int:
        """How many attributes there are."""
        return len(self.attributes)

    def __len__(self) -> int:
        return prod(self.sizes)

    def encode(self, codes: Tensor) -> Tensor:
        """The labels (…) of codes (…, k); refuses a combination of which an attribute is not given."""
        if codes.ndim < 1 or codes.shape[-1] != self.k or codes.is_floating_point() or codes.dtype == torch.bool:
            raise UsageError(
                f"Codes of shape {tuple(codes.shape)} and type {codes.dtype} were given; a combination of"
                f" {', '.join(self.names)} is a row of {self.k} whole numbers."
            )
        label = torch.zeros(codes.shape[:-1], dtype=torch.long, device=codes.device)
        for place, (name, outcomes) in enumerate(self.attributes):
            code = codes[..., place].long()
            if bool((code == NULL).any()):
                raise UsageError(
                    f"A combination without '{name}' was given; it has no label. Give all of {', '.join(self.names)}."
                )
            if bool(((code < 0) | (code >= len(outcomes))).any()):
                raise UsageError(f"A code of '{name}' lies outside 0 … {len(outcomes) - 1}; it names no outcome.")
            label = label * len(outcomes) + code
        return label

    def decode(self, label: Tensor) -> Tensor:
        """The codes (…, k) of labels (…)."""
        self.check_labels(label)
        rest, codes = label.long(), []
        for size in reversed(self.sizes):
            codes.append(rest % size)
            rest = torch.div(rest, size, rounding_mode="floor")
        return torch.stack(codes[::-1], dim=-1)

    def check_labels(self, label: Tensor, owner: str = "What was given") -> None:
        """Refuses labels (…) that name no combination; `owner` begins the complaint ("Silo 'b'").

        >>> AttributeSpace.of({"a": "01", "b": "01"}).check_labels(torch.tensor([0, -1]), "Silo 'b'")
        Traceback (most recent call last):
        anabranch.errors.UsageError: Silo 'b' holds 1 label of 2 that names no combination, the first in row 2 (row 1 is
        the first): -1. A label is a whole number in 0 … 3, as space.encode makes it of codes; leave out samples of
        which an attribute is not known.
        """
        needed = f"A label is a whole number in 0 … {len(self) - 1}, as space.encode makes it of codes"
        if label.is_floating_point():
            raise UsageError(f"{owner} holds labels of type {label.dtype}; such a one names no combination. {needed}.")
        wrong = (label < 0) | (label >= len(self))
        if not bool(wrong.any()):
            return
        rows = wrong.flatten().nonzero()[:, 0]
        which = "1 label of {} that names" if len(rows) == 1 else f"{len(rows)} labels of {{}} that name"
        raise UsageError(
            f"{owner} holds {which.format(label.numel())} no combination, the first in row"
            f" {int(rows[0]) + 1} (row 1 is the first): {int(label.flatten()[rows[0]])}. {needed}; leave out samples of"
            " which an attribute is not known."
        )

    def combinations(self) -> Tensor:
        """All of Y as codes (|Y|, k), in the order of their labels."""
        return self.decode(torch.arange(len(self)))

    def parse(self, text: str) -> Tensor:
        """The codes (k,) of a text such as "digit=0,color=yellow"; what it does not name is `NULL`."""
        codes = torch.full((self.k,), NULL)
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, outcome = (word.strip() for word in part.partition("="))
            if not equals:
                raise UsageError(
                    f"'{part}' names no outcome; write it as attribute=outcome, as in '{self.describe(0)}'."
                )
            if name not in self.names:
                raise unknown("attribute", name, self.names)
            place = self.names.index(name)
            outcomes = self.attributes[place][1]
            if outcome not in outcomes:
                raise unknown(f"outcome of '{name}' named", outcome, outcomes)
            if codes[place] != NULL:
                raise UsageError(f"'{text}' gives '{name}' twice; give it once.")
            codes[place] = outcomes.index(outcome)
        return codes

    def describe(self, label: int) -> str:
        """The combination in words, as `parse` reads them."""
        codes = self.decode(torch.tensor(label)).tolist()
        return ", ".join(f"{name}={given[code]}" for (name, given), code in zip(self.attributes, codes, strict=True))

    def to_json(self) -> str:
        """The space as a list of [name, [outcome, …]]; equal spaces have equal text."""
        return json.dumps(self.attributes, ensure_ascii=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> AttributeSpace:
        """What `to_json` wrote; the text may come from elsewhere, so nothing in it is taken for granted."""
        if not isinstance(text, str) or len(text) > MOST_TEXT:
            raise DataError(f"An attribute space is a text of at most {MOST_TEXT} characters; ask its sender for that.")
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError("A text that is not JSON was given as an attribute space; ask its sender anew.") from error
        well = isinstance(read, list) and all(
            isinstance(pair, list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], list)
            and all(isinstance(outcome, str) for outcome in pair[1])
            for pair in read
        )
        if not well:
            raise DataError('An attribute space in JSON is a list such as [["color", ["red", "blue"]], …]; it was not.')
        return AttributeSpace(tuple((name, tuple(outcomes)) for name, outcomes in read))

    def recode(self, label: Tensor, other: AttributeSpace) -> Tensor:
        """The labels of the same combinations in another space, which may order and extend this one.

        >>> small = AttributeSpace.of({"color": ["red", "blue"], "digit": ["0", "2"]})
        >>> large = AttributeSpace.of({"digit": ["0", "1", "2"], "color": ["blue", "red"]})
        >>> large.describe(int(small.recode(torch.tensor([1]), large)[0])), small.describe(1)
        ('digit=2, color=red', 'color=red, digit=2')
        """
        if self == other:
            return label
        if set(self.names) != set(other.names):
            raise DataError(not_alike({"these labels": self.names, "the space": other.names}))
        mine, codes = self.decode(label), []
        for name, outcomes in other.attributes:
            place = self.names.index(name)
            own = self.attributes[place][1]
            where = {outcome: number for number, outcome in enumerate(outcomes)}
            table = torch.tensor([where.get(outcome, NULL) for outcome in own], device=label.device)
            code = table[mine[..., place]]
            if bool((code == NULL).any()):
                lost = [own[number] for number in sorted(set(mine[..., place][code == NULL].tolist()))]
                raise DataError(
                    f"The space does not know {quoted(named(name, lost))}, which samples have; it knows of '{name}'"
                    f" {quoted(outcomes)}. Agree on a space that holds the outcomes of all silos."
                )
            codes.append(code)
        return other.encode(torch.stack(codes, dim=-1))
