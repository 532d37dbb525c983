"""Could this site take part, at what cost, and what would it give away? Nothing here touches a network."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from anabranch import seeds
from anabranch.data import MISSING, Pixels, Table, infer_kinds, split, summarise
from anabranch.errors import AnabranchError, DataError, UsageError, unknown
from anabranch.federation import KINDS, Silo, reply_type
from anabranch.runs import Config
from anabranch.sites._folder import PORT, SECRET_FILE, has_withdrawn, secret_is_exposed
from anabranch.sites._kinds import Asked, count_rounds, questions
from anabranch.sites._open import load_silo
from anabranch.sites._rehearse import LATENCY, Cost, estimate
from anabranch.sites._settings import SiteSettings, check_name, read_site

OPTIONAL = ("ffm.histograms",)  # a run goes on without these answers


@dataclass
class Findings:
    """What a check found: tables with a header each, warnings, and obstacles that keep the site from taking part."""

    facts: list[list[str]] = field(default_factory=list)
    kinds: list[list[str]] = field(default_factory=list)
    costs: list[list[str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the site can take part."""
        return not self.obstacles


def check_site(folder: Path, config: Config | None = None) -> Findings:
    """Looks at a site's folder; with a config also at the run that it describes, part of which is rehearsed."""
    settings = read_site(folder)
    silo = load_silo(folder, settings)
    found = Findings(kinds=[["kind", "what an answer reveals", "at most in a run"]])
    found.kinds += [[kind, _reveals(kind), _limit(settings, kind)] for kind in settings.policy.kinds]
    trained, held = _counts(settings, silo)
    found.facts = [["site", settings.name], *_facts(settings, silo, trained, held)]
    _look_at_name(settings.name, found)
    _look_at_policy(settings, trained, held, found)
    _look_at_folder(folder, found)
    if silo.table is not None:
        _look_at_table(silo.table, config, found)
    if config is not None:
        _look_at_numbers(silo, settings.data.file, config, found)
        _look_at_run(folder, settings, config, trained, found)
    found.facts.append(["peak memory", f"{_peak_memory() / 1e6:.0f} MB of this check, Python and libraries included"])
    return found


def _counts(settings: SiteSettings, silo: Silo) -> tuple[int, int]:
    """How many points are trained on and held out; of a table, how many there will be."""
    if silo.table is None:
        return len(silo), 0 if silo.held_out is None else len(silo.held_out)
    parts = split(len(silo.table), settings.data.held_out, seeds.generator(0))
    return len(parts.train), len(parts.held_out)


def _facts(settings: SiteSettings, silo: Silo, trained: int, held: int) -> list[list[str]]:
    if silo.table is None:
        shape = ["dimension", str(silo.data.dimension)]
        if isinstance(silo.data, Pixels):
            shape = ["images", f"{' x '.join(map(str, silo.data.shape))} (colours, height, width)" + _ways(silo.data)]
        if silo.space is not None:
            known = ", ".join(f"{name} ({len(outcomes)})" for name, outcomes in silo.space.attributes)
            met = len(set(silo.data.label.tolist()))
            shape = ["samples", f"{shape[1]} dimensions; {known}: {met} of {len(silo.space)} combinations"]
    else:
        kinds = infer_kinds(silo.table)
        shape = ["columns", ", ".join(f"{name} ({kind})" for name, kind in kinds.items())]
    guards = [f"{type(guard).__name__} on {', '.join(guard.kinds)}" for guard in settings.privacy.guards()]
    return [
        ["data", settings.data.file],
        ["points", f"{trained + held}: {trained} to train on, {held} held out"],
        shape,
        ["rounds", f"answered up to round {settings.policy.rounds}"],
        ["smallest group", f"no answer rests on fewer than {settings.policy.smallest_group} points"],
        ["privacy", "; ".join(guards) or "answers leave as they are"],
        ["network", f"outbound connections only, to the coordinator's port ({PORT} by default)"],
    ]


