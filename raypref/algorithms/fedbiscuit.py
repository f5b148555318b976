"""FedBiscuit: size-balanced hard clusters, one model each (Wu et al., ICLR 2025; as S2 B.2, Algorithm 2, has it).

The steps below keep the order of Algorithm 2; line numbers are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raypref.algorithms.base import Algorithm, Metrics, State, loss_metrics
from raypref.algorithms.experts import ExpertsConfig, check_experts
from raypref.algorithms.fedavg import check_cohort, uniform_cohort
from raypref.clients.protocol import Clients
from raypref.rounds.aggregation import combine, residual_weights, size_weights, uniform_weights
from raypref.rounds.clustering import balance, lowest_loss
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig


@dataclass(frozen=True)
class FedBiscuitState(State):
    theta: Tensor
    """[K, D] θ_k."""
    assignment: list[int]
    """[C] π(c), from 0; -1 during the warm-up. After the last round π*_c, each client's own choice."""


class FedBiscuit(Algorithm):
    """FedBiscuit: clients in K clusters of equal size, one model each (S2, Algorithm 2).

    It executes K · T warm-up rounds and then R - T others, and counts them all.
    """

    title: ClassVar[str] = "FedBiscuit"
    weights: ClassVar[str] = "warm-up uniform; then p_c = N_c / Σ N with the rest kept"
    state: ClassVar[type[State]] = FedBiscuitState
    parameters: ClassVar[Mapping[str, type]] = {"experts": ExpertsConfig}
    needs: ClassVar[Mapping[str, str]] = {
        "update": "an expert is averaged over the one or two clients of its cluster in a cohort",
        "readings/validation/loss": "clients go to the expert of their lowest loss, clusters of equal size",
    }
    rounds_note: ClassVar[str] = "FedBiscuit's include its warm-up (K·T + R - T)"

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_cohort(config, clients)
        check_experts(config, clients)
        self.K, self.T = (experts := config.of(ExpertsConfig)).K, experts.T
        if config.federation.rounds <= self.T:
            raise UserError(
                f"FedBiscuit warms each expert up for experts.T rounds out of federation.rounds, but T is "
                f"{self.T} and rounds {config.federation.rounds}; lower --experts.T"
            )
        self.warm_up = self.K * self.T

    @property
    def rounds(self) -> int:
        return self.warm_up + self.config.federation.rounds - self.T

    def init(self) -> FedBiscuitState:
        """The experts share one LoRA start; the warm-up's cohorts make them differ."""
        start = self.clients.start()
        return FedBiscuitState(round=0, theta=start.repeat(self.K, 1), assignment=[-1] * len(self.clients.sizes))

    def round(self, state: FedBiscuitState) -> tuple[FedBiscuitState, Metrics]:
        return self.warm(state) if state.round < self.warm_up else self.cluster(state)

    def warm(self, state: FedBiscuitState) -> tuple[FedBiscuitState, Metrics]:
        """Phase 1 (lines 3-12): T rounds of FedAvg with uniform weights for one expert after another."""
        k = state.round // self.T
        # 5-9. S_{t,k} trains expert k.
        returned = self.clients.train(
            uniform_cohort(self.config, self.clients, state.round), state.theta[k], state.round
        )
        # 10. Uniform average.
        theta = state.theta.clone()
        theta[k] = combine(uniform_weights(len(returned.cohort)), returned.rows)
        return replace(state, round=state.round + 1, theta=theta), loss_metrics(returned)

    def cluster(self, state: FedBiscuitState) -> tuple[FedBiscuitState, Metrics]:
        """Phase 2 (lines 14-38): clustered rounds, with size-balanced reassignment every T of them."""
        K, pi, moved = self.K, np.asarray(state.assignment), 0
        # 15-26. Reassignment by validation loss, then size balancing.
        if (state.round - self.warm_up) % self.T == 0:
            losses = self.losses(state.theta, self.clients)
            pi = balance(lowest_loss(losses), losses)
            moved = int(np.sum(pi != np.asarray(state.assignment)))
        # 27-34. S_r, uniform; each client trains the expert of its own cluster.
        cohort = uniform_cohort(self.config, self.clients, state.round)
        returned = self.clients.train(cohort, state.theta[pi[cohort]], state.round)
        # 1, 35. Weighted aggregation with residual.
        p = size_weights(self.clients.sizes)[returned.cohort]
        theta = combine(residual_weights(pi[returned.cohort], p, K), torch.cat([state.theta, returned.rows]))
        # 39-43. At the end each client chooses the expert of its lowest validation loss, without balancing.
        if state.round + 1 == self.rounds:
            pi = lowest_loss(self.losses(theta, self.clients))
        metrics = loss_metrics(returned) | {"groups/moved": float(moved)}
        return FedBiscuitState(state.round + 1, theta, pi.tolist()), metrics

    def losses(self, theta: Tensor, clients: Clients) -> np.ndarray:
        """ℓ_{c,k} = ValLoss(θ_k, D_val^c), [K, C]."""
        return clients.evaluate(theta, "validation")["loss"]

    @classmethod
    def groups(cls, state: FedBiscuitState) -> list[int]:
        return state.assignment

    @classmethod
    def selectors(cls, state: FedBiscuitState) -> Tensor:
        """The experts, with a vote each (S1 C.4: U = 3)."""
        return state.theta

    def initialization(self, state: FedBiscuitState) -> Tensor:
        """θ_c^init = θ_{π*_c}^(R) (line 45): [C, D]."""
        return state.theta[state.assignment]

    def newcomers(self, state: FedBiscuitState, clients: Clients) -> Tensor:
        """The expert of each one's lowest validation loss, as lines 39-43."""
        return state.theta[lowest_loss(self.losses(state.theta, clients)).tolist()]
