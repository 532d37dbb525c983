"""From a config to silos and a federation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import (
    Encoder,
    Pixels,
    Points,
    Table,
    by_attribute,
    by_component,
    by_shards,
    check_points,
    dirichlet,
    has_classes,
    has_labels,
    iid,
    load_attribute,
    load_points,
    load_samples,
    shape,
    split,
)
from anabranch.data.attributes import Attributed, Coverage
from anabranch.errors import DataError, UsageError, unknown
from anabranch.federation import (
    ALONE,
    Clip,
    Federation,
    Ledger,
    Noise,
    Participation,
    Postprocessor,
    RankedEngine,
    Ranks,
    Silo,
)
from anabranch.methods.dcfm import COMPOSITIONS
from anabranch.methods.tables import agree
from anabranch.runs._attributed import attributed_of, pooled
from anabranch.runs._config import Config
from anabranch.runs._images import alike, as_told, check_shape, device_of, images_of, images_of_silos
from anabranch.runs._sections import FOLDER, DataSettings

GRADIENTS = ("ffm.gradient.reply", "ffm.potential.reply")
PARTITIONS = ("component", "shards", "dirichlet", "iid", "attribute")


@dataclass(frozen=True)
class Assembly:
    """A federation that is ready to open, the silos of this process (none where they are elsewhere), for tables the
    encoder that the silos agreed on, and the processes that share the silos."""

    federation: Federation
    silos: list[Silo] = field(default_factory=list)
    encoder: Encoder | None = None
    ranks: Ranks = ALONE


def build_silos(
    config: Config, folder: Path | None = None, ledger: Ledger | None = None, ranks: Ranks = ALONE
) -> tuple[list[Silo], Encoder | None]:
    """The silos of a run, each with its held-out points; for tables also the encoder that they agreed on.

    What they send to agree on it is counted in `ledger`. Where they are shared by several `ranks`, only this one's own
    are on its device.
    """
    data, encoder = config.data, None
    parts: Mapping[str, Points | Pixels]
    if config.composes:
        return _build_attributed(config, folder), None
    if data.attributed:
        raise UsageError(
            f"The data has attributes, and the method '{config.method}' would not look at them; choose one of"
            f" {', '.join(COMPOSITIONS)}, or leave data.attributes out."
        )
    if config.flow.classes:
        _check_labels(data)
    if data.tables:
        parts, encoder = _encoded(data, tables_of(data), ledger or Ledger())
    else:
        parts = points_of(data)
        if not config.compares:  # a distance looks at numbers, a network at their shape
            alike(parts)
    if data.pooled:
        parts = {"pooled": _pooled(list(parts.values()))}
    for points in parts.values():
        if isinstance(points, Pixels):
            check_shape(config, points.shape)
    mine, device = ranks.share(parts), ranks.device(device_of(config))
    places = {name: device if name in mine else torch.device("cpu") for name in parts}
    return [_silo(config, name, points, folder, places[name]) for name, points in parts.items()], encoder


def _check_labels(data: DataSettings) -> None:
    """Refuses data without labels for a flow that is to be told them."""
    if data.tables:
        raise UsageError("flow.classes is for labels, which tables have not; give .npz files with x and label.")
    for name in data.files or (data.target,):
        if name.endswith((".npy", ".npz")) and not has_labels(name):
            raise UsageError(
                f"flow.classes is for labels, and '{name}' has none; give .npz files with x, or images, and label."
            )
    for folder in data.folders:
        if not has_classes(folder):
            raise UsageError(
                f"flow.classes is for labels, and the pictures in '{folder}' have none; give each class a folder in it."
            )


def _pooled(parts: Sequence[Points | Pixels]) -> Points | Pixels:
    """All in one."""
    first = parts[0]
    if isinstance(first, Pixels):
        images = [part for part in parts if isinstance(part, Pixels)]
        rows = torch.cat([part.bytes for part in images])
        return replace(first, bytes=rows, labels=torch.cat([part.labels for part in images]))
    return Points(torch.cat([p.x for p in parts]), torch.cat([p.label for p in parts]))


def _build_attributed(config: Config, folder: Path | None = None) -> list[Silo]:
    """The silos of a composition, each with its held-out samples."""
    parts = attributed_parts(config.data)
    if config.data.pooled:
        parts = {"pooled": pooled(parts)}
    device = device_of(config)
    return [_silo(config, name, Points(p.x, p.label), folder, device, p) for name, p in parts.items()]


def coverage_of(config: Config) -> Coverage:
    """Who holds which combination of attributes to train on."""
    silos = _build_attributed(config)
    assert silos[0].space is not None
    return Coverage.of(silos[0].space, {silo.name: silo.data.label for silo in silos})


def attributed_parts(data: DataSettings) -> dict[str, Attributed]:
    """What each silo holds, where samples have attributes."""
    _check_place(data)
    return attributed_of(data, _by_silo(data.files))


def points_of(data: DataSettings) -> dict[str, Points | Pixels]:
    """What each silo holds, where that is points or images: a file of its own, or its part of one target."""
    _check_division(data)
    if data.files and data.folders:
        return dict(images_of_silos(data, _by_silo(data.files)))
    if data.files:
        return {silo: _load(data, name, silo) for silo, name in _by_silo(data.files).items()}
    return _divide(data)


def tables_of(data: DataSettings) -> dict[str, Table]:
    """What each silo holds, where that is a table: a file of its own, or its part of one file."""
    _check_division(data)
    return _read_tables(data) if data.files else _divide_table(data)


def _check_place(data: DataSettings) -> None:
    if data.at_sites:
        raise UsageError(f"data.target is '{data.target}', so the data is not here; train with --engine nvflare.")


def _check_division(data: DataSettings) -> None:
    _check_place(data)
    _by_silo(data.files)
    if data.partition not in PARTITIONS:
        raise unknown("partition", data.partition, PARTITIONS)


def _by_silo(files: Sequence[str]) -> dict[str, str]:
    """The files by their silos' names: a file's own name, and of files that share one also their folder's."""
    own = [_own_name(name) for name in files]
    shared = Counter(own)
    found: dict[str, str] = {}
    for name, silo in zip(files, own, strict=True):
        if shared[silo] > 1:
            silo = f"{Path(name.removeprefix(FOLDER)).parent.resolve().name}-{silo}"
        if silo in found:
            raise UsageError(f"'{found[silo]}' and '{name}' would both be the data of a silo '{silo}'; rename one.")
        found[silo] = name
    return found


