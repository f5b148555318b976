"""The one test by which all claims are judged, as pure functions.

A seed is the unit: its number is the mean over its clients of their paired differences, and what differs between seeds
is what a run of the same experiment would have given. Clients of one seed share data, initialization and cohorts, so
that they are no independent witnesses: an interval over clients is too narrow by far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Direction = Literal["above", "below"]
Verdict = Literal["holds", "reversed", "no effect", "not separated", "not testable here"]

LEVEL = 0.05
"""Of all tests; intervals are at 1 - LEVEL."""
POWER = 0.8
"""Probability with which an effect of the smallest size would have been shown."""


class Estimate(NamedTuple):
    """A mean over S seeds, with its t interval and its two-sided p-value against a null."""

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    std: float
    """Over seeds (division by S - 1)."""


def estimate(values: Sequence[float] | np.ndarray, null: float = 0.0) -> Estimate:
    """Student's t over seeds, of one number a seed [S], S >= 2. Numbers that are all the same are certain: p is 0, or 1
    where they are the null."""
    from scipy.stats import t

    of = np.asarray(values, dtype=np.float64)
    S, mean, std = len(of), float(of.mean()), float(of.std(ddof=1))
    if std <= 1e-12 * max(1.0, abs(mean)):
        return Estimate(mean, mean, mean, float(math.isclose(mean, null, abs_tol=1e-12)), S, 0.0)
    error = std / math.sqrt(S)
    half = float(t.ppf(1 - LEVEL / 2, S - 1)) * error
    return Estimate(mean, mean - half, mean + half, float(2 * t.sf(abs(mean - null) / error, S - 1)), S, std)


def holm(p: Sequence[float]) -> list[float]:
    """p-values of several claims, adjusted so that all that are below a level may be believed at that level together
    (Holm 1979): the i-th smallest of m times m - i + 1, never less than the one before."""
    adjusted, highest = [0.0] * len(p), 0.0
    for i, at in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        highest = max(highest, min(1.0, (len(p) - i) * p[at]))
        adjusted[at] = highest
    return adjusted


def smallest(std: float, seeds: int, level: float = LEVEL) -> float:
    """The smallest effect that a two-sided t test over so many seeds with this spread finds with probability `POWER`.

    Of a claim among m, the level is LEVEL / m, that of Holm's first step, so that nothing depends on how the others
    turn out. The probability is that of the noncentral t distribution, as the mean over quantiles of the sampled spread
    (its tail fails in scipy where seeds are few and levels are low).
    """
    from scipy.optimize import brentq
    from scipy.stats import chi2, norm, t

    if not std:
        return 0.0
    df, quantiles = seeds - 1, (np.arange(2000) + 0.5) / 2000
    bounds = float(t.ppf(1 - level / 2, df)) * np.sqrt(chi2.ppf(quantiles, df) / df)

    def missing(centre: float) -> float:
        return float((norm.cdf(centre - bounds) + norm.cdf(-centre - bounds)).mean()) - POWER

    return float(brentq(missing, 0.0, bounds[-1] + 10)) * std / math.sqrt(seeds)


def verdict(of: Estimate, adjusted: float, null: float, direction: Direction, margin: float) -> Verdict:
    """What an estimate says of a claim that the number is above (or below) the null.

    No effect: the whole interval lies within the margin about the null, also where it excludes the null itself, for the
    margin says what is too small to matter. Otherwise the claim holds, or is reversed, where its adjusted p-value is
    below LEVEL.
    """
    if null - margin <= of.low and of.high <= null + margin:
        return "no effect"
    if adjusted >= LEVEL:
        return "not separated"
    return "holds" if (of.mean > null) == (direction == "above") else "reversed"


def worst_tenth_floor(accuracy: float, pairs: Sequence[int]) -> float:
    """What the worst tenth is expected to be where nobody is worse than others: the mean of the lowest ⌈C/10⌉ of C
    clients who are all right with the same probability, each judged on as many test pairs as here.

    accuracy: that probability, in [0, 1]. pairs: [C] test pairs a client, 1 or more. Exact: the j-th lowest is above x
    where fewer than j clients are at or below x, and how many are is a sum of C independent zeros and ones.
    """
    from scipy.stats import binom

    grid = np.unique(np.concatenate([np.arange(n + 1) / n for n in set(pairs)]))
    lowest = math.ceil(len(pairs) / 10)
    below = np.zeros((lowest, len(grid) - 1))  # [j, x] probability that exactly j clients are at or below x
    below[0] = 1.0
    alone = {n: binom.cdf(np.floor(grid[:-1] * n + 1e-9), n, accuracy) for n in set(pairs)}
    for one in (alone[n] for n in pairs):
        below[1:] = below[1:] * (1 - one) + below[:-1] * one
        below[0] *= 1 - one
    above = below.cumsum(axis=0)  # [j - 1, x] probability that the j-th lowest is above x
    return float((above * np.diff(grid)).sum(axis=1).mean())
