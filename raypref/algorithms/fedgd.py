"""FedGD: federated learning with group debiasing (S2 section 4, Algorithm 1).

Phase 1 discovers the groups with K experts, phase 2 trains one model φ with group-debiased sampling over them. The
steps below keep the order of Algorithm 1; line numbers are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from raypref.algorithms.base import Algorithm, Metrics, State, loss_metrics
from raypref.algorithms.experts import ExpertsConfig, check_experts
from raypref.algorithms.fedavg import TRUE_GROUPS, check_cohort, check_groups_known
from raypref.clients.protocol import Clients
from raypref.config import registry
from raypref.config.fields import setting
from raypref.data.federation import members
from raypref.rounds.aggregation import combine, group_weights, hierarchical_weights, uniform_weights
from raypref.rounds.clustering import kmeans, lowest_loss, match_labels, random_assignment, reindex
from raypref.rounds.sampling import group_debiased_sample
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch
from raypref.tools.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig


@dataclass(frozen=True)
class FedGDConfig:
    """S2 section 4."""

    w: float = setting(0.6, above=0, most=1)
    """Mixing coefficient of the experts' moving average (S2 4.1, A.2)."""
    phase2_start: Literal["random", "continue"] = "random"
    """φ^(R/2): a fresh LoRA initialization, or θ_g of phase 1 (S2 C.3, Table 7)."""


@dataclass(frozen=True)
class FedGDState(State):
    theta: Tensor
    """[K, D] experts θ_k."""
    theta_g: Tensor
    """[D] reference model θ_g."""
    W: Tensor
    """[K, D] float64 W_k, sum of the models returned since the last reassignment."""
    n: Tensor
    """int64 [K] n_k, how many those are."""
    phi: Tensor
    """[D] φ, the model that is trained in phase 2."""
    assignment: list[int]
    """[C] π(c), from 0."""


