"""Sites for a trial on one machine: a recipe's data, dealt out to folders such as institutions keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from anabranch import seeds
from anabranch.data import Pixels, save_images
from anabranch.data.attributes import save_attributed
from anabranch.errors import UsageError
from anabranch.runs import Config, alike, attributed_parts, points_of, tables_of
from anabranch.sites import SiteData, SitePolicy, SitePrivacy, SiteSettings, kinds_of, write_site

ROUNDS = 10**9  # a trial's sites bind nobody: their policy lists kinds, and limits what the run's own settings limit


def write_sites(config: Config, root: Path) -> list[str]:
    """A folder for each silo of the config, with its part of the data; names of the sites.

    In a trial a site's secret follows from the seed, as in a simulation in one process, so that both give one result.
    """
    data, privacy = config.data, config.privacy
    if data.pooled:
        raise UsageError("data.pooled puts all data into one place, which leaves nothing to federate; leave it out.")
    limits = {"ffm.lookup": privacy.lookup_limit} if privacy.lookup_limit else {}
    asks = config if config.composes else config.method if config.compares else config.settings
    kinds = kinds_of(asks, data.tables)
    policy = SitePolicy(kinds, ROUNDS, 1, limits, smallest_part=1)
    guards = SitePrivacy(privacy.lookup_noise, privacy.gradient_clip, privacy.gradient_noise)
    names = []
    for name, held in _write_data(config, root).items():
        if not (root / name / "site.toml").exists():
            settings = SiteSettings(name, replace(held, held_out=data.held_out, seed=data.seed), policy, guards)
            write_site(root / name, settings, seeds.derive(config.seed, "secret", name))
        names.append(name)
    return sorted(names)


def _write_data(config: Config, root: Path) -> dict[str, SiteData]:
    """Each silo's part of the data in a file of its site's folder; what a site must know of it, by silo."""
    if config.composes:
        return _write_attributed(config, root)
    if config.data.tables:
        for name, table in tables_of(config.data).items():
            table.write(_own_folder(root, name) / "data.csv")
        return dict.fromkeys(tables_of(config.data), SiteData("data.csv"))
    parts, held = points_of(config.data), dict[str, SiteData]()
    if not config.compares:
        alike(parts)
    for name, points in parts.items():
        file = _own_folder(root, name) / "data.npz"
        if isinstance(points, Pixels):
            save_images(file, points)
            held[name] = SiteData("data.npz", flip=config.data.flip, crop=config.data.crop)
        else:
            np.savez(file, x=points.x.numpy(), label=points.label.numpy())
            held[name] = SiteData("data.npz")
    return held


def _own_folder(root: Path, name: str) -> Path:
    """A site's folder; its copy of the data is readable by whoever started the trial alone."""
    (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    return root / name


def _write_attributed(config: Config, root: Path) -> dict[str, SiteData]:
    """Samples with attributes; every site is told all outcomes, in the order in which one process would have them."""
    parts = attributed_parts(config.data)
    for name, part in parts.items():
        save_attributed(_own_folder(root, name) / "data.npz", part)
    space = next(iter(parts.values())).space
    return dict.fromkeys(parts, SiteData("data.npz", attributes=space.names, outcomes=dict(space.attributes)))
