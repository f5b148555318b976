"""The main comparison: every method at its own settings, on the same task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from raypref.evaluation import calibration
from raypref.evaluation.claims.quantities import pairs_of
from raypref.evaluation.claims.statistics import worst_tenth_floor
from raypref.evaluation.curve import Fold, worst_tenth
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Measure, Reading, accuracy, budgeted, by_method, places, quantity, steps
from raypref.evaluation.runs import WORK, FinishedRun, alike, fullest, title
from raypref.evaluation.tables import Column

CALIBRATION: tuple[Literal["nll", "ece"], ...] = ("nll", "ece")


@table("methods")
def methods(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Every method at its own settings: accuracy by local steps, calibration, found groups, the worst tenth of clients

    Of runs on the same data, cohorts and batches, whatever their learning rates, rounds and own parameters, those of
    the most methods. Beside the worst tenth stands its floor: what it would be if all clients were equally good."""
    kept = fullest(alike(runs, _task), lambda run: run.config["algorithm"])
    if len({run.config["algorithm"] for run in kept}) < 3:
        return Item(missing=[Missing("three methods on the same data", SWEEP + "graded_main")])
    rows = by_method(kept)
    marks = sorted({t for run in kept for t in run.result["marks"]})
    at, last = steps(kept)
    measures = []
    for place in places(rows):
        measures += [accuracy(t, fold, block=place) for t in marks]
        measures += [_worst(at, place), _floor(at, place)]
        measures += [_calibrated(name, t, place) for t in dict.fromkeys((0, last)) for name in CALIBRATION]
        measures.append(Measure(place, Column("ARI", block=place, digits=2, best=1), _ari))
    measures.append(quantity("CPU s", lambda run: run.result.get("cpu_seconds"), digits=0, span=True))
    words = "Methods at their own settings, by local steps"
    note = (
        f"Worst: mean of the lowest tenth of clients at {at} local steps; floor: what it would be if all were equally "
        "good, by their number of test pairs. NLL in nats, ECE in % (compare --table calibration). Settings may differ "
        "between methods."
    )
    return budgeted(rows, measures, fold, title=words, reference=title("fedavg"), notes=[note])


def _task(run: FinishedRun) -> str:
    """What is the same whatever the method: R is a method's own here."""
    kept = {key: value for key, value in run.computed.items() if key.startswith((*WORK, "personalization.marks"))}
    return str({key: kept[key] for key in kept if key not in ("federation.rounds", "data.group_sizes")})


def _worst(t: int, place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        values = _accuracies(run, t)
        return Reading(float(worst_tenth(values[:, None])[0])) if values.size else None

    return Measure(place, Column("worst", block=place, scale=100, digits=1, best=1, within="seeds"), read)


def _floor(t: int, place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        values = _accuracies(run, t)
        known = values.size and (run.result.get("margins") or run.config["data.source"] == "graded")
        return Reading(worst_tenth_floor(float(values.mean()), [n for n in pairs_of(run) if n])) if known else None

    return Measure(place, Column("floor", block=place, scale=100, digits=1, within="seeds"), read)


def _accuracies(run: FinishedRun, t: int) -> np.ndarray:
    """Test accuracies of the clients that have any; none where t was not read."""
    if t not in run.result["marks"]:
        return np.zeros(0)
    values = np.array(run.result["test"]["accuracy"], dtype=np.float64)[:, list(run.result["marks"]).index(t)]
    return values[~np.isnan(values)]


def _calibrated(name: Literal["nll", "ece"], t: int, place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        of = calibration.summary(run.result).get(name)
        return Reading(of[list(run.result["marks"]).index(t)]) if of and t in run.result["marks"] else None

    how: dict[str, Any] = {"scale": 100, "digits": 1} if name == "ece" else {"digits": 3}
    latex = rf"$\mathrm{{{name.upper()}}}^{{{t}}}$"
    return Measure(place, Column(f"{name.upper()}^{t}", latex, place, within="seeds", **how), read)


def _ari(run: FinishedRun) -> Reading | None:
    return None if run.result.get("ari") is None else Reading(float(run.result["ari"]))
