"""FedAvg: McMahan et al., AISTATS 2017; "FL" in S2 (sections 2.1 and 3), and its oracle FL_target (S2 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raypref.algorithms.base import Algorithm, Metrics, State, loss_metrics
from raypref.clients.protocol import Clients
from raypref.data.federation import members
from raypref.rounds.aggregation import combine, size_weights
from raypref.rounds.sampling import group_debiased_sample, uniform_sample
from raypref.tools.errors import UserError
from raypref.tools.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig


TRUE_GROUPS = {"true group": "clients are drawn by their true groups"}
"""What oracles need, see `Algorithm.needs`."""


@dataclass(frozen=True)
class FedAvgState(State):
    theta: Tensor
    """[D] θ^(r), the global model."""


class FedAvg(Algorithm):
    """FL (FedAvg): one model for all, clients drawn uniformly, rows averaged by their number of pairs (S2 2.1)."""

    title: ClassVar[str] = "FL"
    weights: ClassVar[str] = "by N_c"
    state: ClassVar[type[State]] = FedAvgState
    needs: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_cohort(config, clients)

    def init(self) -> FedAvgState:
        return FedAvgState(round=0, theta=self.clients.start())

    def round(self, state: FedAvgState) -> tuple[FedAvgState, Metrics]:
        # 1. Sample S_r.
        cohort = self.sample(state.round)
        # 2. Each selected client runs τ local steps from θ^(r-1).
        returned = self.clients.train(cohort, state.theta, state.round, None, state.kept)
        # 3. θ^(r) = Σ_c (N_c / Σ N_c') θ_c^(r).
        theta = combine(size_weights(returned.sizes), returned.rows)
        return FedAvgState(state.round + 1, theta, kept=returned.kept), loss_metrics(returned)

    def sample(self, round: int) -> np.ndarray:
        """S_r, int64 [|S_r|]."""
        return uniform_cohort(self.config, self.clients, round)

    def initialization(self, state: FedAvgState) -> Tensor:
        return state.theta


class FedDPO(FedAvg):
    """FedDPO: FedAvg of policies that clients train by DPO, without a selector (Ye et al., 2024; S1 5.1)."""

    title: ClassVar[str] = "FedDPO"
    objective: ClassVar[str] = "dpo"


class FLTarget(FedAvg):
    """FL_target: FL with clients drawn evenly from the true groups, and nothing else changed; an oracle (S2 3.2)."""

    title: ClassVar[str] = "FL_target"
    needs: ClassVar[Mapping[str, str]] = TRUE_GROUPS

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
    count, seen = len(clients.sizes), "seen " if config.federation.unseen else ""
    if config.federation.cohort > count:
        raise UserError(
            f"federation.cohort is {config.federation.cohort} but there are {count} {seen}clients; "
            f"set --federation.cohort to at most {count}"
        )


def check_groups_known(config: RunConfig, clients: Clients) -> None:
    """`UserError` where an oracle is asked for without true groups."""
    if not clients.groups:
        raise UserError(
            f"{config.algorithm} needs the true groups, which this data set does not tell; name their column with "
            "--data.group-column, or use fedgd, which discovers them"
        )