def _own_name(name: str) -> str:
    """A file's name without its ending, or a folder's."""
    return Path(name.removeprefix(FOLDER)).resolve().name if name.startswith(FOLDER) else Path(name).stem


def build_federation(config: Config, silos: list[Silo], ranks: Ranks = ALONE) -> Federation:
    """The federation of a run, with the guards that the config asks for; its silos shared by these `ranks`."""
    settings, privacy = config.federation, config.privacy
    postprocessors = guards(privacy.gradient_clip, privacy.gradient_noise, privacy.lookup_noise)
    weighting = settings.weights or settings.weighting
    participation = Participation(settings.participation, settings.count or None, settings.unbiased)
    if ranks.count > 1:
        engine = RankedEngine(silos, ranks, settings.fused, postprocessors)
        return Federation(engine, weighting, participation, settings.quorum)
    return Federation(silos, weighting, participation, settings.quorum, postprocessors, settings.fused)


def guards(gradient_clip: float = 0.0, gradient_noise: float = 0.0, lookup_noise: float = 0.0) -> list[Postprocessor]:
    """What changes answers before they leave a silo: a clip and then noise on gradients, noise on lookups (0: off)."""
    found: list[Postprocessor] = []
    if gradient_clip:
        found.append(Clip(gradient_clip, GRADIENTS))
    if gradient_noise:
        found.append(Noise(gradient_noise, GRADIENTS))
    if lookup_noise:
        found.append(Noise(lookup_noise, ("ffm.lookup.reply",)))
    return found


def source_points(config: Config) -> Tensor | None:
    """The points of a source that is given as a file; None for a source with a formula."""
    name = config.flow.source
    if not name.endswith((".npy", ".npz")):
        return None
    return check_points(load_points(Path(name)).x, f"The source {name}")


def _silo(
    config: Config,
    name: str,
    points: Points | Pixels,
    folder: Path | None,
    device: torch.device,
    attributed: Attributed | None = None,
) -> Silo:
    # In a simulation a silo's secret follows from the seed, so that runs repeat; a real site draws its own.
    secret = seeds.derive(config.seed, "secret", name)
    limits = {"ffm.lookup": config.privacy.lookup_limit} if config.privacy.lookup_limit else {}
    held_out = held_out_label = None
    if not isinstance(points, Pixels):
        points = Points(check_points(points.x, f"Silo '{name}'"), points.label)
    if config.data.held_out:
        if len(points) < 3:
            raise DataError(
                f"Silo '{name}' holds {len(points)} {'image' if isinstance(points, Pixels) else 'point'}"
                f"{'s' * (len(points) != 1)}; with data.held_out at least 3 are needed, two of them to train on."
            )
        parts = split(len(points), config.data.held_out, seeds.generator(config.data.seed, "held out", name))
        kept, points = points[parts.held_out], points[parts.train]
        held_out, held_out_label = kept.x, kept.label
    place = folder / "silos" / name if folder is not None else None
    points = points.to(device)
    if isinstance(points, Pixels):
        points = replace(points, flip=config.data.flip, crop=config.data.crop)
    return Silo(
        *(name, points if isinstance(points, Pixels) else points.x, points.label, held_out, limits),
        secret=secret,
        folder=place,
        held_out_label=held_out_label,
        space=attributed.space if attributed is not None else None,
        shape=(attributed.shape or ()) if attributed is not None else (),
    )


