"""Several models at the server: the parameters that FedGD, FedBiscuit and Soft-FL share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raypref.config.fields import setting
from raypref.tools.errors import UserError

if TYPE_CHECKING:
    from raypref.clients.protocol import Clients
    from raypref.config import RunConfig


@dataclass(frozen=True)
class ExpertsConfig:
    """Methods that keep several models at the server."""

    K: int = setting(4, least=1)
    """Experts (S2 A.2)."""
    T: int = setting(10, least=1)
    """Rounds between two reassignments (S2 A.2: 20). FedGD: T must divide R/2; FedBiscuit: each expert's warm-up."""


def check_experts(config: RunConfig, clients: Clients) -> None:
    """`UserError` where there are more experts than clients."""
    K, count = config.of(ExpertsConfig).K, len(clients.sizes)
    if count < K:
        seen = "seen " if config.federation.unseen else ""
        raise UserError(f"experts.K is {K} but there are {count} {seen}clients; set --experts.K to at most {count}")
