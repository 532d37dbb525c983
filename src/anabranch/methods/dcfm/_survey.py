"""Who holds which combination of attributes, asked by counts alone; and how large images are."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from anabranch.data.attributes import AttributeSpace, Coverage, union
from anabranch.errors import DataError
from anabranch.federation import Federation
from anabranch.methods.experts import Survey, SurveyReply


def survey(federation: Federation, space: AttributeSpace | None = None) -> tuple[Coverage, tuple[int, ...]]:
    """Who holds which combination, by counts alone, and the shape of images, () where no silo says that it has such.

    Silos must know the same attributes, and none but those given.
    """
    replies: dict[str, SurveyReply] = federation.everyone(Survey("" if space is None else space.to_json()))
    own = {name: AttributeSpace.from_json(reply.space) for name, reply in replies.items()}
    first = next(iter(own.values()))
    agreed = space or (first if all(one == first for one in own.values()) else union(own))
    counts, withheld = {}, {}
    for name, reply in replies.items():
        present = reply.counts.nonzero()[:, 0]
        try:
            label = own[name].recode(present, agreed)
        except DataError as error:
            raise DataError(f"Silo '{name}' disagrees about the attributes. {error}") from error
        told = int(reply.counts.sum())  # of all but those whose count is below the silo's smallest group
        withheld[name] = max(0, federation.sizes.get(name, told) - told)
        counts[name] = torch.zeros(len(agreed), dtype=torch.int64).index_add_(0, label, reply.counts[present])
    coverage = Coverage(agreed, counts, {name: number for name, number in withheld.items() if number})
    return coverage, _shape(replies, federation.dimension)


def _shape(replies: Mapping[str, SurveyReply], dimension: int) -> tuple[int, ...]:
    """The one shape that silos told of, where any did."""
    told = {name: tuple(reply.shape.tolist()) for name, reply in replies.items() if reply.shape is not None}
    for name, shape in told.items():
        first = next(iter(told))
        if shape != told[first]:
            raise DataError(
                f"Silo '{name}' has images of shape {shape}, '{first}' of {told[first]}: colours, height, width. Bring"
                " all of them into one shape."
            )
        if prod(shape) != dimension:
            raise DataError(
                f"Silo '{name}' says that its samples are images of shape {shape}, which are {prod(shape)} numbers; it"
                f" has {dimension} a sample. Correct the array 'shape' of its file."
            )
    return next(iter(told.values()), ())
