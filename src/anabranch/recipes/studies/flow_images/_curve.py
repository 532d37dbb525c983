"""How good a flow of images is while it trains, by minutes or by rounds; the clock of training stands meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.errors import UsageError
from anabranch.methods.ffm import FlowServer, Progress
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies.flow_images._eyes import Eyes
from anabranch.recipes.studies.flow_images._sampling import make_ready, sampled
from anabranch.runs import Config, Looks, Row, RunFolder
from anabranch.runs._clock import Server

FILE = "curve.json"  # in the run's folder, whose curve it is
PREFIX = "curve_"  # so that no table takes these for figures of the finished flow
KINDS = ("fid_", "pixels_")
MINUTES, ROUNDS = "minutes", "flow_rounds"  # a row has one of them, its place on the curve


class Curve:
    """Distances of a few samples of the averaged flow, with each of a few numbers of steps, while it trains.

    The option `curve = { minutes = [1, 5, 15], nfe = [50], count = 10000 }` asks for them after so many minutes of
    training; with `rounds` in place of `minutes`, after so many rounds of the flow. What was measured is written down
    at once: a run that is continued does not measure it again.
    """

    def __init__(self, cell: StudyCell, config: Config, folder: RunFolder, eyes: Callable[[], Eyes]) -> None:
        self.cell, self.config, self.folder, self.eyes = cell, config, folder, eyes
        self.options: dict[str, Any] = cell.options.get("curve", {})
        if self.options:
            _check(self.options, config)
        self.key = ROUNDS if "rounds" in self.options else MINUTES

    @property
    def marks(self) -> list[float]:
        """Minutes, or rounds."""
        return list(self.options.get("rounds" if self.key == ROUNDS else "minutes", []))

    @property
    def rows(self) -> list[Row]:
        """What was measured so far, from the earliest look to the latest."""
        if not (self.folder.path / FILE).exists():
            return []
        found: list[Row] = self.folder.read_json(FILE)
        return sorted((row for row in found if self.key in row), key=lambda row: float(row[self.key]))

    @property
    def looks(self) -> Looks:
        """The looks that are still to be taken."""
        known = {row[self.key] for row in self.rows} | {self._end}
        left = [mark for mark in self.marks if mark not in known]
        if self.key == ROUNDS:
            return Looks(left, self._look, "rounds")
        return Looks([60.0 * mark for mark in left], self._look)

    @property
    def _end(self) -> float | None:
        """The mark of the finished flow, where the table has all that would be measured there, which is not done
        twice."""
        table, rounds = self.cell.options, self.config.flow.rounds
        if self.key != ROUNDS or rounds not in self.marks or self.options["count"] != table["sampling"]["count"]:
            return None
        return rounds if set(self.options["nfe"]) <= set(table["nfe"]) else None

    def end(self, found: Sequence[Row]) -> None:
        """Takes the point of the finished flow from the rows of the table."""
        if self._end is None or self._end in {row[self.key] for row in self.rows}:
            return
        done = self.folder.read_json("results.json")
        key = self._key(self._end, done["seconds"], done["rounds"])
        kept = [row for row in found if row["metric"].startswith(KINDS) and "solver" not in row]
        new = [{**key, **_named(row)} for nfe in self.options["nfe"] for row in kept if row.get("nfe") == nfe]
        self.folder.write_json(FILE, [*self.rows, *new])

    def _key(self, place: float, seconds: float, number: int) -> dict[str, Any]:
        """What all rows of one place on the curve have in common."""
        cell = self.cell
        key: dict[str, Any] = {"problem": cell.problem, "method": cell.method, "seed": cell.seed}
        return {**key, self.key: place, "seconds": seconds, "round": number}

    def _look(self, mark: float, server: Server, progress: Progress, seconds: float) -> None:
        assert isinstance(server, FlowServer)
        cell, steps = self.cell, self.options["nfe"]
        plan = {**cell.options["sampling"], "count": self.options["count"]}
        velocity = make_ready(server.velocity(), self.config, plan, steps)
        place = mark if self.key == ROUNDS else next(m for m in self.marks if 60.0 * m == mark)
        key = self._key(place, seconds, progress.round)
        eyes, new = self.eyes(), list[Row]()
        for nfe in steps:
            images = sampled(velocity, self.config, cell.seed, plan, nfe, server.federation.device).images
            found = eyes.compare(eyes.features(images))
            new += [{**key, "nfe": nfe, **_named(row)} for row in found if row["metric"].startswith(KINDS)]
        self.folder.write_json(FILE, [*self.rows, *new])


def _named(row: Row) -> Row:
    return {**row, "metric": PREFIX + row["metric"], "value": float(row["value"])}


def _check(options: Mapping[str, Any], config: Config) -> None:
    """Refuses a curve that cannot be, and one that would not be whole."""
    marks = options.get("minutes", options.get("rounds"))
    lists = [marks, options.get("nfe")]
    whole = options.keys() in ({"minutes", "nfe", "count"}, {"rounds", "nfe", "count"})
    if not whole or not all(isinstance(found, list) and found and min(found) > 0 for found in lists):
        raise UsageError(
            "The option curve needs minutes or rounds, nfe and count, the first two as lists, as in"
            " { minutes = [1, 5], nfe = [9], count = 99 } or { rounds = [500, 1000], nfe = [3, 9], count = 99 }."
        )
    if "rounds" in options and max(options["rounds"]) > config.flow.rounds:
        raise UsageError(
            f"The curve looks at the flow after round {max(options['rounds'])}, and it trains for"
            f" {config.flow.rounds}; lower curve.rounds, or raise flow.rounds."
        )
