"""What a page is made of, and the HTML file that comes of it.

The file needs no network: style, script and what draws its figures (`vega.js.gz`, compressed and once) stand in it. It
reads the same without scripts, for each figure has its numbers as a table and a sentence that says what it shows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from raypref.evaluation import tables
from raypref.evaluation.ranking import Line
from raypref.evaluation.report import Result
from raypref.evaluation.runs import FinishedRun
from raypref.evaluation.tables import Table

VEGA = Path(__file__).parent / "vega.js.gz"
"""What draws figures; see `raypref.evaluation.pages.make_vega`."""
SHOWN = 7
"""Most entries that a figure holds: as many as there are colours."""


@dataclass(frozen=True)
class Entry:
    """One thing that a page compares: a run, or a configuration over its seeds."""

    label: str
    runs: tuple[FinishedRun, ...]
    """One a seed."""
    whole: Result
    """The first run's result, its unseen clients included."""
    rounds: Sequence[Mapping[str, Any]] = ()
    """The first run's records, a line a round (`raypref.storage.results`)."""

    @property
    def first(self) -> FinishedRun:
        return self.runs[0]


@dataclass(frozen=True)
class Sweep:
    """What a sweep knows beside its finished trials."""

    lines: Sequence[Line]
    """Its configurations, the best first."""
    metric: str
    ends: Sequence[Mapping[str, Any]]
    """How each trial ended: the lines of `trials.csv`."""


@dataclass(frozen=True)
class Material:
    """All that a page is made of."""

    title: str
    entries: Sequence[Entry]
    """The first of several is what the others are compared with; a sweep's by rank."""
    commands: Sequence[str]
    """What makes them again."""
    sweep: Sweep | None = None
    version: str = ""

    @property
    def shown(self) -> Sequence[Entry]:
        """The entries that figures hold."""
        return self.entries[:SHOWN]

    @property
    def left(self) -> str:
        """A sentence on those that figures leave out; '' where they hold all."""
        count = len(self.entries) - len(self.shown)
        return f"Figures show the first {SHOWN} of {len(self.entries)}; tables have all. " if count > 0 else ""


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in words, and its numbers."""

    title: str
    caption: str
    """Says what is to be seen, also to those who cannot see it."""
    spec: Mapping[str, Any]
    """Of Vega-Lite."""
    table: Table


@dataclass(frozen=True)
class Hidden:
    """A table that opens at a click, or a key."""

    title: str
    table: Table


@dataclass(frozen=True)
class Section:
    name: str
    """Of its anchor."""
    title: str
    lead: str
    """What it answers, in plain words."""
    parts: Sequence[Figure | Table | Hidden | str]
    """A string is a paragraph; one that begins with `$ ` a command."""


def render(material: Material, sections: Sequence[Section]) -> str:
    """The whole file."""
    links = "".join(f'<li><a href="#{s.name}">{escape(s.title)}</a></li>' for s in sections)
    figures: list[Mapping[str, Any]] = []
    body = "".join(_section(section, figures) for section in sections)
    specs = json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(material.title)}</title>
<style>
{_text("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">To the results</a>
<header>
<p class="kind">raypref{f" {escape(material.version)}" if material.version else ""}</p>
<h1>{escape(material.title)}</h1>
<button type="button" id="theme" hidden>Colours: as the system has them</button>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main">
{body}</main>
<footer><p>Figures are drawn by Vega (University of Washington Interactive Data Lab, BSD 3-Clause; D3, ISC). This file
is all there is: nothing is fetched.</p></footer>
<script type="application/json" id="specs">{specs}</script>
<script type="text/plain" id="vega">{base64.b64encode(VEGA.read_bytes()).decode()}</script>
<script>
{_text("page.js")}</script>
</body>
</html>
"""


def _text(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _section(section: Section, figures: list[Mapping[str, Any]]) -> str:
    """The section's HTML; its figures' specifications are added to `figures`, in the order of their places."""
    parts: list[str] = []
    inside = False  # a grid of figures that stand beside each other
    for part in section.parts:
        if isinstance(part, Figure) != inside:
            inside = not inside
            parts.append('<div class="figures">\n' if inside else "</div>\n")
        parts.append(_part(part, section.name, figures))
    parts.append("</div>\n" * inside)
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-title">\n'
        f'<h2 id="{section.name}-title">{escape(section.title)}</h2>\n'
        f'<p class="lead">{escape(section.lead)}</p>\n{"".join(parts)}</section>\n'
    )


def _part(part: Figure | Table | Hidden | str, section: str, figures: list[Mapping[str, Any]]) -> str:
    match part:
        case Figure():
            figures.append(part.spec)
            name = f"{section}-{len(figures)}"
            return (
                f'<figure aria-labelledby="{name}">\n<h3 id="{name}">{escape(part.title)}</h3>\n'
                '<div class="drawing"><p class="empty">The table below has the numbers of this figure.</p></div>\n'
                f"<figcaption>{escape(part.caption)}</figcaption>\n"
                f"<details><summary>Numbers: {escape(part.title)}</summary>\n{tables.html(part.table, part.title)}"
                "</details>\n</figure>\n"
            )
        case Table():
            return tables.html(part)
        case Hidden():
            table = tables.html(part.table, part.title)
            return f"<details><summary>{escape(part.title)}</summary>\n{table}</details>\n"
        case str() if part.startswith("$ "):
            return f'<pre tabindex="0"><code>{escape(part.removeprefix("$ "))}</code></pre>\n'
        case str():
            return f"<p>{escape(part)}</p>\n"
