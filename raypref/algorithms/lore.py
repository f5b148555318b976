"""LoRe: every person's reward is a mixture of B shared ones (Bose et al., "LoRe: Personalizing LLMs via Low-Rank Reward
Modeling", COLM 2025, arXiv 2504.14439), here federated: the basis is averaged, the weights stay at the client.

The paper's reward is w_i · R_φ(x, y), with R_φ = V φ(x, y) on frozen features and w_i on the simplex; basis and weights
are fitted together, and a new person's weights alone, on few choices. Here V is B rows, and a person's row is Σ_b w_b
V_b: of a linear head that is the paper's reward to the letter, of LoRA its counterpart in the space of weights.

A client takes its AdamW steps on its own row. Had each V_b moments of its own, AdamW would divide w_b out of them and
move all alike; so the move Δ of the row goes to the basis as gradients do, by w_b: V_b + Δ w_b / ‖w‖², of which the
mixture is moved by Δ. Whoever sees both bases can read the ratios of w off them, as off any gradient of LoRe's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raypref.algorithms.base import Algorithm, Metrics, State, loss_metrics
from raypref.algorithms.fedavg import check_cohort, uniform_cohort
from raypref.algorithms.fitted import FitConfig, FittedHalf
from raypref.clients.half import ClientHalf, Start
from raypref.clients.kept import Kept
from raypref.clients.protocol import Clients
from raypref.config.fields import setting
from raypref.rounds.aggregation import combine, size_weights
from raypref.tools.lazy import torch
from raypref.tools.rng import torch_stream

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.clients.kept import Arrays
    from raypref.config import RunConfig


@dataclass(frozen=True)
class LoReConfig:
    """LoRe (Bose et al., COLM 2025)."""

    B: int = setting(4, least=1)
    """Rewards in the basis; 1 is FedAvg."""
    learning_rate: float = setting(0.1, above=0)
    """Of a person's weights, before the softmax: they are few, and at the rows' rate would hardly move in a round."""
    spread: float = setting(0.01, above=0)
    """Standard deviation, around the one start, of each parameter of the B rows that the basis starts from."""


class LoReHalf(FittedHalf):
    """Weights and row of n persons for a stretch; rows that travel are bases [n, B · D]."""

    def __init__(self, config: RunConfig, start: Start) -> None:
        super().__init__(config, start)
        B = config.of(LoReConfig).B
        self.V = start.rows.detach().unflatten(1, (B, -1))
        """[n, B, D]"""
        a = torch.stack([torch.tensor(arrays["a"]) if arrays else torch.zeros(B) for arrays in start.kept])
        self.a = a.to(start.rows).requires_grad_()
        """[n, B] w = softmax(a); equal weights at a client's first round."""
        self.first = self.w.detach()
        self.begun = self.mixed(self.first)
        self.row = self.begun.clone().requires_grad_()
        """[n, D] what AdamW steps on beside a."""

    @property
    def w(self) -> Tensor:
        return torch.softmax(self.a, dim=-1)

    def mixed(self, w: Tensor) -> Tensor:
        """Σ_b w_b V_b: [n, B] -> [n, D]."""
        return torch.bmm(w[:, None], self.V)[:, 0]

    def trained(self) -> list[dict[str, Any]]:
        return [{"params": [self.a], "lr": self.config.of(LoReConfig).learning_rate}, {"params": [self.row]}]

    def model(self, rows: Tensor, step: int) -> Tensor:
        """Σ_b w_b V_b with V as it was sent, and as far from it as the row has moved."""
        return self.row + self.mixed(self.w - self.first)

    def result(self, rows: Tensor) -> Tensor:
        """V_b + k_b (row - row at the start) with k_b = w_b / ‖w‖²."""
        w = self.w.detach()
        k = (w / (w**2).sum(-1, keepdim=True))[..., None]
        return (k * self.row.detach()[:, None] + (self.V - k * self.begun[:, None])).flatten(1)

    def personal(self, rows: Tensor) -> Tensor:
        return self.mixed(self.w.detach())

    def fitted(self, known: Sequence[Sequence[np.ndarray]]) -> list[Tensor]:
        """With weights that are fitted to these pairs, given the margins of each V_b, read once. Of a linear head the
        mixture's margins are the mixture of theirs, to which `simplex_fit` is exact; of LoRA about so."""
        weights = torch.empty(len(known), *self.a.shape)
        for i, (c, V) in enumerate(zip(self.start.clients.tolist(), self.V, strict=True)):
            with torch.no_grad():
                margins = torch.stack(self.start.objective.order_margins(V, [c] * len(V), "train")).mean(-1)
            for j, pairs in enumerate(known):
                weights[j, i] = simplex_fit(margins[:, pairs[i]])
        return [self.mixed(w.to(self.V)) for w in weights]

    @classmethod
    def part(cls, config: RunConfig) -> str:
        return f"weights of {config.of(LoReConfig).B} rewards"

    @classmethod
    def fit_rows(cls, config: RunConfig) -> int:
        return config.of(LoReConfig).B

    def keep(self) -> list[Arrays]:
        return [{"a": a} for a in self.a.detach().cpu().numpy()]


