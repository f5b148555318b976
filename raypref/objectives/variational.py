"""The variational selector's loss (S1 4.1 to 4.3, A.1 to A.7): pure functions on tensors.

Everything is stacked over n clients and S samples a client. q = N(μ, diag σ²) is a posterior, z a sample of it. Peers
are the clients that the mixture prior was built from; their statistics are constants here (A.7).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Mixture(NamedTuple):
    """p_mixture of each client (S1 Eq. 6), over P peers; a client leaves itself out by a log-weight of -inf."""

    log_weights: Tensor
    """[n, P] ℓ = log π, the client's own, learned (Eq. 8)."""
    mean: Tensor
    """[P, d] μ_j."""
    variance: Tensor
    """[P, d] σ_j²."""


def reparameterize(mu: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """z = μ + ε exp(log σ² / 2) (S1 Eq. 23); all [..., d]."""
    return mu + noise * torch.exp(0.5 * log_variance)


def log_normal(z: Tensor, mu: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z; μ, diag σ²) (S1 Eq. 22): [..., d] -> [...]."""
    squares = (z - mu) ** 2 * torch.exp(-log_variance)
    return -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)


def gaussian_kl(mu: Tensor, log_variance: Tensor) -> Tensor:
    """D_KL(q ‖ N(0, I)) by dimension (S1 Eq. 37): [..., d] -> [..., d]; their sum is the divergence."""
    return 0.5 * (mu**2 + torch.exp(log_variance) - log_variance - 1.0)


def gumbel_log_weights(log_weights: Tensor, gumbel: Tensor, temperature: float) -> Tensor:
    """log w_j of Eq. 8: [n, P] ℓ and Gumbel(0, 1) noise of the same shape (zero in evaluation) -> [n, P]."""
    return torch.log_softmax((log_weights + gumbel) / temperature, dim=-1)


def mixture_log_prob(z: Tensor, log_w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log p_mixture(z) by log-sum-exp (S1 Eq. 7, 21): z [n, S, d], log_w [n, P], mean and variance [P, d] -> [n, S]."""
    components = log_normal(z[:, :, None], mean, torch.log(variance))  # [n, S, P]
    return torch.logsumexp(log_w[:, None] + components, dim=-1)


def mixture_kl(z: Tensor, mu: Tensor, log_variance: Tensor, log_w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """One-sample Monte-Carlo D_KL(q ‖ p_mixture) = log q(z) - log p_mixture(z) (S1 A.1): [n, S, d] … -> [n, S]."""
    return log_normal(z, mu, log_variance) - mixture_log_prob(z, log_w, mean, variance)


def pull_loss(z: Tensor, prototypes: Tensor) -> Tensor:
    """‖z - p_y*‖² (S1 Eq. 28): z [n, S, d], each client's assigned prototype [n, d] -> [n, S]."""
    return ((z - prototypes[:, None]) ** 2).sum(-1)


def orthonormal_loss(prototypes: Tensor, scale: float) -> Tensor:
    """‖P Pᵀ / s² - I_M‖_F² (S1 Eq. 9): [n, M, d] -> [n].

    A.3.2 prints PᵀP, which cannot be I for M < d, and unit norms, which the radius s contradicts; the division by s²
    lets both meet.
    """
    gram = torch.bmm(prototypes, prototypes.mT) / scale**2
    return ((gram - torch.eye(gram.shape[-1], device=gram.device)) ** 2).sum((-1, -2))
