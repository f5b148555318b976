"""Reads clients' folds of token sequences through the base in batches; objectives reach data only through it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raypref.data.encode import EncodedClient, EncodedFold, concatenate
from raypref.models.selector import Selector


class Reader:
    """A selector, and the tokens of the clients that share it."""

    def __init__(self, selector: Selector, clients: Mapping[int, EncodedClient], eval_batch: int) -> None:
        """eval_batch: sequences in one evaluation pass, over all folds that are read together."""
        self.selector, self.eval_batch = selector, eval_batch
        self.clients = dict(clients)

    @property
    def device(self) -> str:
        return self.selector.device

    def folds(self, clients: Sequence[int], name: str) -> list[EncodedFold]:
        """One fold of each of these clients."""
        return [self.clients[c].fold(name) for c in clients]

    def passes(
        self, folds: Sequence[EncodedFold], most: int | None = None
    ) -> Iterator[tuple[list[np.ndarray], Tensor, Tensor, Tensor]]:
        """Every sequence of each fold once, in batches of similar length with at most `most` sequences a fold.

        Yields the sequences' numbers [n], and their ids [n, b, L], lengths and validity [n, b].
        """
        orders = [np.argsort(-fold.lengths, kind="stable") for fold in folds]
        fitting = self.eval_batch // len(folds)
        size = max(1, fitting if most is None else min(most, fitting))
        for start in range(0, max(map(len, orders)), size):
            parts = [order[start : start + size] for order in orders]
            yield parts, *self.batch(folds, parts)

    def batch(self, folds: Sequence[EncodedFold], parts: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """Sequences parts[i] of fold i -> ids [n, b, L], lengths [n, b], valid [n, b]; padded both ways."""
        n, b, pad = len(folds), max(map(len, parts)), self.selector.pad
        longest = max(int(fold.lengths[part].max()) for fold, part in zip(folds, parts, strict=True) if len(part))
        ids = np.full((n, b, longest), pad, dtype=np.int64)
        lengths = np.ones((n, b), dtype=np.int64)
        valid = np.zeros((n, b), dtype=bool)
        for i, (fold, part) in enumerate(zip(folds, parts, strict=True)):
            ids[i, : len(part)] = fold.padded(part, longest, pad)
            lengths[i, : len(part)] = fold.lengths[part]
            valid[i, : len(part)] = True
        return self.tensor(ids), self.tensor(lengths), self.tensor(valid)

    def spans(self, folds: Sequence[EncodedFold], parts: Sequence[np.ndarray], ids: Tensor) -> Tensor:
        """[n, b, 4 or 2] starts and ends of responses in sequences parts[i] of fold i, beside their ids [n, b, L]."""
        spans = torch.ones(*ids.shape[:2], folds[0].spans.shape[1], dtype=torch.int64)
        for i, (fold, part) in enumerate(zip(folds, parts, strict=True)):
            spans[i, : len(part)] = torch.from_numpy(fold.spans[part].astype(np.int64))
        return spans.to(ids.device)

    @torch.inference_mode()
    def choice_logits(self, rows: Tensor, folds: Sequence[EncodedFold]) -> list[Tensor]:
        """Row i on fold i -> choice logits [2 N_i, 2] float32, in batches of similar length: one row after another, as
        a row alone takes no more than the frozen base does (`Selector.states`), and neighbours that are the same row
        together."""
        logits: list[Tensor] = []
        starts = [i for i in range(len(folds)) if i == 0 or not torch.equal(rows[i], rows[i - 1])]
        for start, end in itertools.pairwise([*starts, len(folds)]):
            together = concatenate(folds[start:end])
            of_all = torch.empty(2 * together.pairs, 2)
            for (part,), ids, lengths, _ in self.passes([together]):
                of_all[part] = self.selector.choice_logits(rows[start : start + 1], ids, lengths)[0].cpu()
            logits += of_all.split([2 * fold.pairs for fold in folds[start:end]])
        return logits

    def tensor(self, array: np.ndarray) -> Tensor:
        """A copy on the device: arrays out of an object store are read-only."""
        return torch.tensor(array, device=self.device)
