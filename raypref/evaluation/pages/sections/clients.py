"""Who gains and who loses: each client before and after its local steps, and against the first run of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raypref.evaluation.pages import charts
from raypref.evaluation.pages.page import Figure, Material, Section
from raypref.evaluation.pages.sections.common import one, texts
from raypref.evaluation.runs import ALL, FinishedRun

MOST = 4
"""Entries of which every client is drawn."""


def section(material: Material) -> Section | None:
    """By entry its clients before and after; where several are of the same clients, each against the first."""
    figures = []
    for entry in material.shown[:MOST]:
        marks = entry.first.result["marks"]
        if len(marks) > 1:
            t, last = marks[0], marks[-1]
            rows = _rows(entry.first, _accuracies(entry.first, 0), _accuracies(entry.first, -1))
            figures.append(
                _figure(
                    f"{entry.label}: from {t} to {last} local steps", rows, f"after {t} steps", f"after {last} steps"
                )
            )
    first = material.entries[0]
    for entry in material.shown[1:MOST]:
        if entry.first.result["clients"] == first.first.result["clients"]:
            rows = _rows(entry.first, _accuracies(first.first, -1), _accuracies(entry.first, -1))
            title = f"{entry.label} against {first.label}, after the last local step"
            figures.append(_figure(title, rows, first.label, entry.label))
    if not figures:
        return None
    lead = (
        "A line a client, from a ring to a dot; the greatest loss first. A client has few held-out pairs, so that a "
        "small change may be chance."
    )
    several = any(len(entry.runs) > 1 for entry in material.shown)
    return Section(
        "clients", "Who gains and who loses", lead + " Of several seeds the first is drawn." * several, figures
    )


def _accuracies(run: FinishedRun, mark: int) -> np.ndarray:
    return 100 * np.array(run.result["test"]["accuracy"], dtype=np.float64)[:, mark]


def _rows(run: FinishedRun, start: np.ndarray, end: np.ndarray) -> list[tuple[str, str, float, float]]:
    """(client, group, before, after) of those that have held-out pairs."""
    groups, ids = run.result["groups"], run.result["clients"]
    names = [groups["names"][g] for g in groups["of"]] if groups["names"] else [ALL] * len(ids)
    rows = zip(ids, names, start.tolist(), end.tolist(), strict=True)
    return [row for row in rows if np.isfinite(row[2:]).all()]


def _figure(title: str, rows: Sequence[tuple[str, str, float, float]], start: str, end: str) -> Figure:
    gain = sum(b > a for _, _, a, b in rows)
    lose = sum(b < a for _, _, a, b in rows)
    words = f"{gain} of {len(rows)} clients gain, {lose} lose, {len(rows) - gain - lose} stay."
    ordered = sorted(rows, key=lambda row: row[3] - row[2])
    return Figure(
        title,
        f"{words} Ring: {start}; dot: {end}.",
        charts.moves(rows, start, end, "accuracy on test pairs, %", says=f"{title}. {words}"),
        texts(
            "client",
            ("group", start, end, "change"),
            [(c, (g, one(a), one(b), one(b - a, "+"))) for c, g, a, b in ordered],
        ),
    )
