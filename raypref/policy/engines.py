"""What takes optimizer steps on the policy's row: plain torch, or DeepSpeed with ZeRO.

Both save the same file, the row and AdamW's moments whole, so that any engine, ZeRO stage and number of processes goes
on from what another has left.
"""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from raypref.clients.worker import Share
from raypref.config import RunConfig, UserError
from raypref.models.lora import Dropout
from raypref.models.policy import Policy
from raypref.tools import checkpoint

FILE = "policy.safetensors"
"""Replaced at one stroke after each round: a kill in the middle of a save leaves the round before."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class Torch:
    """AdamW on one row; the mean gradient by one all-reduce."""

    together = False
    """Whether processes must run every pass together."""

    def __init__(self, policy: Policy, row: Tensor, config: RunConfig, share: Share) -> None:
        self.policy, self.share = policy, share
        self.row = row.to(policy.selector.device).requires_grad_()
        self.optimizer = adamw(self.row, config)

    def log_probs(self, ids: Tensor, spans: Tensor, z: Tensor | None, dropout: Dropout | None) -> Tensor:
        """As `Policy.log_probs` of the row that is trained, with its gradient."""
        return self.policy.log_probs(self.row, ids, spans, z, dropout)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this process's loss."""
        loss.backward()

    def step(self, rate: float) -> None:
        """One optimizer step at this learning rate with the mean gradient over processes."""
        self.optimizer.param_groups[0]["lr"] = rate
        if self.share.world > 1 and self.row.grad is not None:
            torch.distributed.all_reduce(self.row.grad)
            self.row.grad /= self.share.world
        self.optimizer.step()
        self.optimizer.zero_grad()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Tensor]:
        """The whole row [D], for passes without a gradient."""
        yield self.row.detach()

    def save(self, folder: Path, round: int) -> None:
        """Save row and optimizer after `round` rounds, so that an interrupt loses none of them."""
        if self.share.rank == 0:
            state = self.optimizer.state[self.row]
            tensors = {"row": self.row, **{name: state[name] for name in ("step", *MOMENTS)}}
            checkpoint.save(folder / FILE, tensors, {"round": round})

    def restore(self, folder: Path) -> int:
        """Go on from what `folder` holds; the number of rounds done there, 0 without any."""
        if not (folder / FILE).exists():
            return 0
        tensors, values = checkpoint.load(folder / FILE)
        with torch.no_grad():
            self.row.copy_(tensors["row"])
        moments = {name: tensors[name].to(self.row) for name in MOMENTS}
        self.optimizer.state[self.row] = {"step": tensors["step"], **moments}
        return int(values["round"])


class Trained(nn.Module):
    """The module that DeepSpeed trains: the row, and the frozen base beside it, so that ZeRO 3 partitions that, too."""

    def __init__(self, policy: Policy, row: Tensor) -> None:
        super().__init__()
        self.policy = policy
        self.base = policy.selector.model
        self.row = nn.Parameter(row)

    def forward(self, ids: Tensor, spans: Tensor, z: Tensor | None, dropout: Dropout | None) -> Tensor:
        return self.policy.log_probs(self.row, ids, spans, z, dropout)


