"""Which pair to show next: the one whose answer is expected to tell most of whom the person is like.

The people of the run are a committee. Each would choose by a model of their own, so that for a pair each has a
probability of preferring the first response; which of them the new person is like is not known. A choice makes those
likelier who would have made it (Bayes), and the next pair is the one of the highest mutual information between its
answer and that unknown (Houlsby et al., "Bayesian Active Learning for Classification and Preference Learning", 2011,
arXiv 1112.5745, Eq. 2): where the committee disagrees, each member being sure of it. So a pair on which everybody is
unsure, however close, is not worth a question.

The same for whatever the run is, since only probabilities are looked at; and these are read once, before the first
question. Nothing here trains.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

LAPSE = 0.2
"""Share of choices that are taken for a coin's toss: models are surer than people are steady, and without it one
choice against the habit would rule somebody out for good."""


def preferring(margins: np.ndarray) -> np.ndarray:
    """Probability that the first response is chosen, from the margins M of any shape: σ(M), but for `LAPSE`."""
    return LAPSE / 2 + (1 - LAPSE) / (1 + np.exp(-np.clip(margins, -50, 50)))


def likeness(p: np.ndarray, answers: Mapping[int, bool]) -> np.ndarray:
    """[K] how probable it is that the person is like each of the committee, who were alike probable before.

    p: [K, N] probabilities of preferring the first response. answers: pair -> whether the first was chosen.
    """
    log = np.zeros(len(p))
    for pair, first in answers.items():
        log += np.log(p[:, pair] if first else 1 - p[:, pair])
    w: np.ndarray = np.exp(log - log.max())
    return w / w.sum()


def entropy(p: np.ndarray) -> np.ndarray:
    """Of a coin that falls on one side with probability p in (0, 1), in bits."""
    bits: np.ndarray = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return bits


def information(p: np.ndarray, w: np.ndarray) -> np.ndarray:
    """[N] bits that the answer to each pair is expected to tell: the entropy of the mean prediction less the mean
    entropy. p [K, N], w [K] of sum 1."""
    bits: np.ndarray = entropy(w @ p) - w @ entropy(p)
    return bits


def next_pair(p: np.ndarray, answers: Mapping[int, bool], left_out: Collection[int] = ()) -> int | None:
    """The pair to show next, the lowest of equals; None where all have been.

    left_out: pairs that the person could not say.
    """
    bits = information(p, likeness(p, answers))
    bits[[*answers, *left_out]] = -np.inf
    best = int(bits.argmax()) if len(bits) else 0
    return best if len(bits) and np.isfinite(bits[best]) else None


def plane(p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A map on which people lie near each other who would choose alike: p [K, N] -> the two directions [2, N] in which
    they differ most (principal components), their centre [N], and where each lies [K, 2]."""
    centre = p.mean(axis=0)
    _, _, directions = np.linalg.svd(p - centre, full_matrices=False)
    axes = np.zeros((2, p.shape[1]))
    axes[: min(2, len(directions))] = directions[:2]
    axes *= np.where(axes[np.arange(2), np.abs(axes).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]  # one sign, not either
    return axes, centre, (p - centre) @ axes.T
