"""The variational losses by closed forms, by integration, and by what may not receive a gradient."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from raypref.objectives.choice import order_margins, pair_margins
from raypref.objectives.variational import (
    gaussian_kl,
    gumbel_log_weights,
    log_normal,
    mixture_kl,
    mixture_log_prob,
    orthonormal_loss,
    pull_loss,
    reparameterize,
)


def samples(mu, log_variance, count, seed=0):
    """z ~ N(μ, σ²) of one client, [1, count, d]."""
    noise = torch.randn(1, count, mu.shape[-1], generator=torch.Generator().manual_seed(seed))
    return reparameterize(mu, log_variance, noise)


def test_log_density_is_scipys():
    z, mu, var = torch.tensor([[0.3, -1.0]]), torch.tensor([[1.0, 0.5]]), torch.tensor([[0.25, 4.0]])
    expected = stats.norm(1.0, 0.5).logpdf(0.3) + stats.norm(0.5, 2.0).logpdf(-1.0)
    assert float(log_normal(z, mu, var.log())) == pytest.approx(expected, rel=1e-5)


def test_gaussian_kl_by_hand():
    """μ = 2, σ² = 1: (4 + 1 - 0 - 1) / 2 = 2. μ = 0, σ² = e: (e - 1 - 1) / 2. None at N(0, 1)."""
    found = gaussian_kl(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]))
    assert torch.allclose(found, torch.tensor([2.0, (math.e - 2) / 2, 0.0]), atol=1e-6)


def test_a_mixture_of_one_has_the_closed_form():
    """D_KL(N(μ, S) ‖ N(m, T)) = ½ Σ (S/T + (μ - m)²/T - 1 - log S/T), by the mean of 200,000 samples."""
    mu, log_variance = torch.tensor([[[0.5, -1.0]]]), torch.tensor([[[-0.5, 0.3]]])
    m, T = torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 0.7]])
    S = log_variance.exp()
    exact = 0.5 * (S / T + (mu - m) ** 2 / T - 1 - (S / T).log()).sum()
    z = samples(mu, log_variance, 200_000)
    found = mixture_kl(z, mu, log_variance, torch.zeros(1, 1), m, T).mean()
    assert float(found) == pytest.approx(float(exact), abs=0.02)


def test_two_components_against_integration_in_one_dimension():
    """q = N(0.2, 0.6²) against 0.3 N(-1, 0.5²) + 0.7 N(1, 1)."""
    q = stats.norm(0.2, 0.6)

    def integrand(x):
        p = 0.3 * stats.norm(-1, 0.5).pdf(x) + 0.7 * stats.norm(1, 1).pdf(x)
        return q.pdf(x) * (q.logpdf(x) - np.log(p))

    exact, _ = integrate.quad(integrand, -6, 6)
    mu, log_variance = torch.tensor([[[0.2]]]), torch.tensor([[[2 * math.log(0.6)]]])
    log_w = torch.tensor([[0.3, 0.7]]).log()
    z = samples(mu, log_variance, 200_000)
    found = mixture_kl(z, mu, log_variance, log_w, torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.25], [1.0]])).mean()
    assert float(found) == pytest.approx(exact, abs=0.01)


def test_far_peers_do_not_underflow():
    """Densities of e^-5000 have a log all the same: -½ · 100² - ½ log 2π in one dimension, weights 1/2 each alike."""
    z = torch.tensor([[[100.0]]])
    found = mixture_log_prob(z, torch.full((1, 2), math.log(0.5)), torch.zeros(2, 1), torch.ones(2, 1))
    assert float(found) == pytest.approx(-5000 - 0.5 * math.log(2 * math.pi), rel=1e-6)


def test_gradients_reach_the_log_weights_and_the_posterior():
    ell = torch.zeros(1, 2, requires_grad=True)
    mu, log_variance = torch.zeros(1, 1, 1, requires_grad=True), torch.zeros(1, 1, 1, requires_grad=True)
    z = reparameterize(mu, log_variance, torch.full((1, 1, 1), 0.1))
    log_w = gumbel_log_weights(ell, torch.zeros(1, 2), 1.0)
    kl = mixture_kl(z, mu, log_variance, log_w, torch.tensor([[0.0], [4.0]]), torch.ones(2, 1)).sum()
    kl.backward()
    # ∂KL/∂ℓ_j = w_j - r_j, r the responsibilities: more weight on the near peer lowers the divergence.
    near, far = math.exp(-0.5 * 0.1**2), math.exp(-0.5 * 3.9**2)
    r = near / (near + far)
    assert torch.allclose(ell.grad, torch.tensor([[0.5 - r, r - 0.5]]), atol=1e-6)
    assert mu.grad is not None and float(mu.grad) != 0 and float(log_variance.grad) != 0


def test_gumbel_softmax_limits():
    """τ -> 0: the largest ℓ + g takes all; τ -> ∞: all alike; without noise at τ = 1 the softmax; -inf weighs
    nothing."""
    ell, gumbel = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[2.0, 0.0, 0.5]])
    assert torch.allclose(gumbel_log_weights(ell, gumbel, 1e-3).exp(), torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.allclose(gumbel_log_weights(ell, gumbel, 1e6).exp(), torch.full((1, 3), 1 / 3), atol=1e-5)
    assert torch.allclose(gumbel_log_weights(ell, torch.zeros(1, 3), 1.0).exp(), ell.softmax(-1))
    left_out = gumbel_log_weights(torch.tensor([[0.0, -torch.inf]]), torch.zeros(1, 2), 1.0).exp()
    assert torch.equal(left_out, torch.tensor([[1.0, 0.0]]))


def test_pull_and_orthonormality_by_hand():
    """z = (1, 2), p = (1, 0): 4. P = s · identity rows: 0. Rows (5, 0) and (5, 0), s = 5: P Pᵀ / s² - I has two ones
    off the diagonal: 2."""
    assert float(pull_loss(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[1.0, 0.0]]))) == 4.0
    assert float(orthonormal_loss(5 * torch.eye(2)[None], 5.0)) == 0.0
    assert float(orthonormal_loss(torch.tensor([[[5.0, 0.0], [5.0, 0.0]]]), 5.0)) == pytest.approx(2.0)


@given(seed=st.integers(0, 2**31), size=st.floats(0.01, 100))
def test_what_is_added_to_both_orders_alike_leaves_pair_margins_as_they_are(seed, size):
    """Eq. 2's f_θ(z) is such an addition: it moves each order's margin by the same amount the other way."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(10, 2, generator=draw, dtype=torch.float64)
    shift = size * torch.randn(1, 2, generator=draw, dtype=torch.float64)
    before, after = order_margins(logits), order_margins(logits + shift)
    assert torch.allclose(pair_margins(after), pair_margins(before), atol=1e-9)
    assert torch.allclose(after - before, (shift[0, 0] - shift[0, 1]) * torch.tensor([1.0, -1.0]).double(), atol=1e-9)
