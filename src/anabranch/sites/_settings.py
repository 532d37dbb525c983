"""What site.toml says, checked key by key."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anabranch.data import FLIPS, check_crop
from anabranch.data.attributes import AttributeSpace, declared_space
from anabranch.errors import UsageError, unknown
from anabranch.federation import WITHDRAWN, Policy, Postprocessor
from anabranch.runs import FOLDER, fill, guards
from anabranch.sites._folder import SITE_FILE

FORMS = (".csv", ".npy", ".npz")
RESERVED = "privacy_budget"
TAKEN = ("server", "admin")  # who else takes part in every federation
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True)
class SiteData:
    """What the site holds: a `file`, or a folder of pictures ("folder:PATH"), beside site.toml or by its path; of a
    table the `columns` named, or all.

    The share `held_out` is kept from training, for metrics; which points that are follows from `seed`. `attributes`
    names the arrays of an .npz archive that say what its samples are, for methods that compose; `outcomes` gives all
    values that each can have, in their order, where the federation has agreed on them. Pictures of a folder are made
    smaller to `side` × `side` and turned into ones of `colours` 1 or 3 (0: as they are). Images are trained on mirrored
    as `flip` says, "none", at "random" or as "points" of their own, and in random pieces of at least a share `crop`.
    """

    file: str = ""
    columns: tuple[str, ...] = ()
    held_out: float = 0.2
    seed: int = 0
    attributes: tuple[str, ...] = ()
    outcomes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    side: int = 0
    colours: int = 0
    flip: str = "none"
    crop: float = 1.0

    def __post_init__(self) -> None:
        if not self.file.endswith(FORMS) and not self.folder:
            raise UsageError(
                f"data.file is '{self.file}'; name a file that ends in {', '.join(FORMS)}, or a folder of pictures as"
                f" '{FOLDER}PATH'."
            )
        self._check_images()
        if self.columns and not self.is_table:
            raise UsageError(f"data.columns names columns, but '{self.file}' is an array; only .csv files have them.")
        if not 0 <= self.held_out < 1:
            raise UsageError(f"data.held_out is {self.held_out}; a share lies in [0, 1).")
        if self.attributed and not self.file.endswith(".npz"):
            raise UsageError(f"data.attributes names arrays, and '{self.file}' has none; only .npz archives have them.")
        _ = self.space  # refused here, if it cannot be

    def _check_images(self) -> None:
        """Refuses what is said about images where there are none."""
        if self.flip not in FLIPS:
            raise unknown("way of flipping images", self.flip, FLIPS)
        check_crop(self.crop)
        if self.side < 0:
            raise UsageError(f"data.side is {self.side}; it cannot be negative.")
        if (self.side or self.colours) and not self.folder:
            raise UsageError(
                f"data.side and data.colours are for folders of pictures, and data.file is '{self.file}'; leave them"
                f" out, or name a folder as '{FOLDER}PATH'."
            )
        if self.varied and (self.attributed or not (self.folder or self.file.endswith(".npz"))):
            raise UsageError(
                f"data.flip is '{self.flip}' and data.crop {self.crop:g}, which are for images without attributes:"
                f" those of a folder, or of an .npz archive with an array 'images'. Leave both out of '{self.file}'."
            )

    @property
    def folder(self) -> str:
        """The path of the folder of pictures; empty where the data is a file."""
        return self.file.removeprefix(FOLDER) if self.file.startswith(FOLDER) else ""

    @property
    def varied(self) -> bool:
        """Whether images are mirrored or cropped when they are trained on."""
        return self.flip != "none" or self.crop < 1

    @property
    def attributed(self) -> bool:
        """Whether the samples come with attributes."""
        return bool(self.attributes or self.outcomes)

    @property
    def space(self) -> AttributeSpace | None:
        """The attribute space, where it is written down."""
        return declared_space(self.attributes, self.outcomes)

    @property
    def is_table(self) -> bool:
        """Whether rows become points only after the sites have agreed how."""
        return self.file.endswith(".csv")


@dataclass(frozen=True)
class SitePolicy:
    """What is answered: `kinds` of question, up to round `rounds`, never on fewer than `smallest_group` points.

    Of an answer in parts, such as the atoms of a measure, each rests on `smallest_part` points or more. `limits` bounds
    the answers to a kind in a run.
    """

    kinds: tuple[str, ...] = ()
    rounds: int = 10000
    smallest_group: int = 20
    limits: dict[str, int] = field(default_factory=dict)
    smallest_part: int = 4

    def __post_init__(self) -> None:
        self.enforced()

    def enforced(self, folder: Path | None = None) -> Policy:
        """The policy as the site's process enforces it, with the folder in which a withdrawal is looked for."""
        withdrawn = None if folder is None else folder / WITHDRAWN
        return Policy(self.kinds, self.rounds, dict(self.limits), self.smallest_group, withdrawn, self.smallest_part)


@dataclass(frozen=True)
class SitePrivacy:
    """What is done to answers before they leave (0: nothing)."""

    lookup_noise: float = 0.0
    gradient_clip: float = 0.0
    gradient_noise: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value < math.inf:
                raise UsageError(f"privacy.{name} is {value}; give zero or more.")

    def guards(self) -> list[Postprocessor]:
        """The same as steps that a reply passes through."""
        return guards(**asdict(self))


@dataclass(frozen=True)
class SiteSettings:
    """One site, whole: its name in the federation, its data, its policy, its privacy."""

    name: str
    data: SiteData
    policy: SitePolicy = field(default_factory=SitePolicy)
    privacy: SitePrivacy = field(default_factory=SitePrivacy)

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise UsageError(f"'{self.name}' cannot be a site's name; use letters, digits, '-' and '_'.")


def check_name(name: str) -> None:
    """Refuses a name that no federation could give a site: certificates, folders and addresses are made of it.

    Silos of a simulation may have other names, which is why `SiteSettings` does not ask.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be a site's name; use at most 63 letters, digits, '-' and '_', beginning with a letter"
            " or digit."
        )
    if name.lower() in TAKEN:
        raise UsageError(f"The site's name '{name}' is taken: every federation has a participant of that name.")


SITE_SECTIONS: dict[str, type] = {"data": SiteData, "policy": SitePolicy, "privacy": SitePrivacy}


def read_site(folder: Path) -> SiteSettings:
    """The settings in the folder's site.toml."""
    path = folder / SITE_FILE
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); 'anabranch site init' makes a site's folder."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    return _settings(values)


def _settings(values: Mapping[str, Any]) -> SiteSettings:
    _refuse_reserved(values)
    known = ["name", *SITE_SECTIONS]
    parts: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise unknown("key", key, known)
        if key == "name":
            if not isinstance(value, str):
                raise UsageError(f"name is {value!r}; a value of type str is needed.")
            parts[key] = value
        elif not isinstance(value, Mapping):
            raise UsageError(f"'{key}' must be a section, as in [{key}]; {value!r} was given.")
        else:
            parts[key] = fill(SITE_SECTIONS[key], key, value)
    for key in ("name", "data"):
        if key not in parts:
            raise UsageError(f"site.toml does not say '{key}'; it needs a name and a [data] section with a file.")
    return SiteSettings(**parts)


def _refuse_reserved(values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key == RESERVED:
            raise UsageError(
                f"{RESERVED} was set, but nothing adds up yet what a run spends; a budget would promise what nobody"
                " keeps. Remove it, and limit answers under [policy.limits]."
            )
        if isinstance(value, Mapping):
            _refuse_reserved(value)
