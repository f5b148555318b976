"""Local: every client fine-tunes the frozen backbone alone, without a global phase (S2 section 5, baselines)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from raypref.algorithms.base import Metrics, State
from raypref.clients.protocol import Clients
from raypref.config import RunConfig
from raypref.models.peft_io import start_row


class Local:
    """No rounds: personalization from the LoRA default initialization."""

    weights: ClassVar[str] = "none"
    state: ClassVar[type[State]] = State

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        self.config, self.clients = config, clients

    @property
    def rounds(self) -> int:
        return 0

    def init(self) -> State:
        return State(round=0)

    def round(self, state: State) -> tuple[State, Metrics]:
        raise AssertionError("Local has no rounds")

    def initialization(self, state: State) -> Tensor:
        return start_row(self.config, self.clients.layout)
