"""Small pieces of HTML. Whatever comes from a run is escaped here, and nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

CSS = """
:root { --ink: #1f2328; --soft: #57606a; --line: #d8dee4; --wash: #f6f8fa; --paper: #ffffff; --ground: #fbfbfa;
  --accent: #0b5c8a; --good: #1a7f37; --bad: #b42318; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa4af; --line: #343b44; --wash: #1d2229;
  --paper: #171b21; --ground: #12151a; --accent: #7cc0ea; --good: #56c271; --bad: #ff8f84; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.55; font-size: 16px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 2.6rem 1.25rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 3.2rem 0 .5rem; padding-top: 1.1rem; border-top: 1px solid var(--line);
  letter-spacing: -.01em; }
h3 { font-size: 1.02rem; margin: 1.8rem 0 .6rem; overflow-wrap: anywhere; }
p { max-width: 46rem; margin: .5rem 0 .9rem; overflow-wrap: anywhere; }
.eyebrow { color: var(--soft); font-size: .84rem; margin: 0 0 .5rem; }
.lead { font-size: 1.06rem; }
.findings { max-width: 46rem; padding: .15rem 0 .15rem 1.1rem; margin: 1.1rem 0; border-left: 3px solid var(--accent); }
.findings p { margin: .45rem 0; }
.note { color: var(--soft); font-size: .9rem; }
nav { margin: 1.2rem 0 0; font-size: .9rem; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
.scroll { overflow-x: auto; margin: .9rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 100%; }
th { text-align: left; font-weight: 600; color: var(--soft); vertical-align: bottom;
  border-bottom: 1px solid var(--line); }
th, td { padding: .42rem .7rem; } th:first-child, td:first-child { padding-left: 0; }
td { border-bottom: 1px solid var(--line); vertical-align: top; }
td.figure, th.figure { text-align: right; } td.figure { white-space: nowrap; } td.name { white-space: nowrap; }
tr.group th { color: var(--ink); padding-top: 1.3rem; } tr.group:first-child th { padding-top: .6rem; }
.spread { display: block; font-size: .78rem; font-weight: 400; color: var(--soft); line-height: 1.2; }
td.wide { min-width: 20rem; color: var(--soft); } td.wide strong { color: var(--ink); font-weight: 600; }
td.wide p { margin: 0 0 .2rem; max-width: none; }
td strong { font-weight: 700; }
.ok { color: var(--good); font-weight: 600; white-space: nowrap; }
.no { color: var(--bad); font-weight: 600; white-space: nowrap; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: .45em; }
.tag { font-size: .76rem; color: var(--soft); border: 1px solid var(--line); border-radius: 1em; padding: .02rem .45rem;
  margin-left: .4rem; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .9rem; max-width: 46rem; margin-top: .5rem; }
.sheet { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: .9rem .8rem; overflow-x: auto; }
.sheet svg { display: block; width: 100%; height: auto; min-width: 36rem; margin: 0 auto; }
.sheet svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial,
  sans-serif; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(var(--panel), 1fr)); gap: 1.3rem .9rem; }
.panels + .note { margin-top: .9rem; }
.panel { margin: 0; min-width: 0; }
.panel img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; }
.panel img + img { margin-top: .5rem; }
.alone { display: grid; grid-template-columns: 1fr 1fr; gap: 0 .9rem; align-items: start; max-width: 54rem; }
.alone figcaption { grid-column: 1 / -1; } .alone img + img { margin-top: 0; }
.panel figcaption { color: var(--ink); font-size: .92rem; margin: 0 0 .4rem; overflow-wrap: anywhere;
  line-height: 1.35; }
