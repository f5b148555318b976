"""Gradient quotient and headroom: what S2 section 2.2 reads off a client's row before it is fine-tuned further.

Stacked over clients as everything at a worker: losses are summed over clients, so that each gradient is its own
client's, and one tangent a row gives every client's derivative in one forward-mode pass.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from raypref.data.encode import EncodedFold
from raypref.models.layout import Layout
from raypref.models.reader import Reader
from raypref.models.selector import Selector
from raypref.objectives.choice import choice_loss, order_margins, pair_margins


@dataclass(frozen=True)
class Diagnosis:
    """n clients, each at its own row."""

    gq: np.ndarray
    """float64 [n, L], GQ(c, l) of each transformer block; NaN where no gradient of a block differs from 0."""
    gq_median: np.ndarray
    """float64 [n, L], median over the block's parameters instead of their mean."""
    gq_excluded: np.ndarray
    """float64 [n, L], share of the block's parameters left out because their gradient is exactly 0."""
    headroom: list[np.ndarray]
    """float64 [N_c] a client, H of each test pair: the first-order change of its margin M by the step -η g."""

    def by_client(self) -> list[dict[str, np.ndarray]]:
        """[n] the same, a dict a client."""
        arrays = {"gq": self.gq, "gq_median": self.gq_median, "gq_excluded": self.gq_excluded}
        return [{k: v[i] for k, v in arrays.items()} | {"headroom": h} for i, h in enumerate(self.headroom)]


def diagnose(
    reader: Reader,
    train: Sequence[EncodedFold],
    test: Sequence[EncodedFold],
    rows: Tensor,
    eta: float,
    batch_size: int,
) -> Diagnosis:
    """Gradient quotient and headroom of n clients, client i at rows[i] with its folds (S2 2.2).

    rows: [n, D]. The step is the plain one, θ - η g^c, with the full-batch gradient of the training fold; all of it in
    float32 (a base in bfloat16 is widened meanwhile: its rounding would drown the quotients), without dropout. Batches
    are no larger than a training step's: both kinds of pass need about its memory.
    """
    rows = rows.detach().to(reader.device, torch.float32)
    with _float32(reader.selector):
        g = full_gradient(reader, train, rows, batch_size)
        after = full_gradient(reader, train, rows - eta * g, batch_size)
        quotient = gradient_quotient(g, after, blocks_of(reader.selector.layout))
        H = margin_derivatives(reader, test, rows, -eta * g, batch_size)
    mean, median, excluded = (part.cpu().numpy() for part in quotient)
    return Diagnosis(mean, median, excluded, [h.double().numpy() for h in H])


def full_gradient(reader: Reader, folds: Sequence[EncodedFold], rows: Tensor, batch_size: int) -> Tensor:
    """g^c = ∇L_c at rows [n, D] -> [n, D]: the loss over a fold a client, both orders of every pair (S2 2.2)."""
    weight = torch.tensor([1 / max(1, 2 * fold.pairs) for fold in folds], device=rows.device)
    g = torch.zeros_like(rows)
    rows = rows.detach().requires_grad_()
    for parts, ids, lengths, valid in reader.passes(folds, batch_size):
        slots = torch.zeros_like(lengths)
        for i, part in enumerate(parts):
            slots[i, : len(part)] = torch.from_numpy(part % 2)
        losses = choice_loss(reader.selector.choice_logits(rows, ids, lengths), slots)
        g += torch.autograd.grad(((losses * valid).sum(-1) * weight).sum(), rows)[0]
    return g


@torch.no_grad()
def margin_derivatives(
    reader: Reader, folds: Sequence[EncodedFold], rows: Tensor, direction: Tensor, batch_size: int
) -> list[Tensor]:
    """⟨∇M, direction⟩ of every pair's margin M, row i on fold i: [n, D], [n, D] -> n tensors [N_i].

    One forward-mode pass; M is linear in the logits, so their tangents are judged as they are.
    """
    tangents = [torch.zeros(2 * fold.pairs, 2) for fold in folds]
    with reader.selector.eager(), forward_ad.dual_level():
        dual = forward_ad.make_dual(rows, direction)
        for parts, ids, lengths, _ in reader.passes(folds, batch_size):
            tangent = forward_ad.unpack_dual(reader.selector.choice_logits(dual, ids, lengths)).tangent.cpu()
            for i, part in enumerate(parts):
                tangents[i][part] = tangent[i, : len(part)]
    return [pair_margins(order_margins(one)) for one in tangents]


@contextlib.contextmanager
def _float32(selector: Selector) -> Iterator[None]:
    """While inside, the base's weights are float32; back and forth loses nothing. Buffers keep their own precision."""
    narrow = [(p, p.dtype) for p in selector.model.parameters() if p.dtype != torch.float32]
    for p, _ in narrow:
        p.data = p.data.float()
    try:
        yield
    finally:
        for p, dtype in narrow:
            p.data = p.data.to(dtype)


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
    columns = []
    for block in blocks:
        # (g_next - g) / g keeps the digits that g_next / g - 1 cancels.
        before, after = g[:, block].double(), g_next[:, block].double()
        counted = before != 0
        ratio = ((after - before) / before).abs()
        mean = torch.where(counted, ratio, 0.0).sum(-1) / counted.sum(-1)
        median = torch.where(counted, ratio, torch.nan).nanmedian(-1).values
        columns.append((mean, median, 1.0 - counted.double().mean(-1)))
    return GradientQuotient(*(torch.stack(blocks_of_one, dim=-1) for blocks_of_one in zip(*columns, strict=True)))


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
