"""The exact configuration of a run: sections of plain values, from TOML, checked key by key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from anabranch.errors import UsageError, unknown
from anabranch.methods._records import converted, fill
from anabranch.methods.dcfm import (
    COMPOSITIONS,
    Composition,
    FederatedSettings,
    MixtureSettings,
    PeerSettings,
    StudentSettings,
    check_stages,
)
from anabranch.methods.experts import ExpertSettings
from anabranch.methods.ffm import (
    IMAGE_NETWORKS,
    PRESETS,
    CouplingSettings,
    FlowMatching,
    FlowSettings,
    ImageSettings,
    PotentialSettings,
    SemiDiscreteSettings,
)
from anabranch.runs._sections import (
    FOLDER,
    CompositionSettings,
    DataSettings,
    DistanceSettings,
    EvaluationSettings,
    FederationSettings,
    PrivacySettings,
    RunSettings,
)

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
    "experts": ExpertSettings,
    "federated": FederatedSettings,
    "peers": PeerSettings,
    "student": StudentSettings,
    "mixture": MixtureSettings,
    "composition": CompositionSettings,
    "images": ImageSettings,
}
COMPOSED = ("experts", "federated", "peers", "student", "mixture", "composition")  # what only compositions look at
PLAIN = ("flow", "coupling", "potential", "semidiscrete", "images")  # and what they do not
FEDWAD = "fedwad"  # the method that trains nothing
STAGES = ("federated", "peers", "student")  # of compositions, which some have and some do not
BRIEFLY = {"nfe": [1, 3, 10], "points": 64}  # of images: as many as of points would take longer than to train
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
    experts: ExpertSettings = field(default_factory=ExpertSettings)
    federated: FederatedSettings = field(default_factory=FederatedSettings)
    peers: PeerSettings = field(default_factory=PeerSettings)
    student: StudentSettings = field(default_factory=StudentSettings)
    mixture: MixtureSettings = field(default_factory=MixtureSettings)
    composition: CompositionSettings = field(default_factory=CompositionSettings)
    images: ImageSettings = field(default_factory=ImageSettings)

    @property
    def compares(self) -> bool:
        """Whether the run compares silos (FedWAD) instead of training on them."""
        return self.method == FEDWAD

    @property
    def composes(self) -> bool:
        """Whether the run trains conditional flows that compose attributes, as DCFM does."""
        return self.method in COMPOSITIONS

    @property
    def composed(self) -> Composition:
        """The part that a composition's server knows."""
        parts = (self.experts, self.federated, self.peers, self.student, self.mixture)
        return Composition(*parts, self.composition.every, self.composition.force)

    @property
    def keeps_state_in_silos(self) -> bool:
        """Whether silos hold something of the run that only they know."""
        return self.composed.keeps_state_in_silos if self.composes else self.settings.keeps_state_in_silos

    @property
    def settings(self) -> FlowMatching:
        """The part that the method knows."""
        return FlowMatching(self.flow, self.coupling, self.potential, self.semidiscrete, self.images)

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
            parts[key] = converted(key, value, int if key == "seed" else str)
    config = Config(**parts)
    if config.composes:
        check_stages(config.method, config.composed)
    else:
        _ = config.settings  # combinations that make no sense are refused here
    if config.composes and any(asdict(config.privacy).values()):
        raise UsageError(
            f"[privacy] guards gradients and lookups, and '{config.method}' sends experts, whole; nothing would be"
            " guarded. Leave the section out."
        )
    if config.flow.network not in IMAGE_NETWORKS and replace(config.images, shape=()) != ImageSettings():
        raise UsageError(
            f"[images] describes a UNet, and flow.network is '{config.flow.network}', which would not look at it; write"
            ' network = "unet" in [flow], or leave all but images.shape out.'
        )
    varied = ["data.flip = 'random'"] if config.data.flip == "random" else []
    varied += [f"data.crop = {config.data.crop:g}"] if config.data.crop < 1 else []
    if not config.composes and config.keeps_state_in_silos and varied:
        raise UsageError(
            f"'{config.method}' assigns noises to images as they lie, and {' and '.join(varied)} makes others of them"
            " whenever they are drawn. Write flip = 'points', so that mirror images are points of their own, or 'none',"
            " and no crop: --set flip=points --set crop=1."
        )
    if config.run.minutes and (config.composes or config.compares):
        raise UsageError(
            f"run.minutes ends the training of one flow early, and '{config.method}' has stages that must all be whole;"
            " leave it out."
        )
    return config


