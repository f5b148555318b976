"""FedRep: a body that all share, and a head at each client (Collins et al., "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, arXiv 2102.07078, Algorithm 1).

First the client's half, then the server's; the steps keep the order of Algorithm 1. Which parameters are the head, the
objective says (`Objective.head`): of LoRA those of the last block. Rows that travel are bodies. Steps are AdamW's, as
everywhere here, and the paper's epochs of head and body are shares of the τ local steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from raypref.algorithms.base import Algorithm, Metrics, State, loss_metrics
from raypref.algorithms.fedavg import FedAvgState, check_cohort, uniform_cohort
from raypref.algorithms.fitted import FitConfig, FittedHalf
from raypref.clients.half import ClientHalf, Start
from raypref.clients.kept import Kept
from raypref.clients.protocol import Clients
from raypref.config import registry
from raypref.config.fields import setting
from raypref.rounds.aggregation import combine, uniform_weights
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.clients.kept import Arrays
    from raypref.config import RunConfig
    from raypref.models.layout import Layout


@dataclass(frozen=True)
class FedRepConfig:
    """FedRep (Collins et al., ICML 2021)."""

    head: float = setting(0.5, above=0, below=1)
    """Share of the τ local steps that train the head; they come first, the others train the body (the paper: 10 epochs
    of the head, then 1 to 5 of the body)."""
    fit_steps: int = setting(10, least=1)
    """Local steps in which a client that has no head yet trains one alone, before it is judged or personalized."""


def head_of(config: RunConfig, layout: Layout) -> Tensor:
    """bool [D]: the parameters that stay at the client."""
    return registry.objective(config.objective).head(config, layout)


class FedRepHalf(FittedHalf):
    """The client's updates for n clients: the head first, given the body, then the body, given the head."""

    def __init__(self, config: RunConfig, start: Start) -> None:
        super().__init__(config, start)
        self.mask = head_of(config, start.layout).to(start.rows.device)
        first = None if all(start.kept) else start.objective.start(config, start.layout)[self.mask.cpu()]
        heads = [torch.tensor(a["head"]) if a else first for a in start.kept]
        self.head = torch.stack(heads).to(start.rows).requires_grad_()
        """[n, H] h_c, as it was after the client's last round; at its first, and alone, as training starts."""
        share = config.of(FedRepConfig).head
        self.first = start.steps if start.alone else min(start.steps - 1, max(1, round(share * start.steps)))
        """Steps of the head."""

    @classmethod
    def part(cls, config: RunConfig) -> str:
        return "a head"

    @classmethod
    def fit_steps(cls, config: RunConfig) -> int:
        return config.of(FedRepConfig).fit_steps

    def trained(self) -> list[dict[str, Any]]:
        return [{"params": [self.head]}]

    def model(self, rows: Tensor, step: int) -> Tensor:
        """h_c by gradient steps at fixed φ, then φ by gradient steps at fixed h_c."""
        return self.joined(rows.detach(), self.head) if step < self.first else self.joined(rows, self.head.detach())

    def joined(self, body: Tensor, head: Tensor) -> Tensor:
        """φ [n, D - H] and h [n, H] -> rows [n, D]."""
        rows = body.new_empty(len(body), len(self.mask))
        rows[:, ~self.mask], rows[:, self.mask] = body, head
        return rows

    def personal(self, rows: Tensor) -> Tensor:
        return self.joined(rows, self.head.detach())

    def keep(self) -> list[Arrays]:
        return [{"head": head} for head in self.head.detach().cpu().numpy()]


class FedRep(Algorithm):
    """FedRep: clients share a body, and each keeps a head of its own (Collins et al., ICML 2021).

    Clients that never took part train a head of their own alone, on the body as it is.
    """

    title: ClassVar[str] = "FedRep"
    weights: ClassVar[str] = "uniform"
    state: ClassVar[type[State]] = FedAvgState
    parameters: ClassVar[Mapping[str, type]] = {"fit": FitConfig, "fedrep": FedRepConfig}
    client: ClassVar[type[ClientHalf]] = FedRepHalf
    needs: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if config.federation.local_steps < 2:
            raise UserError("FedRep trains the head, then the body; set --federation.local-steps to 2 at least")

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_cohort(config, clients)
        self.body = ~head_of(config, clients.layout)
        if not self.body.any():
            raise UserError(
                f"FedRep shares a body, and a row of objective {config.objective} is a head alone here; take ditto or "
                f"lore, or train more by the fields of {config.objective} (python -m raypref.run fedrep --help)"
            )

    def init(self) -> FedAvgState:
        """φ⁰; the heads begin at the clients."""
        return FedAvgState(round=0, theta=self.clients.start()[self.body])

    def round(self, state: FedAvgState) -> tuple[FedAvgState, Metrics]:
        # 1. Sample a cohort, and send it φ^t.
        cohort = uniform_cohort(self.config, self.clients, state.round)
        # 2-3. At each client the head's steps, then the body's.
        returned = self.clients.train(cohort, state.theta, state.round, None, state.kept)
        # 4. φ^{t+1}: the mean of the bodies.
        theta = combine(uniform_weights(len(returned.cohort)), returned.rows)
        return FedAvgState(state.round + 1, theta, kept=returned.kept), loss_metrics(returned)

    def initialization(self, state: FedAvgState) -> Tensor:
        """φ^T with each client's own head: [C, D]."""
        return self.clients.compose(range(len(self.clients.sizes)), state.theta, state.kept)

    def newcomers(self, state: FedAvgState, clients: Clients) -> Tensor:
        """φ^T with a head that each trains alone."""
        return clients.compose(range(len(clients.sizes)), state.theta, Kept())

    def shared(self, state: FedAvgState) -> Tensor:
        return state.theta
