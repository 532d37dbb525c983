"""The exact configuration of a run: sections of plain values, from TOML, checked key by key."""

from __future__ import annotations

import json
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from anabranch.data import MISSING_RULES
from anabranch.errors import UsageError, unknown
from anabranch.methods.fedwad import WadSettings
from anabranch.methods.ffm import (
    PRESETS,
    CouplingSettings,
    FlowMatching,
    FlowSettings,
    PotentialSettings,
    SemiDiscreteSettings,
)

T = TypeVar("T")


AT_SITES = ("arrays at sites", "tables at sites")  # targets that a coordinator knows nothing more about


@dataclass(frozen=True)
class DataSettings:
    """Who holds what.

    `target` is a shape, or a file (.csv, .npy, .npz) to divide; "arrays at sites" or "tables at sites" where sites of a
    federation hold their own data. Or `files` names one file a silo. `points` a silo are
    taken from a shape. `partition` divides by "component" (`groups` of labels), "shards", "dirichlet" (`alpha`) or
    "iid" over `silos`, or by the values of an "attribute", a column of a table or an array of an archive. `pooled` puts
    everything into one silo, for the upper baselines. `held_out` is the share that every silo keeps from training for
    metrics. `missing` says what to do with gaps in tables, `categorical` names columns whose numbers are codes.
    """

    target: str = "moons"
    files: tuple[str, ...] = ()
    points: int = 5000
    silos: int = 2
    partition: str = "component"
    attribute: str = ""
    groups: tuple[tuple[int, ...], ...] = ()
    alpha: float = 0.3
    shards: int = 2
    pooled: bool = False
    held_out: float = 0.0
    missing: str = "refuse"
    categorical: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.missing not in MISSING_RULES:
            raise unknown("rule for missing values", self.missing, MISSING_RULES)

    @property
    def from_file(self) -> bool:
        """Whether the points come from files rather than from a formula."""
        return bool(self.files) or self.at_sites or self.target.endswith((".csv", ".npy", ".npz"))

    @property
    def at_sites(self) -> bool:
        """Whether only the sites of a federation know the data."""
        return self.target in AT_SITES and not self.files

    @property
    def tables(self) -> bool:
        """Whether the files hold tables, which become points only once the silos have agreed on an encoder."""
        return (self.files or (self.target,))[0].endswith((".csv", AT_SITES[1]))


@dataclass(frozen=True)
class FederationSettings:
    """How silos count (`weighting`: "size", "uniform" or a table of λ), who is asked each round, and the quorum.

    For silos elsewhere: `patience`, the seconds that one has for an answer, and `reentry`, the seconds after which a
    run that goes on without a silo stops at a checkpoint to let it in again.
    """

    weighting: str = "size"
    weights: dict[str, float] = field(default_factory=dict)
    participation: str = "all"
    count: int = 0
    unbiased: bool = False
    quorum: int = 1
    patience: float = 60.0
    reentry: float = 300.0
    fused: bool = True

    def __post_init__(self) -> None:
        for name in ("patience", "reentry"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"federation.{name} is {getattr(self, name)}; give a positive number of seconds.")


@dataclass(frozen=True)
class PrivacySettings:
    """What guards a silo's answers: noise and a limit on lookups, a clip and noise on gradients (0: off)."""

    lookup_noise: float = 0.0
    lookup_limit: int = 0
    gradient_clip: float = 0.0
    gradient_noise: float = 0.0


@dataclass(frozen=True)
class EvaluationSettings:
    """How the flow is judged: Euler with each of `nfe` steps, dopri5, `points` of model and target; the coupling on
    `batches`, semi-discrete duals on `certify` fresh noises a point."""

    nfe: tuple[int, ...] = (1, 2, 3, 4, 5, 8, 10, 20, 50, 100)
    dopri5: bool = True
    points: int = 2048
    batches: int = 16
    certify: int = 20


