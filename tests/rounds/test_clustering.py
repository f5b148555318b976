"""Assignments by small cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from raypref.rounds.clustering import balance, lowest_loss, random_assignment, reindex, soft_weights
from raypref.tools.rng import stream


def test_lowest_loss_with_ties_to_the_lowest_expert():
    losses = np.array([[1.0, 2.0, 3.0], [0.5, 2.0, 3.0], [0.7, 1.0, 3.0]])  # [K, C]
    assert lowest_loss(losses).tolist() == [1, 2, 0]


def test_a_broken_expert_never_wins():
    assert lowest_loss(np.array([[np.nan, 1.0], [2.0, np.inf]])).tolist() == [1, 0]
    with pytest.raises(ValueError, match="client 1"):
        lowest_loss(np.array([[1.0, np.nan], [2.0, np.inf]]))


def test_empty_groups_are_discarded_in_order():
    assert reindex(np.array([3, 0, 3, 2])).tolist() == [2, 0, 2, 1]


def test_random_assignment_reaches_all_experts():
    assert set(random_assignment(200, 4, stream(0, "assignment")).tolist()) == {0, 1, 2, 3}


def test_the_cheapest_client_moves():
    """Sizes 4 and 0: two must go. Moving costs ℓ_1 - ℓ_0 = 3, 1, 4, 2, so clients 1 and then 3 go."""
    losses = np.array([[1.0, 1.0, 1.0, 1.0], [4.0, 2.0, 5.0, 3.0]])
    assert balance(lowest_loss(losses), losses).tolist() == [0, 1, 0, 1]


@given(st.integers(1, 5).flatmap(lambda K: arrays(np.float64, (K, 13), elements=st.floats(0, 10))))
def test_balanced_sizes_differ_by_at_most_one_and_nobody_is_lost(losses):
    K, before = len(losses), lowest_loss(losses)
    after = balance(before, losses)
    sizes = np.bincount(after, minlength=K)
    assert sizes.sum() == 13 and sizes.max() - sizes.min() <= 1
    assert np.array_equal(balance(after, losses), after)
    # No more move than must: whoever is above the larger final size, or what fills the smaller ones.
    sizes_before = np.bincount(before, minlength=K)
    assert (after != before).sum() >= np.maximum(sizes_before - sizes.max(), 0).sum()


def test_soft_weights_are_accuracies_over_their_sum():
    """(0.9, 0.3) -> (3/4, 1/4); a client for whom nothing is right weighs all alike."""
    assert np.allclose(soft_weights(np.array([[0.9, 0.0], [0.3, 0.0]])), [[0.75, 0.5], [0.25, 0.5]])
