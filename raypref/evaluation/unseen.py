"""Generalization to clients that took no part in training (S1 5.3, Table 2), by accuracy where S1 has win rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raypref.evaluation import mix
from raypref.evaluation.papers import SWEEP, Found, Item, Measure, Missing, Reading, Row, table
from raypref.evaluation.report import Fold
from raypref.evaluation.tables import Column, escape


def by_group(runs: Sequence[Found], fold: Fold) -> Item:
    """acc^0 of each true group, of the clients that trained and of those that did not: what a client infers, without a
    gradient step of its own. Of runs of several group sizes those that the most methods have."""
    kept = mix.family(run for run in runs if run.unseen is not None and 0 in run.result["marks"])
    made = [(row.label, place, seeds) for row in mix.rows_of(kept) for place, seeds in row.runs.items()]
    if not made:
        return Item("unseen", None, missing=(Missing("runs with unseen clients", SWEEP + "unseen"),))
    held = [place for _, place, _ in made]
    place = max(dict.fromkeys(held), key=held.count)
    rows = [Row(label, {place: seeds}) for label, where, seeds in made if where == place]
    names = next(run for row in rows for run in row.runs[place].values()).result["groups"]["names"]
    measures = [
        _accuracy(which, block, group, place, fold)
        for which, block in ((0, "Seen"), (1, "Unseen"))
        for group in [*names, ""]
    ]
    title = "Accuracy on clients that trained and on unseen ones, without any local step"
    return table("unseen", title, "method", rows, measures, (), fold, rows[-1].label)


def _accuracy(which: int, block: str, group: str, place: str, fold: Fold) -> Measure:
    """acc^0 over one part's clients of a group (all of them where it has no name)."""

    def read(run: Found) -> Reading | None:
        part = (run.result, run.unseen)[which]
        values = _of_group(part, group, fold) if part else np.zeros(0)
        told = values[~np.isnan(values)]
        return Reading(float(told.mean()), float(told.std()), values) if len(told) else None

    head = group or "all"
    return Measure(place, Column(head, escape(head), block, scale=100, digits=1, best=1), read)


def _of_group(part: Mapping[str, Any], group: str, fold: Fold) -> np.ndarray:
    values = np.array(part[fold]["accuracy"], dtype=np.float64)[:, part["marks"].index(0)]
    if not group:
        return values
    return values[np.array(part["groups"]["of"]) == part["groups"]["names"].index(group)]


TABLES = {"unseen": by_group}
"""--table NAME -> what makes it."""