class FedGD(Algorithm):
    """FedGD: discovers the groups, then trains one model with clients drawn evenly from them (S2, Algorithm 1)."""

    title: ClassVar[str] = "FedGD"
    weights: ClassVar[str] = "phase 1 uniform; phase 2 by N_c within a group, uniform across groups"
    state: ClassVar[type[State]] = FedGDState
    parameters: ClassVar[Mapping[str, type]] = {"experts": ExpertsConfig, "fedgd": FedGDConfig}
    needs: ClassVar[Mapping[str, str]] = {
        "update": "an expert is averaged over the one or two clients of its group in a cohort",
        "readings/validation/loss": "each client goes to the expert of its lowest loss",
    }
    rounds_note: ClassVar[str] = "FedGD's model gets R/2 of R, the others find the groups"

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_cohort(config, clients)
        check_experts(config, clients)
        self.options, self.K = config.of(FedGDConfig), config.of(ExpertsConfig).K
        self.T = T = config.of(ExpertsConfig).T
        R = config.federation.rounds
        if R % 2 or (R // 2) % T:
            raise UserError(
                f"{self.title} needs experts.T to divide federation.rounds / 2, but T is {T} and rounds {R}; "
                f"try --federation.rounds {max(1, round(R / (2 * T))) * 2 * T}"
            )
        self.half = R // 2

    def init(self) -> FedGDState:
        """Line 1: θ_g and the experts share one LoRA start; clients start from a uniform random assignment."""
        K, D = self.K, self.clients.layout.width
        start = self.clients.start()
        assignment = random_assignment(len(self.clients.sizes), K, stream(self.config.seed, "assignment"))
        return FedGDState(
            round=0,
            theta=start.repeat(K, 1),
            theta_g=start,
            W=torch.zeros(K, D, dtype=torch.float64),
            n=torch.zeros(K, dtype=torch.int64),
            phi=start,
            assignment=assignment.tolist(),
        )

    def round(self, state: FedGDState) -> tuple[FedGDState, Metrics]:
        return self.discover(state) if state.round < self.half else self.train(state)

    def discover(self, state: FedGDState) -> tuple[FedGDState, Metrics]:
        """Phase 1 (lines 3-22): one round of the experts, with a reassignment every T rounds and at the end."""
        r, K, w = state.round, self.K, self.options.w
        pi = np.asarray(state.assignment)
        theta, theta_g, W, n = state.theta, state.theta_g, state.W, state.n
        # 4-8. Every T rounds: reassign to the expert of lowest validation loss, reset the experts to θ_g.
        if r > 0 and r % self.T == 0:
            pi = self.reassign(theta)
            theta, W, n = theta_g.repeat(K, 1), torch.zeros_like(W), torch.zeros_like(n)
        # 9. G_r, the group-debiased cohort over the current groups.
        cohort = self.sample(pi, K, r)
        # 10-12. Each trains the expert of its own group.
        returned = self.clients.train(cohort, theta[pi[cohort]], r)
        # 13-18. Cumulative average s_k of the models returned since the reassignment, then a moving average.
        cohort = returned.cohort
        count = torch.from_numpy(np.bincount(pi[cohort], minlength=K))
        mean = combine(group_weights(pi[cohort], K), returned.rows)
        W, n = W + count[:, None] * mean.double(), n + count
        s = (W / n.clamp(min=1)[:, None]).float()
        theta = torch.where((count > 0)[:, None], (1 - w) * theta + w * s, theta)
        # 19. θ_g: uniform average over the cohort.
        theta_g = combine(uniform_weights(len(cohort)), returned.rows)
        # 21-22. At the end of the phase: reassign once more, discard empty groups, freeze.
        if r + 1 == self.half:
            pi = reindex(self.reassign(theta))
        # 24. φ^(R/2): a fresh LoRA initialization (state.phi already is), or θ_g ("continue", C.3).
        phi = theta_g if self.options.phase2_start == "continue" else state.phi
        metrics = loss_metrics(returned) | group_metrics(pi, state)
        return FedGDState(r + 1, theta, theta_g, W, n, phi, pi.tolist()), metrics

    def reassign(self, theta: Tensor) -> np.ndarray:
        """π(c) = argmin_k ValLoss(θ_k, D_val^c), int64 [C]."""
        return lowest_loss(self.clients.evaluate(theta, "validation")["loss"])

    def train(self, state: FedGDState) -> tuple[FedGDState, Metrics]:
        """Phase 2 (lines 25-35): one round of φ over the frozen groups A*_k."""
        pi = np.asarray(state.assignment)
        # 26. G_r over the frozen groups.
        cohort = self.sample(pi, int(pi.max()) + 1, state.round)
        # 27-29. Local training of φ.
        returned = self.clients.train(cohort, state.phi, state.round)
        # 30-34. Hierarchical aggregation: by N_c within a group, uniform across groups.
        phi = combine(hierarchical_weights(pi[returned.cohort], returned.sizes), returned.rows)
        return replace(state, round=state.round + 1, phi=phi), loss_metrics(returned)

    def sample(self, pi: np.ndarray, K: int, round: int) -> np.ndarray:
        """G_r, int64 [|G_r|]: the group-debiased cohort of a round over groups 0 … K - 1."""
        draw = stream(self.config.seed, "cohort", round)
        return group_debiased_sample(self.config.federation.cohort, members(pi, K), draw)

    @classmethod
    def groups(cls, state: FedGDState) -> list[int]:
        return state.assignment

    def initialization(self, state: FedGDState) -> Tensor:
        """θ_c^init = φ^(R) for every client."""
        return state.phi


def group_metrics(pi: np.ndarray, before: FedGDState) -> Metrics:
    """How many groups have clients, and how many clients a round has moved."""
    moved = pi != np.asarray(before.assignment)
    return {"groups/found": float(len(np.unique(pi))), "groups/moved": float(moved.sum())}


class FedGDLatent(FedGD):
    """FedGD that finds its groups in clients' latents: k-means of what all their choices say of z, in the place of
    experts' losses on a few validation pairs. Not S2's; for objectives with a latent."""

    title: ClassVar[str] = "FedGD by z"
    objective: ClassVar[str] = "bayes"
    needs: ClassVar[Mapping[str, str]] = {"latent/mu": "means are clustered: clients are drawn by these groups"}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if not registry.objective(config.objective).has_latent:
            raise UserError(f"{config.algorithm} clusters clients' latents; add --objective {cls.objective}")

    def init(self) -> FedGDState:
        """As FedGD's, without experts."""
        state = super().init()
        return replace(state, theta=state.theta[:0], W=state.W[:0], n=state.n[:0])

    def discover(self, state: FedGDState) -> tuple[FedGDState, Metrics]:
        """Phase 1 of one model θ_g instead of K experts: draw over the current groups, average, and cluster anew every
        T rounds and at the end."""
        done, pi = state.round + 1, np.asarray(state.assignment)
        returned = self.clients.train(self.sample(pi, self.K, state.round), state.theta_g, state.round)
        theta_g = combine(uniform_weights(len(returned.cohort)), returned.rows)
        if done % self.T == 0:  # and so at the end of the phase
            mu = self.clients.latents(theta_g).astype(np.float64)
            pi = kmeans(mu, self.K, stream(self.config.seed, "kmeans", state.round), balanced=False)
            pi = match_labels(pi, np.asarray(state.assignment), self.K)
        metrics = loss_metrics(returned) | group_metrics(pi, state)
        if done == self.half:
            pi = reindex(pi)
        phi = theta_g if self.options.phase2_start == "continue" else state.phi
        return replace(state, round=done, theta_g=theta_g, phi=phi, assignment=pi.tolist()), metrics


class FedGDTarget(FedGD):
    """FedGD_target: FedGD's second phase alone, over the true groups: what discovery can at best give (S2 4.2).

    S2 B.1 says that this "reduces exactly to FL_target"; it differs from it by the hierarchical weights and by R/2
    instead of R rounds, so both are offered.
    """

    title: ClassVar[str] = "FedGD_target"
    weights: ClassVar[str] = "by N_c within a true group, uniform across groups"
    needs: ClassVar[Mapping[str, str]] = TRUE_GROUPS

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_groups_known(config, clients)

    def init(self) -> FedGDState:
        """The true groups as the frozen partition, at the start of phase 2."""
        return replace(super().init(), round=self.half, assignment=self.clients.group_of.tolist())
