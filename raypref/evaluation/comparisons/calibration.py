"""Calibration beside accuracy: are methods as often right as they are sure (`raypref.evaluation.calibration`)?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raypref.evaluation import calibration, figures
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, figure, table
from raypref.evaluation.rows import (
    Measure,
    Reading,
    Row,
    accuracy,
    at_one_place,
    by_method,
    drawn,
    over_clients,
    places,
    settings,
    steps,
)
from raypref.evaluation.runs import FinishedRun, describe, each, of_methods
from raypref.evaluation.tables import Column

NONE = [Missing("runs with the margins of their test pairs", SWEEP + "imbalance")]


@table("calibration", after_run=True)
def calibrated(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Negative log-likelihood and expected calibration error beside accuracy, on test pairs"""
    rows = by_method(of_methods(run for run in runs if len(calibration.of_clients(run.result))))
    marks = _marks(rows)
    measures = [
        read(t, place) for place in places(rows) for t in marks for read in (_accuracy, _likelihood, _calibration)
    ]
    number = sorted({_pairs(run) for row in rows for run in each(row.runs.values())})
    if not number:
        return Item(missing=NONE)
    chance = 100 * calibration.by_chance(number[0])
    words = (
        "Test pairs after t local steps. NLL: mean of -log σ(M) in nats, mean ± std over clients (± std over the n "
        f"seeds); 0.693 knows nothing. ECE in %: {calibration.BINS} bins of confidence in [1/2, 1], all clients' "
        f"{' or '.join(f'{n:,}' for n in number)} pairs pooled (± std over seeds); a perfectly calibrated selector has "
        f"up to {chance:.1f} by chance. No temperature is fitted. Bold: the best of a column once personalized."
    )
    return drawn(
        rows,
        measures,
        title="Calibration on test pairs",
        unit="accuracies in points, NLL in nats",
        notes=[words, *settings(rows)],
    )


@figure("figure-calibration")
def diagrams(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """How often test pairs are right by how sure each method is, before and after personalization

    Of runs of several settings those that the most methods have; all seeds' pairs together."""
    place, rows = at_one_place(by_method(_with_margins(runs)))
    if not rows:
        return Item(missing=NONE)
    panels = {
        row.label: {f"{t} local steps": _together(list(row.runs[place].values()), t) for t in _marks([row])}
        for row in rows
    }
    used = each(seeds for row in rows for seeds in row.runs.values())
    caption = (
        "Calibration on test pairs: the share that is right by confidence max(p, 1 - p), p = σ(M), in "
        f"{calibration.BINS} bins; dotted: perfect calibration; whiskers: two standard errors that it would have "
        f"there; areas: the share of pairs in each bin; all clients and seeds pooled. {describe(used)}"
    )
    return Item(figures.reliabilities(panels), caption, used)


def _with_margins(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    return of_methods(run for run in runs if calibration.margins_of(run.result))


def _marks(rows: Sequence[Row]) -> list[int]:
    """The initialization, where it was read, and the last mark."""
    runs = each(seeds for row in rows for seeds in row.runs.values())
    read = {t for run in runs for t in run.result["marks"]}
    return sorted({t for t in (0, steps(runs)[1]) if t in read})


def _pairs(run: FinishedRun) -> int:
    return int(sum(m.shape[1] for m in calibration.margins_of(run.result))) or int(run.result["calibration"]["pairs"])


def _together(runs: Sequence[FinishedRun], t: int) -> calibration.Reliability:
    """All pairs of all runs that were read at t."""
    at = [
        (calibration.margins_of(run.result), run.result["marks"].index(t)) for run in runs if t in run.result["marks"]
    ]
    return calibration.reliability(np.concatenate([m[mark] for margins, mark in at for m in margins]))


def _accuracy(t: int, place: str) -> Measure:
    return accuracy(t, "test", block=place)


def _likelihood(t: int, place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        marks = run.result["marks"]
        return over_clients(calibration.of_clients(run.result)[:, marks.index(t)]) if t in marks else None

    return Measure(place, Column(f"NLL^{t}", rf"$\mathrm{{NLL}}^{{{t}}}$", place, digits=3, best=-int(t > 0)), read)


def _calibration(t: int, place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        marks = run.result["marks"]
        return Reading(calibration.errors(run.result)[marks.index(t)]) if t in marks else None

    head, latex = f"ECE^{t}", rf"$\mathrm{{ECE}}^{{{t}}}$"
    return Measure(place, Column(head, latex, place, scale=100, digits=1, best=-int(t > 0), within="seeds"), read)
