"""Aggregation by numbers worked out by hand: every rule is a weight matrix times a matrix of rows."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from raypref.rounds.aggregation import (
    combine,
    group_weights,
    hierarchical_weights,
    residual_weights,
    size_weights,
    uniform_weights,
)

ROWS = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])


def test_fedavg_weighs_by_size():
    """N = (1, 1, 2): (1·1 + 1·2 + 2·4) / 4 = 11/4 and ten times that."""
    assert torch.equal(combine(size_weights(np.array([1, 1, 2])), ROWS), torch.tensor([2.75, 27.5]))


def test_uniform():
    """(1 + 2 + 4) / 3 = 7/3."""
    assert torch.allclose(combine(uniform_weights(3), ROWS), torch.tensor([7 / 3, 70 / 3]))


def test_group_means_and_empty_group():
    """Groups (0, 0, 2): means 1.5 and 4; group 1 has nobody and gives a zero row."""
    found = combine(group_weights(np.array([0, 0, 2]), 3), ROWS)
    assert torch.equal(found, torch.tensor([[1.5, 15.0], [0.0, 0.0], [4.0, 40.0]]))


def test_hierarchy_is_by_size_within_and_uniform_across():
    """Groups (0, 0, 1), N = (1, 3, 100): group 0 gives (1·1 + 3·2)/4 = 1.75, group 1 gives 4; mean 2.875.

    By size alone the third client would weigh 100/104.
    """
    weights = hierarchical_weights(np.array([0, 0, 1]), np.array([1, 3, 100]))
    assert np.allclose(weights, [0.125, 0.375, 0.5])
    assert torch.equal(combine(weights, ROWS), torch.tensor([2.875, 28.75]))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500)), min_size=1, max_size=12))
def test_hierarchical_weights_give_every_group_the_same(members):
    groups, sizes = (np.array(x) for x in zip(*members, strict=True))
    weights = hierarchical_weights(groups, sizes)
    reached = np.unique(groups)
    assert np.isclose(weights.sum(), 1)
    for k in reached:
        assert np.isclose(weights[groups == k].sum(), 1 / len(reached))


def test_a_and_b_are_averaged_apart():
    """Two clients with B A = 1 · 1 and 3 · 3: the mean row is (2, 2), whose product is 4, not the mean product 5."""
    mean = combine(uniform_weights(2), torch.tensor([[1.0, 1.0], [3.0, 3.0]]))
    assert float(mean[0] * mean[1]) == 4.0


def test_residual_rule():
    """Expert 0 keeps 0.7 of (0, 0) and takes 0.2 · 1 + 0.1 · 2 = 0.4; expert 1 keeps 0.7 · 5 and takes 0.3 · 4;
    expert 2 hears nobody and stays."""
    before = torch.tensor([[0.0, 0.0], [5.0, 50.0], [9.0, 90.0]])
    weights = residual_weights(np.array([0, 0, 1]), np.array([0.2, 0.1, 0.3]), 3)
    found = combine(weights, torch.cat([before, ROWS]))
    assert torch.allclose(found, torch.tensor([[0.4, 4.0], [4.7, 47.0], [9.0, 90.0]]))


@given(st.lists(st.floats(-1, 2), min_size=3, max_size=3))
def test_fusion_is_linear_in_the_weights(w):
    """Soft-FL's fused adapter Σ w_k θ_k: scaling and adding weights scales and adds adapters (A and B apart)."""
    a, b = np.array(w), np.array([0.5, 0.3, 0.2])
    assert torch.allclose(combine(a + 2 * b, ROWS), combine(a, ROWS) + 2 * combine(b, ROWS), atol=1e-4)
