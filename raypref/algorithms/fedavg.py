"""FedAvg: McMahan et al., AISTATS 2017; "FL" in S2 (sections 2.1 and 3), and its oracle FL_target (S2 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from raypref.algorithms.base import Metrics, State
from raypref.clients.protocol import Clients
from raypref.config import RunConfig, UserError
from raypref.data.federation import members
from raypref.models.peft_io import start_row
from raypref.server.aggregation import combine, size_weights
from raypref.server.sampling import group_debiased_sample, uniform_sample
from raypref.tools.rng import stream


@dataclass(frozen=True)
class FedAvgState(State):
    theta: Tensor
    """[D] θ^(r), the global model."""


class FedAvg:
    """FL: one model, uniform sampling, average by N_c."""

    weights: ClassVar[str] = "by N_c"
    state: ClassVar[type[State]] = FedAvgState

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        self.config, self.clients = config, clients
        check_cohort(config, clients)

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds

    def init(self) -> FedAvgState:
        return FedAvgState(round=0, theta=start_row(self.config, self.clients.layout))

    def round(self, state: FedAvgState) -> tuple[FedAvgState, Metrics]:
        # 1. Sample S_r.
        cohort = self.sample(state.round)
        # 2. Each selected client runs τ local steps from θ^(r-1).
        returned = self.clients.train(cohort, state.theta, state.round)
        # 3. θ^(r) = Σ_c (N_c / Σ N_c') θ_c^(r).
        theta = combine(size_weights(returned.sizes), returned.rows)
        return FedAvgState(state.round + 1, theta), {"train/loss": float(returned.loss.mean())}

    def sample(self, round: int) -> np.ndarray:
        """S_r, int64 [|S_r|]."""
        return uniform_cohort(self.config, self.clients, round)

    def initialization(self, state: FedAvgState) -> Tensor:
        return state.theta


class FLTarget(FedAvg):
    """FL_target: FedAvg with only its sampling changed, to group-debiased sampling over the *true* groups (S2 3.2)."""

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_groups_known(config, clients)

    def sample(self, round: int) -> np.ndarray:
        groups = members(self.clients.group_of, len(self.clients.groups))
        return group_debiased_sample(self.config.federation.cohort, groups, stream(self.config.seed, "cohort", round))


def uniform_cohort(config: RunConfig, clients: Clients, round: int) -> np.ndarray:
    """S_r, int64 [|S_r|]: drawn uniformly from all clients (S2 2.1)."""
    return uniform_sample(config.federation.cohort, len(clients.sizes), stream(config.seed, "cohort", round))


def check_cohort(config: RunConfig, clients: Clients) -> None:
    """`UserError` where more clients a round are asked for than there are."""
    count = len(clients.sizes)
    if config.federation.cohort > count:
        raise UserError(
            f"federation.cohort is {config.federation.cohort} but there are {count} {_seen(config)}clients; "
            f"set --federation.cohort to at most {count}"
        )


def check_experts(config: RunConfig, clients: Clients) -> None:
    """`UserError` where there are more experts than clients."""
    K, count = config.experts.K, len(clients.sizes)
    if count < K:
        raise UserError(
            f"experts.K is {K} but there are {count} {_seen(config)}clients; set --experts.K to at most {count}"
        )


def _seen(config: RunConfig) -> str:
    return "seen " if config.federation.unseen else ""


def check_groups_known(config: RunConfig, clients: Clients) -> None:
    """`UserError` where an oracle is asked for without true groups."""
    if not clients.groups:
        raise UserError(
            f"{config.algorithm} needs the true groups, which this data set does not tell; name their column with "
            "--data.group-column, or use fedgd, which discovers them"
        )
