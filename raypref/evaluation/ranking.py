"""Which configuration of a sweep did best: ranked by validation; test numbers stand beside and decide nothing.

Everything here is a pure function; the caller decides which trials and where to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raypref.evaluation import tables
from raypref.evaluation.curve import Fold, seen_and_unseen
from raypref.evaluation.runs import show
from raypref.evaluation.tables import Cell, Column, Table, spread

BEST = {"accuracy": 1, "order_accuracy": 1, "agreement": 1, "loss": -1}
"""Metrics that can rank, and their sign: more is better, or less."""


@dataclass(frozen=True)
class Score:
    """One finished trial."""

    settings: Mapping[str, Any]
    """What tells its configuration from the others': dotted key -> value, without the seed."""
    seed: int
    validation: float
    test: float


@dataclass(frozen=True)
class Line:
    """One configuration over its seeds."""

    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    validation: tuple[float, ...]
    """A value a seed."""
    test: tuple[float, ...]


def last(result: Mapping[str, Any], fold: Fold, metric: str) -> float:
    """Mean over the clients that trained of a metric at the last mark, of a finished run."""
    seen, _ = seen_and_unseen(result)
    return float(np.mean([client[-1] for client in seen[fold][metric]]))


def ranking(scores: Sequence[Score], metric: str) -> list[Line]:
    """A line a configuration, the best mean over seeds of the validation metric first (ties as they came)."""
    together: dict[str, list[Score]] = {}
    for score in scores:
        together.setdefault(repr(sorted(score.settings.items())), []).append(score)
    lines = []
    for group in together.values():
        group.sort(key=lambda s: s.seed)
        columns = zip(*((s.seed, s.validation, s.test) for s in group), strict=True)
        lines.append(Line(group[0].settings, *columns))
    return sorted(lines, key=lambda line: -BEST[metric] * float(np.mean(line.validation)))


def markdown(lines: Sequence[Line], metric: str) -> str:
    """The table, padded so that it reads as well in a terminal."""
    return tables.markdown(table(lines, metric), padded=True)


def table(lines: Sequence[Line], metric: str) -> Table:
    """A row a configuration, by rank."""
    keys = list(lines[0].settings) if lines else []
    how: dict[str, Any] = {"digits": 3} if metric == "loss" else {"scale": 100, "digits": 1}
    folds = (Column(f"{fold} {metric}", within="seeds", **how) for fold in ("validation", "test"))
    unit = "" if metric == "loss" else " in %"
    return Table(
        "sweep",
        "",
        "rank",
        columns=(*map(Column, keys), *folds, Column("n", digits=0)),
        rows=tuple(str(rank) for rank in range(1, len(lines) + 1)),
        cells=tuple(
            (*(show(line.settings[key]) for key in keys), Cell(line.validation), Cell(line.test), str(len(line.seeds)))
            for line in lines
        ),
        notes=(
            f"Ranked by validation {metric}{unit} after the last local step: mean over clients, then mean ± standard "
            "deviation over n seeds. Test numbers decide nothing here.",
        ),
    )


def to_csv(lines: Sequence[Line], metric: str) -> str:
    """The same, unrounded, shares in [0, 1]."""
    written = []
    for rank, line in enumerate(lines, 1):
        row = {"rank": rank} | {key: show(v) if isinstance(v, list) else v for key, v in line.settings.items()}
        for fold, values in (("validation", line.validation), ("test", line.test)):
            row |= {f"{fold}_{metric}": float(np.mean(values)), f"{fold}_{metric}_std": spread(values)}
        written.append(row | {"seeds": " ".join(map(str, line.seeds))})
    return tables.csv_text(written)
