"""What a sweep tried, and how each trial ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from raypref.evaluation.pages import charts
from raypref.evaluation.pages.page import Figure, Hidden, Material, Section
from raypref.evaluation.pages.sections.common import texts
from raypref.evaluation.ranking import Line
from raypref.evaluation.runs import show
from raypref.evaluation.tables import NONE

MOST = 30
"""Configurations that the chart of ranks holds."""


def section(material: Material) -> Section | None:
    """Ranked configurations as points, and each varied field against what it brought; None for what is no sweep."""
    sweep = material.sweep
    if sweep is None:
        return None
    scale, unit = (1.0, "") if sweep.metric == "loss" else (100.0, ", %")
    parts: list[Figure | Hidden] = []
    if sweep.lines:
        shown = sweep.lines[:MOST]
        rows = []
        for rank, line in enumerate(shown, 1):
            name = f"{rank}. {' '.join(show(v) for v in line.settings.values())}".strip()
            rows += [(name, fold, [scale * v for v in getattr(line, fold)]) for fold in ("validation", "test")]
        measure = f"{sweep.metric} after the last local step{unit}"
        keys = list(sweep.lines[0].settings)
        left = f" The first {MOST} of {len(sweep.lines)}." if len(sweep.lines) > MOST else ""
        numbers = [(name, (fold, _mean(values), str(len(values)))) for name, fold, values in rows]
        parts.append(
            Figure(
                "Configurations by rank",
                f"Points are seeds, bars their means. Validation ranks; test stands beside and decides nothing.{left} "
                f"Labels: rank, then {', '.join(keys) or 'nothing that varies'}.",
                charts.levels(rows, measure, says=f"{measure} of each configuration, the best at the top."),
                texts("configuration", ("on", "mean", "seeds"), numbers),
            )
        )
        for key in keys:
            by = [(word, "validation", [scale * v for v in values]) for word, values in _by(sweep.lines, key).items()]
            brought = [(word, (_mean(values), str(len(values)))) for word, _, values in by]
            parts.append(
                Figure(
                    f"By {key}",
                    f"Every finished trial by its {key}, whatever its other settings; bars are means.",
                    charts.levels(by, f"validation {measure}", says=f"Validation {sweep.metric} by {key}."),
                    texts(key, ("mean", "trials"), brought),
                )
            )
    fates = Counter(str(end["fate"]) for end in sweep.ends)
    words = ", ".join(f"{count} {fate}" for fate, count in fates.items())
    heads = [key for key in (sweep.ends[0] if sweep.ends else ()) if key != "trial"]
    ends = [(str(end["trial"]), [_said(end[key]) for key in heads]) for end in sweep.ends]
    if ends:
        parts.append(Hidden(f"All {len(ends)} trials and how they ended", texts("trial", heads, ends)))
    lead = f"{len(sweep.ends)} trials: {words}. What varied, and what each value brought."
    return Section("trials", "What was tried", lead, parts)


def _by(lines: Sequence[Line], key: str) -> dict[str, list[float]]:
    """The validation numbers of all trials by their value of one field, numbers in rising order."""
    values = {show(line.settings[key]): line.settings[key] for line in lines}
    order = sorted(values, key=lambda word: (not isinstance(values[word], (int, float)), values[word]))
    return {word: [v for line in lines if show(line.settings[key]) == word for v in line.validation] for word in order}


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4g}"


def _said(value: object) -> str:
    if value is None or value == "":
        return NONE
    return f"{value:.4g}" if isinstance(value, float) else str(value)
