"""Whether a selector is as often right as it is sure of itself (Guo et al. 2017, arXiv 1706.04599).

A pair margin M says that the chosen response is the better one with probability p = σ(M). Real labels are noisy: people
contradict themselves, so that the best selector is right less often than always, and should say so. Two numbers tell:

- *negative log-likelihood*, the mean of -log p in nats: 0 for a selector that is sure and right, ln 2 = 0.693 for one
  that never knows; nobody can come below the noise of the labels. It is not the curves' `loss`, the mean of -log σ(m)
  over both orders of a pair: M is the mean of the two m and -log σ is convex, so `loss` is never the lower one.
- *expected calibration error*: pairs in bins by confidence max(p, 1 - p), in each bin the distance between the share
  that is right and the mean confidence, averaged over pairs (Guo et al., section 2, Eq. 3).

Margins are taken as they are: no temperature is fitted. All is read from `result["margins"]`, so of earlier runs, too;
of kept results from what was read of them when they were kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 10
"""Bins of equal width over confidences, which are in [1/2, 1]."""


def margins_of(result: Mapping[str, Any]) -> list[np.ndarray]:
    """[C] arrays [M, N_c] of a result: the margin of every test pair of a client at every mark; empty: it has none."""
    return [np.asarray(of_client, dtype=np.float64) for of_client in result.get("margins", {}).get("test", ())]


def nll(margins: Sequence[np.ndarray]) -> np.ndarray:
    """Mean of -log σ(M) over each client's pairs, in nats: [C] arrays [M, N_c] -> [C, M]; nan for one without pairs."""
    return np.array([np.logaddexp(0.0, -m).mean(axis=1) if m.shape[1] else np.full(len(m), np.nan) for m in margins])


@dataclass(frozen=True)
class Reliability:
    """Pairs by confidence: what a reliability diagram shows."""

    pairs: np.ndarray
    """[BINS] how many are in each bin."""
    confidence: np.ndarray
    """[BINS] their mean confidence; nan in an empty bin."""
    right: np.ndarray
    """[BINS] the share of them that are right; nan in an empty bin."""

    @property
    def ece(self) -> float:
        """Expected calibration error in [0, 1]; nan without pairs."""
        gaps = np.nan_to_num(np.abs(self.right - self.confidence))
        return float((self.pairs * gaps).sum() / self.pairs.sum()) if self.pairs.any() else float("nan")


def reliability(margins: np.ndarray) -> Reliability:
    """Pairs of margins [N] in bins by confidence max(p, 1 - p) = σ(|M|).

    Bin k of 0 to 9 is (1/2 + k/20, 1/2 + (k + 1)/20], the first with its lower end. A pair is right where M > 0. A tie,
    M = 0, counts half: that is what a confidence of 1/2 promises (accuracy counts it as wrong, as S2 2.1 does).
    """
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    edges = np.linspace(0.5, 1.0, BINS + 1)[1:-1]
    bins = np.digitize(confidence, edges, right=True)
    pairs = np.bincount(bins, minlength=BINS)

    def mean(values: np.ndarray) -> np.ndarray:
        sums = np.bincount(bins, values, minlength=BINS)
        return np.divide(sums, pairs, out=np.full(BINS, np.nan), where=pairs > 0)

    return Reliability(pairs, mean(confidence), mean(np.heaviside(margins, 0.5)))


def pooled(margins: Sequence[np.ndarray], mark: int) -> Reliability:
    """All clients' pairs together at one mark: [C] arrays [M, N_c], position in [0, M).

    Of one client's few pairs a bin holds two or three, and what chance leaves there counts as an error (`by_chance`).
    So clients are not apart, and one with more pairs counts more.
    """
    return reliability(np.concatenate([m[mark] for m in margins]))


def by_chance(pairs: int) -> float:
    """The most that is expected of a perfectly calibrated selector's error with so many pairs: 0.4 √(BINS / pairs).

    In a bin of n pairs the share that is right is off by √(2/π) σ / √n on average, with σ at most 1/2; averaged over
    pairs that is most where bins are alike.
    """
    return 0.5 * math.sqrt(2 / math.pi) * math.sqrt(BINS / pairs)


def of_clients(result: Mapping[str, Any]) -> np.ndarray:
    """[C, M] negative log-likelihood of each client's test pairs; [0] where a result has neither margins nor what was
    kept of them (`raypref.storage.kept`)."""
    margins = margins_of(result)
    return nll(margins) if margins else np.array(result.get("calibration", {}).get("nll", []))


def errors(result: Mapping[str, Any]) -> list[float]:
    """[M] expected calibration error over all clients' test pairs; [] as in `of_clients`."""
    if margins := margins_of(result):
        return [pooled(margins, m).ece for m in range(len(result["marks"]))]
    return list(result.get("calibration", {}).get("ece", []))


def summary(result: Mapping[str, Any]) -> dict[str, list[float]]:
    """`nll`, a mean over clients, and `ece`, of all their test pairs, [M] each; empty where neither is known."""
    of = of_clients(result)
    return {"nll": np.nanmean(of, axis=0).tolist(), "ece": errors(result)} if len(of) else {}
