"""DP-FedAvg: FedAvg with differential privacy for clients (McMahan et al., "Learning Differentially Private Recurrent
Language Models", ICLR 2018, arXiv 1710.06963, Algorithm 1).

Each client of a round is drawn by itself with probability q, what it sends is clipped to norm S, and the server adds
Gaussian noise once to the sum, which it divides by the q · N clients that it expects: the paper's estimator of a fixed
denominator, flat clipping and weights that are the same for all. Then one client more or less moves the sum by S at
most. The ε of what all rounds publish is counted by Rényi divergences (`raypref.rounds.privacy`), which the paper's
moments accountant is. First the client's half, the end of UserUpdate, then the server's; the server is trusted with the
sum, and needs no more of a cohort.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raypref.algorithms.base import Metrics, loss_metrics
from raypref.algorithms.fedavg import FedAvg, FedAvgState
from raypref.clients.half import ClientHalf
from raypref.clients.protocol import Clients
from raypref.config.fields import setting
from raypref.rounds.aggregation import combine
from raypref.rounds.privacy import clipped, epsilon, rdp
from raypref.rounds.sampling import poisson_sample
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch
from raypref.tools.rng import stream, torch_stream

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig


@dataclass(frozen=True)
class DPConfig:
    """DP-FedAvg (McMahan et al., ICLR 2018). Needs `pip install raypref[privacy]`, unless `noise` is 0."""

    promise: ClassVar[str] = "take dp_fedavg for a model with an ε"
    clip: float | None = setting(1.0, above=0)
    """S, the most that a client can move the sum of its cohort (a norm); None: no bound, and then no noise."""
    noise: float = setting(1.0, least=0)
    """z: the noise on that sum has standard deviation z · S. 0: none, and no ε."""
    delta: float = setting(0.0, least=0, below=1)
    """δ, at which ε is counted; 0: N^-1.1 of N clients, as in the paper."""

    def check(self) -> None:
        """`UserError` where noise has no scale."""
        if self.clip is None and self.noise:
            raise UserError(f"dp.noise is {self.noise:g} times dp.clip, which is None; give --dp.clip, or --dp.noise 0")


class DPHalf(ClientHalf):
    """What n clients send: θ and their Δ, clipped to norm S."""

    def result(self, rows: Tensor) -> Tensor:
        return clipped(rows, self.start.rows, self.config.of(DPConfig).clip)


class DPFedAvg(FedAvg):
    """DP-FedAvg: FedAvg whose model says little of any one client, with an ε and a δ (McMahan et al., ICLR 2018).

    `federation.cohort` is how many clients a round has on average. Without noise, without a bound, and with a cohort as
    large as is expected, of clients with equally many pairs, a round is FedAvg's to the bit.
    """

    title: ClassVar[str] = "DP-FedAvg"
    weights: ClassVar[str] = "uniform, over the expected number of clients"
    parameters: ClassVar[Mapping[str, type]] = {"dp": DPConfig}
    client: ClassVar[type[ClientHalf]] = DPHalf
    needs: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if config.federation.dropout:
            raise UserError(
                "dp_fedavg counts ε for clients that are drawn one by one, and federation.dropout waits for some where "
                "few answer; set --federation.dropout 0"
            )

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        self.options, N = config.of(DPConfig), len(clients.sizes)
        self.rate = config.federation.cohort / N
        """q"""
        self.delta = self.options.delta or N**-1.1
        self.divergence = rdp(self.options.noise, self.rate) if self.options.noise else None
        """Of one round."""

    def round(self, state: FedAvgState) -> tuple[FedAvgState, Metrics]:
        S, m = self.options.clip, self.config.federation.cohort
        # Each client with probability q, by itself; it may be nobody.
        cohort = poisson_sample(self.rate, len(self.clients.sizes), stream(self.config.seed, "cohort", state.round))
        n, theta, metrics = len(cohort), state.theta, {"train/loss": math.nan}
        if n:
            # UserUpdate: τ local steps from θ, and Δ_c clipped to norm S.
            returned = self.clients.train(cohort, theta, state.round)
            # θ ← θ + Σ_c Δ_c / (q N), of rows θ + Δ_c.
            theta = combine(np.full(n, 1 / m), returned.rows) + (1 - n / m) * theta
            metrics = loss_metrics(returned)
        # + N(0, z²S²) / (q N).
        if self.options.noise:
            draw = torch_stream(self.config.seed, "privacy", state.round)
            theta = theta + self.options.noise * S / m * torch.randn(theta.shape, generator=draw)
        metrics |= {"privacy/clients": float(n)} | self.spent(state.round + 1)
        return FedAvgState(state.round + 1, theta), metrics

    def spent(self, rounds: int) -> Metrics:
        """ε and δ of the models of so many rounds; none without noise."""
        if self.divergence is None:
            return {}
        return {"privacy/epsilon": epsilon(rounds * self.divergence, self.delta), "privacy/delta": self.delta}
