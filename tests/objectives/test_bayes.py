"""The Bayesian reward model's inference: by hand, against integration, and what must hold of any posterior."""

import itertools
import math

import pytest
import torch

from raypref.objectives.bayes import Gaussian, posterior, predicted

ALL = 50
"""Iterations by which the fixed point stands still."""


def choices(*t_and_x):
    return torch.tensor(t_and_x, dtype=torch.float64), torch.ones(len(t_and_x), dtype=torch.bool)


def test_without_choices_it_is_the_prior():
    difference, there = choices((0.3, 1.0, 2.0), (1.0, -1.0, 0.5))
    q = posterior(difference, torch.zeros_like(there), 3)
    assert q.mu.tolist() == [0, 0] and torch.equal(q.covariance, torch.eye(2, dtype=torch.float64))


def test_one_choice_by_hand():
    """x = 1, t = 0. At ξ = 0.9883: λ = tanh(0.49415) / 3.9532 = 0.11575, Σ = 1 / 1.2315 = 0.8120, μ = Σ/2 = 0.4060 and
    ξ² = Σ + μ² = 0.9768, which is where it stood. The true mean is 2 E[σ'(z)] = 0.4132 (Stein)."""
    q = posterior(*choices((0.0, 1.0)), ALL)
    assert q.mu.item() == pytest.approx(0.4060, abs=1e-4) and q.covariance.item() == pytest.approx(0.8120, abs=1e-4)
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.sigmoid(z) * torch.exp(-z * z / 2)
    assert q.mu.item() == pytest.approx(float((z * density).sum() / density.sum()), rel=0.02)


def test_many_choices_against_integration():
    """Two entries, eight choices with offsets: the mean is a grid's to 0.08; variances are below the true ones, as a
    bound's are (Jaakkola and Jordan, section 4), by a quarter at most."""
    generator = torch.Generator().manual_seed(0)
    difference = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    q = posterior(difference, torch.ones(8, dtype=torch.bool), ALL)
    line = torch.linspace(-6, 6, 241, dtype=torch.float64)
    z = torch.cartesian_prod(line, line)
    log = -(z**2).sum(-1) / 2 + torch.nn.functional.logsigmoid(difference[:, 0] + z @ difference[:, 1:].T).sum(-1)
    weight = torch.softmax(log, 0)
    mean = weight @ z
    variance = weight @ (z - mean) ** 2
    assert torch.allclose(q.mu, mean, atol=0.08)
    assert ((q.covariance.diagonal() > 0.75 * variance) & (q.covariance.diagonal() < variance)).all()


def test_every_turn_raises_the_bound_on_the_evidence():
    """log P(choices) ≥ -KL(q ‖ prior) + Σ log σ(ξ) + (E a - ξ)/2 - λ(ξ) (E a² - ξ²), at its best ξ² = E a²."""
    difference = 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    there = torch.ones(6, dtype=torch.bool)

    def bound(q):
        t, x = difference[:, 0], difference[:, 1:]
        a = t + x @ q.mu
        xi = torch.sqrt(((x @ q.covariance) * x).sum(-1) + a**2)
        kl = (q.covariance.trace() + q.mu @ q.mu - 3 - torch.logdet(q.covariance)) / 2
        return float((torch.nn.functional.logsigmoid(xi) + (a - xi) / 2).sum() - kl)

    bounds = [bound(posterior(difference, there, turns)) for turns in range(1, 12)]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(bounds))
    assert bounds[-1] > bounds[0] + 0.01


def test_opposite_choices_cancel_and_still_tell():
    q = posterior(*choices((0.0, 2.0), (0.0, -2.0)), ALL)
    assert q.mu.item() == pytest.approx(0, abs=1e-9) and q.covariance.item() < 0.7
    more = posterior(*choices(*[(0.0, 2.0)] * 4), ALL)
    once = posterior(*choices((0.0, 2.0)), ALL)
    assert more.mu > once.mu and more.covariance < once.covariance


def test_padding_and_company_change_nothing():
    """Of a stack of people each is what it is alone; a choice that does not count may hold anything finite."""
    difference = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    there = torch.tensor([[True, True, True], [True, False, True]])
    together = posterior(difference, there, 5)
    for i in range(2):
        alone = posterior(difference[i][there[i]], there[i][there[i]], 5)
        assert torch.allclose(together.mu[i], alone.mu, atol=1e-6)
        assert torch.allclose(together.covariance[i], alone.covariance, atol=1e-6)


def test_its_gradient():
    difference = torch.randn(3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    there = torch.tensor([True, True, False])
    assert torch.autograd.gradcheck(lambda d: tuple(posterior(d, there, 4)), difference.requires_grad_())


def test_what_is_not_known_of_z_lowers_the_margin():
    """m = 1 + 2 · 0.5 = 2, s² = 2² Σ = 8/π: 2 / √(1 + 1). With Σ = 0 it is m."""
    pair = torch.tensor([[1.0, 2.0]])
    for variance, expected in ((2 / math.pi, 2 / math.sqrt(2)), (0.0, 2.0)):
        q = Gaussian(torch.tensor([0.5]), torch.tensor([[variance]]))
        assert predicted(pair, q).item() == pytest.approx(expected, abs=1e-6)


def test_a_diverged_row_gives_no_number_and_no_exception():
    for value in (math.nan, math.inf):
        q = posterior(torch.full((2, 3), value), torch.ones(2, dtype=torch.bool), 3)
        assert not torch.isfinite(q.mu).any()