def from_toml(path: str | Path, method: str | None = None, changes: Iterable[str] = ()) -> Config:
    """A config from one's own TOML file: `method = "sd"` or another preset, then sections. Files lie beside it.

    Another `method` takes the place of the file's; all that the file says beside holds for it as well, but for
    `changes`, which are those of `override`. Only what comes of all three has to make sense.
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give the path of a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    data = values.get("data", {})
    if isinstance(data, dict) and isinstance(data.get("files"), list):
        data["files"] = [_beside(path, str(name)) for name in data["files"]]
    target = str(data.get("target", "")) if isinstance(data, dict) else ""
    if target.startswith(FOLDER) or target.endswith((".csv", ".npy", ".npz")):
        data["target"] = _beside(path, target)
    flow = values.get("flow", {})
    if isinstance(flow, dict) and str(flow.get("source", "")).endswith((".npy", ".npz")):
        flow["source"] = str((path.parent / flow["source"]).resolve())
    composition = values.get("composition", {})
    if isinstance(composition, dict) and isinstance(composition.get("experts_from"), str):
        composition["experts_from"] = str((path.parent / composition["experts_from"]).resolve())
    presets: Mapping[str, Any] = {**PRESETS, **COMPOSITIONS, FEDWAD: {}}
    if method is not None:
        values["method"] = method
    chosen = values.get("method", "own")
    if not isinstance(chosen, str) or ("method" in values and chosen not in presets):
        raise unknown("method", str(chosen), presets)
    whole = override({"problem": path.stem, **merged(presets.get(chosen, {}), values)}, changes)
    flow = whole.get("flow", {})
    if "evaluation" not in values and isinstance(flow, Mapping) and flow.get("network") in IMAGE_NETWORKS:
        whole["evaluation"] = merged(BRIEFLY, whole.get("evaluation", {}))
    return from_dict(whole)


def _beside(path: Path, name: str) -> str:
    """The file or folder of that name as seen from a file's own folder."""
    mark = FOLDER if name.startswith(FOLDER) else ""
    return f"{mark}{(path.parent / name.removeprefix(FOLDER)).resolve()}"


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
    """Applies `key=value` texts; a bare key belongs to the first section that has it, `section.key` is explicit.

    Sections that the method does not look at have no bare keys: what they said would change nothing.
    """
    result = merged(values)
    idle = _idle(result.get("method"))
    for change in changes:
        key, value = setting(change)
        section, name = _place(key, idle)
        if section is None:
            result[name] = value
        elif isinstance(before := result.get(section, {}), Mapping):  # what is none is refused by whoever reads it
            result[section] = {**before, name: value}
    return result


def _idle(method: object) -> tuple[str, ...]:
    """The sections that a method does not look at."""
    if method == FEDWAD:
        return (*PLAIN, *COMPOSED)
    if method in COMPOSITIONS:
        return (*PLAIN, "distance", *(stage for stage in STAGES if stage not in COMPOSITIONS[str(method)]))
    return ("distance", *COMPOSED)


def setting(change: str) -> tuple[str, Any]:
    """Key and value of a `key=value` text; what is no TOML is taken for a text.

    >>> setting("flow.passes=2"), setting("method = lot")
    (('flow.passes', 2), ('method', 'lot'))
    """
    key, separator, text = change.partition("=")
    if not separator:
        raise UsageError(f"'{change}' is no setting; write key=value, for instance rounds=20.")
    try:
        return key.strip(), tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text.strip()


def _place(key: str, idle: Iterable[str]) -> tuple[str | None, str]:
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
    if key == "method":
        raise UsageError("A method brings settings of its own along; choose one with --method.")
    asked = {section: keys for section, keys in names.items() if section not in idle}
    for section, keys in asked.items():
        if key in keys:
            return section, key
    raise unknown("key", key, {name for keys in asked.values() for name in keys})
