"""A table from rows of runs: each row names its runs, each measure reads a number of one run, the cells come of both.

Row("FL", {"Balanced": {0: run, 1: run}})   accuracy(10, "test", block="Balanced")   ->   94.6 ± 3.6 (± 0.4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from raypref.evaluation import diagnostics
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import Item, Missing
from raypref.evaluation.runs import FinishedRun, Seeds, by_label, by_setting, describe, each, rounds_note
from raypref.evaluation.tables import Cell, Column, Table


class Reading(NamedTuple):
    """What a measure reads of one run."""

    value: float | str
    within: float | None = None
    """Standard deviation within the run."""
    clients: np.ndarray | None = None
    """[C]"""


class Measure(NamedTuple):
    """A column, where its runs are, and what it reads of them."""

    place: str
    """The key of a row's runs; empty: all of them, for budgets."""
    column: Column
    read: Callable[[FinishedRun], Reading | None]


class Row(NamedTuple):
    label: str
    runs: Mapping[str, Seeds]
    """Place -> its runs."""
    block: str = ""
    """See `raypref.evaluation.tables.Table.blocks`."""


def fill(
    rows: Sequence[Row],
    measures: Sequence[Measure],
    *,
    title: str = "",
    corner: str = "method",
    apart: Iterable[str] = (),
    notes: Sequence[str] = (),
    unit: str = Table.unit,
    counted: bool = True,
) -> Table:
    """Rows by measures, without columns that nobody fills; at last n, the number of seeds, unless it is not `counted`.
    Other arguments as in `Table`."""
    cells = [[_cell(row, measure) for measure in measures] for row in rows]
    kept = [c for c in range(len(measures)) if any(line[c] is not None for line in cells)]
    n = [Cell(tuple(float(len(runs)) for runs in row.runs.values() if runs)) for row in rows] if counted else []
    return Table(
        "",
        title,
        corner,
        columns=(*(measures[c].column for c in kept), *[Column("n", "$n$", digits=0, span=True)] * counted),
        rows=tuple(row.label for row in rows),
        cells=tuple((*(line[c] for c in kept), *n[r : r + 1]) for r, line in enumerate(cells)),
        apart=frozenset(apart),
        notes=tuple(notes),
        blocks=tuple(row.block for row in rows) if any(row.block for row in rows) else (),
        unit=unit,
    )


def _cell(row: Row, measure: Measure) -> Cell | str | None:
    places = [measure.place] if measure.place else list(row.runs)
    runs = [pair for place in places for pair in row.runs.get(place, {}).items()]
    read = [(seed, reading) for seed, run in runs if (reading := measure.read(run)) is not None]
    texts = [reading.value for _, reading in read if isinstance(reading.value, str)]
    if not read or texts:
        return ", ".join(dict.fromkeys(texts)) or None
    return Cell(
        values=tuple(float(reading.value) for _, reading in read),
        within=tuple(reading.within for _, reading in read if reading.within is not None),
        clients={seed: reading.clients for seed, reading in read if reading.clients is not None},
    )


def drawn(
    rows: Sequence[Row],
    measures: Sequence[Measure],
    *,
    missing: Sequence[Missing] = (),
    reference: str = "",
    **how: Any,
) -> Item:
    """`fill` as an item; rows without any run are left out, and without rows there is no table."""
    there = with_runs(rows)
    if not there:
        return Item(missing=missing)
    return Item(fill(there, measures, **how), runs=shown(there), missing=missing, reference=reference)


def budgeted(rows: Sequence[Row], measures: Sequence[Measure], fold: Fold, **how: Any) -> Item:
    """`drawn` with what each row took, so that a reader can match budgets, and notes that say what the numbers are."""
    item = drawn(rows, [*measures, *budgets()], **how)
    if not isinstance(item.content, Table):
        return item
    algorithms = {run.config["algorithm"] for run in item.runs}
    notes = (legend(item.content.columns, item.runs, fold), *settings(with_runs(rows)), rounds_note(algorithms))
    return replace(item, content=replace(item.content, notes=(*item.content.notes, *filter(None, notes))))


