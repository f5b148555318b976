"""CL and Multi-CL: pooled data at one server, the references of S2 section 3. Nothing here is federated or private.

A pool trains as one virtual client with one AdamW throughout, for R · τ steps: as many as a federated model gets in R
rounds, each of them on batches from everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raypref.algorithms.base import Algorithm, Metrics, State
from raypref.algorithms.fedavg import check_groups_known
from raypref.clients.protocol import Clients
from raypref.data.federation import members
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig

BLOCKS, TOGETHER = 20, 5
"""Parts in which the steps are taken and saved, at most: by one process, and by several, which Ray Train starts anew
for each. None of them is a communication round."""


@dataclass(frozen=True)
class CentralizedState(State):
    """`round` counts blocks."""

    theta: Tensor
    """[G, D] a model a pool."""
    moments: Tensor
    """[G, 2, D] AdamW's running means of the gradient and of its square."""


class CL(Algorithm):
    """CL: one model on all data pooled, conflicting preferences within every batch; not federated (S2 section 3)."""

    title: ClassVar[str] = "CL"
    weights: ClassVar[str] = "none: pooled data"
    state: ClassVar[type[State]] = CentralizedState
    pooled: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, str]] = {"training pairs": "all of them are pooled at one server"}

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        self.steps = config.federation.rounds * config.federation.local_steps

    @property
    def rounds(self) -> int:
        return min(BLOCKS if self.config.clients.pooled_workers == 1 else TOGETHER, self.config.federation.rounds)

    def pool_of(self, clients: Clients) -> np.ndarray:
        """int64 [C], whose data each client's joins."""
        return np.zeros(len(clients.sizes), dtype=np.int64)

    def init(self) -> CentralizedState:
        start = self.clients.start().repeat(int(self.pool_of(self.clients).max()) + 1, 1)
        return CentralizedState(round=0, theta=start, moments=torch.zeros(len(start), 2, start.shape[1]))

    def round(self, state: CentralizedState) -> tuple[CentralizedState, Metrics]:
        begin, end = (self.steps * b // self.rounds for b in (state.round, state.round + 1))
        pools = members(self.pool_of(self.clients), len(state.theta))
        theta, moments, loss = self.clients.train_pooled(pools, state.theta, state.moments, begin, end)
        return CentralizedState(state.round + 1, theta, moments), {"train/loss": float(loss.mean())}

    def initialization(self, state: CentralizedState) -> Tensor:
        """θ_c^init = the model of c's pool: [C, D]."""
        return self.newcomers(state, self.clients)

    def newcomers(self, state: CentralizedState, clients: Clients) -> Tensor:
        return state.theta[self.pool_of(clients).tolist()]


class MultiCL(CL):
    """Multi-CL: one model a true group on its pooled data, so that nothing conflicts; an oracle (S2 section 3)."""

    title: ClassVar[str] = "Multi CL"
    needs: ClassVar[Mapping[str, str]] = {**CL.needs, "true group": "pairs are pooled by their true groups"}

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_groups_known(config, clients)

    def pool_of(self, clients: Clients) -> np.ndarray:
        check_groups_known(self.config, clients)
        return clients.group_of
