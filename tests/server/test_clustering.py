"""Assignments by small cases."""

import numpy as np
import pytest

from raypref.rng import stream
from raypref.server.clustering import lowest_loss, random_assignment, reindex


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
