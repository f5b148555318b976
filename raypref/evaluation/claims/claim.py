"""A claim of a paper as a value: what it says, which runs it needs, which number of theirs, and what would be nothing.

    Claim(
        "fl-ahead-of-cl",
        "S2 3.1, Table 1",
        "…",
        runs={"FL": EVEN | FL, "CL": EVEN | CL},
        statistic=minus(accuracy(10), "FL", "CL"),
        …
    )

Of each seed that all runs have, a statistic reads one number, or one a client. The words of a run, such as "FL", are
the claim's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from raypref.evaluation.claims.statistics import Direction
from raypref.evaluation.runs import FinishedRun

Runs = Mapping[str, FinishedRun]
"""What a claim calls its runs -> those of one seed."""
Values = np.ndarray | float
"""[C] a number a client, nan where it has none, or one number of the run."""


class Lacks(Exception):
    """What a run does not hold, in a few words, such as `diagnostics`."""


@dataclass(frozen=True)
class Quantity:
    """What is read of one run."""

    words: str
    read: Callable[[FinishedRun], Values]
    """Raises `Lacks`."""
    unit: str = "points"


@dataclass(frozen=True)
class Statistic:
    """What is read of the runs of one seed."""

    words: str
    of: Callable[[Runs], Values]
    """[C] paired differences, or one number. Raises `Lacks`."""
    unit: str = "points"

    def __sub__(self, other: Statistic) -> Statistic:
        """By how much one is larger than the other: what interacts."""
        words = f"({self.words}) minus ({other.words})"
        return Statistic(words, lambda runs: mean(self.of(runs)) - mean(other.of(runs)), self.unit)


def mean(values: Values) -> float:
    """Over the clients that have a value."""
    return float(np.nanmean(values))


def of(quantity: Quantity, run: str) -> Statistic:
    """A quantity of one run."""
    return Statistic(f"{quantity.words}, {run}", lambda runs: quantity.read(runs[run]), quantity.unit)


def minus(quantity: Quantity, a: str, b: str) -> Statistic:
    """a - b, client by client where both have the same ones (a seed makes the same clients for every method)."""

    def read(runs: Runs) -> Values:
        x, y = quantity.read(runs[a]), quantity.read(runs[b])
        same = runs[a].result["clients"] == runs[b].result["clients"]
        return x - y if same and np.shape(x) == np.shape(y) else mean(x) - mean(y)

    return Statistic(f"{quantity.words}, {a} minus {b}", read, quantity.unit)


def lead(quantity: Quantity, run: str, others: Sequence[str], beside: Literal["best", "lowest"] = "best") -> Statistic:
    """A run minus the best (or the lowest) of others, which chance helps to be that."""
    pick = max if beside == "best" else min

    def read(runs: Runs) -> float:
        return mean(quantity.read(runs[run])) - pick(mean(quantity.read(runs[other])) for other in others)

    return Statistic(f"{quantity.words}, {run} minus the {beside} of {', '.join(others)}", read, quantity.unit)


def spread(quantity: Quantity, among: Sequence[str]) -> Statistic:
    """The highest minus the lowest of several runs; chance adds to it."""

    def read(runs: Runs) -> float:
        return float(np.ptp([mean(quantity.read(runs[run])) for run in among]))

    return Statistic(f"{quantity.words}, highest minus lowest of {', '.join(among)}", read, quantity.unit)


def least(statistics: Sequence[Statistic]) -> Statistic:
    """The lowest of several statistics, for what is to be so in every case."""
    words = f"the least of: {'; '.join(s.words for s in statistics)}"
    return Statistic(words, lambda runs: min(mean(s.of(runs)) for s in statistics), statistics[0].unit)


def rank_correlation(x: Quantity, y: Quantity, among: Sequence[str]) -> Statistic:
    """Spearman's, over several runs of a seed, three or more."""

    def read(runs: Runs) -> float:
        from scipy.stats import spearmanr

        return float(spearmanr(*([mean(q.read(runs[run])) for run in among] for q in (x, y))).statistic)

    return Statistic(f"rank correlation of {x.words} and {y.words} over {', '.join(among)}", read, "correlation")


@dataclass(frozen=True)
class Claim:
    """What a paper found, in a form that can turn out otherwise; all of it is fixed before its runs are seen."""

    name: str
    """Stable, `words-with-hyphens`."""
    place: str
    """The paper, `S1` or `S2`, its section and its tables or figures; `raypref: …` of what is claimed here."""
    statement: str
    """In our own words."""
    numbers: str
    """The paper's, or the goal."""
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the claim calls a run -> the configuration that it must have. What is not said there may differ between
    methods where it is a method's own, and must agree where it makes the task (`raypref.evaluation.claims.judge`)."""
    statistic: Statistic | None = None
    """None: not testable here."""
    margin: float = 1.0
    """Distance from the null within which nothing is concluded to be there, in the statistic's unit."""
    direction: Direction = "above"
    """Where the claim says that the statistic is, seen from the null."""
    null: float = 0.0
    """What the statistic is compared with."""
    budget: int | Literal["rounds"] = 600
    """The most client steps that a run may have taken for each client of its cohort (R · τ of FL; 3,000 in all with
    five a round), of which it may have left up to half, for where a method is stopped is tuned. Local, which has none,
    goes with any, and a run whose rounds the claim names has these. `rounds`: equal R instead."""
    space: str = ""
    """The search spaces that make the runs, with blanks between them; kept runs of others do not count."""
    policies: bool = False
    """Whether its runs are policies (S1's stage 2) and not selectors."""
    untestable: str = ""
    """Why it cannot be tested here: data from the hub, or a larger base, that it is about."""

    @property
    def paper(self) -> str:
        return self.place.split()[0].rstrip(":")
