"""A part of the model at each client: what FedRep and LoRe share.

Such a part can be fitted to a client's choices alone, what all share held as it is: at clients that never took part,
and to a few choices only, for the accuracy by how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from raypref.clients.half import ClientHalf
from raypref.config.fields import setting
from raypref.objectives.base import check_context_marks

if TYPE_CHECKING:
    from raypref.config import RunConfig


@dataclass(frozen=True)
class FitConfig:
    """Methods that keep a part of the model at each client (FedRep, LoRe)."""

    context_marks: tuple[int, ...] = setting((1, 2, 4, 8, 16, 64), part="shown", least=1)
    """Read-outs before any local step with that part fitted to so many of the client's training pairs only (all, where
    it has fewer). An objective with a latent z has marks of its own."""

    def check(self) -> None:
        """`UserError` where the marks do not rise."""
        check_context_marks("fit.context_marks", self.context_marks)


class FittedHalf(ClientHalf):
    """A half with a part of each client's own, by the section `fit`."""

    fits: ClassVar[bool] = True

    @classmethod
    def context_marks(cls, config: RunConfig) -> tuple[int, ...]:
        return config.of(FitConfig).context_marks
