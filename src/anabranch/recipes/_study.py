"""A study: cells that are not flow training. A module of `recipes.studies` computes their rows and draws them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.errors import RunFolderError, UsageError
from anabranch.federation import Ranks
from anabranch.recipes._names import figure, metric_name
from anabranch.runs import Row, RunFolder, differences
from anabranch.runs._config import setting

Lines = list[list[str]]  # of a table, its header first
COUNTS = ("passes", "batch")  # of what may be set for a machine, those that are numbers of something


@dataclass(frozen=True)
class StudyCell:
    """One cell of a study: what to compute, with which options, and the folder that may hold its arrays.

    `options` are the recipe's base, changed by the problem, the method and the scale, in this order. Rows are what a
    cell gives; arrays for pictures go to `folder` as .npz.
    """

    problem: str
    method: str
    seed: int
    scale: str
    options: dict[str, Any]
    folder: Path
    threads: int


@dataclass(frozen=True)
class StudyRun:
    """A cell with the study that computes it: what `reproduce` runs, beside the `Cell` of flow training."""

    study: str
    cell: StudyCell

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.cell.problem} {self.cell.method} seed {self.cell.seed}"

    @property
    def title(self) -> str:
        """What is running, without its seed."""
        return f"{self.cell.method} on {self.cell.problem}"

    @property
    def path(self) -> Path:
        """The cell's folder."""
        return self.cell.folder

    @property
    def alone(self) -> bool:
        """Whether it must have the machine to itself, because it measures time."""
        return bool(self.cell.options.get("alone", False))

    @property
    def price(self) -> float:
        """Studies run in the order in which their recipe names them."""
        return 0.0

    def share(self) -> float:
        """How much of it is done, where its study can tell."""
        tell = getattr(study(self.study), "share", None)
        return 0.0 if tell is None else float(tell(self.cell))

    def finished(self) -> bool:
        """Whether its rows are there; a folder that holds another cell is refused."""
        folder = RunFolder(self.path)
        if not folder.finished:
            return False
        if (old := self._fixed(folder.read_json("config.json"))) != self.record():
            raise RunFolderError(
                f"{self.path} was computed with other options than the recipe now says:"
                f" {differences(_named(old), _named(self.record()))}. Choose another folder with --out, or delete that"
                " one to have it computed again."
            )
        return True

    def run(self) -> None:
        """Computes the rows. They are written last and in one step, so that a cell is whole or not there."""
        import torch

        torch.set_num_threads(self.cell.threads)
        if not Ranks.here().first:  # of several processes one writes
            study(self.study).run(self.cell)
            return
        folder = RunFolder(self.path)
        with folder.locked():
            if self.finished():  # by another process, since it was looked at
                return
            folder.write_json("config.json", self.record())
            folder.write_json("results.json", {"rows": study(self.study).run(self.cell)})

    def rows(self) -> list[Row]:
        """What it found."""
        found: list[Row] = RunFolder(self.path).read_json("results.json")["rows"]
        return found

    def record(self) -> dict[str, Any]:
        """What its rows follow from, as JSON gives it back."""
        cell = self.cell
        names = {"study": self.study, "problem": cell.problem, "method": cell.method, "seed": cell.seed}
        return self._fixed({**names, "options": cell.options})

    def _fixed(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record without the options that may be another machine's, or that its method does not look at."""
        looks_at = getattr(study(self.study), "looks_at", lambda _method, _option: True)
        free = [name.split(".") for name in free_options(self.study)]
        options = {
            name: {key: held for key, held in value.items() if [name, key] not in free}
            if isinstance(value, dict)
            else value
            for name, value in record.get("options", {}).items()
            if looks_at(record.get("method"), name)
        }
        return {**record, "options": options}


@dataclass(frozen=True)
class Presentation:
    """How a study is shown: tables as (title, lines) and pictures by title."""

    tables: list[tuple[str, Lines]] = field(default_factory=list)
    pictures: dict[str, Path] = field(default_factory=dict)


def _named(record: dict[str, Any]) -> dict[str, Any]:
    """A cell's record with its options under the names that they have in the recipe."""
    return {**{key: value for key, value in record.items() if key != "options"}, **record.get("options", {})}


def free_options(name: str | None) -> tuple[str, ...]:
    """The options of a study that change no figure, but what a machine must have, as "section.key"."""
    return () if name is None else tuple(getattr(study(name), "FREE", ()))


def freed(name: str | None, changes: Sequence[str]) -> dict[str, Any]:
    """Options from `key=value` texts; those that a recipe's figures rest on are refused."""
    result: dict[str, dict[str, Any]] = {}
    free = free_options(name)
    for key, value in map(setting, changes):
        if key not in free:
            may = f"To be set are {', '.join(free)}, on which none does" if free else "Nothing can be set here"
            raise UsageError(
                f"'{key}' is not for --set: a recipe's figures rest on what it says. {may}. Runs with settings of your"
                " own are trained by 'anabranch train'."
            )
        section, _, option = key.partition(".")
        if option in COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"{key} is {value}; give a whole number, 1 or more.")
        result.setdefault(section, {})[option] = value
    return result


def study(name: str) -> Any:
    """The module of that name."""
    module = f"anabranch.recipes.studies.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UsageError(f"A recipe asks for the study '{name}', and there is no {module}.") from None


def present(
    name: str, rows: Sequence[Row], published: Sequence[Row], folders: Sequence[Path], out: Path
) -> Presentation:
    """The tables and pictures of a whole recipe; pictures are written to the folder `out`."""
    module = study(name)
    out.mkdir(parents=True, exist_ok=True)
    tables = module.tables(list(rows)) if hasattr(module, "tables") else [("Figures", beside(rows, published))]
    return Presentation(tables, module.draw(list(rows), list(folders), out))


def beside(rows: Sequence[Row], published: Sequence[Row]) -> Lines:
    """Means over seeds, ± their standard deviation, a line for each cell and x; the paper's figures beside ours.

    Metrics have their names for people.

    >>> row = {"problem": "p", "method": "m", "seed": 0, "metric": "accuracy", "value": 0.5}
    >>> beside([row, {**row, "seed": 1, "value": 0.7}], [{**row, "value": 0.65, "spread": 0.01}])
    [['problem', 'method', 'accuracy', 'accuracy, paper'], ['p', 'm', '0.6 ± 0.14', '0.65 ± 0.01']]
    """
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    theirs = {(row["problem"], row["method"], row["metric"]): row for row in published}
    has_x = any("x" in row for row in rows)
    columns = [(m, paper) for m in metrics for paper in (False, True) if not paper or any(k[2] == m for k in theirs)]
    values: dict[tuple[str, str, Any], dict[str, list[float]]] = {}
    for row in rows:
        line = values.setdefault((row["problem"], row["method"], row.get("x")), {})
        line.setdefault(row["metric"], []).append(row["value"])
    titles = [f"{metric_name(metric)}, paper" if paper else metric_name(metric) for metric, paper in columns]
    lines = [["problem", "method", *["x"][: int(has_x)], *titles]]
    for (problem, method, x), found in values.items():
        cells = [
            _published(theirs.get((problem, method, m))) if paper else _mean(found.get(m, [])) for m, paper in columns
        ]
        lines.append([problem, method, *["" if x is None else f"{x}"][: int(has_x)], *cells])
    return lines


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
    return f"{figure(mean)} ± {spread:.2g}" if len(values) > 1 else figure(mean)


def _published(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{figure(row['value'])} ± {row['spread']:.2g}" if "spread" in row else figure(row["value"])