def with_runs(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if any(row.runs.values())]


def shown(rows: Sequence[Row]) -> tuple[FinishedRun, ...]:
    """The runs of all rows."""
    return tuple(each(seeds for row in rows for seeds in row.runs.values()))


def by_method(runs: Sequence[FinishedRun]) -> list[Row]:
    """A row a label, its runs by setting."""
    return [Row(label, by_setting(of)) for label, of in by_label(runs).items()]


def places(rows: Sequence[Row]) -> list[str]:
    """The settings that any row has runs of."""
    return [place for place in ("Balanced", "Imbalanced", "Real") if any(row.runs.get(place) for row in rows)]


def at_one_place(rows: Sequence[Row]) -> tuple[str, list[Row]]:
    """The setting that most rows have, the first of several, and these rows with its runs alone."""
    there = places(rows)
    if not there:
        return "", []
    place = max(there, key=lambda p: sum(p in row.runs for row in rows))
    return place, [row._replace(runs={place: row.runs[place]}) for row in rows if place in row.runs]


def lacking(labels: Iterable[tuple[str, Seeds]], where: str, command: str) -> list[Missing]:
    """One line for all labels without runs."""
    of = list(labels)
    gone = [label for label, seeds in of if not seeds]
    what = ", ".join(gone) if len(gone) < len(of) else "every row"
    return [Missing(f"{where}: {what}", command)] if gone else []


def legend(columns: Sequence[Column], runs: Sequence[FinishedRun], fold: Fold) -> str:
    """What the numbers are."""
    heads = [column.head for column in columns]
    counts = sorted({len(run.result["clients"]) for run in runs})
    layers = ", for GQ(l) over layers" if "GQ(l)" in heads else ""
    words = f"Mean ± std over {' or '.join(map(str, counts))} clients{layers} (± std over the n seeds). acc^t: pair "
    words += f"accuracy in % on the {fold} pairs after t local steps."
    if "GQ(l)" in heads:
        words += " GQ: gradient quotient, B the first two thirds of the layers, H the others."
    if "m0_R" in heads:
        words += " m0: mean margin at θ_0; H0, H+: mean headroom, % above 0."
    if any(head.startswith("P^") for head in heads):
        words += " R, W: test pairs right or wrong at θ_0; P^t: % of them right after t steps."
    return words + " Bold: the best of a column, of acc^t once personalized."


def settings(rows: Sequence[Row]) -> list[str]:
    """A line a place: what all of its runs have in common."""
    lines: dict[str, list[str]] = {}
    for place in dict.fromkeys(place for row in rows for place in row.runs):
        runs = each(row.runs.get(place, {}) for row in rows)
        if runs:
            lines.setdefault(describe(runs), []).append(place)
    return [f"{', '.join(places)}: {line}" for line, places in lines.items()]


def steps(runs: Iterable[FinishedRun], wanted: int = 10) -> tuple[int, int]:
    """(the mark nearest to `wanted`, the last mark) of runs that have the same marks; both `wanted` where there are
    none. S2's first read-out is acc^10."""
    marks = next((run.result["marks"] for run in runs), [wanted])
    after = [t for t in marks if t > 0] or marks
    return min(after, key=lambda t: abs(t - wanted)), marks[-1]


def over_clients(values: Any) -> Reading | None:
    """Mean and spread of [C] values over the clients that have one."""
    values = np.asarray(values, dtype=np.float64)
    known = values[~np.isnan(values)]
    return Reading(float(known.mean()), float(known.std()), values) if len(known) else None


