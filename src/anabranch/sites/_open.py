"""From a site's folder to a site that answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anabranch.data import Pixels, Points, Table, check_points, has_labels, load_folder, load_samples
from anabranch.data.attributes import load_attributed
from anabranch.errors import DataError, unknown
from anabranch.federation import AuditLog, Silo, Site
from anabranch.methods import dcfm, experts, fedwad, ffm, personal, tables
from anabranch.sites._folder import AUDIT_FILE, STATE_FOLDER, read_secret
from anabranch.sites._settings import SiteData, SiteSettings, read_site

HANDOVER = 30.0  # seconds that the process of an earlier job has to end
SILO_HALVES = (dcfm, experts, fedwad, ffm, personal, tables)  # importing them registers what a silo can answer


def open_site(folder: Path) -> Site:
    """The site of a folder, with its data loaded, under its own policy, privacy and audit log."""
    folder = folder.resolve()  # a withdrawal must be found wherever the process goes
    settings = read_site(folder)
    silo = load_silo(folder, settings)
    silo.secret, silo.folder = read_secret(folder), folder / STATE_FOLDER
    log = AuditLog(folder / AUDIT_FILE, HANDOVER)
    return Site(silo, settings.policy.enforced(folder), log, settings.privacy.guards())


def load_silo(folder: Path, settings: SiteSettings) -> Silo:
    """The silo with its data, and nothing else of the folder; a table waits to be encoded."""
    data = settings.data
    if data.is_table:
        silo = Silo.of_table(settings.name, load_table(folder, data))
        silo.hold_out(data.held_out, data.seed)
        return silo
    silo = Silo(settings.name, None)
    silo.hold_out(data.held_out, data.seed)
    if data.folder:
        # Nothing of the pictures is kept elsewhere: they are read whenever the site is opened.
        found = load_folder(folder / data.folder, data.side, data.colours, keep=False)
        silo.hold(_varied(found.pixels(), data))
        silo.own_classes = True
        return silo
    path = folder / data.file
    if data.attributed:
        samples = load_attributed(path, data.attributes, data.space)
        silo.hold(Points(samples.x, samples.label))
        silo.space, silo.shape, silo.own_classes = samples.space, samples.shape or (), True
        return silo
    loaded, labelled = load_samples(path), has_labels(path)
    if isinstance(loaded, Pixels):
        silo.hold(_varied(loaded, data), labelled)
    elif data.varied:
        raise DataError(f"'{path.name}' holds no array 'images', and only images are mirrored or cropped.")
    else:
        silo.hold(Points(check_points(loaded.x, f"'{path.name}'"), loaded.label), labelled)
    return silo


def _varied(images: Pixels, data: SiteData) -> Pixels:
    return replace(images, flip=data.flip, crop=data.crop)


def load_table(folder: Path, data: SiteData) -> Table:
    """The table with the columns asked for, in that order."""
    path = folder / data.file
    table = Table.read(path)
    for name in data.columns:
        if name not in table.columns:
            raise unknown(f"column of '{path.name}' named", name, table.columns)
    if len(table) < 2:
        raise DataError(f"'{path.name}' has {len(table)} rows below its header; a site needs two or more.")
    return Table({name: table.columns[name] for name in data.columns}) if data.columns else table
