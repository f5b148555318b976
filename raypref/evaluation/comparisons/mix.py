"""Objectives and algorithms mixed freely: accuracy by local steps of every combination that was run, and by the number
of pairs that a client's z, or the part of a model that is its own, comes from.

Rows are combinations of algorithm, objective and the objective's options; everything else agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Measure, Reading, Row, accuracy, budgeted, by_method, over_clients, places
from raypref.evaluation.runs import FinishedRun, by_setting, context_marks, of_methods, title
from raypref.evaluation.tables import Column

ALONE = "Alone: logistic regression"
"""What a client reaches by itself on the frozen base's features (`probes["linear_accuracy"]` of a result)."""


@table("mix")
def mixed(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Algorithms with any objective, by local steps: acc^t at every mark"""
    kept = of_methods(runs)
    if len({run.config["objective"] for run in kept}) < 2:
        return Item(missing=[Missing("both objectives on the same data", SWEEP + "mix")])
    rows = by_method(kept)
    marks = sorted({t for run in kept for t in run.result["marks"]})
    measures = [accuracy(t, fold, block=place) for place in places(rows) for t in marks]
    words = "Algorithms and objectives: accuracy after t local steps"
    return budgeted(rows, measures, fold, title=words, reference=title("fedavg"))


@table("context", rows=(ALONE,), after_run=True)
def by_context(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Test accuracy before any local step, by the number of a client's pairs that its z, head or weights come from

    For the printed form also what it seems to reach when z sees the judged pair."""
    kept = of_methods(run for run in runs if run.result.get("probes", {}).get("context_accuracy"))
    if not kept:
        return Item(missing=[Missing("runs with a z, head or weights of each client", SWEEP + "variants")])
    alone = [_alone(run) for run in kept if run.result["probes"].get("linear_accuracy")]
    rows = [Row(ALONE, by_setting(alone)), *by_method(kept)]
    measures = []
    for place in places(rows):
        measures += [
            _with(size, place) for size in sorted({size for run in kept for size in context_marks(run.config)})
        ]
        measures += [accuracy(0, "test", block=place, head="all", best=1), _leaked(place)]
    pairs = sorted({size for run in kept for size in run.result.get("sizes", ())})
    few = f" Clients have {pairs[0]} to {pairs[-1]} training pairs: one with fewer uses all." if pairs else ""
    note = f"Columns: pairs that z, head or weights come from, drawn once a client and seed.{few}"
    if any("leaked_accuracy" in run.result["probes"] for run in kept):
        note += " leak: what the printed form seems to reach where z is inferred from the very pair that is judged."
    words = "Accuracy without any local step, by the pairs that a client's z, head or weights come from"
    return budgeted(rows, measures, "test", title=words, reference=ALONE, apart=[ALONE], notes=[note])


def _alone(run: FinishedRun) -> FinishedRun:
    """What each client could do alone, as a run without rounds."""
    *few, every = np.array(run.result["probes"]["linear_accuracy"]).T
    nothing = {key: 0 for key in ("rounds", "client_steps", "bytes_up", "bytes_down")}
    probes, test = {"context_accuracy": np.array(few).T.tolist()}, {"accuracy": every[:, None].tolist()}
    return replace(run, result={**run.result, **nothing, "probes": probes, "marks": [0], "test": test})


def _with(size: int, place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        marks = context_marks(run.config)
        values = run.result["probes"]["context_accuracy"]
        return over_clients([line[marks.index(size)] for line in values]) if size in marks else None

    return Measure(place, Column(str(size), f"${size}$", place, scale=100, digits=1, best=1), read)


def _leaked(place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        return over_clients(run.result["probes"].get("leaked_accuracy", ()))

    return Measure(place, Column("leak", block=place, scale=100, digits=1), read)
