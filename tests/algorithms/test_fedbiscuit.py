"""FedBiscuit (S2 Algorithm 2) against itself in numpy, and against what it must reduce to."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raypref.algorithms.fedbiscuit import FedBiscuit
from raypref.config import UserError
from raypref.models.layout import initial_row
from tests.algorithms.rule import Rule, config


def test_algorithm_2_in_numpy():
    """Written again with lists: K = 2, T = 2, R = 8, so 4 warm-up rounds and 6 others, reassigned at every second."""
    clients = Rule()
    algorithm = FedBiscuit(config("fedbiscuit"), clients)
    assert algorithm.rounds == 2 * 2 + (8 - 2)
    state = algorithm.init()
    theta = [initial_row(clients.layout, 0).double().numpy() for _ in range(2)]
    p = clients.sizes / clients.sizes.sum()

    def losses():
        return clients.evaluate(torch.from_numpy(np.stack(theta)), "validation")["loss"]

    for k in range(2):  # Phase 1
        for _ in range(2):
            state, _ = algorithm.round(state)
            theta[k] = np.mean([theta[k] + clients.pull(c) for c in clients.asked[-1]], axis=0)
            assert np.allclose(state.theta.numpy(), theta, atol=1e-5)
            assert state.assignment == [-1] * 6
    for r in range(3, 9):  # Phase 2: r = T + 1, …, R
        if (r - 1) % 2 == 0:
            ell = losses()
            pi = [int(ell[1, c] < ell[0, c]) for c in range(6)]
            while abs(pi.count(0) - pi.count(1)) > 1:
                big = 0 if pi.count(0) > pi.count(1) else 1
                costs = {c: ell[1 - big, c] - ell[big, c] for c in range(6) if pi[c] == big}
                pi[min(costs, key=costs.get)] = 1 - big
        state, _ = algorithm.round(state)
        cohort = clients.asked[-1]
        for k in range(2):
            mine = [c for c in cohort if pi[c] == k]
            kept = 1 - sum(p[c] for c in mine)
            theta[k] = kept * theta[k] + sum(p[c] * (theta[k] + clients.pull(c)) for c in mine)
        assert np.allclose(state.theta.numpy(), theta, atol=1e-5)
        if r < 8:
            assert state.assignment == pi
    ell = losses()  # Phase 3: own choice, unbalanced
    assert state.assignment == [int(ell[1, c] < ell[0, c]) for c in range(6)]
    assert torch.equal(algorithm.initialization(state), state.theta[state.assignment])


def test_one_expert_and_full_participation_is_size_weighted_fedavg():
    """Σ p_c = 1 leaves no residual: θ moves by Σ N_c pull_c / Σ N_c = (1+2+3+4-5-6)/21 = -1/21 a round."""
    clients = Rule()
    algorithm = FedBiscuit(config("fedbiscuit", experts__K=1, federation__cohort=6), clients)
    state = replace(algorithm.init(), round=algorithm.warm_up)
    for r in range(1, 4):
        state, _ = algorithm.round(state)
        expected = initial_row(clients.layout, 0) - r / 21
        assert torch.allclose(state.theta[0], expected, atol=1e-6)


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(UserError, match="lower --experts"):
        FedBiscuit(config("fedbiscuit", experts__T=8), Rule())
