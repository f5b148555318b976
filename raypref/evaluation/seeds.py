"""Configurations over their seeds: the table that a sweep ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raypref.evaluation import tables
from raypref.evaluation.curve import Fold, seen_and_unseen
from raypref.evaluation.report import Result, choose, columns
from raypref.evaluation.rows import Row, fill
from raypref.evaluation.runs import FinishedRun, run_name, show

LEFT_OUT = ("order acc", "agreement", "weights")


def markdown(runs: Sequence[tuple[Mapping[str, Any], Result]], fold: Fold = "test") -> str:
    """`table` in Markdown."""
    return tables.markdown(table(runs, fold))


def table(runs: Sequence[tuple[Mapping[str, Any], Any]], fold: Fold = "test") -> tables.Table:
    """A row a configuration, in the order in which they come: mean ± standard deviation over its seeds; of its unseen
    clients, where it has any, a row of their own.

    runs: (what tells the configuration from the others, its result). Columns: those of `raypref.evaluation.report` at
    the marks that S2 tabulates.
    """
    rows: dict[str, dict[int, FinishedRun]] = {}
    for i, (settings, result) in enumerate(runs):
        label = " ".join(show(v) for v in settings.values()) or run_name(result)
        for row, part in zip((label, f"{label}, unseen"), seen_and_unseen(result), strict=True):
            if part is not None:
                rows.setdefault(row, {})[i] = FinishedRun("", 0, {}, part)
    marks, at = choose([result for _, result in runs])
    groups = list(dict.fromkeys(name for _, result in runs for name in result["groups"]["names"]))
    measures = []
    for measure in columns(marks, at, groups, fold):
        head = measure.column.head
        if head in groups or head == "worst tenth":
            head = f"{head.split()[0] if head in groups else head} acc^{at}"
        if head not in LEFT_OUT:
            column = replace(measure.column, head=head, best=0, within="seeds" if measure.column.within else "")
            measures.append(measure._replace(column=column))
    return fill(
        [Row(label, {"": seeds}) for label, seeds in rows.items()],
        measures,
        corner=" / ".join(key.rsplit(".", 1)[-1] for key in runs[0][0]) or "algorithm",
        notes=[
            f"Pair accuracy in % on the {fold} pairs after t local steps, mean over clients, then mean ± standard "
            "deviation over n seeds. ARI: adjusted Rand index of found against true groups."
        ],
    )
