"""The client's half of an algorithm: what it does at its clients beside the objective's loss.

An algorithm names its half as `client`; the worker makes one for each stretch of local training of a round. The default
adds nothing, which is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raypref.models.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.clients.kept import Arrays
    from raypref.config import RunConfig
    from raypref.objectives.base import Batch, Loss, Objective


@dataclass(frozen=True)
class Message:
    """What a server sends a cohort of n clients beside their rows."""

    shared: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By name: the same for every client."""
    each: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By name: n first, a client's own."""
    about: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64 [P] `Clients.keys` of the clients that `shared` is about; an address, and no part of `nbytes`."""

    def of(self, index: np.ndarray) -> Message:
        """To these of the n clients only."""
        return replace(self, each={name: values[index] for name, values in self.each.items()})

    def nbytes(self, n: int) -> int:
        """Bytes sent to n clients."""
        return n * sum(v.nbytes for v in self.shared.values()) + sum(v.nbytes for v in self.each.values())


@dataclass(frozen=True)
class Start:
    """A stretch of local training of n clients before its first step."""

    clients: np.ndarray
    """int64 [n] `Clients.keys` of the clients."""
    rows: Tensor
    """[n, D] what they start from."""
    message: Message
    kept: Sequence[Arrays]
    """[n] what each keeps from earlier rounds; {} at its first."""
    layout: Layout
    steps: int
    """τ"""
    objective: Objective
    """What the rows are trained on. In a forecast the bare class, which reads nothing."""
    alone: bool = False
    """Whether what is the clients' own is fitted alone, and the rows stay as they were sent."""


class ClientHalf:
    """One stretch of n clients; everything that it does is stacked, n first."""

    passes: ClassVar[int] = 1
    """Models that a client trains in a step, each of which reads the objective and counts as a step of its own."""
    fits: ClassVar[bool] = False
    """Whether clients have a part of their own that can be fitted alone, by `fit_steps` local steps or at once by
    `fitted`: where they keep none yet, and to a few of their choices."""

    def __init__(self, config: RunConfig, start: Start) -> None:
        self.config, self.start = config, start

    @classmethod
    def part(cls, config: RunConfig) -> str:
        """What people are told of the part that is the clients' own, where it `fits`: `a head`."""
        return "a part of the model"

    def trained(self) -> list[dict[str, Any]]:
        """Tensors of the clients' own that are trained beside the rows, as AdamW's parameter groups: {"params":
        [tensor], "lr": …}."""
        return []

    def model(self, rows: Tensor, step: int) -> Tensor:
        """[n, D] where the objective is read in a step, counted from 0, given the rows [n, …] as they are by then. What
        has no part in it (or is detached) is left as it is in that step, also by AdamW's momentum."""
        return rows

    def loss(self, rows: Tensor, batch: Batch, loss: Loss) -> Loss:
        """The loss of a step, given the objective's: with further parts, or with others in their place."""
        return loss

    def gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the rows that AdamW is given, given the loss's own."""
        return gradient

    def report(self) -> dict[str, np.ndarray]:
        """What each client sends to the server beside its row, n first, after the last step."""
        return {}

    def fitted(self, known: Sequence[Sequence[np.ndarray]]) -> list[Tensor]:
        """[n, D] a set: what clients judge by whose own part is fitted to these of their training pairs alone. known:
        of each set, which pairs of each client."""
        raise NotImplementedError

    def result(self, rows: Tensor) -> Tensor:
        """[n, …] what goes back to the server, given the rows after the last step."""
        return rows

    def personal(self, rows: Tensor) -> Tensor:
        """[n, D] what each client judges by and is personalized from, given the rows [n, …] that it was sent."""
        return rows

    def keep(self) -> list[Arrays]:
        """[n] what each client keeps for its next round, {} for nothing new."""
        return [{} for _ in self.start.clients]

    @classmethod
    def fit_steps(cls, config: RunConfig) -> int:
        """Local steps that fit a client's own part alone; 0: `fitted` does."""
        return 0

    @classmethod
    def fit_rows(cls, config: RunConfig) -> int:
        """Rows that `fitted` reads a client's training pairs with, for forecasts."""
        return 0

    @classmethod
    def context_marks(cls, config: RunConfig) -> tuple[int, ...]:
        """Numbers of a client's choices that its own part is fitted to, for the accuracy by how many there are."""
        return ()

    @classmethod
    def reports(cls, config: RunConfig, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of one client's float32 part of `report`, for forecasts. layout: of a narrower row, maybe."""
        return {}
