"""FedProx: FedAvg whose clients are held near the model they were sent (Li et al., "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, Algorithm 2).

First the client's half, then the server's. As in FedAvg here, clients are drawn uniformly and their rows weighted by
N_c, where the paper draws them by N_c and averages uniformly. Every client takes all τ steps: the paper's stragglers,
who take fewer, are not simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from raypref.algorithms.fedavg import FedAvg
from raypref.clients.half import ClientHalf
from raypref.config.fields import setting
from raypref.objectives.base import Batch, Loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedProxConfig:
    """FedProx (Li et al., MLSys 2020)."""

    mu: float = setting(0.01, least=0)
    """μ, weight of the proximal term (the paper tries 0.001 to 1); 0 is FedAvg."""


class FedProxHalf(ClientHalf):
    """At n clients: h_c(θ; θ^(r-1)) = F_c(θ) + μ/2 ‖θ - θ^(r-1)‖² in the place of F_c (Eq. 2)."""

    def loss(self, rows: Tensor, batch: Batch, loss: Loss) -> Loss:
        mu = self.config.of(FedProxConfig).mu
        return replace(loss, parts={**loss.parts, "proximal": proximal(rows, self.start.rows, mu)})


def proximal(rows: Tensor, anchor: Tensor, weight: float) -> Tensor:
    """weight/2 ‖row - anchor‖² of each client: [n, D], [n, D] -> [n]. Its gradient is weight · (row - anchor)."""
    return 0.5 * weight * ((rows - anchor) ** 2).sum(-1)


class FedProx(FedAvg):
    """FedProx: FedAvg whose clients are pulled back to the model that they were sent (Li et al., MLSys 2020).

    The server's rounds are FedAvg's, so that μ = 0 is FedAvg to the bit.
    """

    title: ClassVar[str] = "FedProx"
    parameters: ClassVar[Mapping[str, type]] = {"fedprox": FedProxConfig}
    client: ClassVar[type[ClientHalf]] = FedProxHalf
