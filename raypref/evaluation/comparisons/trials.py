"""What was tried of each method, judged by validation: whether all had the same chances, and what each was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Row, accuracy, budgeted, quantity
from raypref.evaluation.runs import (
    Config,
    FinishedRun,
    alike,
    by_label,
    by_seed,
    computed,
    fullest,
    label,
)


@table("trials")
def tried(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Each method's trials by validation accuracy after the last local step, whatever --fold says

    Of runs on the same data those of the most trials. Best: the highest mean over seeds of its method and form."""
    kept = fullest(alike(runs, _task), lambda run: run.identity(("seed",)))
    rows = [Row(name, {"all": by_seed(of)}) for name, of in by_label(kept, _settings).items()]
    names = {row.label: label(next(iter(row.runs["all"].values())).config) for row in rows}
    several = {name for name, trials in Counter(names.values()).items() if trials > 1}
    if not several or len(several) < 2 <= len({*names.values()}):  # one among others was run again, no more
        return Item(missing=[Missing("several trials of two methods, or of one alone", SWEEP + "graded_tuning")])
    rows = [row for row in rows if names[row.label] in several]
    means = {row.label: np.mean([validated(run) for run in row.runs["all"].values()]) for row in rows}
    best = {max((row for row in means if names[row] == name), key=means.__getitem__) for name in several}
    chosen = {run.id for row in rows if row.label in best for run in row.runs["all"].values()}
    last = max(max(run.result["marks"]) for run in kept)
    measures = [
        accuracy(last, "validation", place="all", head=f"validation acc^{last}", best=0),
        quantity("chosen", lambda run: "best" if run.id in chosen else None),
    ]
    return budgeted(rows, measures, "validation", title="What was tried, by validation", corner="trial")


def validated(run: FinishedRun) -> float:
    """Mean over clients of the validation accuracy at the last mark."""
    return float(np.nanmean(np.array(run.result["validation"]["accuracy"])[:, -1]))


def _task(run: FinishedRun) -> str:
    """What trials of all methods share: data, base and marks."""
    return str([(key, value) for key, value in run.config.items() if key.startswith(("data.", "model.", "personal"))])


def _settings(config: Config) -> Config:
    """What may differ between the trials of a method."""
    return {key: value for key, value in computed(config).items() if key != "seed"}
