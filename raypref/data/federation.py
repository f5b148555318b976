"""What a federated preference data set is, once read: people with pairs, each pair in one fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

FOLDS = ("train", "validation", "test")


@dataclass(frozen=True)
class Pair:
    """One choice: `chosen` was preferred to `rejected` as an answer to `prompt` (S2 2.1: x, y⁺, y⁻)."""

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class Client:
    """One person. Clients are ordered by id in a federation; c is the position."""

    id: str
    group: str
    """True preference group; empty where it is unknown."""
    train: tuple[Pair, ...]
    validation: tuple[Pair, ...]
    test: tuple[Pair, ...]

    def fold(self, name: str) -> tuple[Pair, ...]:
        """The pairs of one of `FOLDS`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]


@dataclass(frozen=True)
class Federation:
    """All clients of a run, and what was counted while reading them."""

    clients: tuple[Client, ...]
    notes: tuple[str, ...] = field(default=())
    """Sentences for the person who runs it: rows left out and why, overlaps, clients dropped."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients' names."""
        return tuple(c.id for c in self.clients)

    @property
    def groups(self) -> tuple[str, ...]:
        """Distinct true groups in sorted order; empty where any client's is unknown."""
        names = {c.group for c in self.clients}
        return () if "" in names else tuple(sorted(names))

    @property
    def group_of(self) -> np.ndarray:
        """[C] index of each client's true group in `groups`; -1 everywhere where they are unknown."""
        index = {name: i for i, name in enumerate(self.groups)}
        return np.array([index.get(c.group, -1) for c in self.clients], dtype=np.int64)

    def sizes(self, fold: str = "train") -> np.ndarray:
        """Pairs of every client: [C] (S2: N_c for the training fold)."""
        return np.array([len(c.fold(fold)) for c in self.clients], dtype=np.int64)


def members(group_of: Sequence[int] | np.ndarray, count: int) -> list[np.ndarray]:
    """The client positions of each of `count` groups, ascending: 𝒜_k = {c : π(c) = k}."""
    assignment = np.asarray(group_of)
    return [np.flatnonzero(assignment == k) for k in range(count)]
