"""n LoRA adapters in one pass: `y = W x + (α / r) B_i A_i (m ∘ x)`, W frozen and shared by all, m a dropout mask.

Modules that read the same tensor (q, k, v; gate, up) share its mask, and their first products A_i x are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Modules of a block that read the same tensor, in every architecture that is supported."""
LEVELS = 1 << 16
"""Of a dropout probability: a mask's element is decided by 16 random bits."""


@dataclass
class Dropout:
    """Dropout drawn per client at the client's own lengths, so that who shares a pass never changes a mask."""

    p: float
    generators: list[torch.Generator]
    """One a client of the stack."""
    shapes: list[tuple[int, int]]
    """(pairs, tokens) of each client's own batch, before it was padded to the stack's."""

    @property
    def dropped(self) -> int:
        """Of LEVELS."""
        return round(self.p * LEVELS)

    def __call__(self, x: Tensor) -> Tensor:
        """x [n * b, L, d] with elements left out at random; what is kept is not scaled up here."""
        n, (rows, length, width) = len(self.generators), x.shape
        kept = torch.zeros(n, rows // n, length, width, dtype=torch.bool, device=x.device)
        for i, (generator, (b, tokens)) in enumerate(zip(self.generators, self.shapes, strict=True)):
            tokens = min(tokens, length)  # fewer where a block is computed at some positions alone
            size = b * tokens * width
            words = torch.empty(-(-size // 4), dtype=torch.int64, device=x.device)
            words.random_(-(1 << 63), None, generator=generator)
            draws = words.view(torch.int16)[:size].view(b, tokens, width)
            kept[i, :b, :tokens] = draws >= self.dropped - LEVELS // 2
        return x * kept.view_as(x)


class Together:
    """Adapters whose modules read the same tensor."""

    def __init__(self) -> None:
        self.modules: list[StackedLoRA] = []
        self.release()

    def bind(self, adapters: Sequence[tuple[Tensor, Tensor]], dropout: Dropout | None) -> None:
        """adapters: (A [n, r, d_in], B [n, d_out, r]) of each module. Frozen parts alone are computed once released."""
        dtype = self.modules[0].linear.weight.dtype
        self.A = torch.cat([A for A, _ in adapters], dim=1).to(dtype)
        self.dropout, self.read, self.first = dropout, None, {}
        scale = 1.0 if dropout is None else LEVELS / (LEVELS - dropout.dropped)
        for module, (_, B) in zip(self.modules, adapters, strict=True):
            # In the order in which products with B and with its transpose, in the backward pass, are quick.
            module.B, module.factor = B.mT.contiguous().to(dtype), module.scale * scale

    def release(self) -> None:
        self.A = self.dropout = self.read = None
        self.first: dict[StackedLoRA, Tensor] = {}
        for module in self.modules:
            module.B = None

    def product(self, module: StackedLoRA, x: Tensor) -> Tensor:
        """[n * b, L, d_in] -> A_i x of this module [n, b * L, r]; those of the others wait for them to read `x`."""
        if x is not self.read or module not in self.first:
            h = x if self.dropout is None else self.dropout(x)
            parts = torch.bmm(h.view(len(self.A), -1, x.shape[-1]), self.A.mT).chunk(len(self.modules), dim=-1)
            self.read, self.first = x, dict(zip(self.modules, parts, strict=True))
        part = self.first.pop(module)
        if not self.first:
            self.read = None
        return part


class StackedLoRA(nn.Module):
    """A frozen linear layer that adds, while a stack is bound, one LoRA adapter to each block of the batch."""

    def __init__(self, linear: nn.Linear, scale: float, together: Together) -> None:
        super().__init__()
        self.linear, self.scale, self.factor, self.together = linear, scale, scale, together
        self.B: Tensor | None = None
        together.modules.append(self)

    def forward(self, x: Tensor) -> Tensor:
        """x [n * b, L, d_in] -> [n * b, L, d_out], rows i * b to (i + 1) * b through adapter i."""
        y: Tensor = self.linear(x)
        if self.B is None:
            return y
        first = self.together.product(self, x)
        stacked = y.view(len(self.B), -1, y.shape[-1])
        return torch.baddbmm(stacked, first, self.B, alpha=self.factor).view_as(y)
