"""The gradient quotient by hand, and against its own first-order form (S2 2.2)."""

import pytest
import torch

from raypref.models.layout import Layout, Segment
from raypref.objectives.diagnostics import blocks_of, gradient_quotient


def test_a_quadratic_by_hand():
    """L = θᵀAθ / 2 with A = [[2, 1], [1, 2]]: at θ = (1, 0), g = (2, 1) and Ag = (5, 4), so that a step of 0.1 changes
    g by 25 % and 40 %; at θ = (1, -1), g = (1, -1) is an eigenvector of eigenvalue 1: 10 % each."""
    A, theta = torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, -1.0]])
    g = theta @ A
    found = gradient_quotient(g, (theta - 0.1 * g) @ A, [slice(0, 1), slice(0, 2)])
    assert found.mean.flatten().tolist() == pytest.approx([0.25, 0.325, 0.1, 0.1], abs=1e-6)
    assert found.median.flatten().tolist() == pytest.approx([0.25, 0.25, 0.1, 0.1], abs=1e-6)
    assert not found.excluded.any()


def test_elements_without_a_gradient_are_left_out():
    """Block 0: ratios 1, 2 and 0.5, one of four left out; block 1: nothing to divide by, wherever it goes next."""
    g = torch.tensor([[1.0, 0.0, -2.0, 4.0, 0.0, 0.0]])
    g_next = torch.tensor([[2.0, 9.0, 2.0, 6.0, 0.0, 1.0]])
    mean, median, excluded = gradient_quotient(g, g_next, [slice(0, 4), slice(4, 6)])
    assert mean[0, 0] == pytest.approx(3.5 / 3) and median[0, 0] == 1.0 and excluded[0].tolist() == [0.25, 1.0]
    assert mean[0, 1].isnan() and median[0, 1].isnan()


def test_first_order_form_on_logistic_regression():
    """L = mean log(1 + exp(-x·θ)), g = -Xᵀσ(-Xθ) / N, ∇²L = Xᵀ diag(σσ') X / N. GQ and η‖∇²L g / g‖₁ / # differ by a
    term in η²: halving η quarters it."""
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(40, 6, generator=draw, dtype=torch.float64)
    theta = torch.randn(6, generator=draw, dtype=torch.float64)

    def gradient(theta):
        return -X.T @ torch.sigmoid(-X @ theta) / len(X)

    g, s = gradient(theta), torch.sigmoid(X @ theta)
    slope = (X.T @ (s * (1 - s) * (X @ g)) / len(X) / g).abs().mean()
    errors = []
    for eta in (0.04, 0.02, 0.01):
        quotient = gradient_quotient(g[None], gradient(theta - eta * g)[None], [slice(0, 6)]).mean
        errors.append(float((quotient - eta * slope).abs()))
    assert errors[0] < 0.04 * float(slope)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05) and errors[1] / errors[2] == pytest.approx(4, rel=0.05)


def test_blocks_are_what_names_say():
    names = ["embed.lora_A", "layers.2.q_proj.lora_A", "layers.2.q_proj.lora_B", "layers.10.mlp.up_proj.lora_A"]
    segments = [Segment(name, (2, i + 1)) for i, name in enumerate(names)]  # 2, 4, 6 and 8 elements
    assert blocks_of(Layout(tuple(segments))) == [slice(2, 12), slice(12, 20)]
    with pytest.raises(ValueError, match="block 2 is not in one piece"):
        blocks_of(Layout((*segments, Segment("layers.2.k_proj.lora_A", (2, 1)))))
