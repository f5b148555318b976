"""Ditto: a model of each client's own, held near the global one (Li et al., "Ditto: Fair and Robust Federated Learning
Through Personalization", ICML 2021, arXiv 2012.04221, Algorithm 1).

First the client's half, lines 4-7, then the server's, which is FedAvg's. A client's v begins as the first global model
that it receives: the paper leaves v⁰ open, and with few rounds a client that is drawn late would else be far behind. As
everywhere here both models take AdamW steps, v on the same batches as the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from raypref.algorithms.base import Metrics
from raypref.algorithms.fedavg import FedAvg, FedAvgState
from raypref.algorithms.fedprox import proximal
from raypref.clients.half import ClientHalf, Start
from raypref.config.fields import setting
from raypref.objectives.base import Batch, Loss
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.clients.kept import Arrays
    from raypref.clients.protocol import Clients
    from raypref.config import RunConfig


@dataclass(frozen=True)
class DittoConfig:
    """Ditto (Li et al., ICML 2021)."""

    lam: float = setting(0.1, least=0)
    """λ, weight of the pull towards the global model (the paper takes 0.05 to 2); 0: each client trains alone."""


class DittoHalf(ClientHalf):
    """Lines 5-7 at n clients; v_c stays at the client."""

    passes: ClassVar[int] = 2

    def __init__(self, config: RunConfig, start: Start) -> None:
        super().__init__(config, start)
        w = start.rows
        v = [torch.tensor(a["v"]).to(w) if a else row for a, row in zip(start.kept, w, strict=True)]
        self.v = torch.stack(v).detach().requires_grad_()
        """[n, D]"""

    def trained(self) -> list[dict[str, Any]]:
        return [{"params": [self.v]}]

    def loss(self, rows: Tensor, batch: Batch, loss: Loss) -> Loss:
        """6. F_c(w), as FedAvg; 7. h_c(v; w^t) = F_c(v) + λ/2 ‖v - w^t‖². Neither has a gradient of the other."""
        own = self.start.objective.loss(self.v, batch.afresh())
        pull = proximal(self.v, self.start.rows, self.config.of(DittoConfig).lam)
        parts = {f"personal_{name}": part for name, part in own.parts.items()} | {"personal_pull": pull}
        return replace(loss, parts={**loss.parts, **parts})

    def personal(self, rows: Tensor) -> Tensor:
        """v_c of who has one; of others the global model, from which it would begin."""
        return self.v.detach()

    def keep(self) -> list[Arrays]:
        return [{"v": v} for v in self.v.detach().cpu().numpy()]


class Ditto(FedAvg):
    """Ditto: FedAvg, and beside it a model of each client's own, held near the global one (Li et al., ICML 2021).

    Clients are personalized from their own models; those that never took part, from the global one.
    """

    title: ClassVar[str] = "Ditto"
    parameters: ClassVar[Mapping[str, type]] = {"ditto": DittoConfig}
    client: ClassVar[type[ClientHalf]] = DittoHalf
    needs: ClassVar[Mapping[str, str]] = {}

    def round(self, state: FedAvgState) -> tuple[FedAvgState, Metrics]:
        """FedAvg's; the loss that is shown is the global model's, that of the personal ones stands beside it."""
        state, metrics = super().round(state)
        personal = sum(value for name, value in metrics.items() if name.startswith("train/personal_"))
        return state, metrics | {"train/loss": metrics["train/loss"] - personal, "train/personal": personal}

    def initialization(self, state: FedAvgState) -> Tensor:
        """v_c, or w^T of those that have none: [C, D]."""
        return self.clients.compose(range(len(self.clients.sizes)), state.theta, state.kept)

    def newcomers(self, state: FedAvgState, clients: Clients) -> Tensor:
        """w^T: they have no v yet."""
        return state.theta.expand(len(clients.sizes), -1)
