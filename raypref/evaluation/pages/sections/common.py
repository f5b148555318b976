"""What several sections read of an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from raypref.evaluation.curve import Fold, summary
from raypref.evaluation.pages.page import Entry
from raypref.evaluation.report import statistics
from raypref.evaluation.runs import FinishedRun
from raypref.evaluation.tables import NONE, Column, Table


class Curve(NamedTuple):
    """An accuracy over local steps in %: one run with the 95 % interval of its mean over clients, several seeds with
    their mean and the lowest and the highest."""

    marks: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    clients: int


def curve(results: Sequence[Mapping[str, Any]], fold: Fold = "test") -> Curve:
    """Of all clients of some results, a result a seed; seeds of other marks than the first are left out."""
    return over_seeds([(result["marks"], statistics(result, fold)) for result in results])


def group_curves(runs: Sequence[FinishedRun], fold: Fold = "test") -> dict[str, Curve]:
    """Of each true group; empty where they are unknown, or one."""
    names = runs[0].result["groups"]["names"]
    curves = {}
    for name in names if len(names) > 1 else ():
        of = []
        for run in runs:
            groups = run.result["groups"]
            there = np.array(groups["of"]) == (groups["names"].index(name) if name in groups["names"] else -1)
            values = np.array(run.result[fold]["accuracy"], dtype=np.float64)[there]
            if len(values) and not np.isnan(values).any(axis=1).all():
                of.append((run.result["marks"], summary(values)))
        if of:
            curves[name] = over_seeds(of)
    return curves


def over_seeds(seeds: Sequence[tuple[list[int], Mapping[str, Any]]]) -> Curve:
    """seeds: of each the marks, and the `summary` over clients there."""
    marks = list(seeds[0][0])
    of = [s for m, s in seeds if list(m) == marks]
    if len(of) == 1:
        mean, low, high = (of[0][key] for key in ("mean", "low", "high"))
    else:
        each = np.array([s["mean"] for s in of])
        mean, low, high = each.mean(axis=0), each.min(axis=0), each.max(axis=0)
    mean, low, high = ([100 * float(v) for v in values] for values in (mean, low, high))
    return Curve(marks, mean, low, high, of[0]["clients"])


def interval_words(entries: Sequence[Entry]) -> str:
    """What bands are."""
    if all(len(entry.runs) == 1 for entry in entries):
        return "Bands: 95 % intervals of the mean over clients, of one seed."
    return "Bands: from the lowest seed to the highest."


def texts(corner: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *notes: str) -> Table:
    """A table of words and of numbers that are written already."""
    return Table(
        "", "", corner, tuple(map(Column, heads)), tuple(label for label, _ in rows),
        tuple(tuple(cells) for _, cells in rows), notes=notes,
    )  # fmt: skip


def curve_table(curves: Mapping[str, Curve]) -> Table:
    """A row a line and mark."""
    rows = [
        (label, (str(t), one(curve.mean[i]), f"{one(curve.low[i])} to {one(curve.high[i])}", str(curve.clients)))
        for label, curve in curves.items()
        for i, t in enumerate(curve.marks)
    ]
    return texts("of", ("local steps", "accuracy, %", "interval", "clients"), rows)


def one(value: float, sign: str = "") -> str:
    """To one digit; `NONE` for nan."""
    return NONE if np.isnan(value) else f"{value:{sign}.1f}"
