"""Who prefers which of two generated responses: the frozen stage-1 selector (S1 4.4), given z where it has one.

A label is a margin, averaged over both orders of the two responses: above 0 the first is preferred. No human choice is
read here; a pair of responses has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from raypref.clients.worker import Worker
from raypref.data.encode import Counts, EncodedFold, concatenate, encode_pairs
from raypref.data.federation import Pair
from raypref.objectives.choice import pair_margins

FILLER = Pair("a", "b", "c")
"""Stands in for a pair that cannot be compared, so that every process judges equally many."""


class Labels(Protocol):
    def __call__(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], z: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """B prompts, two responses to each, z [B, d] -> margins [B] and which are any use [B] bool: those where both
        are there, differ, and fit `data.max_length`."""
        ...


class Compared:
    """Pairs as comparisons, in the words that the selector was trained on."""

    def __init__(self, worker: Worker, tokenizer: Any) -> None:
        self.worker, self.tokenizer = worker, tokenizer

    def encode(self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str]) -> tuple[EncodedFold, Tensor]:
        data, folds, fit = self.worker.config.data, [], []
        for prompt, one, other in zip(prompts, first, second, strict=True):
            fold = encode_pairs(
                [Pair(prompt, one, other)] if one and other else [], self.tokenizer, data.template, data.max_length,
                Counts(),
            )  # fmt: skip
            fit.append(fold.pairs == 1)
            if not fit[-1]:
                fold = encode_pairs([FILLER], self.tokenizer, data.template, data.max_length, Counts())
            folds.append(fold)
        return concatenate(folds), torch.tensor(fit)


class Given(Compared):
    """The variational selector given z."""

    def __init__(self, worker: Worker, tokenizer: Any, row: Tensor) -> None:
        """row [D] of the stage-1 layout."""
        super().__init__(worker, tokenizer)
        self.row = row.to(worker.device)

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], z: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        assert z is not None
        fold, fit = self.encode(prompts, first, second)
        m = pair_margins(self.worker.margins(self.row[None], fold, z.to(self.row))[0])
        return m, fit & torch.isfinite(m) & (m != 0)


class Voted(Compared):
    """U selectors without z, each with one vote (FedBiscuit: U = 3); U = 1 is one selector's judgement."""

    def __init__(self, worker: Worker, tokenizer: Any, rows: Tensor) -> None:
        """rows [U, D] of the stage-1 layout."""
        super().__init__(worker, tokenizer)
        self.rows = rows.to(worker.device)

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], z: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The margin is votes for the first less votes for the second, over U."""
        fold, fit = self.encode(prompts, first, second)
        m = pair_margins(self.worker.margins(self.rows, fold)).sign().mean(0)
        return m, fit & (m != 0)
