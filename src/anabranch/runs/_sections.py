"""The sections of a run's config that no method knows: data, federation, privacy, evaluation, the run itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from anabranch.data import FLIPS, IMAGE_SETS, MISSING_RULES, check_crop
from anabranch.data.attributes import SOURCES, AttributeSpace, declared_space
from anabranch.errors import UsageError, unknown
from anabranch.methods.fedwad import WadSettings

DEVICES = ("auto", "cpu", "cuda")
FOLDER = "folder:"  # before the path of a folder of pictures
AT_SITES = ("arrays at sites", "tables at sites")  # targets that a coordinator knows nothing more about


@dataclass(frozen=True)
class DataSettings:
    """Who holds what.

    `target` is a shape, a set of images, a file (.csv, .npy, .npz) or a folder of pictures ("folder:PATH") to divide;
    "arrays at sites" or "tables at sites" where sites of a federation hold their own data. Or `files` names one file,
    or one folder, a silo. `points` a silo are taken from a shape. Of images (a set, a folder, or the array `images` of
    an archive) so many `images` are taken (0: all), made smaller to `side` × `side` (0: as they are); random pieces of
    at least a share `crop` are drawn (1: all of each), mirrored as `flip` says: not at all ("none"), at "random", or as
    "points" of their own. Pictures of a folder may be turned into ones of `colours` 1 or 3 (0: all are alike).
    `partition` divides by "component" (`groups` of labels), "shards", "dirichlet" (`alpha`) or "iid" over `silos`, or
    by the values of an "attribute", a column of a table or an array of an archive. `pooled` puts everything into one
    silo, for the upper baselines. `held_out` is the share that every silo keeps from training for metrics. `missing`
    says what to do with gaps in tables, `categorical` names columns whose numbers are codes.

    Samples with attributes come from archives whose arrays `attributes` names, or from a source such as "corners" as
    `target`. `outcomes` is the attribute space where it is known beforehand; `observed` keeps some combinations, as in
    "band". Such data is divided over combinations: `partition` "dirichlet", "iid", "component", or "combinations",
    which says in words what each silo holds.
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
    attributes: tuple[str, ...] = ()
    outcomes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    observed: str = "all"
    images: int = 0
    side: int = 0
    flip: str = "none"
    crop: float = 1.0
    colours: int = 0
    combinations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.missing not in MISSING_RULES:
            raise unknown("rule for missing values", self.missing, MISSING_RULES)
        if self.flip not in FLIPS:
            raise unknown("way of flipping images", self.flip, FLIPS)
        if self.images < 0 or self.side < 0:
            raise UsageError(f"data.images is {self.images} and data.side {self.side}; neither can be negative.")
        check_crop(self.crop)
        self._check_images()
        _ = self.space  # refused here, if it cannot be
        if bool(self.combinations) != (self.partition == "combinations"):
            raise UsageError(
                'data.partition = "combinations" and [data.combinations], which says what each silo holds, belong'
                " together; give both, or neither."
            )

    def _check_images(self) -> None:
        """Refuses what is said about images where there are none, and folders beside files."""
        if self.folders and len(self.folders) < len(self.files):
            raise UsageError("data.files names folders of pictures and other files; give only the one or the other.")
        if self.colours and not self.folders:
            raise UsageError(
                "data.colours is for folders of pictures, and there is none; leave it out, or write"
                f' target = "{FOLDER}PATH".'
            )
        archives = any(name.endswith(".npz") for name in self.files or (self.target,))
        if self.varied and self.attributed:
            raise UsageError(
                "data.images, data.side, data.crop and data.flip are for images alone, and these samples have"
                " attributes: they are taken as they lie. Leave them out."
            )
        if self.varied and not (self.image_set or self.folders or archives):
            what = "what data.files name is none" if self.files else f"data.target is '{self.target}'"
            raise UsageError(
                f"data.images, data.side, data.crop and data.flip are for images, and {what}; leave them out, or take"
                f" one of {', '.join(IMAGE_SETS)}, {FOLDER}PATH, or .npz files with an array 'images'."
            )

    @property
    def varied(self) -> bool:
        """Whether something is said of images: how many, how large, mirrored or in pieces."""
        return bool(self.images or self.side or self.flip != "none" or self.crop < 1)

    @property
    def source(self) -> str:
        """The source of samples with attributes that the target names; empty where it is none."""
        return self.target if self.target in SOURCES and not self.files else ""

    @property
    def image_set(self) -> str:
        """The set of images without attributes that the target names; empty where it is none."""
        return self.target if self.target in IMAGE_SETS and not self.files and not self.source else ""

    @property
    def folders(self) -> tuple[str, ...]:
        """The paths of folders of pictures: one a silo, or the one to divide."""
        named = self.files or (self.target,)
        return tuple(name.removeprefix(FOLDER) for name in named if name.startswith(FOLDER))

    @property
    def attributed(self) -> bool:
        """Whether the samples here come with attributes."""
        return bool(self.source or self.attributes or self.outcomes)

    @property
    def space(self) -> AttributeSpace | None:
        """The attribute space, where it is known beforehand."""
        return declared_space(self.attributes, self.outcomes)

    @property
    def from_file(self) -> bool:
        """Whether the points come from files rather than from a formula."""
        named = self.files or self.image_set or self.folders or self.at_sites
        return bool(named) or self.target.endswith((".csv", ".npy", ".npz"))

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
    """How often to log and to save (in rounds; 0: twenty times a run), on how many threads (0: torch's choice; for a
    small network 1 is quicker, by far where other programs run), and on which `device`: "auto" is a GPU for images
    where there is one.

    `checkpoint_minutes` saves after so many minutes as well, whatever rounds take. `minutes` ends training once it took
    so long, if not all rounds were done before (0: it takes what it takes); then the last round depends on the machine,
    and a rate that falls ("cosine") ends with the minutes.
    """

    log_every: int = 10
    checkpoint_every: int = 0
    checkpoint_minutes: float = 0.0
    minutes: float = 0.0
    threads: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise unknown("device", self.device, DEVICES)
        for name, least in (("log_every", 1), ("checkpoint_every", 0), ("threads", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"run.{name} is {getattr(self, name)}; it must be at least {least}.")
        for name in ("minutes", "checkpoint_minutes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"run.{name} is {getattr(self, name)}; give a number of minutes, or 0 for no limit.")


@dataclass(frozen=True)
class DistanceSettings(WadSettings):
    """For the method "fedwad": a distance `between` two silos, by their names, or between all pairs when empty."""

    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompositionSettings:
    """How experts are trained and composed: silos answer after `every` steps, and after each answer a run can be saved.

    `force` goes on where coverage does not suffice. `experts_from` is the folder of another run, whose experts this one
    starts from in place of training its own.
    """

    every: int = 100
    force: bool = False
    experts_from: str = ""
