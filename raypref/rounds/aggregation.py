"""Aggregates clients' rows: always a weight matrix times a matrix of rows; methods differ in the weights.

All functions return weights over the n returned rows, in the cohort's ascending client order. A and B of LoRA are
averaged apart, as both papers do (the mean of products B_c A_c is another thing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def combine(weights: np.ndarray, rows: Tensor) -> Tensor:
    """Weighted sums: weights [m, n] (or [n]) times rows [n, D] -> float32 [m, D] (or [D]), summed in float64."""
    return (torch.from_numpy(np.asarray(weights, dtype=np.float64)) @ rows.double()).float()


def uniform_weights(n: int) -> np.ndarray:
    """[n] equal weights 1 / n: FedGD's reference θ_g (S2 4.1), S1 Algorithm 1."""
    return np.full(n, 1.0 / n)


def size_weights(sizes: np.ndarray) -> np.ndarray:
    """[n] weights by data size, N_c / Σ N_c': FedAvg (S2 2.1, "weighted averaging")."""
    return sizes / np.sum(sizes, dtype=np.float64)


def group_weights(group_of: np.ndarray, count: int) -> np.ndarray:
    """[count, n] mean weights by group: row k averages the members of group k; a group without any gives a zero row
    (S2 Algorithm 1, line 15)."""
    member = (np.asarray(group_of)[None, :] == np.arange(count)[:, None]).astype(np.float64)
    return member / np.maximum(member.sum(1, keepdims=True), 1.0)


def residual_weights(group_of: np.ndarray, p: np.ndarray, count: int) -> np.ndarray:
    """[count, count + n] weights that mix the experts' previous rows with the n returned ones (S2 Eq. 1; Algorithm 2,
    line 35): row k keeps 1 - Σ p_c of θ_k and takes p_c of each returned member of its cluster.

    group_of [n] the expert that each returned row was trained from, p [n] its p_c = N_c / Σ_{j in [C]} N_j.
    """
    taken = (np.asarray(group_of)[None, :] == np.arange(count)[:, None]) * np.asarray(p)[None, :]
    return np.concatenate([np.diag(1.0 - taken.sum(1)), taken], axis=1)


def hierarchical_weights(group_of: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[n] weights by size within a group, and uniform across the groups reached (S2 4.2; Algorithm 1, lines 30-34).

    group_of [n] the group of each returned row, sizes [n] its N_c.
    """
    groups = np.asarray(group_of)
    weights = np.asarray(sizes, dtype=np.float64).copy()
    reached = np.unique(groups)
    for k in reached:
        weights[groups == k] /= weights[groups == k].sum() * len(reached)
    return weights
