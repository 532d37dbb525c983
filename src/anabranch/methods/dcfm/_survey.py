"""Who holds which combination of attributes, asked by counts alone."""

from __future__ import annotations

import torch

from anabranch.data.attributes import AttributeSpace, Coverage, union
from anabranch.errors import DataError
from anabranch.federation import Federation
from anabranch.methods.experts import Survey, SurveyReply


def survey(federation: Federation, space: AttributeSpace | None = None) -> Coverage:
    """Who holds which combination, by counts alone. Silos must know the same attributes, and none but those given."""
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
    return Coverage(agreed, counts, {name: number for name, number in withheld.items() if number})
