"""Who takes part in the global phase and who does not (S1 5.3, "Generalization to Unseen Clients").

An algorithm is shown the seen clients as if there were no others, so that nothing of an unseen one, neither its data
nor its size nor its group, can reach what is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raypref.clients.kept import Kept
from raypref.clients.pool import Pool
from raypref.clients.protocol import Clients, Trained, Usage
from raypref.config import RunConfig, UserError
from raypref.data.federation import members
from raypref.tools.rng import stream


class Part:
    """Some clients of a pool, addressed 0 … n - 1: the protocol of `raypref.clients.protocol.Clients`.

    What is keyed by a client, such as its randomness, stays keyed by its position in the pool.
    """

    def __init__(self, pool: Pool, positions: np.ndarray) -> None:
        """positions: int64 [n], ascending."""
        self.pool, self.keys = pool, positions
        self.layout, self.groups = pool.layout, pool.groups
        self.sizes, self.group_of = pool.sizes[positions], pool.group_of[positions]

    @property
    def used(self) -> Usage:
        return self.pool.used

    def start(self) -> Tensor:
        return self.pool.start()

    def train(self, cohort: Sequence[int] | np.ndarray, *how: Any) -> Trained:
        """How is the pool's: what clients keep is by their keys, here as there."""
        returned = self.pool.train(self._there(cohort), *how)
        return replace(returned, cohort=np.searchsorted(self.keys, returned.cohort))

    def compose(self, clients: Sequence[int] | np.ndarray, rows: Tensor, kept: Kept) -> Tensor:
        return self.pool.compose(self._there(clients), rows, kept)

    def train_pooled(
        self, pools: Sequence[np.ndarray], rows: Tensor, moments: Tensor, begin: int, end: int
    ) -> tuple[Tensor, Tensor, np.ndarray]:
        return self.pool.train_pooled([self._there(pool) for pool in pools], rows, moments, begin, end)

    def weight_norms(self) -> dict[str, float]:
        return self.pool.weight_norms()

    def evaluate(self, rows: Tensor, fold: str) -> dict[str, np.ndarray]:
        return self.pool.evaluate(rows, fold, self.keys)

    def latents(self, row: Tensor) -> np.ndarray:
        return self.pool.latents(row, self.keys)

    def posterior(self, clients: Sequence[int] | np.ndarray, rows: Tensor) -> dict[str, np.ndarray]:
        return self.pool.posterior(self._there(clients), rows)

    def beside(self, others: Tensor, these: Tensor) -> Tensor:
        """Rows of the pool's other clients [C - n, D] and of these [n, D] -> [C, D], in the pool's order."""
        mine = torch.zeros(len(others) + len(these), dtype=torch.bool)
        mine[self.keys] = True
        rows = these.new_empty(len(mine), these.shape[1])
        rows[mine], rows[~mine] = these, others
        return rows

    def _there(self, clients: Sequence[int] | np.ndarray) -> np.ndarray:
        return self.keys[np.asarray(clients, dtype=np.int64)]


def parted(pool: Pool) -> tuple[Clients, Part | None]:
    """The clients that an algorithm is shown, and the unseen ones: the pool itself and None where all are seen.

    Raises `UserError` as `unseen`.
    """
    away = unseen(pool.config, pool.groups, pool.group_of)
    if not len(away):
        return pool, None
    return Part(pool, np.setdiff1d(np.arange(len(pool.sizes)), away)), Part(pool, away)


def unseen(config: RunConfig, groups: Sequence[str], group_of: np.ndarray) -> np.ndarray:
    """int64, ascending: `federation.unseen` clients of each group, or of all where groups are unknown, by the seed.

    groups: their names; group_of: [C] indices into them. Raises `UserError` where none of a group would be seen.
    """
    count = config.federation.unseen
    if not count:
        return np.zeros(0, dtype=np.int64)
    of = members(group_of, len(groups)) or [np.arange(len(group_of))]
    fewest, name = min((len(group), name) for group, name in zip(of, groups or [""], strict=True))
    if fewest <= count:
        where = f"group {name!r} has {fewest} clients" if name else f"there are {fewest} clients"
        raise UserError(
            f"federation.unseen is {count} but {where}, of whom one at least must be seen; "
            f"set --federation.unseen to at most {fewest - 1}"
        )
    drawn = [stream(config.seed, "unseen", g).permutation(group)[:count] for g, group in enumerate(of)]
    return np.sort(np.concatenate(drawn))
