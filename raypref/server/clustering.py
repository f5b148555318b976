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


def reindex(assignment: np.ndarray) -> np.ndarray:
    """Discard empty groups: the same partition with labels 0 … K' - 1 in the old order (S2 Algorithm 1, line 22)."""
    return np.unique(assignment, return_inverse=True)[1].astype(np.int64)
