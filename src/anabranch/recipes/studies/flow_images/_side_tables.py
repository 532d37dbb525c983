"""Tables of the study `flow_images` that put its figures into proportion."""

from __future__ import annotations

from statistics import fmean

from anabranch.recipes._names import figure, metric_name
from anabranch.recipes._study import Lines
from anabranch.recipes.studies.flow_images._precision import CHANGE, PRECISE, ROUNDED
from anabranch.recipes.studies.flow_images._projection import OPERATIONS, SCALE, SUFFIX, projection
from anabranch.recipes.studies.flow_images._rows import Column, euler_steps, order, steps_name
from anabranch.runs import Row

Table = tuple[str, Lines]
REAL = {
    "fid_train_test": "test images against training images",
    "fid_bias": "samples of a perfect flow against training images, about",
}


def real_tables(problem: str, rows: list[Row]) -> list[Table]:
    """FID that no flow can be expected to beat: of real images, and of as many samples of a perfect flow."""
    lines = [["FID of", "images", "training images", "FID"]]
    for metric, words in REAL.items():
        sizes = {(row["images"], row["real"]) for row in rows if row["metric"] == metric}
        for images, real in sorted(sizes):
            own = [row for row in rows if (row["metric"], row.get("images"), row.get("real")) == (metric, images, real)]
            lines.append([words, str(images), str(real), figure(fmean(row["value"] for row in own))])
    return [(f"{problem}: FID of real images", lines)] if len(lines) > 1 else []


def precision_tables(problem: str, rows: list[Row]) -> list[Table]:
    """Distances of samples as they are usually drawn, beside those of the same samples in 32 bits."""
    found = []
    kinds = [name for name in order(rows, "metric") if name.endswith(f"_{CHANGE}")]
    for metric, nfe in [(name, nfe) for name in kinds for nfe in euler_steps(rows, name)]:
        own = [row for row in rows if row.get("nfe") == nfe]
        some = next(row for row in own if row["metric"] == metric)
        plain = [name.removeprefix(PRECISE) for name in order(own, "metric") if name.startswith(PRECISE)]
        columns = [
            Column(f"{metric_name(name)}{words}", side + name, nfe)
            for name in plain
            for side, words in ((ROUNDED, ""), (PRECISE, ", 32 bits"))
        ]
        columns.append(Column("largest change", metric, nfe))
        lines = [["method", *(column.heading for column in columns)]]
        for method in order([row for row in own if row["metric"] == metric], "method"):
            values = [column.mean(own, method) for column in columns]
            lines.append([method, *("–" if value is None else figure(value) for value in values)])
        found.append((f"{problem}: what rounding does, {steps_name(nfe)}, {some['images']} samples", lines))
    return found


def hours_tables(problem: str, rows: list[Row], theirs: list[Row]) -> list[Table]:
    """What the scale of the paper would take here, computed from rounds that were measured; what it took there."""
    measured = [row for row in rows if row["metric"].endswith(SUFFIX) or row["metric"] == OPERATIONS]
    lines = [["method", "ms a round", "times the operations", "rounds", "hours", "hours, paper"]]
    for method in order(measured, "method"):
        names = order([row for row in measured if row["method"] == method], "metric")
        means = {name: Column("", name).mean(measured, method) for name in names}
        found = projection(problem, method, {name: value for name, value in means.items() if value is not None})
        if found is None:
            continue
        printed = [row["value"] for row in theirs if (row["method"], row["metric"]) == (method, "flow_seconds")]
        hours = [f"{value / 3600:.3g}" for value in printed]
        line = [method, figure(1000 * found.seconds), f"{found.ratio:.3g}", str(found.rounds), f"{found.hours:.3g}"]
        lines.append([*line, " / ".join(hours) or "–"])
    title = f"{problem}: hours of the scale '{SCALE}', computed from these rounds (an upper bound, as a rule)"
    return [(title, lines)] if len(lines) > 1 else []
