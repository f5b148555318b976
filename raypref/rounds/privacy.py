"""Differential privacy of a round's aggregation: clipping, and what the noise is worth. Pure functions.

Neighbours are two populations of which one has one client more, with all its pairs. What is accounted for is the
Gaussian mechanism on the clients that Poisson sampling draws (Mironov, Talwar and Zhang, 2019), whose Rényi divergence
Opacus computes: it holds for this sampling alone, and neither for cohorts of a fixed size nor for quotas of groups.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from raypref.tools.errors import UserError
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(a) for a in range(11, 64)] + [2.0**k for k in range(6, 13)]
"""α at which the Rényi divergence is taken; the best one counts."""


def clipped(rows: Tensor, start: Tensor, clip: float | None) -> Tensor:
    """Rows [n, D] whose Δ = row - start is no longer than `clip`: start + Δ · min(1, clip / ‖Δ‖) in their places, and
    start where Δ is not finite. None: the rows as they are. A hair (1e-5) below `clip`, for rows round to float32.
    """
    if clip is None:
        return rows
    move = rows.double() - start.double()
    norm = torch.linalg.vector_norm(move, dim=1, keepdim=True)
    factor = (1 - 1e-5) * clip / norm
    shorter = torch.where(factor < 1, start.double() + factor * move, rows.double())
    return torch.where(norm.isfinite(), shorter, start.double()).to(rows)


def rdp(noise: float, rate: float) -> np.ndarray:
    """Rényi divergence of one round at each of `ORDERS`; of r rounds it is r times as much.

    noise: z, the standard deviation of the noise on the sum over the bound of a client's part in it. rate: q, the
    chance of each client to take part. Raises `UserError` where Opacus is missing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants.analysis.rdp import compute_rdp
    except ImportError as error:
        raise UserError("ε is counted by Opacus; pip install 'raypref[privacy]', or set --dp.noise 0") from error
    return np.asarray(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ORDERS), dtype=np.float64)


def epsilon(divergence: np.ndarray, delta: float) -> float:
    """ε at δ, given the Rényi divergence at each of `ORDERS` (Balle et al., 2020, Theorem 21, as Opacus has it)."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    with warnings.catch_warnings():  # that an order at an end was the best one: ε is then larger than it need be
        warnings.simplefilter("ignore")
        return float(get_privacy_spent(orders=ORDERS, rdp=divergence, delta=delta)[0])
