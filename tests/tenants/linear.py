"""An objective that only tests have: a linear head on counts of tokens, so that its margins are linear in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raypref.data.encode import EncodedFold
from raypref.models.layout import Layout, Segment
from raypref.objectives.base import Batch, Loss, padded
from raypref.objectives.choice import Choice

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig

F = 16


class Linear(Choice):
    """-log σ(row · (φ_chosen - φ_rejected))"""

    diagnoses = False

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        return "linear"

    @classmethod
    def layout(cls, config: RunConfig) -> Layout:
        return Layout((Segment("head.weight", (F,)),))

    @classmethod
    def head(cls, config: RunConfig, layout: Layout) -> Tensor:
        return torch.ones(layout.width, dtype=torch.bool)

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        x = padded([differences(fold)[part // 2] for fold, part in zip(
            self.reader.folds(batch.clients, "train"), batch.parts, strict=True
        )])  # fmt: skip
        return Loss({"linear": -torch.nn.functional.logsigmoid(torch.bmm(x, rows[..., None])[..., 0])}, batch.valid)

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        of = zip(rows, self.reader.folds(clients, fold), strict=True)
        return [(differences(one) @ row)[:, None].expand(-1, 2) for row, one in of]


def differences(fold: EncodedFold) -> Tensor:
    """[N, F] of each pair: counts of tokens, by their number modulo F, in the chosen response less the rejected one."""
    out = np.zeros((fold.pairs, F), np.float32)
    for i in range(fold.pairs):
        tokens = fold.tokens[fold.offsets[2 * i] : fold.offsets[2 * i + 1]]
        a, a_end, b, b_end = fold.spans[2 * i]
        out[i] = np.bincount(tokens[a:a_end] % F, minlength=F) - np.bincount(tokens[b:b_end] % F, minlength=F)
    return torch.from_numpy(out)