def simplex_fit(margins: Tensor) -> Tensor:
    """argmin_w of the mean of -log σ(Σ_b w_b M_b) over the simplex, the paper's fit for a new person: margins [B, N] of
    N pairs under each reward -> w [B]. By L-BFGS on logits, from equal weights."""
    M, a = margins.detach().cpu().double(), torch.zeros(len(margins), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([a], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -torch.nn.functional.logsigmoid(torch.softmax(a, 0) @ M).mean()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return torch.softmax(a.detach(), 0).float()


@dataclass(frozen=True)
class LoReState(State):
    basis: Tensor
    """[B, D] V."""


class LoRe(Algorithm):
    """LoRe: a basis of B rewards for all, each client's own weights over them (Bose et al., 2025; here federated).

    Clients that never took part fit their B weights to their training choices alone.
    """

    title: ClassVar[str] = "LoRe"
    weights: ClassVar[str] = "by N_c"
    state: ClassVar[type[State]] = LoReState
    parameters: ClassVar[Mapping[str, type]] = {"fit": FitConfig, "lore": LoReConfig}
    client: ClassVar[type[ClientHalf]] = LoReHalf
    needs: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_cohort(config, clients)

    def init(self) -> LoReState:
        """B rows around the one that every method starts from; one row is that one."""
        options, start = self.config.of(LoReConfig), self.clients.start()
        noise = torch.randn(options.B, len(start), generator=torch_stream(self.config.seed, "lore basis"))
        return LoReState(round=0, basis=start + (options.spread if options.B > 1 else 0.0) * noise)

    def round(self, state: LoReState) -> tuple[LoReState, Metrics]:
        # 1. A cohort, as FedAvg's.
        cohort = uniform_cohort(self.config, self.clients, state.round)
        # 2. Each fits its weights and its row, from the weights that it keeps.
        returned = self.clients.train(cohort, state.basis.flatten(), state.round, None, state.kept)
        # 3. The bases' average, by N_c.
        basis = combine(size_weights(returned.sizes), returned.rows).view_as(state.basis)
        return LoReState(state.round + 1, basis, kept=returned.kept), loss_metrics(returned)

    def initialization(self, state: LoReState) -> Tensor:
        """Σ_b w_cb V_b: [C, D]."""
        return self.clients.compose(range(len(self.clients.sizes)), self.shared(state), state.kept)

    def newcomers(self, state: LoReState, clients: Clients) -> Tensor:
        """The same with weights that each fits to its own choices alone."""
        return clients.compose(range(len(clients.sizes)), self.shared(state), Kept())

    def shared(self, state: LoReState) -> Tensor:
        return state.basis.flatten()
