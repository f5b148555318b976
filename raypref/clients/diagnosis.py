"""What S2 section 2.2 reads off a client's row before it is fine-tuned further: gradient quotient and headroom.

Stacked over clients as everything in `raypref.clients.worker`: losses are summed over clients, so that each gradient is
its own client's, and one tangent a row gives every client's derivative in one forward-mode pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import logsigmoid

from raypref.data.encode import EncodedFold
from raypref.models.selector import Selector
from raypref.objectives.choice import margins, order_margins, pair_margins
from raypref.objectives.diagnostics import blocks_of, gradient_quotient

if TYPE_CHECKING:
    from raypref.clients.worker import Worker  # which calls `diagnose`


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


def diagnose(worker: Worker, stack: Sequence[int], rows: Tensor, eta: float) -> Diagnosis:
    """Gradient quotient and headroom of the clients in `stack`, client i at rows[i] (S2 2.2).

    rows: [n, D]. The step is the plain one, θ - η g^c, with the full-batch gradient of the training fold; all of it in
    float32 (a base in bfloat16 is widened meanwhile: its rounding would drown the quotients), without dropout.
    """
    rows = rows.detach().to(worker.device, torch.float32)
    test = [worker.clients[c].test for c in stack]
    with _float32(worker.selector):
        g = full_gradient(worker, stack, rows)
        quotient = gradient_quotient(g, full_gradient(worker, stack, rows - eta * g), blocks_of(worker.selector.layout))
        H = margin_derivatives(worker, test, rows, -eta * g)
    return Diagnosis(
        *(part.cpu().numpy() for part in quotient),
        headroom=[h.double().numpy() for h in H],
    )


def full_gradient(worker: Worker, stack: Sequence[int], rows: Tensor) -> Tensor:
    """g^c = ∇L_c at rows [n, D] -> [n, D]: the loss over the training fold, both orders of every pair (S2 2.2)."""
    folds = [worker.clients[c].train for c in stack]
    weight = torch.tensor([1 / max(1, 2 * fold.pairs) for fold in folds], device=rows.device)
    g = torch.zeros_like(rows)
    rows = rows.detach().requires_grad_()
    for parts in _batches(worker, folds):
        ids, lengths, valid = worker._batch(folds, parts)
        slots = torch.zeros_like(lengths)
        for i, part in enumerate(parts):
            slots[i, : len(part)] = torch.from_numpy(part % 2)
        losses = -logsigmoid(margins(worker.selector.choice_logits(rows, ids, lengths), slots))
        g += torch.autograd.grad(((losses * valid).sum(-1) * weight).sum(), rows)[0]
    return g


@torch.no_grad()
def margin_derivatives(worker: Worker, folds: Sequence[EncodedFold], rows: Tensor, direction: Tensor) -> list[Tensor]:
    """⟨∇M, direction⟩ of every pair's margin M, row i on fold i: [n, D], [n, D] -> n tensors [N_i].

    One forward-mode pass; M is linear in the logits, so their tangents are judged as they are.
    """
    tangents = [torch.zeros(2 * fold.pairs, 2) for fold in folds]
    with worker.selector.eager(), forward_ad.dual_level():
        dual = forward_ad.make_dual(rows, direction)
        for parts in _batches(worker, folds):
            ids, lengths, _ = worker._batch(folds, parts)
            tangent = forward_ad.unpack_dual(worker.selector.choice_logits(dual, ids, lengths)).tangent.cpu()
            for i, part in enumerate(parts):
                tangents[i][part] = tangent[i, : len(part)]
    return [pair_margins(order_margins(one)) for one in tangents]


def _batches(worker: Worker, folds: Sequence[EncodedFold]) -> Iterator[list[np.ndarray]]:
    """Every comparison of each fold once, in batches of similar length: no larger than a training step's, for both
    kinds of pass need about its memory, nor than an evaluation's."""
    orders = [np.argsort(-f.lengths, kind="stable") for f in folds]
    config = worker.config
    batch = max(1, min(config.optim.batch_size, config.clients.eval_batch // len(folds)))
    for start in range(0, max(map(len, orders)), batch):
        yield [o[start : start + batch] for o in orders]


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
