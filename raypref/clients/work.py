"""What a worker can be asked to do, and what comes back: plain values, so that they cross processes as they are.

`clients` are always `Clients.keys`, ascending; rows and results are in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raypref.clients.half import Message
from raypref.clients.kept import Arrays

if TYPE_CHECKING:
    from raypref.data.encode import EncodedClient


@dataclass(frozen=True)
class Work:
    """Something to do; `method` is the worker's method that does it."""

    method: ClassVar[str]


@dataclass(frozen=True)
class Train(Work):
    """τ local steps of each client from its row with a fresh AdamW, for round `round` -> `TrainedStack`."""

    method: ClassVar[str] = "train"
    clients: np.ndarray
    """int64 [n]"""
    rows: np.ndarray
    """float32 [n, D]"""
    round: int
    message: Message
    kept: Sequence[Arrays]
    """[n]"""


@dataclass(frozen=True)
class Compose(Work):
    """The row of each client, made of what it is sent and what it keeps, or fits where it keeps nothing -> float32
    [n, D]."""

    method: ClassVar[str] = "compose"
    clients: np.ndarray
    rows: np.ndarray
    """float32 [n, …] as in `Train`."""
    kept: Sequence[Arrays]


@dataclass(frozen=True)
class TrainPooled(Work):
    """Steps `begin` to `end` of R · τ of virtual clients -> `PooledStack`."""

    method: ClassVar[str] = "train_pooled"
    clients: np.ndarray
    rows: np.ndarray
    """float32 [n, D]"""
    moments: np.ndarray
    """float32 [n, 2, D] AdamW's running means of the gradient and of its square."""
    begin: int
    end: int


@dataclass(frozen=True)
class Hold(Work):
    """Take more clients in."""

    method: ClassVar[str] = "hold"
    data: Mapping[int, EncodedClient]


@dataclass(frozen=True)
class Evaluate(Work):
    """Every row on a fold of every client -> metric -> float64 [K, n]."""

    method: ClassVar[str] = "evaluate"
    clients: np.ndarray
    rows: Any
    """float32 [K, D], or what `Pool.share` made of it."""
    fold: str


@dataclass(frozen=True)
class Posteriors(Work):
    """What each client's training pairs say of its latent preference -> name -> [n, …]."""

    method: ClassVar[str] = "posterior"
    clients: np.ndarray
    rows: np.ndarray
    """float32 [n, D]"""


@dataclass(frozen=True)
class Latents(Work):
    """The mean of each client's latent preference, by its training pairs -> `mu` float32 [n, d]."""

    method: ClassVar[str] = "latent"
    clients: np.ndarray
    row: np.ndarray
    """float32 [D]"""


@dataclass(frozen=True)
class Personalize(Work):
    """Local fine-tuning of each client from its row, read at the marks -> `Personalized`."""

    method: ClassVar[str] = "personalize"
    clients: np.ndarray
    rows: np.ndarray
    """float32 [n, D]"""
    shared: np.ndarray | None = None
    """float32 [W] what all clients share, where they fit what is their own to it (`Algorithm.shared`)."""


@dataclass(frozen=True)
class Validate(Work):
    """Local fine-tuning of each client from its row, the first `steps` steps of `Personalize`, read on the validation
    fold -> metric -> float64 [n]."""

    method: ClassVar[str] = "validate"
    clients: np.ndarray
    rows: np.ndarray
    """float32 [n, D]"""
    steps: int


@dataclass(frozen=True)
class WeightNorms(Work):
    """Frobenius norm of the frozen weight of every adapted module, by name."""

    method: ClassVar[str] = "weight_norms"


@dataclass(frozen=True)
class TrainedStack:
    """n clients after `Train`."""

    rows: np.ndarray
    """float32 [n, D]"""
    loss: np.ndarray
    """float64 [n] mean over the steps."""
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    """The parts of which the loss is the sum, by name: float64 [n] means over the steps."""
    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    """What each client reports beside its row, n first (`raypref.clients.half.ClientHalf.report`)."""
    kept: Sequence[Arrays] = ()
    """[n] what each client keeps."""


@dataclass(frozen=True)
class PooledStack:
    """n virtual clients after `TrainPooled`."""

    rows: np.ndarray
    moments: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class Personalized:
    """Some clients after personalization, and how they got there."""

    clients: np.ndarray
    """int64 [n]"""
    rows: np.ndarray
    """float32 [n, D] θ_c^PFL."""
    curves: dict[str, dict[str, np.ndarray]]
    """fold ("validation", "test") -> metric of `raypref.objectives.choice.metrics` -> float64 [n, marks]."""
    margins: Sequence[np.ndarray]
    """[n] float32 [marks, N_test]: the margin M of every test pair of a client at every mark."""
    diagnoses: dict[int, list[dict[str, np.ndarray]]]
    """mark -> [n] what `raypref.objectives.base.Objective.diagnose` computed there for each client, by name."""
    probes: dict[str, np.ndarray]
    """What only some objectives and methods can tell, before any local step, n first (`Objective.probe`,
    `raypref.clients.worker.Worker.by_context`)."""
