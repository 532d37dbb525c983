"""Silos from what was typed: files, image sets, or one file divided by a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from anabranch import seeds
from anabranch.data import (
    CATALOGUE,
    Encoder,
    ImageSet,
    Points,
    Table,
    by_attribute,
    has_labels,
    load_attribute,
    load_images,
    load_points,
)
from anabranch.errors import UsageError, unknown
from anabranch.federation import Federation, Ledger, LocalEngine, Silo
from anabranch.methods.tables import agree
from anabranch.runs import from_dict, points_of, tables_of

ARRAYS, TABLE = (".npy", ".npz"), ".csv"
MOST_ATOMS = 100
MOST_PIXELS = 2**28  # a gibibyte of points in float32

Support = Annotated[
    int | None, typer.Option(help="Atoms of the measure ξ; by default 100, or as many as silos allow.", min=1)
]
Rounds = Annotated[int, typer.Option(help="How often ξ is refined.", min=1)]
View = Annotated[str, typer.Option(help="What is compared: points, classes (diagonal OTDD) or 'classes in full'.")]
PointsPerAtom = Annotated[
    int, typer.Option(help="The least points of a silo behind each atom that it answers; 1 protects nothing.", min=1)
]
Limit = Annotated[int | None, typer.Option(help="Use at most so many points of each silo, drawn by the seed.", min=2)]
Label = Annotated[str, typer.Option(help="Of tables: the column that holds the classes; it is not compared itself.")]
Missing = Annotated[str, typer.Option(help="Of tables: refuse gaps, or fill them with 'typical' values.")]
Categorical = Annotated[str, typer.Option(help="Of tables: columns whose numbers are codes, separated by commas.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to; made when missing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line, instead of tables.")]


@dataclass(frozen=True)
class Reading:
    """How data becomes silos, for all that was named alike."""

    label: str = ""
    missing: str = "refuse"
    categorical: str = ""
    limit: int | None = None
    points_per_atom: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Held:
    """What a silo is to hold: points or images, and whether their labels mean anything."""

    rows: Points | ImageSet
    labelled: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one image; nothing for points."""
        return tuple(self.rows.images.shape[1:]) if isinstance(self.rows, ImageSet) else ()

    def points(self, index: Tensor | slice) -> Points:
        """These rows as points."""
        chosen = self.rows[index]
        if isinstance(chosen, Points):
            return chosen
        if chosen.images.numel() > MOST_PIXELS:
            raise UsageError(f"{len(chosen)} images of {self.shape} are too many to compare; take some with --limit.")
        return Points(chosen.points(), chosen.label)


@dataclass(frozen=True)
class Gathered:
    """Silos that are ready to be asked; the shape of an image where all hold such, and the encoder of tables."""

    silos: list[Silo]
    shape: tuple[int, ...] = ()
    encoder: Encoder | None = None
    ledger: Ledger = field(default_factory=Ledger)

    def federation(self, engine: LocalEngine | None = None) -> Federation:
        """The silos as a federation, whose ledger goes on from what agreeing on an encoder took."""
        federation = Federation(engine or self.silos)
        federation.ledger = self.ledger
        return federation

    def support(self, wanted: int | None, points_per_atom: int, option: str = "--support") -> int:
        """The number of atoms to work with: the one wanted, where silos will answer in so many parts."""
        smallest = min(self.silos, key=len)
        most = len(smallest) // points_per_atom
        if most < 1:
            raise UsageError(
                f"'{smallest.name}' has {len(smallest)} points, and an atom rests on {points_per_atom} or more; give"
                " more data, or a smaller --points-per-atom."
            )
        if wanted is not None and wanted > most:
            raise UsageError(
                f"{wanted} atoms were asked for; '{smallest.name}' has {len(smallest)} points and answers in {most}"
                f" parts at most, so that each hides behind {points_per_atom} points. Take {option} {most}, or, if"
                " whoever sees the answers may see single points, --points-per-atom 1."
            )
        return wanted or min(MOST_ATOMS, most)

    def check_labels(self, view: str) -> None:
        """Refuses a comparison by classes where a silo has none."""
        bare = next((silo.name for silo in self.silos if view != "points" and not silo.labelled), None)
        if bare is not None:
            raise UsageError(
                f"--view is '{view}', but the data of '{bare}' has no classes. Give an .npz file with an array 'label',"
                " or name a table's column with --label."
            )


