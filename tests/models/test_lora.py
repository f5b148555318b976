"""Adapters and dropout masks that modules share, by hand."""

import pytest
import torch
from torch import nn

from raypref.models.lora import Dropout, StackedLoRA, Together

D = 64


def siblings(scale: float) -> tuple[Together, list[StackedLoRA]]:
    """Two modules of zero weights that read the same tensor."""
    together = Together()
    linears = [nn.Linear(D, D, bias=False) for _ in range(2)]
    for linear in linears:
        nn.init.zeros_(linear.weight)
    return together, [StackedLoRA(linear, scale, together) for linear in linears]


def adapters(n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A of the first D / 2 inputs as they are, B to outputs as they are; of the second module twice that."""
    A = torch.eye(D)[: D // 2].expand(n, -1, -1)
    return [(A, A.mT), (A, 2 * A.mT)]


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_siblings_share_a_mask_that_keeps_the_mean(p):
    """Where W = 0 and B A is the identity on half the inputs, an output is 0 or s x / (1 - p), and the second module's
    twice the first's. Left out are p of 2 · 50 · 20 · 32 elements, five standard deviations about it."""
    n, b, L = 2, 50, 20
    together, (first, second) = siblings(0.5)
    x = torch.rand(n * b, L, D) + 1.0
    generators = [torch.Generator().manual_seed(i) for i in range(n)]
    together.bind(adapters(n), Dropout(p, generators, [(b, L)] * n))
    y, twice = first(x), second(x)
    assert torch.equal(twice, 2 * y)
    kept = y[..., : D // 2] != 0
    assert torch.allclose(y[..., : D // 2], kept * 0.5 * x[..., : D // 2] / (1 - p), rtol=1e-4)
    assert not y[..., D // 2 :].any()
    draws = kept.numel()
    assert abs(float((~kept).float().mean()) - p) < 5 * (p * (1 - p) / draws) ** 0.5
    assert not torch.equal(first(x), y)  # of the next pass there is another mask
    together.release()
    assert not first(x).any()


def test_each_tensor_that_is_read_has_its_own_products():
    """Modules called in turn with two tensors never see the other's."""
    together, (first, second) = siblings(1.0)
    together.bind(adapters(1), None)
    one, other = torch.rand(1, 3, D), torch.rand(1, 3, D)
    half = torch.zeros(D)
    half[: D // 2] = 1
    assert torch.allclose(first(one), one * half) and torch.allclose(second(other), 2 * other * half)
    assert torch.allclose(second(one), 2 * one * half) and torch.allclose(first(other), other * half)


def test_a_client_has_its_own_mask_whoever_shares_the_pass():
    """Shorter and fewer sequences than the others' change nothing."""
    together, (first, _) = siblings(1.0)

    def passed(x, seeds, shapes):
        generators = [torch.Generator().manual_seed(s) for s in seeds]
        together.bind(adapters(len(seeds)), Dropout(0.5, generators, shapes))
        return first(x)

    alone = passed(torch.ones(2, 5, D), [7], [(2, 5)])
    shared = passed(torch.ones(6, 8, D), [3, 7], [(3, 8), (2, 5)])
    assert torch.equal(shared[3:5, :5], alone)
