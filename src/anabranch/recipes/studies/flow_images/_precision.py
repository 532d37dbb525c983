"""What the precision of sampling does to a flow of images: the same samples in 32 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.errors import UsageError
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies.flow_images._eyes import Eyes
from anabranch.recipes.studies.flow_images._sampling import make_ready, sampled, velocity_of
from anabranch.runs import Config, Row

KINDS = ("fid_", "pixels_")
PRECISE = "precise_"  # before a metric: of samples in 32 bits
ROUNDED = "rounded_"  # of the same samples as they are usually drawn
CHANGE = "change"


def check_precise(options: dict[str, Any]) -> None:
    """Refuses what is asked for where there are no samples to set beside."""
    chosen = options.get("precise", {})
    if chosen and (chosen.keys() != {"nfe", "count"} or chosen["nfe"] not in options["nfe"]):
        raise UsageError(
            "The option precise needs count and nfe, one of the recipe's own, as in { nfe = 10, count = 10000 }."
        )


def beside_precise(cell: StudyCell, config: Config, run: Path, eyes: Eyes, features: Tensor) -> list[Row]:
    """Distances of samples in 32 bits beside those of `features`, which were drawn of the same flow from the same
    noise with as many steps; and the largest change of a distance, `fid_change` or `pixels_change`.

    The option `precise = { nfe = 10, count = 10000 }` asks for it.
    """
    chosen, plan = cell.options["precise"], cell.options["sampling"]
    count = min(chosen["count"], plan["count"])
    whole = min(plan["count"], -(-count // plan["batch"]) * plan["batch"])  # noise is that of whole batches
    plan = {**plan, "count": whole}
    velocity, device = velocity_of(run, config, precise=True)
    drawn = sampled(make_ready(velocity, config, plan, [chosen["nfe"]]), config, cell.seed, plan, chosen["nfe"], device)
    sides = {ROUNDED: features[:count], PRECISE: eyes.features(drawn.images[:count])}
    found = {side: [row for row in eyes.compare(own) if row["metric"].startswith(KINDS)] for side, own in sides.items()}
    rows = [{**row, "metric": side + row["metric"]} for side, own in found.items() for row in own]
    changes = [abs(a["value"] - b["value"]) for a, b in zip(found[ROUNDED], found[PRECISE], strict=True)]
    kind = found[PRECISE][0]["metric"].partition("_")[0]
    return [*rows, {"metric": f"{kind}_{CHANGE}", "value": max(changes), "images": count}]