def _ways(images: Pixels) -> str:
    """How they are varied where they are trained on."""
    flips = {"none": "", "random": ", mirrored at random", "points": ", mirror images counted"}
    return flips[images.flip] + (f", in pieces of {images.crop:g} or more" if images.crop < 1 else "")


def _limit(settings: SiteSettings, kind: str) -> str:
    return str(settings.policy.limits.get(kind, "no limit"))


def _reveals(kind: str) -> str:
    """What the answer's docstring says that it reveals."""
    question = KINDS.get(kind)
    reply = None if question is None else reply_type(question)
    if reply is None:
        return "nothing: no installed method asks this"
    return " ".join((reply.__doc__ or "").partition("Reveals:")[2].split())


def _look_at_name(name: str, found: Findings) -> None:
    try:
        check_name(name)
    except UsageError as error:
        found.obstacles.append(f"name: {error}")


def _look_at_policy(settings: SiteSettings, trained: int, held: int, found: Findings) -> None:
    policy = settings.policy
    asked = [kind for kind, message in KINDS.items() if reply_type(message) is not None]
    for key, kinds in (("kinds", policy.kinds), ("limits", policy.limits)):
        for kind in [kind for kind in kinds if kind not in asked]:  # a misspelt limit limits nothing
            found.obstacles.append(f"policy.{key}: {unknown('kind of question', kind, asked)}")
    for kind in sorted(policy.limits.keys() - set(policy.kinds)):
        found.warnings.append(f"policy.limits has a line for '{kind}', which policy.kinds does not list.")
    if "join" not in policy.kinds:
        found.obstacles.append("policy.kinds does not list 'join', with which every run begins.")
    if policy.smallest_group > trained:
        found.obstacles.append(
            f"policy.smallest_group is {policy.smallest_group}, and the site trains on {trained} points: nothing would"
            " be answered. Bring more points, or lower it."
        )
    if "ffm.lookup" in policy.kinds and "ffm.lookup" not in policy.limits:
        found.warnings.append("'ffm.lookup' has no line in policy.limits: a run may look up as often as it likes.")
    if "experts.share" in policy.kinds:
        found.warnings.append(
            "policy.kinds lists 'experts.share': a generative model of this site's samples leaves it as it is, whatever"
            " [privacy] says."
        )
    if "ffm.histograms" in policy.kinds and not settings.data.held_out:
        found.warnings.append("policy.kinds lists 'ffm.histograms', but data.held_out is 0: there is nothing to count.")
    elif "ffm.histograms" in policy.kinds and held < policy.smallest_group:
        found.warnings.append(
            f"policy.kinds lists 'ffm.histograms', but of {held} held-out points none is given away in groups of"
            f" {policy.smallest_group}: they are refused. Raise data.held_out, or bring more points."
        )


def _look_at_folder(folder: Path, found: Findings) -> None:
    if secret_is_exposed(folder):
        found.warnings.append(f"Others can read the secret: chmod 600 {folder / SECRET_FILE}")
    if has_withdrawn(folder):
        found.obstacles.append(f"The site has withdrawn; 'anabranch site return {folder}' brings it back.")


def _look_at_table(table: Table, config: Config | None, found: Findings) -> None:
    codes = set(config.data.categorical) if config is not None else set()
    kinds = {name: "categorical" if name in codes else kind for name, kind in infer_kinds(table).items()}
    try:
        summarise(table, kinds)
    except DataError as error:
        found.obstacles.append(str(error))
    for name, values in table.columns.items():
        gaps = sum(text in MISSING for text in values)
        if gaps and config is None:
            count = "a gap" if gaps == 1 else f"{gaps} gaps"
            found.warnings.append(f"Column '{name}' has {count}: only runs with data.missing = \"typical\" fit.")


