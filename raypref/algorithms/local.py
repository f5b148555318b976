"""Local: every client fine-tunes the frozen backbone alone, without a global phase (S2 section 5, baselines)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from raypref.algorithms.base import Algorithm, State

if TYPE_CHECKING:
    from torch import Tensor


class Local(Algorithm):
    """Local: every client fine-tunes the frozen base alone, without a global phase (S2 section 5)."""

    title: ClassVar[str] = "Local"
    weights: ClassVar[str] = "none"
    needs: ClassVar[Mapping[str, str]] = {}

    @property
    def rounds(self) -> int:
        return 0

    def init(self) -> State:
        return State(round=0)

    def initialization(self, state: State) -> Tensor:
        return self.clients.start()
