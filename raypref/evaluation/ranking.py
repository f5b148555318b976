"""Which configuration of a sweep did best: ranked by validation; test numbers stand beside and decide nothing.

Everything here is a pure function; the caller decides which trials and where to write.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raypref.evaluation.curve import seen_and_unseen

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


def last(result: Mapping[str, Any], fold: Literal["validation", "test"], metric: str) -> float:
    """Mean over the clients that trained of a metric at the last mark, of a finished run."""
    seen, _ = seen_and_unseen(result)
    return float(np.mean([client[-1] for client in seen[fold][metric]]))


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of flat configurations whose values differ, in their order; the seed is not one of them."""
    return [key for key in configs[0] if key != "seed" and any(c[key] != configs[0][key] for c in configs)]


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


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds, which are a sample (division by n - 1); nan for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def markdown(lines: Sequence[Line], metric: str) -> str:
    """The table, padded so that it reads as well in a terminal."""
    keys = list(lines[0].settings) if lines else []
    head = ["rank", *keys, f"validation {metric}", f"test {metric}", "n"]
    rows = []
    for rank, line in enumerate(lines, 1):
        settings = (show(line.settings[key]) for key in keys)
        rows.append([str(rank), *settings, *(_cell(v, metric) for v in (line.validation, line.test))])
        rows[-1].append(str(len(line.seeds)))
    widths = [max(3, *map(len, column)) for column in zip(head, *rows, strict=True)]
    table = [head, ["-" * (width - 1) + ":" for width in widths], *rows]
    body = "\n".join(
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    )
    unit = "" if metric == "loss" else " in %"
    return (
        f"{body}\n\nRanked by validation {metric}{unit} after the last local step: mean over clients, then mean ± "
        "standard deviation over n seeds. Test numbers decide nothing here.\n"
    )


def to_csv(lines: Sequence[Line], metric: str) -> str:
    """The same, unrounded, shares in [0, 1]."""
    text = io.StringIO()
    keys = list(lines[0].settings) if lines else []
    head = [f"{fold}_{metric}{part}" for fold in ("validation", "test") for part in ("", "_std")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", *keys, *head, "seeds"])
    for rank, line in enumerate(lines, 1):
        numbers = [f(values) for values in (line.validation, line.test) for f in (np.mean, spread)]
        values = [show(v) if isinstance(v := line.settings[key], list) else v for key in keys]
        writer.writerow([rank, *values, *map(float, numbers), " ".join(map(str, line.seeds))])
    return text.getvalue()


def show(value: Any) -> str:
    """A setting as it is typed on a command line, floats to four digits: [15, 5] -> '15 5'."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(show, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(values: Sequence[float], metric: str) -> str:
    scale, digits = (1, 3) if metric == "loss" else (100, 1)
    mean = f"{scale * float(np.mean(values)):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * spread(values):.{digits}f}"
