"""The privacy surface of the runs: each kind of message they sent, beside what its documentation says it reveals."""

from __future__ import annotations

from typing import Any

from anabranch.federation import KINDS
from anabranch.report import _html
from anabranch.report._html import Markup
from anabranch.report._read import Comparison
from anabranch.report._table import MISSING, short


def message_kinds(content: Comparison) -> list[list[str | Markup]]:
    """A line a kind of message: its way, how many, how large, who uses it, what it reveals."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in content.rows:
        if row["metric"].startswith("bytes_") and row["method"] not in content.pooled:
            found.setdefault(row["kind"], []).append(row)
    largest = sorted(found, key=lambda kind: -max(row["value"] for row in found[kind]))
    federated = [name for name in content.methods if name not in content.pooled]
    lines: list[list[str | Markup]] = []
    for kind in largest:
        rows = found[kind]
        methods = {row["method"] for row in rows}
        users = "all" if methods >= set(federated) else ", ".join(name for name in federated if name in methods)
        way = "↓ down" if rows[0]["metric"] == "bytes_down" else "↑ up"
        counts = sorted({row["messages"] for row in rows})
        span = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"
        size = _size(max(row["value"] / max(1, row["messages"]) for row in rows))
        lines.append([Markup(f"<code>{_html.escape(kind)}</code>"), way, span, size, users, _reveals(kind)])
    return lines


def _size(size: float) -> str:
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{short(size / scale)} {unit}"
    return f"{size:.0f} B"


def _reveals(kind: str) -> str | Markup:
    """A message's documentation: what it is, and what it reveals."""
    documentation = (KINDS[kind].__doc__ or "") if kind in KINDS else ""
    about, _, reveals = documentation.partition("Reveals:")
    about, reveals = (" ".join(text.split()) for text in (about.partition("\n\n")[0], reveals))
    if not reveals:
        return MISSING
    return Markup(f"<p>{_html.prose(about).text}</p><strong>Reveals</strong> {_html.prose(reveals).text}")
