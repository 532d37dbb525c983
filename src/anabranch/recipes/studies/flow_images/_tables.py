"""Tables of the study `flow_images`: means over seeds, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.recipes._names import figure, metric_name
from anabranch.recipes._recipe import recipes
from anabranch.recipes._study import Lines
from anabranch.recipes.studies.flow_images._config import STUDY
from anabranch.recipes.studies.flow_images._curve import MINUTES, PREFIX, ROUNDS
from anabranch.recipes.studies.flow_images._eyes import SCORE
from anabranch.recipes.studies.flow_images._projection import OPERATIONS, SUFFIX
from anabranch.recipes.studies.flow_images._rows import Column, euler_steps, order, solver, steps_name
from anabranch.recipes.studies.flow_images._sampling import ADAPTIVE
from anabranch.recipes.studies.flow_images._side_tables import REAL, hours_tables, precision_tables, real_tables
from anabranch.runs import Row

BY_STEPS = ("fid_train", "fid_test", "kid_train", "kid_test", "pixels_train", "pixels_test", "seconds_50k")
COPIES = ("memorised", "memorised_pixels")
Table = tuple[str, Lines]


def tables(rows: list[Row]) -> list[Table]:
    """Of each problem and measure: methods down, numbers of steps across, the paper's figures beside ours; then our
    Inception Scores, if any, what real images score, copies, what the precision does, distances while training, what
    training cost and would cost at the paper's scale, and at last the paper's Inception Scores, by themselves."""
    found: list[Table] = []
    for problem in order(rows, "problem"):
        own = [row for row in rows if row["problem"] == problem]
        theirs = [row for row in published() if row["problem"] == problem]
        for metric in (name for name in BY_STEPS if any(row["metric"] == name for row in own)):
            found.append(_table(f"{problem}: {metric_name(metric)}", own, theirs, _by_steps(own, metric)))
        if columns := _by_steps(own, SCORE):  # the paper does not say how its own was computed: it is not set beside
            found.append(_table(f"{problem}: {metric_name(SCORE)}", own, [], columns))
        found += [*real_tables(problem, own), *_copies(problem, own), *precision_tables(problem, own)]
        found += _while_training(problem, own)
        found.append(_table(f"{problem}: training", own, theirs, _cost(own, theirs)))
        found += [*hours_tables(problem, own, theirs), *_scores(problem, theirs)]
    return found


def published() -> list[Row]:
    """The paper's figures of all recipes of this study. Rows do not say which recipe they are of, so no two recipes
    have figures for problems of the same name."""
    return [row for recipe in recipes().values() if recipe.study == STUDY for row in recipe.published]


def _by_steps(rows: list[Row], metric: str) -> list[Column]:
    own = [row for row in rows if row["metric"] == metric]
    columns = [Column(steps_name(nfe), metric, nfe) for nfe in euler_steps(own, metric)]
    if any(solver(row) == ADAPTIVE for row in own):
        columns.append(Column(ADAPTIVE, metric, solver=ADAPTIVE))
        columns.append(Column(f"{ADAPTIVE}, evaluations", metric, solver=ADAPTIVE, key="nfe"))
    return columns


def _copies(problem: str, rows: list[Row]) -> list[Table]:
    """How many samples are copies, beside how good they are: of poor samples none is."""
    found = []
    for metric in COPIES:
        for nfe in euler_steps(rows, metric):
            some = next(row for row in rows if (row["metric"], row["nfe"]) == (metric, nfe))
            beside = [name for name in ("fid_test", "pixels_test") if Column("", name, nfe).of(rows)]
            columns = [Column(metric_name(name), name, nfe) for name in (metric, *beside)]
            numbers = f"{some['images']} samples beside {some['real']} training images"
            found.append(_table(f"{problem}: {metric_name(metric)}, {steps_name(nfe)}, {numbers}", rows, [], columns))
    return found


def _while_training(problem: str, rows: list[Row]) -> list[Table]:
    """Distances while a flow trains: minutes or rounds across, a table for each number of steps."""
    found = []
    for metric in (name for name in order(rows, "metric") if name.startswith(PREFIX)):
        for nfe in euler_steps(rows, metric):
            own = [row for row in rows if (row["metric"], row["nfe"]) == (metric, nfe)]
            minutes, rounds = (sorted({row[key] for row in own if key in row}) for key in (MINUTES, ROUNDS))
            columns = [Column(f"{mark:g} min", metric, nfe, minutes=mark) for mark in minutes]
            columns += [Column(f"{mark} rounds", metric, nfe, rounds=mark) for mark in rounds]
            title = f"{problem}: {metric_name(metric)}, {steps_name(nfe)}, {own[0]['images']} samples"
            found.append(_table(title, own, [], columns))
    return found


def _table(title: str, rows: list[Row], theirs: list[Row], columns: Sequence[Column]) -> Table:
    """Methods down; a column of ours, and one of the paper's where it has figures. The title says where those stand.

    Figures are means over the seeds of a method; how many there are is said where one has several.
    """
    beside = {column: column.of(theirs) if column.key == "value" else [] for column in columns}
    places = order([row for found in beside.values() for row in found], "where")
    seeds = {method: len({row["seed"] for row in rows if row["method"] == method}) for method in order(rows, "method")}
    several = any(count > 1 for count in seeds.values())
    lines = [["method", *["seeds"][: int(several)]]]
    for column in columns:
        lines[0] += [column.heading, f"{column.heading}, paper"] if beside[column] else [column.heading]
    for method, count in seeds.items():
        line = [method, *[str(count)][: int(several)]]
        for column in columns:
            value = column.mean(rows, method)
            line.append("–" if value is None else figure(value))
            if beside[column]:
                line.append(_figures(beside[column], method))
        lines.append(line)
    return f"{title} (paper: {'; '.join(places)})" if places else title, lines


def _cost(rows: list[Row], theirs: list[Row]) -> list[Column]:
    """What is measured once a run. A time that the paper prints has its column even where we have none."""
    once = [row for row in [*rows, *theirs] if row.get("nfe") is None and solver(row) != ADAPTIVE]
    metrics = [name for name in order(once, "metric") if name not in (*BY_STEPS, *REAL, OPERATIONS)]
    chosen = [name for name in metrics if "_error" not in name and not name.endswith(SUFFIX)]
    return [Column(metric_name(metric), metric) for metric in chosen]


def _scores(problem: str, theirs: list[Row]) -> list[Table]:
    """The paper's Inception Scores, alone."""
    own = [row for row in theirs if row["metric"] == SCORE]
    if not own:
        return []
    steps = sorted({row["nfe"] for row in own})
    lines = [["method", *(f"{steps_name(nfe)}, paper" for nfe in steps)]]
    for method in order(own, "method"):
        lines.append([method, *(_figures([row for row in own if row["nfe"] == nfe], method) for nfe in steps)])
    return [(f"{problem}: {metric_name(SCORE)}, not comparable (paper: {'; '.join(order(own, 'where'))})", lines)]


def _figures(theirs: list[Row], method: str) -> str:
    """What the paper prints for a method; where its versions differ, all of it."""
    values = dict.fromkeys(figure(row["value"]) for row in theirs if row["method"] == method)
    return " / ".join(values) or "–"
