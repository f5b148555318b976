"""Generalization to clients that took no part in training (S1 5.3, Table 2), by accuracy where S1 has win rates."""

from __future__ import annotations

from collections.abc import Sequence

from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Measure, Reading, at_one_place, budgeted, by_method, over_clients
from raypref.evaluation.runs import FinishedRun, of_methods
from raypref.evaluation.tables import Column


@table("unseen")
def by_group(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """S1 Table 2 by accuracy: clients that trained and clients that took no part, without any local step

    acc^0 of each true group. Of runs of several settings those that the most methods have."""
    kept = of_methods(run for run in runs if run.unseen is not None and 0 in run.result["marks"])
    place, rows = at_one_place(by_method(kept))
    if not rows:
        return Item(missing=[Missing("runs with unseen clients", SWEEP + "unseen")])
    names = next(run for row in rows for run in row.runs[place].values()).result["groups"]["names"]
    blocks = ((False, "Seen"), (True, "Unseen"))
    measures = [_accuracy(away, block, group, place, fold) for away, block in blocks for group in [*names, ""]]
    title = "Accuracy on clients that trained and on unseen ones, without any local step"
    return budgeted(rows, measures, fold, title=title, reference=rows[-1].label)


def _accuracy(away: bool, block: str, group: str, place: str, fold: Fold) -> Measure:
    """acc^0 over one part's clients of a group (all of them where it has no name)."""

    def read(run: FinishedRun) -> Reading | None:
        part = run.unseen if away else run.result
        if not part:
            return None
        mark, names = part["marks"].index(0), part["groups"]["names"]
        curves = zip(part[fold]["accuracy"], part["groups"]["of"] or [-1] * len(part["clients"]), strict=True)
        return over_clients([line[mark] for line, g in curves if not group or names[g] == group])

    return Measure(place, Column(group or "all", block=block, scale=100, digits=1, best=1), read)