class DeepSpeed:
    """`Torch` with a row that ZeRO partitions over the processes (`rlhf.zero_stage`); needs a process group."""

    def __init__(self, deepspeed: Any, policy: Policy, row: Tensor, config: RunConfig, share: Share) -> None:
        r, device = config.rlhf, policy.selector.device
        self.deepspeed = deepspeed
        self.stage, self.width = r.zero_stage, row.numel()
        self.together = self.stage == 3
        # How the row lies: ZeRO leaves each process an equal part of it, padded at the end; stage 0 all of it.
        self.share = Share(0, 1) if self.stage == 0 else share
        self.rank = share.rank
        module = Trained(policy, row.to(device))
        self.row = module.row
        os.environ.setdefault("LOCAL_RANK", "0")  # it insists, though it is told the device
        at = Namespace(device_rank=torch.cuda.current_device() if device == "cuda" else 0)
        # Neither of its mixed precisions: they would cast the row as well, and steps of 1e-5 are lost in a bf16 row.
        # The base keeps its own (`model.dtype`).
        settings = {
            "train_micro_batch_size_per_gpu": r.batch_size // share.world,
            "gradient_accumulation_steps": r.accumulation,
            "gradient_clipping": 0.0,  # its default is 1
            "managed_gradient_accumulation": False,  # `step` is the boundary, however often `backward` came before
            # Stage 3 would search all passes up to the next step, those of a generation among them, for its reuse.
            "zero_optimization": {"stage": self.stage, "stage3_max_reuse_distance": 0},
        }
        self.linear = nn.functional.linear
        with self._zero_linear():
            self.engine, *_ = self.deepspeed.initialize(
                args=at, model=module, optimizer=adamw(module.row, config), config=settings
            )
            self.linear = nn.functional.linear

    @contextlib.contextmanager
    def _zero_linear(self) -> Iterator[None]:
        """Stage 3 puts a `linear` that keeps no gathered weights in the place of torch's, and leaves it there for
        whatever this process runs later, some of which it cannot do (forward-mode derivatives). Here it ends."""
        torch_linear = nn.functional.linear
        nn.functional.linear = self.linear
        try:
            yield
        finally:
            nn.functional.linear = torch_linear

    def log_probs(self, ids: Tensor, spans: Tensor, z: Tensor | None, dropout: Dropout | None) -> Tensor:
        with self._zero_linear():
            return self.engine(ids, spans, z, dropout)

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)  # the caller's loss is a share of the step's already

    def step(self, rate: float) -> None:
        self.engine.optimizer.param_groups[0]["lr"] = rate
        self.engine.step()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Tensor]:
        with self.deepspeed.zero.GatheredParameters([self.row]):
            yield self.row.detach()

    def save(self, folder: Path, round: int) -> None:
        (state,) = self.engine.optimizer.state.values()
        moments = {name: self._gather(state[name]) for name in MOMENTS}
        with self.gathered() as row:
            if self.rank == 0:
                checkpoint.save(folder / FILE, {"row": row, "step": state["step"], **moments}, {"round": round})

    def restore(self, folder: Path) -> int:
        if not (folder / FILE).exists():
            return 0
        tensors, values = checkpoint.load(folder / FILE)
        with self.deepspeed.zero.GatheredParameters([self.row], modifier_rank=0), torch.no_grad():
            self.row.copy_(tensors["row"])
        zero = self.engine.optimizer
        partition = {  # what the optimizer steps on, from which ZeRO then fills the row
            0: lambda: self.row,
            1: lambda: zero.single_partition_of_fp32_groups[0],
            2: lambda: zero.single_partition_of_fp32_groups[0],
            3: lambda: zero.fp32_partitioned_groups_flat[0],
        }[self.stage]()
        with torch.no_grad():
            partition.copy_(self._part(tensors["row"], partition))
        moments = {name: self._part(tensors[name], partition) for name in MOMENTS}
        zero.state[partition] = {"step": tensors["step"], **moments}
        return int(values["round"])

    def _gather(self, part: Tensor) -> Tensor:
        """[D] from each process's part."""
        parts = [part]
        if self.share.world > 1:
            parts = [torch.empty_like(part) for _ in range(self.share.world)]
            torch.distributed.all_gather(parts, part)
        return torch.cat(parts)[: self.width]

    def _part(self, row: Tensor, like: Tensor) -> Tensor:
        """This process's part of [D]."""
        n = like.numel()
        padded = nn.functional.pad(row, (0, n * self.share.world - self.width)).to(like)
        return padded[n * self.share.rank :][:n].clone()


Engine = Torch | DeepSpeed


def adamw(row: Tensor, config: RunConfig) -> torch.optim.AdamW:
    """The optimizer of either engine."""
    o = config.optim
    return torch.optim.AdamW([row], lr=config.rlhf.learning_rate, betas=o.betas, weight_decay=o.weight_decay)


def load_deepspeed(device: str) -> Any:
    """The package, set for `device`. Raises `UserError` where it is not installed."""
    try:
        import deepspeed
        from deepspeed.accelerator import get_accelerator, set_accelerator
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    except ImportError as error:
        raise UserError(
            f"rlhf.engine deepspeed cannot import it ({error}): pip install 'raypref[deepspeed]', or take "
            "--rlhf.engine torch"
        ) from error
    if device == "cpu":
        if get_accelerator().device_name() != "cpu":  # there is a GPU, but this run does not use it
            set_accelerator(CPU_Accelerator())
        # Its own all-reduce takes minutes to compile, and if killed leaves a lock that stops every later start.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextlib.contextmanager
def open_engine(policy: Policy, row: Tensor, config: RunConfig, share: Share) -> Iterator[Engine]:
    """The engine that `rlhf.engine` names, closed at the end."""
    if config.rlhf.engine == "torch":
        yield Torch(policy, row, config, share)
        return
    deepspeed = load_deepspeed(policy.selector.device)
    with process_group(deepspeed, policy.selector.device):
        engine = DeepSpeed(deepspeed, policy, row, config, share)
        try:
            yield engine
        finally:
            engine.engine.destroy()


@contextlib.contextmanager
def process_group(deepspeed: Any, device: str) -> Iterator[None]:
    """A process group for DeepSpeed: the one that several processes have joined, else one of this process alone."""
    if torch.distributed.is_initialized():
        yield
        return
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed()  # or else it would still know the group of an engine before this one
    try:
        yield
    finally:
        deepspeed.comm.destroy_process_group()
