"""Configurations over their seeds: the table that docs/results.md shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from raypref.evaluation.curve import seen_and_unseen, summary
from raypref.evaluation.ranking import show, spread
from raypref.evaluation.report import Fold, Result, choose


def markdown(runs: Sequence[tuple[Mapping[str, Any], Result]], fold: Fold = "test") -> str:
    """A row a configuration, in the order in which they come: mean ± standard deviation over its seeds; of its unseen
    clients, where it has any, a row of their own.

    runs: (what tells the configuration from the others, its result). Columns: acc^t over clients at the marks that S2
    tabulates, each true group and the worst tenth of clients at acc^10, adjusted Rand index, rounds, client steps and
    bytes, so that a reader can match budgets.
    """
    together: dict[str, list[Result]] = {}
    for settings, result in runs:
        label = " ".join(show(v) for v in settings.values()) or result["algorithm"]
        for name, part in zip((label, f"{label}, unseen"), seen_and_unseen(result), strict=True):
            if part is not None:
                together.setdefault(name, []).append(cast(Result, part))
    marks, at = choose([result for _, result in runs])
    groups = list(dict.fromkeys(name for _, r in runs for name in r["groups"]["names"]))
    head = [" / ".join(key.rsplit(".", 1)[-1] for key in runs[0][0]) or "algorithm"]
    head += [f"acc^{t}" for t in marks] + [f"{name.split()[0]} acc^{at}" for name in groups]
    head += [f"worst tenth acc^{at}", "ARI", "rounds", "client steps", "MB up", "MB down", "n"]
    rows = [_row(label, results, marks, at, groups, fold) for label, results in together.items()]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return (
        f"{body}\n\nPair accuracy in % on the {fold} pairs after t local steps, mean over clients, then mean ± "
        f"standard deviation over n seeds. ARI: adjusted Rand index of found against true groups.\n"
    )


def _row(
    label: str, results: Sequence[Result], marks: Sequence[int], at: int, groups: Sequence[str], fold: Fold
) -> list[str]:
    first = results[0]
    stats = [summary(np.array(r[fold]["accuracy"]), r["groups"]["of"], r["groups"]["names"]) for r in results]
    cells = [label.replace("_", "\\_")]
    cells += [_over([s["mean"][first["marks"].index(t)] for s in stats]) for t in marks]
    place = first["marks"].index(at)
    cells += [_over([s["groups"][g][place] for s in stats if g in s["groups"]]) for g in groups]
    cells.append(_over([s["worst_tenth"][place] for s in stats]))
    found = [r["ari"] for r in results if r["ari"] is not None]
    cells.append(f"{np.mean(found):.2f}" if found else "")
    cells += [str(first["rounds"]), str(first["client_steps"])]
    cells += [f"{np.mean([r[way] for r in results]) / 1e6:.0f}" for way in ("bytes_up", "bytes_down")]
    return [*cells, str(len(results))]


def _over(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{100 * float(np.mean(values)):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * spread(values):.1f}"
