"""Soft-FL: soft clusters, each client a mixture of K models (S2 B.3, Algorithm 3).

The steps below keep the order of Algorithm 3; line numbers are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raypref.algorithms.base import Algorithm, Metrics, State, loss_metrics
from raypref.algorithms.experts import ExpertsConfig
from raypref.algorithms.fedavg import check_cohort, uniform_cohort
from raypref.clients.protocol import Clients
from raypref.config import registry
from raypref.config.fields import setting
from raypref.models.layout import orthogonal_init
from raypref.rounds.aggregation import combine
from raypref.rounds.clustering import soft_weights
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig


@dataclass(frozen=True)
class SoftFLConfig:
    """Soft-FL's orthogonal adapter start (S2 B.3)."""

    epsilon: float = setting(0.005, above=0)
    """ε: a layer's update starts at ε times the Frobenius norm of its frozen weight."""
    jitter: float = setting(0.01, least=0)
    """Expert k (from 0) starts (1 + jitter · k) times as large."""


@dataclass(frozen=True)
class SoftFLState(State):
    theta: Tensor
    """[K, D] θ_k."""
    w: Tensor
    """[K, C] float64 w_{k,c}, each client's weights over the experts."""


class SoftFL(Algorithm):
    """Soft-FL: every client is a mixture of K models (S2, Algorithm 3).

    Fusion and averages act on A and B of the adapters apart, as everywhere in S2.
    """

    title: ClassVar[str] = "Soft-FL"
    weights: ClassVar[str] = "by w_{k,c}, each client's validation accuracy of expert k, normalized"
    state: ClassVar[type[State]] = SoftFLState
    parameters: ClassVar[Mapping[str, type]] = {"experts": ExpertsConfig, "soft_fl": SoftFLConfig}
    needs: ClassVar[Mapping[str, str]] = {
        "update": "every expert takes a sum of its own, so that K of them tell clients apart",
        "readings/validation/accuracy": "they are each client's weights over the experts",
    }

    @classmethod
    def check(cls, config: RunConfig) -> None:
        objective = registry.objective(config.objective)
        if field := objective.given_start(config):
            raise UserError(f"soft_fl starts from orthogonal adapters of its own; leave {field} empty")
        if objective.has_prototypes:
            raise UserError(
                "soft_fl starts from orthogonal LoRA adapters and has no latent modules; take objective "
                f"{cls.objective}"
            )

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_cohort(config, clients)
        self.K, self.T = config.of(ExpertsConfig).K, config.of(ExpertsConfig).T
        K, r, sides, beside = self.K, config.model.lora_r, clients.layout.sides, clients.layout.beside
        if beside and beside < K:
            raise UserError(
                f"Soft-FL starts its experts as mutually orthogonal rows, so experts.K must be at most {beside}, the "
                f"parameters of a head, but is {K}; lower it"
            )
        if sides and K * r > (narrow := min(sides)):
            raise UserError(
                f"Soft-FL starts its experts in mutually orthogonal subspaces, so experts.K x model.lora_r must be at "
                f"most {narrow}, the narrowest side of an adapted layer, but is {K} x {r}; lower one of them"
            )

    def init(self) -> SoftFLState:
        """Line 1, after B.3's adapter initialization: K small, mutually orthogonal updates; of a row without adapters K
        small, mutually orthogonal rows."""
        options, norms = self.config.of(SoftFLConfig), self.clients.weight_norms()
        theta = orthogonal_init(self.clients.layout, self.K, norms, options.epsilon, options.jitter, self.config.seed)
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
        refresh = r % self.T == 0 or r == self.rounds
        weights = self.update_soft_weights(theta, self.clients) if refresh else state.w
        # The effective number of experts a client draws on: K where its weights are uniform, 1 where they are hard.
        effective = float((1.0 / (weights**2).sum(0)).mean())
        metrics = loss_metrics(returned) | {"experts/effective": effective}
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
