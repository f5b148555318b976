"""Soft-FL: soft clusters, each client a mixture of K models (S2 B.3, Algorithm 3).

The steps below keep the order of Algorithm 3; line numbers are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from raypref.algorithms.base import Metrics, State
from raypref.algorithms.fedavg import check_cohort, uniform_cohort
from raypref.clients.protocol import Clients
from raypref.config import RunConfig, UserError
from raypref.models.layout import orthogonal_init
from raypref.server.aggregation import combine
from raypref.server.clustering import soft_weights


@dataclass(frozen=True)
class SoftFLState(State):
    theta: Tensor
    """[K, D] θ_k."""
    w: Tensor
    """[K, C] float64 w_{k,c}, each client's weights over the experts."""


class SoftFL:
    """Algorithm 3. Fusion and averages act on A and B of the adapters apart, as everywhere in S2."""

    weights: ClassVar[str] = "by w_{k,c}, each client's validation accuracy of expert k, normalized"
    state: ClassVar[type[State]] = SoftFLState

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        self.config, self.clients = config, clients
        check_cohort(config, clients)
        K, r, narrow = config.experts.K, config.model.lora_r, min(clients.layout.sides)
        if K * r > narrow:
            raise UserError(
                f"Soft-FL starts its experts in mutually orthogonal subspaces, so experts.K x model.lora_r must be at "
                f"most {narrow}, the narrowest side of an adapted layer, but is {K} x {r}; lower one of them"
            )

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds

    def init(self) -> SoftFLState:
        """Line 1, after B.3's adapter initialization: K small, mutually orthogonal updates."""
        norms = self.clients.weight_norms()
        c = self.config
        theta = orthogonal_init(self.clients.layout, c.experts.K, norms, c.soft_fl.epsilon, c.soft_fl.jitter, c.seed)
        return SoftFLState(round=0, theta=theta, w=self.update_soft_weights(theta, self.clients))

    def round(self, state: SoftFLState) -> tuple[SoftFLState, Metrics]:
        r, w = state.round + 1, state.w.numpy()
        # 4. Sample S_r.
        cohort = uniform_cohort(self.config, self.clients, state.round)
        # 5-7. Fused initialization θ_c^fuse = Σ_k w_{k,c} θ_k.
        fused = combine(w[:, cohort].T, state.theta)
        # 8-10. Local training.
        returned = self.clients.train(cohort, fused, state.round)
        # 11-13. θ_k = Σ_c w_{k,c} θ_c^+ / Z_k; an expert to which nobody in S_r gives weight stays.
        share = w[:, returned.cohort]
        Z = share.sum(1)
        mean = combine(share / np.where(Z > 0, Z, 1.0)[:, None], returned.rows)
        theta = torch.where(torch.from_numpy(Z > 0)[:, None], mean, state.theta)
        # 14-16. Refresh the weights every T rounds and at R.
        refresh = r % self.config.experts.T == 0 or r == self.rounds
        weights = self.update_soft_weights(theta, self.clients) if refresh else state.w
        # The effective number of experts a client draws on: K where its weights are uniform, 1 where they are hard.
        effective = float((1.0 / (weights**2).sum(0)).mean())
        metrics = {"train/loss": float(returned.loss.mean()), "experts/effective": effective}
        return SoftFLState(r, theta, weights), metrics

    def update_soft_weights(self, theta: Tensor, clients: Clients) -> Tensor:
        """UpdateSoftWeights (lines 25-31): [K, C] float64."""
        return torch.from_numpy(soft_weights(clients.evaluate(theta, "validation")["accuracy"]))

    def initialization(self, state: SoftFLState) -> Tensor:
        """θ_c^init = Σ_k w_{k,c} θ_k^(R) (line 20): [C, D]."""
        return combine(state.w.numpy().T, state.theta)

    def newcomers(self, state: SoftFLState, clients: Clients) -> Tensor:
        """The same with the weights that lines 25-31 give them."""
        return combine(self.update_soft_weights(state.theta, clients).numpy().T, state.theta)
