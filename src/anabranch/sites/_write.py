"""A new site's folder, with a site.toml whose comments teach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anabranch.data.attributes import load_attributed
from anabranch.errors import DataError, UsageError
from anabranch.methods.dcfm import COMPOSITIONS
from anabranch.runs import FOLDER
from anabranch.sites._folder import SECRET_FILE, SITE_FILE, STATE_FOLDER, write_secret
from anabranch.sites._kinds import kinds_of, preset_questions
from anabranch.sites._open import load_table
from anabranch.sites._settings import SiteData, SitePolicy, SiteSettings, check_name

LIMITS = {"ffm.histograms": 100, "fedwad.interpolate": 1000}  # the latter: 20 rounds with 50 other sites
_PAGE = """\
# What this site holds, and what it is willing to answer. Every key: docs/sites.md.
# Look at the effect of a change with: anabranch site check FOLDER

name = {name}  # under which the federation knows this site

[data]
file = {file}  # .csv, .npy or .npz, or "folder:PATH" with pictures; stays where it is
columns = {columns}  # of a .csv file, the ones to use; empty: all
held_out = {held_out}  # share of the points that is kept from training, for metrics
seed = {seed}  # decides which ones
attributes = {attributes}  # of an .npz file, the arrays that say what a sample is, for methods that compose them
outcomes = {outcomes}  # all values of each attribute, where the federation agreed on them; empty: those of the file
{pictures}
[policy]
# A kind of question that is not listed here is refused.
kinds = [
{kinds}]
rounds = {rounds}  # questions of later rounds are refused
smallest_group = {smallest_group}  # no answer rests on fewer points than this
smallest_part = {smallest_part}  # nor does one atom of a measure, or one portion of a profile, on fewer than this

[policy.limits]
# Answers to a kind in one run; every noise of a lookup counts. A kind without a line has no limit.
{limits}
[privacy]
# Done to answers before they leave; 0 does nothing. There is no accountant: do not quote an epsilon.
lookup_noise = {lookup_noise}  # deviation of the noise on every number of a lookup, in units of cost
gradient_clip = {gradient_clip}  # bound on the norm of a gradient
gradient_noise = {gradient_noise}  # deviation of the noise on every number of a gradient
"""
_PICTURES = """\
side = {side}  # pictures of a folder are made smaller to so many pixels and cut to a square; 0: as they are
colours = {colours}  # and turned into grey (1) or coloured (3) ones; 0: as they are
flip = {flip}  # how images are mirrored in training: "none", at "random", or as "points" of their own
crop = {crop}  # least share of an image in a random piece of it that is trained on; 1: whole images
"""


def new_settings(
    folder: Path,
    data: Path,
    name: str = "",
    method: str = "sd-protected",
    columns: tuple[str, ...] = (),
    held_out: float = 0.2,
    attributes: tuple[str, ...] = (),
    **images: Any,
) -> SiteSettings:
    """Settings to begin with: the kinds that a method needs, with limits that leave room for one run of it.

    Data inside the folder is named from there, other data by its whole path. For a method that composes attributes,
    all arrays of the archive but x and shape are such, unless some are named. Of a folder of pictures, or an archive of
    images, `images` may say `side`, `colours`, `flip` and `crop`.
    """
    place = data.resolve()
    inside = place.is_relative_to(folder.resolve())
    file = str(place.relative_to(folder.resolve()) if inside else place)
    file = f"{FOLDER}{file}" if place.is_dir() else file
    kinds = kinds_of(method, tables=file.endswith(".csv"))
    answers = {asked.kind: 0 for asked in preset_questions(method)}
    for asked in preset_questions(method):
        answers[asked.kind] += asked.answers
    limits = {kind: round_up(answers[kind]) for kind in ("ffm.lookup",) if kind in answers}
    limits |= {kind: most for kind, most in LIMITS.items() if kind in answers}
    if method in COMPOSITIONS or attributes:
        attributes = load_attributed(place, attributes).space.names
    settings = SiteSettings(
        name or folder.resolve().name,
        SiteData(file, columns, held_out, attributes=attributes, **images),
        SitePolicy(kinds, limits=limits),
    )
    check_name(settings.name)
    if columns:
        load_table(folder, settings.data)  # which refuses columns that the file does not have
    return settings


def round_up(count: int) -> int:
    """The next number with one digit that is not zero.

    >>> round_up(5_144_576)
    6000000
    """
    unit: int = 10 ** (len(str(count)) - 1)
    return -(-count // unit) * unit


def write_site(folder: Path, settings: SiteSettings, secret: int | None = None) -> None:
    """Makes the folder: site.toml and a secret, drawn at random unless given. An existing site is not overwritten."""
    if (folder / SITE_FILE).exists():
        raise UsageError(f"{folder} has a {SITE_FILE} already; edit that, or choose another folder.")
    if (folder / SECRET_FILE).exists():
        raise UsageError(
            f"{folder} has a {SECRET_FILE} already, of a site that was there before; remove it, or choose another"
            " folder. Interrupted runs of that site cannot go on without it."
        )
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
        columns=_list(data.columns),
        held_out=data.held_out,
        seed=data.seed,
        attributes=_list(data.attributes),
        outcomes=f"{{{', '.join(f'{_text(name)} = {_list(values)}' for name, values in data.outcomes.items())}}}",
        pictures=_pictures(data),
        kinds="".join(f"  {_text(kind)},\n" for kind in policy.kinds),
        rounds=policy.rounds,
        smallest_group=policy.smallest_group,
        smallest_part=policy.smallest_part,
        limits="".join(f"{_text(kind)} = {limit}\n" for kind, limit in policy.limits.items()),
        lookup_noise=privacy.lookup_noise,
        gradient_clip=privacy.gradient_clip,
        gradient_noise=privacy.gradient_noise,
    )


def _pictures(data: SiteData) -> str:
    """What is said of pictures, where there may be some."""
    if not data.folder and not data.varied:
        return ""
    return _PICTURES.format(side=data.side, colours=data.colours, flip=_text(data.flip), crop=data.crop)


def _list(values: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are TOML's, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
