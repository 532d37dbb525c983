"""A new site's folder, with a site.toml whose comments teach."""

from __future__ import annotations

import json
from pathlib import Path

from anabranch.errors import DataError, UsageError
from anabranch.sites._folder import SECRET_FILE, SITE_FILE, STATE_FOLDER, write_secret
from anabranch.sites._settings import SiteSettings

_PAGE = """\
# What this site holds, and what it is willing to answer. Every key: docs/sites.md.
# Look at the effect of a change with: anabranch site check FOLDER

name = {name}  # under which the federation knows this site

[data]
file = {file}  # .csv, .npy or .npz; stays where it is
columns = {columns}  # of a .csv file, the ones to use; empty: all
held_out = {held_out}  # share of the points that is kept from training, for metrics
seed = {seed}  # decides which ones

[policy]
# A kind of question that is not listed here is refused.
kinds = [
{kinds}]
rounds = {rounds}  # questions of later rounds are refused
smallest_group = {smallest_group}  # no answer rests on fewer points than this

[policy.limits]
# Answers to a kind in one run; every noise of a lookup counts. A kind without a line has no limit.
{limits}
[privacy]
# Done to answers before they leave; 0 does nothing. There is no accountant: do not quote an epsilon.
lookup_noise = {lookup_noise}  # deviation of the noise on every number of a lookup, in units of cost
gradient_clip = {gradient_clip}  # bound on the norm of a gradient
gradient_noise = {gradient_noise}  # deviation of the noise on every number of a gradient
"""


def write_site(folder: Path, settings: SiteSettings, secret: int | None = None) -> None:
    """Makes the folder: site.toml and a secret, drawn at random unless given. An existing site is not overwritten."""
    for name in (SITE_FILE, SECRET_FILE):
        if (folder / name).exists():
            raise UsageError(f"{folder} has a {name} already; edit that, or choose another folder.")
    try:
        (folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made ({error.strerror}); choose another folder.") from error
    write_secret(folder, secret)
    with (folder / SITE_FILE).open("x", encoding="utf-8") as file:
        file.write(site_toml(settings))


def site_toml(settings: SiteSettings) -> str:
    """The settings as TOML with comments; `read_site` gives them back."""
    data, policy, privacy = settings.data, settings.policy, settings.privacy
    return _PAGE.format(
        name=_text(settings.name),
        file=_text(data.file),
        columns=f"[{', '.join(map(_text, data.columns))}]",
        held_out=data.held_out,
        seed=data.seed,
        kinds="".join(f"  {_text(kind)},\n" for kind in policy.kinds),
        rounds=policy.rounds,
        smallest_group=policy.smallest_group,
        limits="".join(f"{_text(kind)} = {limit}\n" for kind, limit in policy.limits.items()),
        lookup_noise=privacy.lookup_noise,
        gradient_clip=privacy.gradient_clip,
        gradient_noise=privacy.gradient_noise,
    )


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are TOML's, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
