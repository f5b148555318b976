"""An objective and an algorithm that only tests have: everything that a file of its own may do, with one line each.

The objective wants margins of at least `hinge.width`. The algorithm is FedAvg whose clients are held near where the
last cohorts moved to, with a weight that grows with how often a client has taken part, which the client remembers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raypref.algorithms import ALGORITHMS
from raypref.algorithms.base import Metrics, loss_metrics
from raypref.algorithms.fedavg import FedAvg, FedAvgState
from raypref.clients.half import ClientHalf, Message, Start
from raypref.config.fields import setting
from raypref.objectives import OBJECTIVES
from raypref.objectives.base import Batch, Loss
from raypref.objectives.choice import Choice, margins
from raypref.rounds.aggregation import combine, size_weights
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.models.layout import Layout


@dataclass(frozen=True)
class HingeConfig:
    width: float = setting(1.0, above=0)


class Hinge(Choice):
    """max(0, width - m)"""

    parameters: ClassVar[Mapping[str, type]] = {"hinge": HingeConfig}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if config.of(HingeConfig).width > 10:
            raise UserError(f"hinge.width is {config.of(HingeConfig).width:g}; no margin is that wide")

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        return "hinge"

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        logits = self.reader.selector.choice_logits(rows, batch.ids, batch.lengths, batch.dropout)
        width = self.config.of(HingeConfig).width
        return Loss({"hinge": torch.relu(width - margins(logits, batch.slots))}, batch.valid)


@dataclass(frozen=True)
class NudgeConfig:
    mu: float = setting(0.1, least=0)
    """Weight of the pull towards the anchor."""


class NudgedHalf(ClientHalf):
    """The client's half of `Nudged`."""

    def __init__(self, config: RunConfig, start: Start) -> None:
        super().__init__(config, start)
        self.anchor = start.rows + torch.from_numpy(np.array(start.message.shared["drift"])).to(start.rows)
        visits = [int(arrays["visits"][0]) if arrays else 0 for arrays in start.kept]
        self.visits = torch.tensor(visits)
        self.last = start.rows

    def loss(self, rows: Tensor, batch: Batch, loss: Loss) -> Loss:
        self.last = rows
        pull = config_mu(self.config) * (1 + self.visits) * ((rows - self.anchor) ** 2).sum(-1)
        return replace(loss, parts={**loss.parts, "nudge": pull})

    def gradient(self, gradient: Tensor) -> Tensor:
        return gradient.clamp(-1.0, 1.0)

    def report(self) -> dict[str, np.ndarray]:
        """How far each client moved."""
        return {"moved": (self.last.detach() - self.start.rows).norm(dim=-1, keepdim=True).cpu().numpy()}

    def keep(self) -> list[dict[str, np.ndarray]]:
        return [{"visits": np.array([int(visits) + 1])} for visits in self.visits]

    @classmethod
    def reports(cls, config: RunConfig, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"moved": (1,)}


def config_mu(config: RunConfig) -> float:
    return config.of(NudgeConfig).mu


@dataclass(frozen=True)
class NudgedState(FedAvgState):
    drift: Tensor
    """[D] where the last cohort moved on average."""


class Nudged(FedAvg):
    """FedAvg with a memory of where it was going, a method that only tests have."""

    title: ClassVar[str] = "Nudged"
    objective: ClassVar[str] = "hinge"
    state: ClassVar[type] = NudgedState
    parameters: ClassVar[Mapping[str, type]] = {"nudge": NudgeConfig}
    client: ClassVar[type[ClientHalf]] = NudgedHalf

    def init(self) -> NudgedState:
        theta = self.clients.start()
        return NudgedState(round=0, theta=theta, drift=torch.zeros_like(theta))

    def round(self, state: NudgedState) -> tuple[NudgedState, Metrics]:
        cohort = self.sample(state.round)
        message = Message(shared={"drift": state.drift.numpy()})
        returned = self.clients.train(cohort, state.theta, state.round, message, state.kept)
        theta = combine(size_weights(returned.sizes), returned.rows)
        metrics = loss_metrics(returned) | {"nudge/moved": float(returned.statistics["moved"].mean())}
        return NudgedState(state.round + 1, theta, theta - state.theta, kept=returned.kept), metrics


OBJECTIVES["hinge"] = "tests.tenants.nudge:Hinge"
ALGORITHMS["nudged"] = "tests.tenants.nudge:Nudged"
