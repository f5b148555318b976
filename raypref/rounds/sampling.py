"""Draws the clients that take part in a round: pure functions of a generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def answering(cohort: Sequence[int] | np.ndarray, p: float, least: int, draws: np.ndarray) -> np.ndarray:
    """Who of a cohort answers: bool [n]. Each drops out with probability p, given a draw of U(0, 1) each [n]; of those
    that would, the last to do so are waited for until `least` answer."""
    answers = draws >= p
    order = np.argsort(-draws, kind="stable")
    answers[order[: min(least, len(order))]] = True
    return answers


def uniform_sample(count: int, clients: int, draw: np.random.Generator) -> np.ndarray:
    """Draw S_r: `count` of `clients` without replacement, ascending int64 (S2 2.1)."""
    return np.sort(draw.choice(clients, size=count, replace=False)).astype(np.int64)


def poisson_sample(rate: float, clients: int, draw: np.random.Generator) -> np.ndarray:
    """Draw each of `clients` by itself with probability `rate`, ascending int64; how many they are is chance, too."""
    return np.flatnonzero(draw.random(clients) < rate).astype(np.int64)


def group_debiased_sample(count: int, groups: Sequence[np.ndarray], draw: np.random.Generator) -> np.ndarray:
    """Draw a cohort with an even group composition: G_r = GroupDebiasedSample(|G|, {A_k}) (S2 3.2, 4.1, Algorithm 1).

    The paper says "with probability inversely proportional to the group's cardinality, so that the resulting client set
    has a uniform group composition" and, for FL_target, one client of each of four groups and one more at random. So:
    an equal quota from each non-empty group (a group smaller than its quota gives all it has), the remainder uniformly
    from clients not yet chosen. With more groups than places, the groups are drawn at random, one client each.

    groups: client positions of each A_k, disjoint and together at least `count` (else `ValueError`).
    Returns ascending int64 [count].
    """
    filled = [np.asarray(g, dtype=np.int64) for g in groups if len(g)]
    everyone = np.sort(np.concatenate(filled)) if filled else np.zeros(0, np.int64)
    if len(everyone) < count:
        raise ValueError(f"{count} clients wanted of {len(everyone)}")
    if len(filled) > count:
        filled = [filled[i] for i in draw.choice(len(filled), size=count, replace=False)]
    quota = count // len(filled)
    chosen = np.concatenate([draw.choice(g, size=min(quota, len(g)), replace=False) for g in filled])
    rest = np.setdiff1d(everyone, chosen)
    chosen = np.concatenate([chosen, draw.choice(rest, size=count - len(chosen), replace=False)])
    return np.sort(chosen)
