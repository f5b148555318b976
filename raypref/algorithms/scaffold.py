"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020, arXiv 1910.06378, Algorithm 1).

First the client's half, lines 6-14, then the server's; the steps keep the order of Algorithm 1, whose line numbers they
have. The paper's local step is SGD's; here the corrected gradient goes to AdamW, as that of every method here. c_i⁺ is
the mean of the raw local gradients, which is what the paper's option II comes to under SGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raypref.algorithms.base import Metrics, State, loss_metrics
from raypref.algorithms.fedavg import FedAvg, FedAvgState
from raypref.clients.half import ClientHalf, Message, Start
from raypref.config.fields import setting
from raypref.rounds.aggregation import combine, uniform_weights
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.clients.kept import Arrays
    from raypref.config import RunConfig
    from raypref.models.layout import Layout


@dataclass(frozen=True)
class ScaffoldConfig:
    """SCAFFOLD (Karimireddy et al., ICML 2020)."""

    eta: float = setting(1.0, above=0)
    """η_g, the server's step size (the paper takes 1)."""


@dataclass(frozen=True)
class ScaffoldState(FedAvgState):
    c: Tensor
    """[D] the server's control variate: what the clients' c_i are on average."""


class ScaffoldHalf(ClientHalf):
    """Lines 6-14 at n clients; c_i stays at the client."""

    def __init__(self, config: RunConfig, start: Start) -> None:
        super().__init__(config, start)
        rows = start.rows
        self.c = torch.from_numpy(np.array(start.message.shared["c"])).to(rows)
        """[D]"""
        none = torch.zeros_like(rows[0])
        self.c_i = torch.stack([torch.tensor(a["c"]).to(rows) if a else none for a in start.kept])
        """[n, D] as they were before the round."""
        self.total, self.steps = torch.zeros_like(rows), 0
        """[n, D] the sum of the raw gradients g_i(y_i) of so many steps."""

    def gradient(self, gradient: Tensor) -> Tensor:
        """10. g_i(y_i) - c_i + c."""
        self.total, self.steps = self.total + gradient, self.steps + 1
        return gradient - self.c_i + self.c

    @property
    def renewed(self) -> Tensor:
        """12. c_i⁺ [n, D]: the mean of g_i(y_i) over the local steps; c_i before any."""
        return self.total / self.steps if self.steps else self.c_i

    def report(self) -> dict[str, np.ndarray]:
        """13. Δc_i = c_i⁺ - c_i."""
        return {"delta_c": (self.renewed - self.c_i).cpu().numpy()}

    def keep(self) -> list[Arrays]:
        """14. c_i ← c_i⁺."""
        return [{"c": c} for c in self.renewed.cpu().numpy()]

    @classmethod
    def reports(cls, config: RunConfig, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"delta_c": (layout.width,)}


class Scaffold(FedAvg):
    """SCAFFOLD: FedAvg whose local gradients are corrected for client drift (Karimireddy et al., ICML 2020)."""

    title: ClassVar[str] = "SCAFFOLD"
    weights: ClassVar[str] = "uniform"
    state: ClassVar[type[State]] = ScaffoldState
    parameters: ClassVar[Mapping[str, type]] = {"scaffold": ScaffoldConfig}
    client: ClassVar[type[ClientHalf]] = ScaffoldHalf
    needs: ClassVar[Mapping[str, str]] = {}

    def init(self) -> ScaffoldState:
        """1. x, and c = c_i = 0."""
        theta = self.clients.start()
        return ScaffoldState(round=0, theta=theta, c=torch.zeros_like(theta))

    def round(self, state: ScaffoldState) -> tuple[ScaffoldState, Metrics]:
        # 3. Sample S.
        cohort = self.sample(state.round)
        # 4-14. Send x and c; at the clients the corrected local steps.
        message = Message(shared={"c": state.c.numpy()})
        returned = self.clients.train(cohort, state.theta, state.round, message, state.kept)
        n = len(returned.cohort)
        # 16-17. x ← x + η_g · mean of y_i - x; c ← c + |S|/N · mean of Δc_i.
        eta, mean = self.config.of(ScaffoldConfig).eta, uniform_weights(n)
        theta = (1 - eta) * state.theta + eta * combine(mean, returned.rows)
        share = n / len(self.clients.sizes)
        c = state.c + share * combine(mean, torch.from_numpy(returned.statistics["delta_c"]))
        metrics = loss_metrics(returned) | {"scaffold/c": float(c.norm())}
        return ScaffoldState(state.round + 1, theta, c, kept=returned.kept), metrics
