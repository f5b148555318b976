"""Trainable parameters are a row: one flat float32 vector of named segments, whatever the client trains.

A cohort is a matrix [n, D], K experts are [K, D]; every aggregation of both papers is then a matrix product
(`raypref.rounds.aggregation`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from raypref.tools.lazy import torch
from raypref.tools.rng import torch_stream

if TYPE_CHECKING:
    from torch import Tensor

BESIDE = "latent."
"""Prefix of the names of a latent's segments, which are no part of the LoRA adapter."""
HEAD = "head."
"""Prefix of those of a reward head, which come last in a row."""


@dataclass(frozen=True)
class Segment:
    """One tensor inside a row."""

    name: str
    """PEFT's name without adapter: `layers.0.self_attn.q_proj.lora_A`."""
    shape: tuple[int, ...]
    start: Literal["zero", "uniform", "orthonormal"] = "zero"
    """`uniform`: U(±1/√fan-in), as PEFT starts A and PyTorch a linear layer; `orthonormal`: the rows of a QR
    decomposition's Q^T."""
    radius: float = 1.0
    """What either is multiplied by."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def side(self) -> int:
        """d_in of an adapter's A [r, d_in], d_out of its B [d_out, r]; 0: it is no adapter's."""
        kind = self.name.rpartition(".")[2]
        return self.shape[-1] if kind == "lora_A" else self.shape[0] if kind == "lora_B" else 0


@dataclass(frozen=True)
class Layout:
    """The segments of a row in order."""

    segments: tuple[Segment, ...]

    @cached_property
    def width(self) -> int:
        """D, parameters in a row."""
        return sum(s.size for s in self.segments)

    @property
    def sides(self) -> list[int]:
        """d_in of every A [r, d_in] and d_out of every B [d_out, r]."""
        return [side for s in self.segments if (side := s.side)]

    @property
    def beside(self) -> int:
        """Parameters that are no adapter's."""
        return sum(s.size for s in self.segments if not s.side)

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Views by name: [n, D] -> {name: [n, *shape]}. One split, so that its gradient is one concatenation."""
        if rows.shape[-1] != self.width:
            raise ValueError(f"rows are {rows.shape[-1]} wide, the layout {self.width}")
        parts = rows.split([s.size for s in self.segments], dim=-1)
        return {s.name: p.unflatten(-1, s.shape) for s, p in zip(self.segments, parts, strict=True)}

    def mask(self, chosen: Iterable[bool]) -> Tensor:
        """bool [D] that is true in the segments chosen, of which there is one answer each."""
        sizes = torch.tensor([s.size for s in self.segments])
        return torch.tensor(list(chosen)).repeat_interleave(sizes)

    def join(self, tensors: dict[str, Tensor]) -> Tensor:
        """Inverse of `split` for one row: {name: shape} -> [D] float32. A missing, unknown or misshapen tensor raises
        `ValueError`: partial loading never passes silently."""
        missing = [s.name for s in self.segments if s.name not in tensors]
        unknown = sorted(set(tensors) - {s.name for s in self.segments})
        wrong = [s.name for s in self.segments if s.name in tensors and tuple(tensors[s.name].shape) != s.shape]
        for what, names in (("lacks", missing), ("has unknown", unknown), ("has another shape for", wrong)):
            if names:
                raise ValueError(f"the adapter {what} {len(names)} tensors, the first {names[0]}")
        return torch.cat([tensors[s.name].detach().to("cpu", torch.float32).reshape(-1) for s in self.segments])


def lora_layout(modules: Iterable[tuple[str, int, int]], r: int) -> Layout:
    """The layout of LoRA on (name, d_in, d_out) modules: A [r, d_in], then B [d_out, r], module by module."""
    segments: list[Segment] = []
    for name, d_in, d_out in modules:
        segments += [Segment(f"{name}.lora_A", (r, d_in), "uniform"), Segment(f"{name}.lora_B", (d_out, r))]
    return Layout(tuple(segments))


def last_block(layout: Layout) -> Tensor:
    """bool [D]: the adapters of the last transformer block; of a base of one block, those of its last module."""
    blocks = [int(found[1]) if (found := re.search(r"layers\.(\d+)\.", s.name)) else -1 for s in layout.segments]
    modules = [s.name.rpartition(".")[0] for s in layout.segments]
    if len(set(blocks)) > 1:
        return layout.mask(block == max(blocks) for block in blocks)
    return layout.mask(module == modules[-1] for module in modules)


def initial_row(layout: Layout, seed: int, *coordinates: int) -> Tensor:
    """[D] a new row: LoRA as in PEFT (A uniform, B zero), latent modules as S1 starts them."""
    generator = torch_stream(seed, "lora_init", *coordinates)
    parts = []
    for segment in layout.segments:
        if segment.start == "uniform":
            bound = segment.radius / math.sqrt(segment.shape[1])
            parts.append(torch.empty(segment.size).uniform_(-bound, bound, generator=generator))
        elif segment.start == "orthonormal":
            count, d = segment.shape
            Q = torch.linalg.qr(torch.randn(d, count, generator=generator)).Q
            parts.append(segment.radius * Q.T.reshape(-1))
        else:
            parts.append(torch.zeros(segment.size))
    return torch.cat(parts)


def orthogonal_init(
    layout: Layout, K: int, norms: Mapping[str, float], epsilon: float, jitter: float, seed: int
) -> Tensor:
    """[K, D] K small updates in mutually orthogonal subspaces of every adapted layer (S2 B.3), and mutually orthogonal
    small rows of what is beside the adapter.

    U [d_out, K r] and V [d_in, K r] are Q of Gaussian matrices; adapter k has A = V_k^T and
    B = ε ‖W‖_F (1 + jitter · k) U_k, with V_k and U_k the k-th blocks of r columns. norms: ‖W‖_F of each module by
    name. K r must be at most every side of every layer. What is beside has no frozen weight: its rows have norm
    ε (1 + jitter · k), and K must be at most its width.
    """
    generator = torch_stream(seed, "orthogonal_init")
    grown, parts = 1.0 + jitter * torch.arange(K), []
    for segment in (s for s in layout.segments if s.side):
        module, _, kind = segment.name.rpartition(".")
        side, r = segment.side, segment.size // segment.side
        Q = torch.linalg.qr(torch.randn(side, K * r, generator=generator)).Q
        blocks = Q.unflatten(1, (K, r)).permute(1, 0, 2)  # [K, side, r]
        if kind == "lora_A":
            parts.append(blocks.mT.reshape(K, -1))
        else:
            scale = epsilon * norms[module] * grown
            parts.append((scale[:, None, None] * blocks).reshape(K, -1))
    if layout.beside:
        Q = torch.linalg.qr(torch.randn(layout.beside, K, generator=generator)).Q
        parts.append(epsilon * grown[:, None] * Q.T)
    return torch.cat(parts, dim=1)
