"""What an algorithm may ask of its clients: the only way in which it reaches data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from raypref.models.layout import Layout

PART = "part/"
"""What the names of a loss's parts begin with among a client's statistics; they are shown, and no communication."""


@dataclass(frozen=True)
class Context:
    """What a server tells a cohort of n clients beside their rows (S1 Algorithm 1, lines 6-8)."""

    peers: np.ndarray
    """int64 [P] the clients of whom the mixture prior is made; none: the standard Gaussian."""
    mean: np.ndarray
    """float32 [P, d] μ_j."""
    variance: np.ndarray
    """float32 [P, d] σ_j²."""
    log_weights: np.ndarray
    """float32 [n, P] each client's own ℓ. It never leaves the client but in a checkpoint: no other client is told
    it."""
    labels: np.ndarray | None = None
    """int64 [n] each client's prototype, -1 for none yet; None: no prototypes."""

    def of(self, index: np.ndarray) -> Context:
        """Only these of the n clients."""
        labels = None if self.labels is None else self.labels[index]
        return replace(self, log_weights=self.log_weights[index], labels=labels)

    @property
    def nbytes(self) -> int:
        """Sent down to a cohort: statistics to each of its clients, and a label."""
        return len(self.log_weights) * (self.mean.nbytes + self.variance.nbytes + 8 * (self.labels is not None))


@dataclass(frozen=True)
class Trained:
    """What a cohort of n clients sends back, in ascending client order."""

    cohort: np.ndarray
    """int64 [n] client positions."""
    rows: Tensor
    """[n, D] locally trained parameters θ_c^(r)."""
    sizes: np.ndarray
    """int64 [n] N_c, training pairs."""
    loss: np.ndarray
    """float64 [n] mean training loss over the local steps."""
    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    """What the objective reports beside, n first (see `raypref.clients.losses.Local.statistics`)."""


@dataclass(frozen=True)
class Personalized:
    """Some clients after personalization, and how they got there."""

    clients: np.ndarray
    """int64 [n]"""
    rows: Tensor
    """[n, D] θ_c^PFL."""
    curves: dict[str, dict[str, np.ndarray]]
    """fold ("validation", "test") -> metric of `raypref.objectives.choice.metrics` -> float64 [n, marks]."""
    margins: list[np.ndarray]
    """[n] float32 [marks, N_test]: the margin M of every test pair of a client at every mark."""
    diagnoses: dict[int, list[dict[str, np.ndarray]]]
    """mark -> [n] what `raypref.clients.diagnosis.diagnose` found there for each client, by name."""
    probes: dict[str, np.ndarray]
    """What only the objective can tell, before any local step, n first (see `raypref.clients.losses.Loss.probe`)."""


@dataclass
class Usage:
    """What has been spent. Methods are compared at equal budgets, so every result carries it."""

    client_steps: int = 0
    """Optimizer steps, summed over clients."""
    bytes_down: int = 0
    """Server to clients, float32 rows."""
    bytes_up: int = 0
    rounds: int = 0
    """Communication rounds: cohorts that trained."""

    def add(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Clients(Protocol):
    """C clients, addressed by position."""

    layout: Layout
    sizes: np.ndarray
    """int64 [C] N_c, training pairs."""
    groups: tuple[str, ...]
    """Names of the true groups, empty where they are unknown."""
    group_of: np.ndarray
    """int64 [C] true group of each client, for oracles and diagnostics; -1 where unknown."""
    used: Usage
    """Counts since the start of this process."""

    def train(
        self, cohort: Sequence[int] | np.ndarray, rows: Tensor, round: int, context: Context | None = None
    ) -> Trained:
        """τ local steps of each client of the cohort from its row: rows [n, D], or [D] for all alike. The context's n
        are in the cohort's order."""
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

    def posterior(self, clients: Sequence[int] | np.ndarray, rows: Tensor) -> dict[str, np.ndarray]:
        """What each client's training pairs say of its latent preference, n first (`raypref.clients.losses.Loss`): for
        people to see. No method reads it, and it is no communication."""
        ...

    def personalize(self, clients: Sequence[int] | np.ndarray, rows: Tensor) -> Personalized:
        """Local fine-tuning of each from its row [n, D], read at the marks."""
        ...

    def stacks(self) -> list[np.ndarray]:
        """The parts in which all clients are personalized: each is a unit that can be saved."""
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