.panel small { display: block; color: var(--soft); font-size: .8rem; }
details { border-bottom: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { background: var(--wash); border-radius: 8px; padding: .9rem 1rem; overflow-x: auto; font-size: .8rem;
  line-height: 1.45; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; font-size: .9em; }
.columns { columns: 21rem 3; column-gap: 1rem; } .columns pre { break-inside: avoid; margin: 0 0 1rem; }
@media print { body { background: #fff; } h2, h3 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already; all other text is escaped before it reaches the page."""

    text: str


def escape(text: str | Markup) -> str:
    """The text as HTML shows it."""
    return text.text if isinstance(text, Markup) else html.escape(text)


def prose(text: str) -> Markup:
    """Escaped, with `names` in backticks as code.

    >>> prose("at most `a < b`").text
    'at most <code>a &lt; b</code>'
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)))


def paragraph(text: str | Markup, kind: str = "") -> str:
    """A paragraph."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def section(name: str, heading: str, *parts: str) -> str:
    """A section with an anchor; nothing when there is nothing in it."""
    body = "\n".join(part for part in parts if part)
    return f'<section id="{name}">\n<h2>{html.escape(heading)}</h2>\n{body}\n</section>' if body else ""


def method(name: str, color: str, pooled: bool = False) -> Markup:
    """A method's name after a dot in its colour."""
    tag = '<span class="tag">pooled</span>' if pooled else ""
    return Markup(f'<span class="dot" style="background:{color}"></span>{html.escape(name)}{tag}')


def figure_cell(text: str) -> Markup:
    """A figure, its spread in small type below it."""
    mean, sign, spread = text.partition(" ± ")
    return Markup(html.escape(mean) + (f'<span class="spread">± {html.escape(spread)}</span>' if sign else ""))


def grid(
    header: Sequence[str],
    lines: Sequence[Sequence[str | Markup]],
    kinds: Sequence[str],
    bold: Collection[tuple[int, int]] = (),
    groups: Mapping[int, str] | None = None,
) -> str:
    """A table. `kinds` are the columns' classes; cells in `bold` stand out; `groups` are headings above lines."""
    head = "".join(f'<th scope="col"{_class(k)}>{html.escape(t)}</th>' for t, k in zip(header, kinds, strict=True))
    body = []
    for i, line in enumerate(lines):
        cells = []
        for j, (cell, kind) in enumerate(zip(line, kinds, strict=True)):
            text = escape(cell)
            cells.append(f"<td{_class(kind)}>{f'<strong>{text}</strong>' if (i, j) in bold else text}</td>")
        if groups and i in groups:
            body.append(f'<tr class="group"><th colspan="{len(header)}">{html.escape(groups[i])}</th></tr>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    rows = "\n".join(body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def drawing(svg: str, name: str, label: str, caption: str) -> str:
    """A figure drawn in the page itself: ids made its own, sizes left to the page, no reference to anything outside."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    body = body.replace("xlink:href=", "href=")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = re.sub(r"font-family: [^;\"]*sans-serif;?", "", body)
    body = re.sub(r"font: ([\w ]*?)([\d.]+)px [^;\"]*sans-serif", _font, body)
    opening, rest = body.split(">", 1)
    width = re.search(r'width="([\d.]+)pt"', opening)
    opening = re.sub(r'\s(width|height|version)="[^"]*"', "", opening)
    widest = f"max-width:{float(width[1]) * 1.36:.0f}px" if width else ""
    opening = f'{opening} role="img" aria-label="{html.escape(label)}" style="{widest}"'
    note = f"<figcaption>{escape(prose(caption))}</figcaption>" if caption else ""
    return f'<figure><div class="sheet">{opening}>{rest}</div>{note}</figure>'


def image(png: bytes, label: str) -> str:
    """A picture whose bytes are in the page."""
    return f'<img alt="{html.escape(label)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def details(heading: str | Markup, *parts: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{escape(heading)}</summary>\n{''.join(parts)}\n</details>"


def page(heading: str, body: str) -> str:
    """The whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(heading)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _font(match: re.Match[str]) -> str:
    weight = "font-weight: 700; " if "bold" in match[1] or "700" in match[1] else ""
    return f"{weight}font-size: {match[2]}px"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