def _look_at_numbers(silo: Silo, file: str, config: Config, found: Findings) -> None:
    """Images that came as numbers must lie where a run takes them to: a flow trains on others as well."""
    if not config.images.shape or silo.table is not None or isinstance(silo.data, Pixels):
        return
    low, high = (float(value) for value in silo.data.x.aminmax())
    if low < -1 or high > 1:
        found.warnings.append(
            f"The run is for images, whose numbers lie between -1 and 1; those of '{file}' reach from {low:g} to"
            f" {high:g}, and pictures of such samples are cut off there. Bring bytes as an array 'images', or scale x."
        )


def _look_at_run(folder: Path, settings: SiteSettings, config: Config, trained: int, found: Findings) -> None:
    planned = questions(config, settings.data.is_table)
    _look_at_questions(settings, config, planned, found)
    batches = {} if config.compares else {"flow.batch": config.flow.batch}
    if config.composes:
        batches = {"experts.batch": config.experts.batch}
        if not settings.data.attributed:
            found.obstacles.append("The run composes attributes, and data.attributes names none; name the arrays.")
            return
    if any(asked.kind == "ffm.potential" for asked in planned):
        batches["potential.batch"] = config.potential.batch
    too_small = [(name, batch) for name, batch in batches.items() if batch < settings.policy.smallest_group <= trained]
    for name, batch in too_small:
        found.obstacles.append(
            f"{name} is {batch}, and policy.smallest_group {settings.policy.smallest_group}: gradients would rest on"
            " too few points."
        )
    if too_small or trained < settings.policy.smallest_group:
        return  # a rehearsal would meet the same refusal
    try:
        costs = estimate(folder, settings, config)
    except AnabranchError as error:
        found.obstacles.append(str(error))
        return
    found.costs = [["phase", "kind", "questions", "answers", "received", "sent", "ms to answer"], *map(_cost, costs)]
    found.facts += _totals(config, costs)


def _look_at_questions(settings: SiteSettings, config: Config, planned: list[Asked], found: Findings) -> None:
    """Kinds that are not listed, limits and rounds that do not suffice."""
    policy, rounds = settings.policy, count_rounds(config)
    answers: Counter[str] = Counter()
    for asked in planned:
        answers[asked.kind] += asked.answers
    for kind, count in answers.items():
        sentences = found.warnings if kind in OPTIONAL else found.obstacles
        if kind not in policy.kinds:
            sentences.append(f"The run asks '{kind}', which policy.kinds does not list.")
        elif count > policy.limits.get(kind, count):
            sentences.append(
                f"The run asks for {count} answers to '{kind}'; policy.limits allows {policy.limits[kind]}."
            )
    if "rewind" not in policy.kinds and not config.compares:
        found.warnings.append("policy.kinds does not list 'rewind': an interrupted run would go on without this site.")
    if rounds > policy.rounds:
        found.obstacles.append(f"The run has {rounds} rounds; policy.rounds allows {policy.rounds}.")


def _cost(cost: Cost) -> list[str]:
    asked, measured = cost.asked, cost.measured
    ms = "refused" if measured is None else f"{1000 * measured.seconds:.1f}"
    return [
        asked.phase,
        asked.kind,
        str(asked.messages),
        str(asked.answers),
        _bytes(cost.bytes_down),
        _bytes(cost.bytes_up),
        ms,
    ]


def _totals(config: Config, costs: list[Cost]) -> list[list[str]]:
    count = sum(cost.asked.messages for cost in costs)
    computing = sum(cost.seconds for cost in costs) - LATENCY * sum(c.asked.messages for c in costs if c.measured)
    down, up = sum(cost.bytes_down for cost in costs), sum(cost.bytes_up for cost in costs)
    return [
        ["a run", f"{count_rounds(config)} rounds, {count} questions"],
        ["bytes", f"{_bytes(down)} received, {_bytes(up)} sent"],
        [
            "time",
            f"{_time(sum(cost.seconds for cost in costs))}: {LATENCY:g} s on the way a question,"
            f" {_time(computing)} of computing here",
        ],
    ]


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _time(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
