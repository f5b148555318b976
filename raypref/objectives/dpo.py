"""Direct preference optimization (Rafailov et al., 2023; S1 4.4): pure functions on tensors."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def margin(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """β (log-ratio of the chosen - log-ratio of the rejected response), a log-ratio being log π(y | x) - log π_ref(y |
    x); above 0 where the policy's implicit reward prefers the chosen one. [...], [...] -> [...]."""
    return beta * (chosen - rejected)


def dpo_loss(m: Tensor, valid: Tensor) -> Tensor:
    """-log σ(margin), averaged over each client's own pairs: [n, b], [n, b] bool -> [n]."""
    return (-logsigmoid(m) * valid).sum(-1) / valid.sum(-1)