def accuracy(t: int, fold: Fold, block: str = "", place: str = "", head: str = "", **how: Any) -> Measure:
    """acc^t; bold once personalized (S2 Table 3)."""

    def read(run: FinishedRun) -> Reading | None:
        marks = run.result["marks"]
        return over_clients([line[marks.index(t)] for line in run.result[fold]["accuracy"]]) if t in marks else None

    latex = "" if head else rf"$\mathrm{{acc}}^{{{t}}}$"
    column = Column(head or f"acc^{t}", latex, block, **{"scale": 100, "digits": 1, "best": int(t > 0), **how})
    return Measure(place or block, column, read)


def diagnosed(key: str, head: str, latex: str, place: str, **how: Any) -> Measure:
    """A column of `diagnostics.summary`."""

    def read(run: FinishedRun) -> Reading | None:
        if not run.diagnosed or np.isnan(run.diagnosed[key]):
            return None
        return Reading(run.diagnosed[key], run.diagnosed[f"{key}_std"] if key == "gq" else None)

    return Measure(place, Column(head, latex, within="layers", **how), read)


def retained(name: Literal["R", "W"], t: int, place: str) -> Measure:
    """P^t of R (retention) or W (correction)."""

    def read(run: FinishedRun) -> Reading | None:
        if not (run.result.get("margins") or run.result.get("retention")) or not {0, t} <= set(run.result["marks"]):
            return None
        curve = diagnostics.retention_curve(run.result)
        value = float(getattr(curve, name)[curve.marks.index(t)])
        return None if np.isnan(value) else Reading(value)

    column = Column(f"P^{t}_{name}", rf"$P^{{{t}}}_{{\mathcal{{{name}}}}}$", scale=100, digits=1, best=1)
    return Measure(place, column, read)


def diagnostic_columns(place: str, t: int, fold: Fold) -> list[Measure]:
    """The columns of S2 Tables 1, 2 and 5: flatness, margin, retention, correction, accuracy; and mean headroom, which
    2.2 defines and the tables leave out, and GQ's median, for its ratios are heavy-tailed."""
    low: dict[str, Any] = {"significant": 3, "best": -1}
    measures = [
        diagnosed("gq", "GQ(l)", "$GQ(l)$", place, **low),
        diagnosed("gq_body", "GQ_B", r"$GQ_{\mathcal{B}}$", place, **low),
        diagnosed("gq_head", "GQ_H", r"$GQ_{\mathcal{H}}$", place, **low),
        diagnosed("gq_median", "GQ median", r"$GQ$ median", place, **low),
    ]
    sets: tuple[Literal["R", "W"], ...] = ("R", "W")
    for name in sets:
        measures.append(diagnosed(f"m0_{name}", f"m0_{name}", rf"$m^0_{{\mathcal{{{name}}}}}$", place, signed=True))
    for name in sets:
        below = rf"_{{\mathcal{{{name}}}}}"
        measures += [
            diagnosed(f"H0_{name}", f"H0_{name}", f"$H^0{below}$", place, signed=True, significant=3),
            diagnosed(f"Hplus_{name}", f"H+_{name}", f"$H^+{below}$", place, scale=100, digits=1, best=1),
            retained(name, t, place),
        ]
    return [*measures, accuracy(t, fold, place=place), accuracy(0, fold, place=place)]


def quantity(head: str, read: Callable[[FinishedRun], Any], latex: str = "", **how: Any) -> Measure:
    """One number of a run, over all runs of the row; None: it has none."""

    def reading(run: FinishedRun) -> Reading | None:
        value = read(run)
        return None if value is None else Reading(value)

    return Measure("", Column(head, latex, **how), reading)


def budgets() -> list[Measure]:
    """What each row took, over all runs of the row."""

    def taken(head: str, key: str, scale: float, digits: int) -> Measure:
        return quantity(head, lambda run: run.result.get(key), scale=scale, digits=digits, span=True)

    return [
        taken("rounds", "rounds", 1, 0),
        taken("client steps", "client_steps", 1, 0),
        taken("MB up", "bytes_up", 1e-6, 1),
        taken("MB down", "bytes_down", 1e-6, 1),
    ]
