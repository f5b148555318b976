"""The gradient quotient of S2 section 2.2: pure functions on gradients in rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raypref.models.layout import Layout


class GradientQuotient(NamedTuple):
    """GQ(c, l) of n clients and L blocks. Ratios are heavy-tailed, so the mean has its median beside it."""

    mean: Tensor
    """float64 [n, L], S2's GQ over the elements counted; NaN where there are none."""
    median: Tensor
    """float64 [n, L], the lower of the two middle values where their number is even; NaN where there are none."""
    excluded: Tensor
    """float64 [n, L], share of the elements left out because their gradient is exactly 0: every A while B = 0."""


def gradient_quotient(g: Tensor, g_next: Tensor, blocks: Sequence[slice]) -> GradientQuotient:
    """|g_next / g - 1| in each block, over the elements whose g is not exactly 0 (S2 2.2).

    g, g_next: [n, D] gradients at θ and at θ - η g; blocks: the L parts of a row, see `blocks_of`.
    """
    found = []
    for block in blocks:
        # (g_next - g) / g keeps the digits that g_next / g - 1 cancels.
        before, after = g[:, block].double(), g_next[:, block].double()
        counted = before != 0
        ratio = ((after - before) / before).abs()
        mean = torch.where(counted, ratio, 0.0).sum(-1) / counted.sum(-1)
        median = torch.where(counted, ratio, torch.nan).nanmedian(-1).values
        found.append((mean, median, 1.0 - counted.double().mean(-1)))
    return GradientQuotient(*(torch.stack(columns, dim=-1) for columns in zip(*found, strict=True)))


def blocks_of(layout: Layout) -> list[slice]:
    """The part of a row that each adapted transformer block owns, in the model's order.

    A block is what its segments' names say (`layers.3.self_attn.q_proj.lora_A`: 3); adapters outside the blocks belong
    to none. Raises `ValueError` where a block's segments do not lie together.
    """
    spans: dict[int, slice] = {}
    at = 0
    for segment in layout.segments:
        if match := re.match(r"layers\.(\d+)\.", segment.name):
            block = int(match[1])
            start = spans.get(block, slice(at, at))
            if start.stop != at:
                raise ValueError(f"block {block} is not in one piece: {segment.name} lies apart")
            spans[block] = slice(start.start, at + segment.size)
        at += segment.size
    return list(spans.values())
