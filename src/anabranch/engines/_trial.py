"""Sites for a trial on one machine: a recipe's data, dealt out to folders such as institutions keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anabranch import seeds
from anabranch.errors import UsageError
from anabranch.runs import Config, points_of, tables_of
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
    kinds = kinds_of(config.method if config.compares else config.settings, data.tables)
    policy = SitePolicy(kinds, ROUNDS, 1, limits, smallest_part=1)
    guards = SitePrivacy(privacy.lookup_noise, privacy.gradient_clip, privacy.gradient_noise)
    names = []
    for name, file in _write_data(config, root).items():
        if not (root / name / "site.toml").exists():
            settings = SiteSettings(name, SiteData(file, (), data.held_out, data.seed), policy, guards)
            write_site(root / name, settings, seeds.derive(config.seed, "secret", name))
        names.append(name)
    return sorted(names)


def _write_data(config: Config, root: Path) -> dict[str, str]:
    """Each silo's part of the data in a file of its site's folder; the file's name by silo."""
    if config.data.tables:
        for name, table in tables_of(config.data).items():
            (root / name).mkdir(parents=True, exist_ok=True)
            table.write(root / name / "data.csv")
        return dict.fromkeys(tables_of(config.data), "data.csv")
    parts = points_of(config.data)
    for name, points in parts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        np.savez(root / name / "data.npz", x=points.x.numpy(), label=points.label.numpy())
    return dict.fromkeys(parts, "data.npz")
