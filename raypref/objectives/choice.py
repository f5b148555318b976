"""The binary selector of S2 (2.1, A.2): the base reads two responses, and LoRA learns which one the client chooses.

The margin m of one order is the preferred slot's logit minus the other's. The *pair margin* M is its mean over both
orders: a pair is right where M > 0 (ties are wrong, as in S2 2.1). *Order accuracy* counts all 2N orders alike, so a
selector that always says A gets 1/2 there and 0 on pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raypref.data.encode import EncodedFold, Encoding, encode_pairs
from raypref.models.layout import Layout
from raypref.objectives.base import Batch, Loss, Objective
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig


class Choice(Objective):
    """-log σ(m), averaged over each client's own pairs (S2 2.1)."""

    diagnoses: ClassVar[bool] = True

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        return "" if cls is Choice else cls.__name__.lower()

    @classmethod
    def encoding(cls, config: RunConfig) -> Encoding:
        return Encoding(encode_pairs, config.data.template, compares=True)

    @classmethod
    def layout(cls, config: RunConfig) -> Layout:
        from raypref.models.selector import base_layout

        return base_layout(config.model)

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        logits = self.reader.selector.choice_logits(rows, batch.ids, batch.lengths, batch.dropout)
        return Loss({"choice": choice_loss(logits, batch.slots)}, batch.valid)

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        return [order_margins(one) for one in self.reader.choice_logits(rows, self.reader.folds(clients, fold))]

    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        return torch.stack([order_margins(one) for one in self.reader.choice_logits(rows, [fold] * len(rows))])

    def diagnose(self, rows: Tensor, clients: Sequence[int], eta: float) -> list[dict[str, np.ndarray]]:
        from raypref.objectives.diagnostics import diagnose

        train, test = (self.reader.folds(clients, name) for name in ("train", "test"))
        return diagnose(self.reader, train, test, rows, eta, self.config.optim.batch_size).by_client()


def margins(logits: Tensor, slots: Tensor) -> Tensor:
    """logits [..., 2] (A, B), slots [...] (0: the chosen response is in A) -> m [...]."""
    difference = logits[..., 0] - logits[..., 1]
    return torch.where(slots == 0, difference, -difference)


def choice_loss(logits: Tensor, slots: Tensor) -> Tensor:
    """ℓ = -log σ(m) of each comparison (S2 2.1): [..., 2], [...] -> [...]."""
    return -torch.nn.functional.logsigmoid(margins(logits, slots))


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
        "loss": -torch.nn.functional.logsigmoid(m).mean((-1, -2)),
        "accuracy": (pair_margins(m) > 0).float().mean(-1),
        "order_accuracy": right.float().mean((-1, -2)),
        "agreement": (right[..., 0] == right[..., 1]).float().mean(-1),
    }
