"""Assigns clients to experts, groups or prototypes: pure functions."""

from __future__ import annotations

import numpy as np


def random_assignment(clients: int, K: int, draw: np.random.Generator) -> np.ndarray:
    """Assign each client to a random expert: π(c) ~ Uniform{0, …, K - 1}, int64 [C] (S2 Algorithm 1, line 1)."""
    return draw.integers(0, K, size=clients)


def lowest_loss(losses: np.ndarray) -> np.ndarray:
    """Assign each client to the expert of its lowest validation loss: losses [K, C] -> int64 [C] (S2 4.1).

    π(c) = argmin_k ValLoss(θ_k, D_val^c); ties go to the lowest k. A loss that is not finite never wins; a client for
    whom none is finite raises `ValueError`.
    """
    finite = np.where(np.isfinite(losses), losses, np.inf)
    if np.isinf(finite.min(0)).any():
        raise ValueError(f"no finite validation loss for client {int(np.isinf(finite.min(0)).argmax())}")
    return finite.argmin(0)


def balance(assignment: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Balance cluster sizes by least-cost moves from the largest to the smallest until they differ by at most one.

    assignment [C] in 0 … K - 1, losses [K, C] ℓ_{c,k} -> int64 [C]. Each move takes the client of the largest cluster
    whose loss rises least. Ties go to the lowest k and the lowest c (S2 Algorithm 2, lines 21-25).
    """
    pi = np.array(assignment, dtype=np.int64)
    while True:
        sizes = np.bincount(pi, minlength=len(losses))
        largest, smallest = int(sizes.argmax()), int(sizes.argmin())
        if sizes[largest] - sizes[smallest] <= 1:
            return pi
        inside = np.flatnonzero(pi == largest)
        pi[inside[(losses[smallest, inside] - losses[largest, inside]).argmin()]] = smallest


def soft_weights(accuracies: np.ndarray) -> np.ndarray:
    """Weigh experts by their accuracy on each client: [K, C] -> w_{k,c} = a_{k,c} / Σ_j a_{j,c} [K, C].

    A client for whom every expert has accuracy 0 weighs them alike (S2 Algorithm 3, line 29).
    """
    a = np.asarray(accuracies, dtype=np.float64)
    total = a.sum(0, keepdims=True)
    return np.where(total > 0, a / np.where(total > 0, total, 1.0), 1.0 / len(a))


def reindex(assignment: np.ndarray) -> np.ndarray:
    """Discard empty groups: the same partition with labels 0 … K' - 1 in the old order (S2 Algorithm 1, line 22)."""
    return np.unique(assignment, return_inverse=True)[1].astype(np.int64)


def strays(labels: np.ndarray, group_of: np.ndarray) -> float:
    """Share of the labelled clients (label -1: none) that have another label than most of their true group: what
    balance costs uneven groups. nan where groups are unknown (-1), or nobody has a label."""
    kept = (labels >= 0) & (group_of >= 0)
    if not kept.any():
        return float("nan")
    at_home = sum(np.bincount(labels[kept & (group_of == g)]).max() for g in np.unique(group_of[kept]))
    return float(1 - at_home / kept.sum())


def kmeans(
    points: np.ndarray, M: int, draw: np.random.Generator, balanced: bool = True, restarts: int = 10
) -> np.ndarray:
    """Cluster points [n, d] by k-means: labels int64 [n]; balanced: M sizes equal up to one (S1 4.2, Table 4).

    Balanced, each assignment step is an assignment problem: every cluster has ⌊n/M⌋ or ⌈n/M⌉ places, and points take
    places at the least total squared distance. The best of `restarts` starts at M distinct points. With uneven groups
    balance must pull some points to the wrong side; `balanced=False` is Lloyd's algorithm. Fewer points than clusters
    raise `ValueError`.
    """
    n = len(points)
    if n < M:
        raise ValueError(f"{n} points for {M} clusters")
    best, lowest = np.zeros(n, dtype=np.int64), np.inf
    for _ in range(restarts):
        centres = points[draw.choice(n, size=M, replace=False)]
        labels = np.full(n, -1, dtype=np.int64)
        while True:
            distances = ((points[:, None] - centres[None]) ** 2).sum(-1)
            nearest = _places(distances) if balanced else distances.argmin(1)
            if np.array_equal(nearest, labels):
                break
            labels = nearest
            for k in np.unique(labels):  # an empty cluster keeps its centre
                centres[k] = points[labels == k].mean(0)
        inertia = float(((points - centres[labels]) ** 2).sum())
        if inertia < lowest:
            best, lowest = labels, inertia
    return best


def _places(distances: np.ndarray) -> np.ndarray:
    """[n, M] -> labels [n] at the least total distance, each cluster with ⌊n/M⌋ to ⌈n/M⌉ members."""
    from scipy.optimize import linear_sum_assignment

    n, M = distances.shape
    least, extra = divmod(n, M)
    # Places that must be taken come first; of the M optional ones exactly n - M ⌊n/M⌋ are taken, since places that stay
    # empty go to as many absent points, which may take none but optional places.
    of = np.concatenate([np.repeat(np.arange(M), least), np.arange(M)]) if extra else np.repeat(np.arange(M), least)
    costs = distances[:, of]
    if extra:
        absent = np.full((M - extra, len(of)), distances.sum() + 1.0)
        absent[:, M * least :] = 0.0
        costs = np.concatenate([costs, absent])
    rows, columns = linear_sum_assignment(costs)
    labels = np.empty(n, dtype=np.int64)
    labels[rows[rows < n]] = of[columns[rows < n]]
    return labels


def match_labels(labels: np.ndarray, previous: np.ndarray, M: int) -> np.ndarray:
    """Rename clusters so that the labels [n] agree most with `previous`: both in 0 … M - 1, previous -1 for none.

    k-means names its clusters anew each time, and a prototype belongs to a name.
    """
    from scipy.optimize import linear_sum_assignment

    labelled = previous >= 0
    agreement = np.zeros((M, M))
    np.add.at(agreement, (labels[labelled], previous[labelled]), 1)
    names = np.empty(M, dtype=np.int64)
    rows, columns = linear_sum_assignment(-agreement)
    names[rows] = columns
    return names[labels]
