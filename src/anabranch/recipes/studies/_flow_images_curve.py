"""How good a flow of images is after how many minutes: measured while it trains, with the clock of training stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.errors import UsageError
from anabranch.methods.ffm import FlowServer, Progress
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies._flow_images_eyes import Eyes
from anabranch.recipes.studies._flow_images_sampling import make_ready, sampled
from anabranch.runs import Config, Looks, Row, RunFolder
from anabranch.runs._clock import Server

FILE = "curve.json"  # in the run's folder, whose curve it is
PREFIX = "curve_"  # so that no table takes these for figures of the finished flow
KINDS = ("fid_", "pixels_")


class Curve:
    """Distances of a few samples of the averaged flow after so many minutes of training each.

    The option `curve = { minutes = [1, 5, 15], nfe = 50, count = 10000 }` asks for it. What was measured is written
    down at once: a run that is continued does not measure it again.
    """

    def __init__(self, cell: StudyCell, config: Config, folder: RunFolder, eyes: Callable[[], Eyes]) -> None:
        self.cell, self.config, self.folder, self.eyes = cell, config, folder, eyes
        self.options: dict[str, Any] = cell.options.get("curve", {})
        whole = {"minutes", "nfe", "count"} == self.options.keys() and min(self.options["minutes"], default=0) > 0
        if self.options and not whole:
            raise UsageError(
                "The option curve needs minutes, nfe and count, as in { minutes = [1], nfe = 9, count = 99 }."
            )

    @property
    def rows(self) -> list[Row]:
        """What was measured so far, by rising minutes."""
        if not (self.folder.path / FILE).exists():
            return []
        found: list[Row] = self.folder.read_json(FILE)
        return sorted(found, key=lambda row: float(row["minutes"]))

    @property
    def looks(self) -> Looks:
        """The looks that are still to be taken."""
        known = {row["minutes"] for row in self.rows}
        return Looks([60.0 * m for m in self.options.get("minutes", []) if m not in known], self._look)

    def _look(self, mark: float, server: Server, progress: Progress, seconds: float) -> None:
        assert isinstance(server, FlowServer)
        cell, device = self.cell, server.federation.device
        plan = {**cell.options["sampling"], "count": self.options["count"]}
        velocity = make_ready(server.velocity(), self.config, plan, [self.options["nfe"]])
        drawn = sampled(velocity, self.config, cell.seed, plan, self.options["nfe"], device)
        eyes = self.eyes()
        (minutes,) = (m for m in self.options["minutes"] if 60.0 * m == mark)
        key: dict[str, Any] = {"problem": cell.problem, "method": cell.method, "seed": cell.seed}
        key |= {"nfe": self.options["nfe"], "minutes": minutes, "seconds": seconds, "round": progress.round}
        found = [row for row in eyes.compare(eyes.features(drawn.images)) if row["metric"].startswith(KINDS)]
        new = [{**key, **row, "metric": PREFIX + row["metric"], "value": float(row["value"])} for row in found]
        self.folder.write_json(FILE, [*self.rows, *new])