@dataclass(frozen=True)
class RunSettings:
    """How often to log and to save (in rounds; 0: twenty times a run), and on how many threads (0: torch's choice)."""

    log_every: int = 10
    checkpoint_every: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        for name, least in (("log_every", 1), ("checkpoint_every", 0), ("threads", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"run.{name} is {getattr(self, name)}; it must be at least {least}.")


@dataclass(frozen=True)
class DistanceSettings(WadSettings):
    """For the method "fedwad": a distance `between` two silos, by their names, or between all pairs when empty."""

    between: tuple[str, ...] = ()


SECTIONS: dict[str, type] = {
    "flow": FlowSettings,
    "coupling": CouplingSettings,
    "potential": PotentialSettings,
    "semidiscrete": SemiDiscreteSettings,
    "data": DataSettings,
    "federation": FederationSettings,
    "privacy": PrivacySettings,
    "evaluation": EvaluationSettings,
    "distance": DistanceSettings,
    "run": RunSettings,
}
FEDWAD = "fedwad"  # the method that trains nothing
LABELS = ("recipe", "scale", "problem", "method")


@dataclass(frozen=True)
class Config:
    """One run, whole. Equal configs give equal runs."""

    recipe: str = "own"
    scale: str = "own"
    problem: str = "own"
    method: str = "own"
    seed: int = 0
    flow: FlowSettings = field(default_factory=FlowSettings)
    coupling: CouplingSettings = field(default_factory=CouplingSettings)
    potential: PotentialSettings = field(default_factory=PotentialSettings)
    semidiscrete: SemiDiscreteSettings = field(default_factory=SemiDiscreteSettings)
    data: DataSettings = field(default_factory=DataSettings)
    federation: FederationSettings = field(default_factory=FederationSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    distance: DistanceSettings = field(default_factory=DistanceSettings)
    run: RunSettings = field(default_factory=RunSettings)

    @property
    def compares(self) -> bool:
        """Whether the run compares silos (FedWAD) instead of training on them."""
        return self.method == FEDWAD

    @property
    def settings(self) -> FlowMatching:
        """The part that the method knows."""
        return FlowMatching(self.flow, self.coupling, self.potential, self.semidiscrete)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to a run folder."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values


def from_dict(values: Mapping[str, Any]) -> Config:
    """The config with these values; every key and type is checked."""
    known = [*LABELS, "seed", *SECTIONS]
    parts: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise unknown("key", key, known)
        if key in SECTIONS:
            if not isinstance(value, Mapping):
                raise UsageError(f"'{key}' must be a section, as in [{key}]; {value!r} was given.")
            parts[key] = fill(SECTIONS[key], key, value)
        else:
            parts[key] = _convert(key, value, int if key == "seed" else str)
    config = Config(**parts)
    _ = config.settings  # combinations that make no sense are refused here
    return config


def from_toml(path: str | Path) -> Config:
    """A config from one's own TOML file: `method = "sd"` or another preset, then sections. Files lie beside it."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give the path of a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    data = values.get("data", {})
    if isinstance(data, dict) and isinstance(data.get("files"), list):
        data["files"] = [str((path.parent / name).resolve()) for name in data["files"]]
    if isinstance(data, dict) and str(data.get("target", "")).endswith((".csv", ".npy", ".npz")):
        data["target"] = str((path.parent / data["target"]).resolve())
    flow = values.get("flow", {})
    if isinstance(flow, dict) and str(flow.get("source", "")).endswith((".npy", ".npz")):
        flow["source"] = str((path.parent / flow["source"]).resolve())
    method = values.get("method", "own")
    if "method" in values and method not in (*PRESETS, FEDWAD):
        raise unknown("method", str(method), [*PRESETS, FEDWAD])
    return from_dict({"problem": path.stem, **merged(PRESETS.get(method, {}), values)})


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Layers of sections laid over each other, the last one on top."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                result[key] = merged(result[key], value)
            else:
                result[key] = value
    return result


def override(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Applies `key=value` texts; a bare key belongs to the first section that has it, `section.key` is explicit."""
    result = merged(values)
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise UsageError(f"'{change}' is no setting; write key=value, for instance rounds=20.")
        section, name = _place(key.strip())
        try:
            value: Any = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        if section is None:
            result[name] = value
        else:
            result[section] = {**result.get(section, {}), name: value}
    return result


def _place(key: str) -> tuple[str | None, str]:
    names = {section: [f.name for f in fields(kind)] for section, kind in SECTIONS.items()}
    if "." in key:
        section, _, name = key.partition(".")
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS)
        if name not in names[section]:
            raise unknown(f"key in [{section}]", name, names[section])
        return section, name
    if key == "seed":
        return None, key
    for section, keys in names.items():
        if key in keys:
            return section, key
    raise unknown("key", key, {name for keys in names.values() for name in keys})


def fill(kind: type[T], section: str, values: Mapping[str, Any]) -> T:
    """A section's record with these values: keys must be its fields, values of their types."""
    hints = get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise unknown(f"key in [{section}]", key, hints)
    return kind(**{key: _convert(f"{section}.{key}", value, hints[key]) for key, value in values.items()})


def _convert(name: str, value: Any, hint: Any) -> Any:
    """The value as the declared type: whole numbers may stand for floats, lists for tuples, nothing else."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
        origin = get_origin(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(name, item, get_args(hint)[0]) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {str(key): _convert(f"{name}.{key}", item, get_args(hint)[1]) for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is None and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = getattr(hint, "__name__", str(hint)) if origin is None else origin.__name__
    raise UsageError(f"{name} is {value!r}; a value of type {wanted} is needed.")
