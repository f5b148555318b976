"""Who prefers which of two generated responses: the frozen stage-1 selector (S1 4.4), given z where it has one.

A label is a margin, averaged over both orders of the two responses: above 0 the first is preferred. No human choice is
read here; a pair of responses has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raypref.clients.worker import Worker
from raypref.config import registry
from raypref.data.encode import Counts, EncodedFold, concatenate
from raypref.data.federation import Pair
from raypref.objectives.choice import pair_margins

FILLER = Pair("a", "b", "c")
"""Stands in for a pair that cannot be compared, so that every process compares equally many."""


class Labels:
    """Labels pairs of responses by the frozen selectors of stage 1."""

    def __init__(self, worker: Worker, tokenizer: Any, rows: Tensor) -> None:
        """rows [U, D] of the stage-1 layout."""
        self.worker, self.tokenizer, self.rows = worker, tokenizer, rows.to(worker.device)

    def margins(self, fold: EncodedFold, z: Tensor | None) -> Tensor:
        """[B] the margins of B encoded pairs, z [B, d] where selectors are given it."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], z: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """B prompts, two responses to each, z [B, d] -> margins [B] and which of them are usable [B] bool: those where
        both responses are there, differ, and fit `data.max_length`."""
        config = self.worker.config
        encode, template, _ = registry.objective(config.objective).encoding(config)
        lists = [[Pair(p, a, b)] if a and b else [] for p, a, b in zip(prompts, first, second, strict=True)]
        counts = [Counts() for _ in range(len(lists) + 1)]
        *folds, filler = encode([*lists, [FILLER]], self.tokenizer, template, config.data.max_length, counts)
        fit = torch.tensor([fold.pairs == 1 for fold in folds])
        m = self.margins(concatenate([fold if fold.pairs else filler for fold in folds]), z)
        return m, fit & torch.isfinite(m) & (m != 0)


class VariationalSelector(Labels):
    """One variational selector, given each prompt's z."""

    def margins(self, fold: EncodedFold, z: Tensor | None) -> Tensor:
        assert z is not None
        return pair_margins(self.worker.margins(self.rows, fold, z.to(self.rows))[0])


class VotingSelectors(Labels):
    """U selectors without z, each with one vote (FedBiscuit: U = 3; other methods: U = 1)."""

    def margins(self, fold: EncodedFold, z: Tensor | None) -> Tensor:
        """Votes for the first responses less votes for the second ones, over U."""
        return pair_margins(self.worker.margins(self.rows, fold)).sign().mean(0)
