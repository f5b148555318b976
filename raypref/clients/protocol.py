"""What an algorithm may ask of its clients: the only way in which it reaches data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from raypref.clients.half import Message
from raypref.clients.kept import Kept
from raypref.models.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Trained:
    """What the n clients of a cohort that answered send back, in ascending client order."""

    cohort: np.ndarray
    """int64 [n] their positions."""
    rows: Tensor
    """[n, D] locally trained parameters θ_c^(r)."""
    sizes: np.ndarray
    """int64 [n] N_c, training pairs."""
    loss: np.ndarray
    """float64 [n] mean training loss over the local steps."""
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    """The parts of which the loss is the sum, by name, [n] each; for people to see, and no communication."""
    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    """What the algorithm's client half reports beside the rows, n first."""
    kept: Kept = field(default_factory=Kept)
    """What all clients keep now."""


@dataclass
class Usage:
    """What has been spent. Methods are compared at equal budgets, so every result carries it."""

    client_steps: int = 0
    """Optimizer steps, summed over clients; of two models that a client trains side by side, those of both."""
    bytes_down: int = 0
    """Server to clients, float32 rows."""
    bytes_up: int = 0
    rounds: int = 0
    """Communication rounds: cohorts that trained."""
    dropped: int = 0
    """Times that a client of a cohort did not answer (`federation.dropout`)."""

    def add(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Clients(Protocol):
    """C clients, addressed by position."""

    layout: Layout
    sizes: np.ndarray
    """int64 [C] N_c, training pairs."""
    keys: np.ndarray
    """int64 [C] what each is known by at the clients' side, whatever its position among those an algorithm is shown."""
    groups: tuple[str, ...]
    """Names of the true groups, empty where they are unknown."""
    group_of: np.ndarray
    """int64 [C] true group of each client, for oracles and diagnostics; -1 where unknown."""
    used: Usage
    """Counts since the start of this process."""

    def start(self) -> Tensor:
        """[D] what training starts from."""
        ...

    def train(
        self,
        cohort: Sequence[int] | np.ndarray,
        rows: Tensor,
        round: int,
        message: Message | None = None,
        kept: Kept | None = None,
    ) -> Trained:
        """τ local steps of each client of the cohort from its row: rows [n, D], or [D] for all alike. The message's
        `each` are in the cohort's order; kept: what all clients keep from earlier rounds. Not all need answer
        (`federation.dropout`): go on with `Trained.cohort`."""
        ...

    def compose(self, clients: Sequence[int] | np.ndarray, rows: Tensor, kept: Kept) -> Tensor:
        """What each client judges by, [n, D]: made at the client (`ClientHalf.personal`) of the rows that it is sent,
        as in `train`, and of what it keeps; one that keeps nothing may fit what is its own to its training pairs first.
        It stays there: the server holds it only to save it, and it is no communication. clients: ascending."""
        ...

    def train_pooled(
        self, pools: Sequence[np.ndarray], rows: Tensor, moments: Tensor, begin: int, end: int
    ) -> tuple[Tensor, Tensor, np.ndarray]:
        """Steps `begin` to `end` of R · τ of one virtual client a pool, which has its members' training pairs.

        pools: [G] client positions. rows [G, D]; moments [G, 2, D] AdamW's running means of the gradient and of its
        square, zero at the start -> both after the steps, and the mean loss [G]. Data leave the clients: this is for
        references that are not federated.
        """
        ...

    def weight_norms(self) -> dict[str, float]:
        """Frobenius norm of the frozen weight of every adapted module."""
        ...

    def evaluate(self, rows: Tensor, fold: str) -> dict[str, np.ndarray]:
        """Every client judges its fold with each of rows [K, D]: metric -> float64 [K, C]."""
        ...

    def latents(self, row: Tensor) -> np.ndarray:
        """Every client infers the mean of its latent preference from its training pairs and row [D], and sends it:
        float32 [C, d]."""
        ...

    def posterior(self, clients: Sequence[int] | np.ndarray, rows: Tensor) -> dict[str, np.ndarray]:
        """What each client's training pairs say of its latent preference, n first (`Objective.posterior`): for people
        to see. No method reads it, and it is no communication."""
        ...


@dataclass(frozen=True)
class Placement:
    """Which worker holds which clients, and in which stacks a cohort trains: a pure function of the configuration."""

    clients: int
    """C"""
    per_worker: int
    """Clients a worker holds; 0: all."""
    stack: int
    """Most clients in one pass."""
    workers: int = field(init=False)

    def __post_init__(self) -> None:
        per = self.per_worker or self.clients
        object.__setattr__(self, "workers", -(-self.clients // per))

    def members(self, worker: int) -> np.ndarray:
        """int64, ascending: dealt in turn, so that neighbouring clients (often of one group) are spread."""
        return np.arange(worker, self.clients, self.workers)

    def stacks(self, cohort: Sequence[int] | np.ndarray) -> list[tuple[int, np.ndarray]]:
        """(worker, its clients of the cohort in ascending order, at most `stack` at a time)."""
        chosen = np.unique(np.asarray(cohort, dtype=np.int64))
        out = []
        for worker in range(self.workers):
            mine = chosen[chosen % self.workers == worker]
            out += [(worker, mine[i : i + self.stack]) for i in range(0, len(mine), self.stack)]
        return out