def _divide(data: DataSettings) -> dict[str, Points | Pixels]:
    """A shape's points, a set's images, or one file's points, divided over silos."""
    generator = seeds.generator(data.seed, "data")
    points: Points | Pixels
    if data.image_set or data.folders:
        points, limit = images_of(data), None
    elif data.target.endswith((".npy", ".npz")):
        if data.images and data.partition == "attribute":
            raise UsageError(
                "data.images takes some of the images, and data.partition is 'attribute', whose values are of all;"
                " leave one of the two out."
            )
        points, limit = _load(data, data.target, attribute=_attribute(data)), None
    else:
        if data.points < 1:
            raise UsageError(f"data.points is {data.points}; every silo needs points.")
        points, limit = _enough(data, generator), data.points
    if data.partition == "component":
        groups = [list(group) for group in data.groups] or [[label] for label in sorted(set(points.label.tolist()))]
        partition = by_component(points.label, groups)
    elif data.partition == "shards":
        partition = by_shards(points.label, data.silos, data.shards, generator)
    elif data.partition == "dirichlet":
        partition = dirichlet(points.label, data.silos, data.alpha, generator)
    elif data.partition == "attribute":
        if not data.target.endswith(".npz"):
            raise UsageError(
                f"'{data.target}' has no attributes to divide by; they are columns of .csv, arrays of .npz."
            )
        partition = by_attribute(load_attribute(Path(data.target), _attribute(data)))
    else:
        partition = iid(len(points), data.silos, generator)
    exact = limit if data.partition == "component" else None
    chosen = {name: index[:exact] if exact else index for name, index in partition.items()}
    return {name: points[index] for name, index in chosen.items()}


def _enough(data: DataSettings, generator: torch.Generator) -> Points:
    """Points of the shape; for a division by component more than needed, so that every silo gets its number."""
    found = shape(data.target)
    if data.partition == "component":
        return found.sample(2 * data.points * (len(data.groups) or found.labels), generator)
    return found.sample(data.points * data.silos, generator)


def _attribute(data: DataSettings) -> str:
    """What to divide by, where that is asked for."""
    if data.partition == "attribute" and not data.attribute:
        raise UsageError(
            "data.partition is 'attribute', but data.attribute does not say which; name a column or array."
        )
    return data.attribute


def _load(data: DataSettings, name: str, silo: str = "", attribute: str = "") -> Points | Pixels:
    """The points of a file, or its images as the settings say."""
    loaded = load_samples(Path(name), attribute)
    if isinstance(loaded, Pixels):
        return as_told(loaded, data, name, silo)
    if data.varied:
        raise DataError(
            f"'{name}' holds no array 'images', and data.images, data.side, data.crop and data.flip are for images;"
            " leave them out."
        )
    return Points(check_points(loaded.x, f"{name}", smallest=1), loaded.label)


def _read_tables(data: DataSettings) -> dict[str, Table]:
    """CSV files, one a silo."""
    if not all(name.endswith(".csv") for name in data.files):
        raise DataError("Tables and arrays cannot be mixed; give only .csv files, or only .npy and .npz files.")
    return {silo: Table.read(Path(name)) for silo, name in _by_silo(data.files).items()}


def _divide_table(data: DataSettings) -> dict[str, Table]:
    """One CSV file, its rows divided by the value of a column, which is then left out, or at random."""
    table = Table.read(Path(data.target))
    if data.partition == "iid":
        return table.divide(iid(len(table), data.silos, seeds.generator(data.seed, "data")))
    if data.partition != "attribute":
        raise UsageError(
            f"data.partition is '{data.partition}', which needs labels; a table is divided by 'attribute' or 'iid'."
        )
    column = _attribute(data)
    if column not in table.columns:
        raise unknown(f"column of '{Path(data.target).name}' named", column, table.columns)
    return table.without(column).divide(by_attribute(table.columns[column]))


def _encoded(data: DataSettings, tables: dict[str, Table], ledger: Ledger) -> tuple[dict[str, Points], Encoder]:
    """Tables made into points by an encoder that no silo's rows left home for."""
    silos = [Silo.of_table(name, table) for name, table in tables.items()]
    federation = Federation(silos)
    federation.ledger = ledger
    encoder = agree(federation, data.missing, data.categorical)
    return {silo.name: Points(silo.data.x, silo.data.label) for silo in silos}, encoder
