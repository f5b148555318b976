"""n LoRA adapters in one pass: `y = W x + (α / r) B_i A_i (m ∘ x)`, W frozen and shared by all, m a dropout mask.

Modules that read the same tensor (q, k, v; gate, up) share its mask, and their first products A_i x are one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
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

    @property
    def scale(self) -> float:
        """By how much what is kept is to be scaled up, so that the mean stays."""
        return LEVELS / (LEVELS - self.dropped)

    def __call__(self, x: Tensor) -> Tensor:
        """x [n * b, L, d] with elements left out at random; what is kept is not scaled up here."""
        return x * self.kept(x, torch.bool)

    def kept(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """1 or True where an element of x [n * b, L, d] is kept. The next call draws anew."""
        n, (rows, length, width) = len(self.generators), x.shape
        kept = torch.zeros(n, rows // n, length, width, dtype=dtype, device=x.device)
        for i, (generator, (b, tokens)) in enumerate(zip(self.generators, self.shapes, strict=True)):
            tokens = min(tokens, length)  # fewer where a block is computed at some positions alone
            size = b * tokens * width
            words = torch.empty(-(-size // 4), dtype=torch.int64, device=x.device)
            words.random_(-(1 << 63), None, generator=generator)
            draws = words.view(torch.int16)[:size].view(b, tokens, width)
            torch.ge(draws, self.dropped - LEVELS // 2, out=kept[i, :b, :tokens])
        return kept.view_as(x)


@dataclass(frozen=True)
class Bound:
    """The adapters of n clients for the modules of a group, while a pass goes through them."""

    A: Tensor
    """[n, modules * r, d_in], one module's below another's."""
    B: Sequence[Tensor]
    """Each module's [n, r, d_out]: the order in which products with it and, in the backward pass, with its transpose
    are quick."""
    dropout: Dropout | None
    merge: bool = False
    """Whether the one client's adapters are added to the weights, which then cost what the frozen ones do."""


class Together:
    """The adapters of modules that read the same tensor."""

    def __init__(self) -> None:
        self.modules: list[StackedLoRA] = []
        self.bound: Bound | None = None
        self.read: Tensor | None = None
        """What the modules are reading in turn, and their first products of it that are still to be used."""
        self.first: dict[StackedLoRA, Tensor] = {}

    def bind(
        self, adapters: Sequence[tuple[Tensor, Tensor]], dropout: Dropout | None = None, merge: bool = False
    ) -> None:
        """adapters: (A [n, r, d_in], B [n, d_out, r]) of each module."""
        dtype = self.modules[0].linear.weight.dtype
        A = torch.cat([A for A, _ in adapters], dim=1).to(dtype)
        self.bound = Bound(A, [B.mT.contiguous().to(dtype) for _, B in adapters], dropout, merge)

    def release(self) -> None:
        """From now on the modules compute their frozen parts alone."""
        self.bound, self.read, self.first = None, None, {}

    def product(self, module: StackedLoRA, x: Tensor, bound: Bound) -> Tensor:
        """[n * b, L, d_in] -> A_i x of this module [n, b * L, r]; those of the others wait for them to read `x`."""
        # The same memory is the same tensor: ZeRO 3 hands every module an alias of its own.
        same = self.read is not None and self.read.data_ptr() == x.data_ptr() and self.read.shape == x.shape
        if not same or module not in self.first:
            h = x if bound.dropout is None else bound.dropout(x)
            parts = torch.bmm(h.view(len(bound.A), -1, x.shape[-1]), bound.A.mT).chunk(len(self.modules), dim=-1)
            self.read, self.first = x, dict(zip(self.modules, parts, strict=True))
        part = self.first.pop(module)
        if not self.first:
            self.read = None
        return part


class StackedLoRA(nn.Module):
    """A frozen linear layer that adds, while a stack is bound, one LoRA adapter to each block of the batch."""

    def __init__(self, linear: nn.Linear, scale: float, together: Together) -> None:
        super().__init__()
        self.linear, self.scale, self.together, self.place = linear, scale, together, len(together.modules)
        together.modules.append(self)

    def forward(self, x: Tensor) -> Tensor:
        """x [n * b, L, d_in] -> [n * b, L, d_out], rows i * b to (i + 1) * b through adapter i."""
        bound = self.together.bound
        if bound and bound.merge and self.linear.weight.numel():  # ZeRO 3's are there inside their own call alone
            (A,), (B,) = bound.A.chunk(len(self.together.modules), dim=1)[self.place], bound.B[self.place]
            return nn.functional.linear(x, self.linear.weight.addmm(B.T, A, alpha=self.scale), self.linear.bias)
        y: Tensor = self.linear(x)
        if bound is None:
            return y
        first, B = self.together.product(self, x, bound), bound.B[self.place]
        scale = self.scale * (bound.dropout.scale if bound.dropout else 1.0)
        return torch.baddbmm(y.view(len(B), -1, y.shape[-1]), first, B, alpha=scale).view_as(y)


def as_bound(groups: Sequence[Together]) -> contextlib.AbstractContextManager[None]:
    """While inside, the adapters of these groups and their dropout's generators are what they are at this call."""
    dropouts = [group.bound.dropout for group in groups if group.bound and group.bound.dropout]
    generators = list({id(g): g for dropout in dropouts for g in dropout.generators}.values())

    def state() -> tuple[list[Bound | None], list[Tensor]]:
        return [group.bound for group in groups], [g.get_state() for g in generators]

    def take(bound: list[Bound | None], states: list[Tensor]) -> None:
        for group, value in zip(groups, bound, strict=True):
            group.release()
            group.bound = value
        for generator, drawn in zip(generators, states, strict=True):
            generator.set_state(drawn)

    @contextlib.contextmanager
    def inside(then: tuple[list[Bound | None], list[Tensor]]) -> Iterator[None]:
        now = state()
        take(*then)
        try:
            yield
        finally:
            take(*now)

    return inside(state())
