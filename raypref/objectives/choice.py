"""The choice loss and margins of a binary selector (S2 2.1, A.2): pure functions on tensors.

The margin m of one order is the preferred slot's logit minus the other's. The *pair margin* M is its mean over both
orders: a pair is right where M > 0 (ties are wrong, as in S2 2.1). *Order accuracy* counts all 2N orders alike, so a
selector that always says A gets 1/2 there and 0 on pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def margins(logits: Tensor, slots: Tensor) -> Tensor:
    """logits [..., 2] (A, B), slots [...] (0: the chosen response is in A) -> m [...]."""
    difference = logits[..., 0] - logits[..., 1]
    return torch.where(slots == 0, difference, -difference)


def choice_loss(logits: Tensor, slots: Tensor, valid: Tensor) -> Tensor:
    """ℓ = -log σ(m), averaged over each client's own pairs (S2 2.1): [n, b, 2], [n, b], [n, b] bool -> [n]."""
    losses = -logsigmoid(margins(logits, slots))
    return (losses * valid).sum(-1) / valid.sum(-1)


def order_margins(logits: Tensor) -> Tensor:
    """[..., 2N, 2] logits of comparisons in `raypref.data.encode`'s order -> m [..., N, 2]: both orders of a pair."""
    slots = torch.arange(logits.shape[-2], device=logits.device) % 2
    return margins(logits, slots).unflatten(-1, (-1, 2))


def pair_margins(m: Tensor) -> Tensor:
    """M [..., N] from m [..., N, 2]."""
    return m.mean(-1)


def metrics(m: Tensor) -> dict[str, Tensor]:
    """Means over pairs of order margins m [..., N, 2], in fractions: each value [...].

    `loss` -log σ(m) over both orders; `accuracy` M > 0; `order_accuracy` m > 0 over all 2N orders; `agreement` the
    share of pairs that both orders judge alike.
    """
    right = m > 0
    return {
        "loss": -logsigmoid(m).mean((-1, -2)),
        "accuracy": (pair_margins(m) > 0).float().mean(-1),
        "order_accuracy": right.float().mean((-1, -2)),
        "agreement": (right[..., 0] == right[..., 1]).float().mean(-1),
    }
