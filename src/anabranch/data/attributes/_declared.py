"""An attribute space as settings write it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.data.attributes._space import AttributeSpace
from anabranch.errors import UsageError


def declared_space(names: Sequence[str], outcomes: Mapping[str, Sequence[str]]) -> AttributeSpace | None:
    """The space of these outcomes, its attributes in the order of `names` if there are any; None without outcomes.

    >>> declared_space(["digit", "color"], {"color": ["red", "blue"], "digit": ["0", "1", "2"]}).sizes
    (3, 2)
    """
    if not outcomes:
        return None
    if names and set(names) != set(outcomes):
        raise UsageError(
            f"data.attributes names {', '.join(names)}, data.outcomes {', '.join(outcomes)}; both must speak of the"
            " same attributes."
        )
    return AttributeSpace.of({name: outcomes[name] for name in names or outcomes})
