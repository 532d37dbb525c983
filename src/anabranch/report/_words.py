"""What the figures say, in sentences that are computed from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anabranch.report._charts import DISTANCES
from anabranch.report._read import Comparison, Run
from anabranch.report._statistics import Statistics
from anabranch.report._table import number
from anabranch.runs import RunFolder

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
LEVEL = 1.05  # methods closer than this are not ranked


def title(comparison: Comparison) -> str:
    """The page's heading."""
    methods, problems = comparison.methods, comparison.problems
    subject = methods[0] if len(methods) == 1 else f"{count(len(methods)).capitalize()} methods"
    return f"{subject} on {problems[0] if len(problems) == 1 else f'{count(len(problems))} problems'}"


def introduction(comparison: Comparison) -> str:
    """What is compared, on which problems, by whom the data is held."""
    federated = [name for name in comparison.methods if name not in comparison.pooled]
    pooled = [name for name in comparison.methods if name in comparison.pooled]
    texts = [_setting(comparison, problem) for problem in comparison.problems]
    if federated:
        verb = "are" if len(federated) > 1 else "is"
        texts.append(f"{listed(federated)} {verb} federated: points stay in their silo, only messages leave it.")
    if pooled:
        verb = (
            "see all points in one place: baselines" if len(pooled) > 1 else "sees all points in one place: a baseline"
        )
        texts.append(f"{listed(pooled)} {verb}.")
    seeds = {run.config.seed for run in comparison.runs}
    return " ".join(texts) + (f" Figures are means over {count(len(seeds))} seeds." if len(seeds) > 1 else "")


def findings(comparison: Comparison) -> list[str]:
    """A sentence or three a problem: who is closest after the fewest steps, who after the most, who is straightest."""
    statistics = comparison.statistics
    found = []
    for problem in statistics.problems:
        metric = next((name for name in DISTANCES if statistics.evaluations(name, problem)), None)
        counts = statistics.evaluations(metric, problem) if metric else []
        parts = [_closest(statistics, problem, str(metric), n) for n in sorted({*counts[:1], *counts[-1:]})]
        parts += [_baseline(statistics, problem, str(metric), counts[0]) if counts else ""]
        parts += [_straightest(statistics, problem), _floor(statistics, problem, f"{metric}_floor")]
        text = " ".join(part for part in parts if part)
        if text:
            found.append(text if len(statistics.problems) == 1 else f"{problem}: {text}")
    return found


def unfinished(run: Run) -> str:
    """A sentence about a run without results."""
    last = run.metrics[-1] if run.metrics else None
    reached = f"its log ends at round {last['round']}, in the phase '{last['phase']}'" if last else "nothing is logged"
    return (
        f"{run.method} on {run.problem}, seed {run.config.seed}, has not finished: {reached}. It appears in the"
        f" training curves only. To go on with it: {RunFolder(run.path).again}."
    )


def failures(run: Run) -> str:
    """A sentence about silos that were left out of rounds; empty when there were none."""
    broken = [record for record in run.metrics if record.get("failures")]
    if not broken:
        return ""
    silos = sorted({silo for record in broken for silo in record["failures"]})
    reasons = sorted({str(reason) for record in broken for reason in record["failures"].values()})
    return (
        f"{run.method} on {run.problem}, seed {run.config.seed}: {listed(silos)} left out of {len(broken)} logged"
        f" {'round' if len(broken) == 1 else 'rounds'}. {' '.join(reasons[:3])}"
    )


def remarks(run: Run) -> str:
    """What a run noted about itself; empty when that is nothing."""
    noted = list(dict.fromkeys(str(note) for record in run.metrics for note in record.get("notes", [])))
    return f"{run.method} on {run.problem}, seed {run.config.seed}: {' '.join(noted)}" if noted else ""


def count(value: int) -> str:
    """A small number as a word."""
    return WORDS[value] if value < len(WORDS) else str(value)


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _setting(comparison: Comparison, problem: str) -> str:
    runs = comparison.of(problem)
    config = next((run.config for run in runs if not run.config.data.pooled), runs[0].config)
    data = config.data
    target = f"the points of {count(len(data.files))} files" if data.files else Path(data.target).name
    target = "the sites' own data" if data.at_sites else target
    text = f"{problem}: a flow that carries {Path(config.flow.source).name} to {target}"
    if config.composes:
        text = f"{problem}: flows that compose the attributes of {target}"
    known = [comparison.statistics.silos(problem, run.method) for run in runs if not run.config.data.pooled]
    silos = max((len(found) for found in known), default=0) or len(data.files) or len(data.groups) or data.silos
    return f"{text}." if data.pooled else f"{text}, held by {count(silos)} {'silo' if silos == 1 else 'silos'}."


def _closest(statistics: Statistics, problem: str, metric: str, nfe: int) -> str:
    ranked = _ranked(statistics, problem, metric, nfe, pooled=False)
    steps = "one step" if nfe == 1 else f"{nfe} steps"
    if not ranked:
        return ""
    name, kind = ranked[0][1], "W₂" if metric == "w2" else "sliced W₂"
    if len(ranked) == 1:
        return f"At {steps} {name} is at a {kind} of {number(ranked[0][0])}."
    ratio = ranked[1][0] / ranked[0][0] if ranked[0][0] else float("inf")
    if ratio < LEVEL:
        level = [other for value, other in ranked if value < LEVEL * ranked[0][0]]
        text = f"At {steps} {listed(level)} are level, at a {kind} of {number(ranked[0][0])}"
    else:
        text = (
            f"At {steps} {name} is closest, at a {kind} of {number(ranked[0][0])}: {_times(ratio)} closer than"
            f" {ranked[1][1]} ({number(ranked[1][0])})"
        )
    last = ranked[-1]
    far = len(ranked) > 2 and last[0] >= LEVEL * ranked[0][0]
    return f"{text}; the farthest is {last[1]} ({number(last[0])})." if far else f"{text}."


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio >= 1.5 else f"{100 * (1 - 1 / ratio):.0f} %"


def _baseline(statistics: Statistics, problem: str, metric: str, nfe: int) -> str:
    ranked = _ranked(statistics, problem, metric, nfe, pooled=True)
    steps = "one step" if nfe == 1 else f"{nfe} steps"
    return f"The best pooled baseline at {steps} is {ranked[0][1]} ({number(ranked[0][0])})." if ranked else ""


def _straightest(statistics: Statistics, problem: str) -> str:
    ranked = _ranked(statistics, problem, "straightness", None, pooled=False)
    if len(ranked) < 2:
        return ""
    return f"The straightest paths are those of {ranked[0][1]} ({number(ranked[0][0])}; 0 is straight)."


def _floor(statistics: Statistics, problem: str, metric: str) -> str:
    values = [v.mean for m in statistics.methods(problem) if (v := statistics.value(problem, m, metric))]
    if not values:
        return ""
    return f"The noise floor is {number(sum(values) / len(values))}."


def _ranked(
    statistics: Statistics, problem: str, metric: str, nfe: int | None, pooled: bool
) -> list[tuple[float, str]]:
    methods = [m for m in statistics.methods(problem) if statistics.pooled(problem, m) == pooled]
    return sorted((v.mean, m) for m in methods if (v := statistics.value(problem, m, metric, nfe)))
