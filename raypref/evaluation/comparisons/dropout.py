"""What it costs a method that clients do not answer (`federation.dropout`)."""

from __future__ import annotations

from collections.abc import Sequence

from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Row, accuracy, budgeted, steps
from raypref.evaluation.runs import FinishedRun, alike, by_label, by_seed, fullest, method_keys

KEY = "federation.dropout"


@table("dropout")
def by_dropout(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Accuracy by the share of clients that do not answer in a round

    Of runs that agree in everything but the method, the seed and that share, those with the most shares."""
    families = alike(runs, lambda run: run.identity((*method_keys(), "seed", KEY)))
    kept = fullest(families, lambda run: run.config[KEY])
    shares = sorted({run.config[KEY] for run in kept})
    if len(shares) < 2:
        return Item(missing=[Missing("runs with several values of federation.dropout", SWEEP + "dropout")])
    rows = [
        Row(label, {f"{share}": by_seed([run for run in of if run.config[KEY] == share]) for share in shares})
        for label, of in by_label(kept).items()
    ]
    at, last = steps(kept)
    measures = [
        accuracy(t, fold, f"acc^{t}, dropout", f"{share}", head=f"{share:.0%}")
        for t in dict.fromkeys((at, last))
        for share in shares
    ]
    title = "Accuracy by the share of clients that do not answer in a round"
    return budgeted(rows, measures, fold, title=title, reference=rows[0].label)
