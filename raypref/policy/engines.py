"""What takes optimizer steps on the policy's row: plain torch, or DeepSpeed with ZeRO."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed
from torch import Tensor

from raypref import checkpoint
from raypref.clients.worker import Share
from raypref.config import RunConfig
from raypref.models.policy import Policy
from raypref.models.selector import Dropout


class Engine(Protocol):
    together: bool
    """Whether processes must run every pass together."""

    def log_probs(self, ids: Tensor, spans: Tensor, z: Tensor | None, dropout: Dropout | None) -> Tensor:
        """As `Policy.log_probs` of the row that is trained, with its gradient."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this process's loss."""
        ...

    def step(self) -> None:
        """One optimizer step with the mean gradient over processes."""
        ...

    def gathered(self) -> contextlib.AbstractContextManager[Tensor]:
        """The whole row [D], for passes without a gradient."""
        ...

    def save(self, folder: Path, round: int) -> None:
        """`round` rounds are done; what an interrupt must not lose."""
        ...

    def restore(self, folder: Path) -> int:
        """Rounds that `folder` holds, and goes on from; 0 for none."""
        ...


class Torch:
    """AdamW on one row; the mean gradient by one all-reduce."""

    together = False

    def __init__(self, policy: Policy, row: Tensor, config: RunConfig, share: Share) -> None:
        self.policy, self.share = policy, share
        self.row = row.to(policy.selector.device).requires_grad_()
        o, r = config.optim, config.rlhf
        self.optimizer = torch.optim.AdamW([self.row], lr=r.learning_rate, betas=o.betas, weight_decay=o.weight_decay)

    def log_probs(self, ids: Tensor, spans: Tensor, z: Tensor | None, dropout: Dropout | None) -> Tensor:
        return self.policy.log_probs(self.row, ids, spans, z, dropout)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        if self.share.world > 1 and self.row.grad is not None:
            torch.distributed.all_reduce(self.row.grad)
            self.row.grad /= self.share.world
        self.optimizer.step()
        self.optimizer.zero_grad()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Tensor]:
        yield self.row.detach()

    def save(self, folder: Path, round: int) -> None:
        if self.share.rank == 0:
            held = self.optimizer.state[self.row]
            tensors = {"row": self.row, **{name: held[name] for name in ("step", "exp_avg", "exp_avg_sq")}}
            checkpoint.save(folder / "policy.safetensors", tensors, {"round": round})

    def restore(self, folder: Path) -> int:
        path = folder / "policy.safetensors"
        if not path.exists():
            return 0
        tensors, values = checkpoint.load(path)
        with torch.no_grad():
            self.row.copy_(tensors.pop("row"))
        self.optimizer.state[self.row] = {
            name: t if name == "step" else t.to(self.row.device) for name, t in tensors.items()
        }
        return int(values["round"])


@contextlib.contextmanager
def open_engine(policy: Policy, row: Tensor, config: RunConfig, share: Share) -> Iterator[Engine]:
    """The engine that `rlhf.engine` names, closed at the end."""
    yield Torch(policy, row, config, share)
