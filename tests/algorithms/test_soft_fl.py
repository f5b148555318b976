"""Soft-FL (S2 Algorithm 3) against itself in numpy, and against what it must reduce to."""

import numpy as np
import pytest
import torch

from raypref.algorithms.soft_fl import SoftFL
from raypref.config import UserError
from raypref.rounds.sampling import uniform_sample
from raypref.tools.rng import stream
from tests.algorithms.rule import Rule, config

ONE = {"model__lora_r": 1}  # as the rule's layout


def test_algorithm_3_in_numpy():
    """Fusion, training, expert-wise averages; weights refreshed after rounds 2, 4, … and at R = 7, not between."""
    clients = Rule()
    algorithm = SoftFL(config("soft_fl", federation__rounds=7, **ONE), clients)
    state = algorithm.init()
    theta = state.theta.double().numpy()

    def weights():
        a = clients.evaluate(torch.from_numpy(theta), "validation")["accuracy"]
        return a / a.sum(0)

    w = weights()
    assert np.allclose(state.w.numpy(), w)
    for r in range(1, 8):
        state, metrics = algorithm.round(state)
        cohort = clients.asked[-1]
        trained = {c: w[:, c] @ theta + clients.pull(c) for c in cohort}
        theta = np.stack([sum(w[k, c] * trained[c] for c in cohort) / w[k, cohort].sum() for k in range(2)])
        assert np.allclose(state.theta.numpy(), theta, atol=1e-5)
        w = weights() if r % 2 == 0 or r == 7 else w
        assert np.allclose(state.w.numpy(), w, atol=1e-5)
        assert 1 <= metrics["experts/effective"] <= 2 + 1e-9
    assert np.allclose(algorithm.initialization(state).numpy(), w.T @ theta, atol=1e-5)


def test_one_expert_is_fedavg_with_uniform_weights():
    """All weights are 1: θ moves by the mean pull of the cohort, whatever the sizes."""
    clients = Rule()
    algorithm = SoftFL(config("soft_fl", experts__K=1, **ONE), clients)
    state = algorithm.init()
    theta = state.theta[0].clone()
    for r in range(8):
        state, _ = algorithm.round(state)
        cohort = uniform_sample(3, 6, stream(0, "cohort", r))
        theta = theta + np.mean([clients.pull(c) for c in cohort])
        assert torch.allclose(state.theta[0], theta, atol=1e-5)


def test_more_experts_than_orthogonal_subspaces_are_refused():
    with pytest.raises(UserError, match="at most 2, the narrowest side"):
        SoftFL(config("soft_fl", experts__K=3, **ONE), Rule())