def gather(names: Sequence[str], how: Reading) -> Gathered:
    """A silo for each file or image set; tables are standardised together, without being pooled."""
    if not names:
        raise UsageError("Name the data: files (.csv, .npy, .npz), or image sets such as digits or mnist:test.")
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise UsageError(f"'{twice[0]}' is named twice; name each data set once.")
    for name in names:
        if not name.endswith((*ARRAYS, TABLE)):
            _check_image_set(name)
    if any(name.endswith(TABLE) for name in names):
        if not all(name.endswith(TABLE) for name in names):
            raise UsageError("Tables and arrays cannot be mixed; give only .csv files, or none.")
        return _of_tables(tables_of(from_dict({"data": {"files": list(names)}}).data), how)
    files = [name for name in names if name.endswith(ARRAYS)]
    arrays = points_of(from_dict({"data": {"files": files}}).data) if files else {}
    held = {
        silo: Held(Points(points.x, points.label), has_labels(file))
        for (silo, points), file in zip(arrays.items(), files, strict=True)
    }
    for name in names:
        if name not in files:
            held[name.replace(":", "-")] = Held(_images(name), True)
    if len(held) < len(names):
        raise UsageError("A file and an image set have one name; every silo needs its own, so rename the file.")
    return _of_points(held, how)


def divide(name: str, by: str, how: Reading) -> Gathered:
    """A silo for each value of a column, of an archive's array, or of the labels."""
    if name.endswith(TABLE):
        values = {"target": name, "partition": "attribute", "attribute": by}
        return _of_tables(tables_of(from_dict({"data": values}).data), how)
    if name.endswith(ARRAYS):
        whole, texts = Held(load_points(name, by), has_labels(name)), load_attribute(name, by)
    else:
        images = _images(name)
        if by != "label":
            raise unknown(f"division of '{name}'", by, ["label"])
        whole, texts = (
            Held(images, True),
            [images.classes[number].replace("/", "-") for number in images.label.tolist()],
        )
    return _of_points({part: Held(whole.rows[at], whole.labelled) for part, at in by_attribute(texts).items()}, how)


def _of_tables(tables: Mapping[str, Table], how: Reading) -> Gathered:
    classes: dict[str, list[str]] = {}
    if how.label:
        for name, table in tables.items():
            if how.label not in table.columns:
                raise unknown(f"column of '{name}' named", how.label, table.columns)
        classes = {name: table.columns[how.label] for name, table in tables.items()}
        tables = {name: table.without(how.label) for name, table in tables.items()}
    silos = [Silo.of_table(name, table) for name, table in tables.items()]
    federation = Federation(silos)
    encoder = agree(federation, how.missing, tuple(part.strip() for part in how.categorical.split(",") if part.strip()))
    held = {}
    for silo in silos:
        points = Points(silo.data.x, silo.data.label)
        if how.label:
            number = {text: at for at, text in enumerate(sorted(set(classes[silo.name])))}
            points = Points(points.x, torch.tensor([number[text] for text in classes[silo.name]]))
        held[silo.name] = Held(points, bool(how.label))
    return replace(_of_points(held, how), encoder=encoder, ledger=federation.ledger)


def _of_points(held: Mapping[str, Held], how: Reading) -> Gathered:
    silos = []
    for name, one in held.items():
        chosen: Tensor | slice = slice(None)
        if how.limit is not None and how.limit < len(one.rows):
            order = torch.randperm(len(one.rows), generator=seeds.generator(how.seed, "limit", name))
            chosen = order[: how.limit].sort().values
        points = one.points(chosen)
        label, secret = points.label if one.labelled else None, seeds.derive(how.seed, "secret", name)
        silos.append(Silo(name, points.x, label, smallest_part=how.points_per_atom, secret=secret))
    shapes = {one.shape for one in held.values()}
    return Gathered(silos, shapes.pop() if len(shapes) == 1 else ())


def _check_image_set(name: str) -> None:
    """Refuses what is neither a file of a known form nor an image set."""
    kind = name.partition(":")[0]
    if kind in CATALOGUE:
        return
    if Path(name).exists() or Path(name).suffix or "/" in name:
        raise UsageError(f"'{name}' is no .csv, .npy or .npz file, and no image set; save the data as one of these.")
    raise unknown("image set", kind, CATALOGUE)


def _images(name: str) -> ImageSet:
    """The images called SET or SET:SPLIT."""
    _check_image_set(name)
    kind, _, part = name.partition(":")
    return load_images(kind, part or "train")


def size_text(count: int) -> str:
    """A number of bytes as people say it.

    >>> size_text(1234), size_text(5_600_000)
    ('1.2 kB', '5.6 MB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
