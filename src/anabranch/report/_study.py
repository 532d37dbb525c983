"""The page of a study: what it checks, its tables and its pictures, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.federation import write_atomically
from anabranch.report import _html
from anabranch.report._page import _checks as checks_section
from anabranch.report._table import figure_columns


def write_study_report(
    out: Path,
    heading: str,
    paper: str,
    about: str,
    tables: Sequence[tuple[str, Sequence[Sequence[str]]]],
    pictures: Mapping[str, Path],
    checks: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Writes the page. Tables are (title, lines with the header first); `checks` are records as in `write_report`."""
    parts = [
        _html.paragraph(f"Anabranch · {paper}", "eyebrow"),
        f"<h1>{_html.escape(heading)}</h1>",
        _html.paragraph(_html.prose(about), "lead"),
        checks_section(checks),
        _html.section("pictures", "Pictures", *(_picture(title, path) for title, path in pictures.items())),
        _html.section("tables", "Tables", *(_table(title, lines) for title, lines in tables)),
    ]
    write_atomically(out, _html.page(heading, "\n".join(filter(None, parts))).encode())
    return out


def _picture(title: str, path: Path) -> str:
    image = _html.image(path.read_bytes(), title).replace("<img", '<img style="max-width:100%;height:auto"', 1)
    return f'<h3>{_html.escape(title)}</h3>\n<figure><div class="sheet">{image}</div></figure>'


def _table(title: str, lines: Sequence[Sequence[str]]) -> str:
    """Figures to the right, below one another; names to the left."""
    kinds = ["figure" if figures else "name" for figures in figure_columns(lines)]
    return f"<h3>{_html.escape(title)}</h3>\n{_html.grid(lines[0], lines[1:], kinds)}"
