"""Paired differences between two rows of a table: the same clients under the same seed, two methods.

A synthetic client is the same person under every method of one seed, so that the difference a client is what a method
changes; what makes some clients harder than others cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from raypref.evaluation.curve import RESAMPLES
from raypref.evaluation.tables import Cell, Column, Table


class Difference(NamedTuple):
    """Mean over clients, then over seeds, of a - b, with its interval."""

    mean: float
    low: float
    high: float
    seeds: int
    """Seeds that both have; with one, the interval holds the spread over clients alone."""


def difference(
    a: Mapping[int, np.ndarray], b: Mapping[int, np.ndarray], seed: int = 0, level: float = 0.95
) -> Difference | None:
    """a - b by a hierarchical bootstrap: seeds are redrawn, then the clients within each drawn seed.

    a, b: seed -> [C] a value a client, nan where it has nothing to judge. The ends are percentiles of `RESAMPLES` draws
    of the mean. None where no seed is in both, or the clients are not the same number.
    """
    gaps = []
    for s in sorted(set(a) & set(b)):
        if a[s].shape != b[s].shape:
            return None
        gap = a[s] - b[s]
        gaps.append(gap[~np.isnan(gap)])
    gaps = [gap for gap in gaps if len(gap)]
    if not gaps:
        return None
    S, generator = len(gaps), np.random.default_rng(seed)
    means = np.empty((S, RESAMPLES, S))
    for s, gap in enumerate(gaps):  # a seed drawn twice has its clients redrawn each time
        counts = generator.multinomial(len(gap), np.full(len(gap), 1 / len(gap)), size=(RESAMPLES, S))
        means[s] = counts @ gap / len(gap)
    drawn = generator.integers(S, size=(1, RESAMPLES, S))
    low, high = np.quantile(
        np.take_along_axis(means, drawn, axis=0)[0].mean(axis=1), [(1 - level) / 2, (1 + level) / 2]
    )
    return Difference(float(np.mean([gap.mean() for gap in gaps])), float(low), float(high), S)


def against(table: Table, reference: str) -> Table | None:
    """The small table beside a table: every other row minus `reference`, of its block where there are several, for the
    columns that are means over clients.

    None where `reference` is not a row, or nothing can be paired.
    """
    bases = {table.block(r): table.cells[r] for r, name in enumerate(table.rows) if name == reference}
    columns = range(len(table.columns))
    paired = [c for c in columns if any(isinstance(cell := base[c], Cell) and cell.clients for base in bases.values())]
    rows: dict[int, tuple[Cell | None, ...]] = {}
    seeds: set[int] = set()
    for r, (name, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        base = bases.get(table.block(r))
        if base is None or name == reference or name in table.apart:
            continue
        line = []
        for c in paired:
            here, there = cells[c], base[c]
            gap = (
                difference(here.clients, there.clients) if isinstance(here, Cell) and isinstance(there, Cell) else None
            )
            line.append(Cell((gap.mean,), interval=(gap.low, gap.high)) if gap else None)
            seeds |= {gap.seeds} if gap else set()
        if any(line):
            rows[r] = tuple(line)
    if not rows:
        return None
    return Table(
        name=f"{table.name}-differences",
        title=f"{table.title}: differences to {reference}",
        corner=table.corner,
        columns=tuple(_signed(table.columns[c]) for c in paired),
        rows=tuple(table.rows[r] for r in rows),
        cells=tuple(rows.values()),
        notes=(_caption(reference, seeds, table.unit),),
        blocks=tuple(table.block(r) for r in rows) if table.blocks else (),
    )


def _signed(column: Column) -> Column:
    return replace(column, signed=True, best=0)


def _caption(reference: str, seeds: set[int], unit: str) -> str:
    how = (
        "seeds are redrawn, then clients within each; with few seeds rather too narrow than too wide"
        if max(seeds) > 1
        else "clients are redrawn; of the spread over seeds one seed tells nothing"
    )
    return (
        f"Row minus {reference}, {unit}, paired by client within a seed (a seed makes the same clients "
        f"for every method); seeds paired: {' or '.join(map(str, sorted(seeds)))}. In brackets a 95 % bootstrap "
        f"interval: {how}."
    )
