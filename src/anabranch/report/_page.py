"""The page: everything about one or several runs in one file that needs nothing else."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.federation import write_atomically
from anabranch.report import _charts, _html, _words
from anabranch.report._grid import Cells, grid_figure
from anabranch.report._html import Markup
from anabranch.report._messages import message_kinds
from anabranch.report._paths import Scene, frame, landing_frame, panel, paths_figure, scenes
from anabranch.report._read import Comparison, Run, comparison
from anabranch.report._sheets import sheets_figure, sheets_of
from anabranch.report._style import Look, looks, style
from anabranch.report._table import MISSING, Table, number, table
from anabranch.report._training import training_figure
from anabranch.runs import COMPOSED, PLAIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS = 150  # an inch, of pictures


def write_report(
    runs: Sequence[Path], out: Path, checks: Sequence[Mapping[str, Any]] = (), title: str | None = None
) -> Path:
    """Writes the page to `out` (a file, or a folder for report.html) and every figure to `figures/` beside it.

    `checks` are records of name, value, limit and ok. Runs that have not finished show their training curves.
    """
    content = comparison(runs)
    path = out / "report.html" if out.is_dir() else out
    heading = title or _words.title(content)
    with style():
        writer = _Writer(content, looks(content), path.parent / "figures")
        body = writer.body(heading, checks)
    write_atomically(path, _html.page(heading, body).encode())
    return path


@dataclass
class _Writer:
    """Sections in the order in which they are read."""

    content: Comparison
    looks: dict[str, Look]
    folder: Path
    names: set[str] = field(default_factory=set)

    def body(self, heading: str, checks: Sequence[Mapping[str, Any]]) -> str:
        parts = {
            "Summary": self._summary(),
            "Checks": _checks(checks),
            "Combinations": self._combinations(),
            "Samples": self._images(),
            "Paths": self._paths(),
            "Distance": self._distance(),
            "Coupling": self._coupling(),
            "Training": self._training(),
            "Messages": self._wire(),
            "Runs": self._runs(),
        }
        links = [f'<a href="#{name.lower()}">{name}</a>' for name, part in parts.items() if part]
        return "\n".join([self._head(heading), f"<nav>{' '.join(links)}</nav>", *filter(None, parts.values())])

    def _head(self, heading: str) -> str:
        recipes = {f"{r.config.recipe}, scale {r.config.scale}" for r in self.content.runs if r.config.recipe != "own"}
        finished = len(self.content.runs) - len(self.content.unfinished)
        runs = f"{len(self.content.runs)} {'run' if len(self.content.runs) == 1 else 'runs'}, {finished} finished"
        found = "".join(_html.paragraph(text) for text in _words.findings(self.content))
        waiting = "".join(_html.paragraph(_words.unfinished(run), "note") for run in self.content.unfinished)
        return "\n".join(
            [
                _html.paragraph(" · ".join(["Anabranch", *sorted(recipes), runs]), "eyebrow"),
                f"<h1>{_html.escape(heading)}</h1>",
                _html.paragraph(_words.introduction(self.content), "lead"),
                f'<div class="findings">{found}</div>' if found else "",
                waiting,
            ]
        )

    def _summary(self) -> str:
        result = table(self.content.rows)
        if not result.lines:
            return ""
        statistics, groups = self.content.statistics, {}
        named = {f"{m}{suffix}": m for m in self.content.methods for suffix in ("", " (pooled)")}
        lines: list[list[str | Markup]] = []
        for i, (problem, label, *cells) in enumerate(result.lines):
            if len(statistics.problems) > 1 and (i == 0 or result.lines[i - 1][0] != problem):
                groups[i] = problem
            name = _html.method(named[label], self.looks[named[label]].color, named[label] in self.content.pooled)
            lines.append([name, *(_html.figure_cell(cell) for cell in cells)])
        header = [text.replace("W2, ", "W₂ ").replace(" step", "\u00a0step") for text in result.header[1:]]
        kinds = ["name", *["figure"] * (len(header) - 1)]
        bold = {(line, column - 1) for line, column in result.best}
        return _html.section(
            "summary",
            "Summary",
            _html.grid(header, lines, kinds, bold, groups),
            _html.paragraph(_legend(result), "note"),
        )

    def _combinations(self) -> str:
        """Of every composition a grid of samples: its lowest seed that has finished."""
        parts: list[str] = []
        for problem in self.content.problems:
            for method in self.content.methods:
                runs = [run for run in self.content.of(problem, method) if run.finished and run.config.composes]
                cells = Cells.of_run(runs[0].arrays()) if runs else None
                if cells is None or cells.space.k not in (2, 3):
                    continue
                figure = grid_figure(cells, f"{method} on {problem}")
                self._save(figure, f"combinations-{problem}-{method}")
                parts.append(_html.image(_picture(figure), f"Samples of {method} on {problem} by their attributes"))
        return _html.section("combinations", "Samples of every combination", *parts) if parts else ""

    def _images(self) -> str:
        """Of every flow of images the samples that its lowest finished seed kept, a row a method."""
        parts: list[str] = []
        for problem in self.content.problems:
            found = {}
            for method in self.content.methods:
                runs = [run for run in self.content.of(problem, method) if run.finished]
                if runs and (sheets := sheets_of(runs[0].arrays())):
                    found[method] = sheets
            if found:
                figure = sheets_figure(found)
                self._save(figure, f"images-{problem}")
                parts.append(_html.image(_picture(figure), f"Samples on {problem}"))
        return _html.section("images", "Samples", *parts) if parts else ""

    def _paths(self) -> str:
        parts: list[str] = []
        for problem in self.content.problems:
            shown = scenes(self.content, problem)
            if not shown:
                continue
            captions = self._captions(problem)
            self._save(paths_figure(shown, self.looks, captions), f"paths-{problem}")
            panels = "".join(self._panel(scene, shown, captions.get(scene.method, "")) for scene in shown)
            if len(self.content.problems) > 1:
                parts.append(f"<h3>{_html.escape(problem)}</h3>")
            parts.append(f'<div class="panels" style="--panel:{190 if len(shown) > 4 else 240}px">{panels}</div>')
            parts.append(_html.paragraph(_scenery(shown[0]), "note"))
        return _html.section("paths", "Where the flow takes points", *parts) if parts else ""

    def _panel(self, scene: Scene, shown: list[Scene], caption: str) -> str:
        look, width = self.looks[scene.method], 2.4 if len(shown) > 4 else 3.4
        name = _html.method(scene.method, look.color, scene.method in self.content.pooled)
        picture = _picture(panel(scene, look, frame(shown), width, landing=False))
        images = _html.image(picture, f"Paths of {scene.method}")
        if scene.landing is not None:
            picture = _picture(panel(scene, look, landing_frame(shown), width, landing=True))
            images += _html.image(picture, f"Points of {scene.method} after {_steps(scene.steps)}")
        note = f"<small>{_html.escape(caption)}</small>" if caption else ""
        kind = "panel" if len(shown) > 1 else "panel alone"
        return f'<figure class="{kind}"><figcaption>{name.text}{note}</figcaption>{images}</figure>'

    def _captions(self, problem: str) -> dict[str, str]:
        found = {}
        for method in self.content.methods:
            value = self.content.statistics.value(problem, method, "straightness")
            if value is not None:
                found[method] = f"straightness {number(value.mean)}"
        return found

    def _distance(self) -> str:
        caption = (
            "Distance of generated points to the target against the number of Euler steps, both on logarithmic axes."
        )
        if self._several():
            caption += " Bands span the seeds."
        if self.content.statistics.has("adaptive_nfe"):
            caption += " A star is the adaptive solver dopri5, at the number of evaluations it took."
        if self.content.statistics.has("w2_floor"):
            caption += " The dashed line is how far two sets of true target points of the same size are apart."
        elif self.content.statistics.has("sliced_w2_floor"):
            caption += " The dashed line is how far samples as good as held-out points would be from these."
        figure = self._draw(_charts.distance_figure(self.content, self.looks), "distance", caption)
        return _html.section("distance", "How close, in how many steps", figure)

    def _coupling(self) -> str:
        caption = (
            "Left: the mean cost of the pairs that training sees over the cost of the optimal plan; 1 is optimal, and"
            " clearly less than 1 would mean a wrong marginal. Right: how far the noises that the coupling uses are"
            " from the source; the grey bar is what as many independent draws give, so on it or left of it is good."
        )
        figure = self._draw(_charts.coupling_figure(self.content, self.looks), "coupling", caption)
        return _html.section("coupling", "Which noise meets which point", figure, self._duals())

    def _duals(self) -> str:
        statistics = self.content.statistics
        lines: list[list[str | Markup]] = []
        for problem in statistics.problems:
            for method in statistics.methods(problem):
                values = [statistics.value(problem, method, name) for name in DUALS]
                if any(values):
                    name = _html.method(method, self.looks[method].color)
                    lines.append([problem, name, *(number(v.mean) if v else MISSING for v in values)])
        if not lines:
            return ""
        kinds = ["name", "name", *["figure"] * len(DUALS)]
        return _html.grid(["problem", "method", *DUALS.values()], lines, kinds) + _html.paragraph(DUALS_NOTE, "note")

    def _training(self) -> str:
        caption = "Smoothed over a twentieth of each curve"
        caption += ", means over seeds." if self._several() else "."
        if len(self.content.methods) > 1:
            caption += " The loss does not rank couplings: straight paths leave less to predict."
        if any("dual" in record or "semidual" in record for run in self.content.runs for record in run.metrics):
            caption += " Dual values estimate the optimal cost from below."
        figure = self._draw(training_figure(self.content, self.looks), "training", caption)
        said = [text for run in self.content.runs for text in (_words.remarks(run), _words.failures(run)) if text]
        sentences = [_html.paragraph(text, "note") for text in said]
        return _html.section("training", "Training", figure, *sentences)

    def _wire(self) -> str:
        caption = "Megabytes between the server and each silo over the whole run, by kind of message."
        if self.content.pooled and len(self.content.pooled) < len(self.content.methods):
            caption += " Pooled baselines have no silos and are left out."
        figure = self._draw(_charts.wire_figure(self.content), "wire", caption)
        kinds = message_kinds(self.content)
        if not figure or not kinds:
            return ""
        heads = ["message", "way", "messages", "size", "used by", "what it is and reveals"]
        classes = ["name", "name", "figure", "figure", "", "wide"]
        note = (
            "Messages are counted a silo, over the methods that send the kind; the size is that of the largest method's"
            " average message. What a kind is and reveals is its own documentation."
        )
        ledger = _html.details("Every problem, method, silo and kind", self._ledger())
        return _html.section(
            "messages",
            "What crosses the wire",
            figure,
            _html.grid(heads, kinds, classes),
            _html.paragraph(note, "note"),
            ledger,
        )

    def _ledger(self) -> str:
        lines: list[list[str | Markup]] = []
        for run in self.content.runs:
            for row in run.rows:
                if row["metric"].startswith("bytes_") and run.method not in self.content.pooled:
                    way = row["metric"].removeprefix("bytes_")
                    count, size = f"{row['messages']:,}", f"{row['value']:,.0f}"
                    seed = str(run.config.seed)
                    lines.append([run.problem, run.method, seed, row["silo"], row["kind"], way, count, size])
        heads = ["problem", "method", "seed", "silo", "kind", "way", "messages", "bytes"]
        return _html.grid(heads, lines, ["name"] * 6 + ["figure"] * 2)

    def _runs(self) -> str:
        parts = []
        for run in self.content.runs:
            look = self.looks[run.method]
            label = _html.method(f"{run.problem} · {run.method} · seed {run.config.seed}", look.color)
            sections = {"environment": run.environment, **_shown(run)}
            blocks = "".join(f"<pre>{_html.escape(_block(name, values))}</pre>" for name, values in sections.items())
            parts.append(_html.details(label, f'<div class="columns">{blocks}</div>'))
        return _html.section("runs", "Every run, exactly", *parts)

    def _several(self) -> bool:
        return len({run.config.seed for run in self.content.runs}) > 1

    def _draw(self, figure: Figure | None, name: str, caption: str) -> str:
        """Saves a figure as PNG and gives it as SVG for the page."""
        if figure is None:
            return ""
        self._save(figure, name)
        stream = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=nothing)
        return _html.drawing(stream.getvalue(), name, name, caption)

    def _save(self, figure: Figure, name: str) -> None:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:80]
        number_ = 2
        while stem in self.names:
            stem, number_ = f"{stem.rsplit('~', 1)[0]}~{number_}", number_ + 1
        self.names.add(stem)
        write_atomically(self.folder / f"{stem}.png", _picture(figure))


DUALS = {
    "duality_gap": "duality gap",
    "usage_tv": "usage, TV from uniform",
    "usage_tv_uniform": "the same, exact sampling",
    "share_error": "largest error of a silo's share",
}
DUALS_NOTE = (
    "Semi-discrete duals on noises that fitting has not seen. Duality gap: how far the certified lower bound is below"
    " the cost of the plan, relative to it. Usage: total variation between how often each point is chosen and equal"
    " use, beside what exact sampling of as many noises gives. Share: each silo's part of the noises over its weight λ,"
    " less 1."
)


def _legend(result: Table) -> str:
    texts = ["The best federated value of each problem is bold."] if result.best else []
    if any("±" in cell for line in result.lines for cell in line):
        texts.append("± is the standard deviation over seeds.")
    explanations = {
        "straightness": "Straightness: how much the velocity varies along a path; 0 is straight.",
        "cost ratio": "Cost ratio: cost of the training pairs over the optimal cost; 1 is optimal.",
        "hits, known": "Known: means over combinations that a silo has seen; novel: over those that none has. Hits: the"
        " share of samples within 3σ of where they belong.",
        "MB up": "MB: all silos together.",
    }
    return " ".join([*texts, *(text for title, text in explanations.items() if title in result.header)])


def _scenery(scene: Scene) -> str:
    text = "Black: where points start. Lines: their paths in 100 Euler steps. Coloured: where they end."
    if scene.target is not None:
        text += " Grey: the target."
    if scene.landing is not None:
        where = ", over the target" if scene.target is not None else ""
        text += f" Second picture: what {_steps(scene.steps)} {'generates' if scene.steps == 1 else 'generate'}"
        text += f"{where}."
    if scene.dimension == 1:
        text += " The data has one dimension; time runs to the right."
    if scene.dimension > 2:
        text += f" The data has {scene.dimension} dimensions; the first two are shown."
    return text


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count} steps"


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    if not checks:
        return ""
    lines: list[list[str | Markup]] = []
    for check in checks:
        verdict = '<span class="ok">✓ holds</span>' if check["ok"] else '<span class="no">✗ fails</span>'
        lines.append([Markup(verdict), str(check["name"]), *(_amount(check[name]) for name in ("value", "limit"))])
    good = sum(bool(check["ok"]) for check in checks)
    sentence = f"{good} of {len(checks)} checks hold." if good < len(checks) else f"All {good} checks hold."
    kinds = ["name", "", "figure", "figure"]
    grid = _html.grid(["", "check", "value", "limit"], lines, kinds)
    return _html.section("checks", "Checks", _html.paragraph(sentence), grid)


def _amount(value: Any) -> str:
    if value is None:
        return MISSING
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _shown(run: Run) -> dict[str, Any]:
    """The config by section. Of data files only the names: where they lie is nobody's business."""
    values = run.config.to_dict()
    values["data"]["files"] = [Path(name).name for name in values["data"]["files"]]
    for section, key in (("data", "target"), ("flow", "source"), ("composition", "experts_from")):
        values[section][key] = Path(values[section][key]).name
    for section in PLAIN if run.config.composes else COMPOSED:
        del values[section]  # what the method does not look at
    labels = {key: value for key, value in values.items() if not isinstance(value, dict)}
    return {
        "run": labels,
        **{k: v for k, v in values.items() if isinstance(v, dict) and k != "run"},
        "log": values["run"],
    }


def _block(name: str, values: Mapping[str, Any]) -> str:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    width = max(map(len, texts), default=0)
    return "\n".join([name, *(f"  {key:<{width}}  {text}" for key, text in texts.items())])


def _picture(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DOTS, facecolor="white")
    return stream.getvalue()
