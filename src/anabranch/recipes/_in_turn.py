"""The cells of a recipe, one after the other, each by all the processes that torchrun started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.errors import UsageError
from anabranch.recipes._recipe import Recipe
from anabranch.recipes._reproduce import AnyCell

SHARED = (None, "flow_images")  # studies whose cells train a flow as `runs.train` does


def run_in_turn(
    recipe: Recipe, cells: Sequence[AnyCell], watch: Callable[[Sequence[AnyCell], Sequence[AnyCell]], None]
) -> None:
    """Trains the cells that are not finished; rank 0 judges each while the others go on to wait for it at the next.

    A cell that fails ends all: a process that went on alone would meet the others at another place.
    """
    if recipe.study not in SHARED:
        raise UsageError(
            f"torchrun shares the silos of a flow; the cells of '{recipe.name}' train none that could be shared. Start"
            " it alone, with --jobs for several cells at a time."
        )
    for cell in [cell for cell in cells if not cell.finished()]:
        watch(cells, [cell])
        cell.run()
    watch(cells, [])
