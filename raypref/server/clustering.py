"""Which client belongs to which expert: pure functions."""

from __future__ import annotations

import numpy as np


def random_assignment(clients: int, K: int, draw: np.random.Generator) -> np.ndarray:
    """π(c) ~ Uniform{0, …, K - 1}, int64 [C] (S2 Algorithm 1, line 1)."""
    return draw.integers(0, K, size=clients)


def lowest_loss(losses: np.ndarray) -> np.ndarray:
    """π(c) = argmin_k ValLoss(θ_k, D_val^c): losses [K, C] -> int64 [C]; ties go to the lowest k (S2 4.1).

    A loss that is not finite never wins; a client for whom none is finite raises `ValueError`.
    """
    finite = np.where(np.isfinite(losses), losses, np.inf)
    if np.isinf(finite.min(0)).any():
        raise ValueError(f"no finite validation loss for client {int(np.isinf(finite.min(0)).argmax())}")
    return finite.argmin(0)


def balance(assignment: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Size balancing: least-cost moves from the largest cluster to the smallest until sizes differ by at most one.

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
    """w_{k,c} = a_{k,c} / Σ_j a_{j,c}: [K, C] -> [K, C] (S2 Algorithm 3, line 29); a client for whom every expert has
    accuracy 0 weighs them alike."""
    a = np.asarray(accuracies, dtype=np.float64)
    total = a.sum(0, keepdims=True)
    return np.where(total > 0, a / np.where(total > 0, total, 1.0), 1.0 / len(a))


def reindex(assignment: np.ndarray) -> np.ndarray:
    """Discard empty groups: the same partition with labels 0 … K' - 1 in the old order (S2 Algorithm 1, line 22)."""
    return np.unique(assignment, return_inverse=True)[1].astype(np.int64)
