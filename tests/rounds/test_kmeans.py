"""Balanced k-means against brute force, and labels that keep their names."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypref.rounds.clustering import kmeans, match_labels, strays
from raypref.tools.rng import stream


def inertia(points, labels):
    return sum(((points[labels == k] - points[labels == k].mean(0)) ** 2).sum() for k in np.unique(labels))


@given(st.integers(0, 10_000), st.sampled_from([(6, 2), (7, 2), (7, 3), (8, 3)]))
def test_balanced_kmeans_finds_the_best_balanced_partition(seed, shape):
    """Of all partitions with sizes equal up to one, by trying them all (small cases, ten restarts)."""
    n, M = shape
    points = np.random.default_rng(seed).normal(size=(n, 2))
    labels = kmeans(points, M, stream(seed, "kmeans"), restarts=30)
    sizes = np.bincount(labels, minlength=M)
    assert sizes.max() - sizes.min() <= 1
    every = (np.array(x) for x in itertools.product(range(M), repeat=n))
    allowed = (x for x in every if np.ptp(np.bincount(x, minlength=M)) <= 1)
    assert inertia(points, labels) <= min(inertia(points, x) for x in allowed) * 1.02 + 1e-9


def test_balance_pulls_some_to_the_wrong_side_and_lloyd_does_not():
    """Eight points at 0 and two at 10: balanced 5 and 5, so three of the eight go with the two."""
    points = np.array([[0.0]] * 8 + [[10.0]] * 2) + np.arange(10)[:, None] * 1e-3
    balanced = kmeans(points, 2, stream(0, "kmeans"))
    assert sorted(np.bincount(balanced)) == [5, 5] and (balanced[:8] == balanced[9]).sum() == 3
    free = kmeans(points, 2, stream(0, "kmeans"), balanced=False)
    assert sorted(np.bincount(free)) == [2, 8]


@given(st.lists(st.integers(0, 3), min_size=4, max_size=20), st.permutations(range(4)))
def test_permuted_labels_get_their_names_back(labels, names):
    labels = np.array(labels)
    permuted = np.array(names)[labels]
    assert np.array_equal(match_labels(permuted, labels, 4), labels)


def test_a_point_without_a_label_does_not_vote():
    """Labels (0, 0, 1) before (1, -1, 0): cluster 0 was 1 and cluster 1 was 0."""
    assert match_labels(np.array([0, 0, 1]), np.array([1, -1, 0]), 2).tolist() == [1, 1, 0]


def test_strays_are_those_who_are_not_where_most_of_their_group_is():
    """Group 0 has labels 1, 1, 0 and one without; group 1 has 0, 0: one of five. Two groups under one label: nobody."""
    assert strays(np.array([1, 1, 0, -1, 0, 0]), np.array([0, 0, 0, 0, 1, 1])) == pytest.approx(1 / 5)
    assert strays(np.array([0, 0, 0]), np.array([0, 1, 1])) == 0
    assert np.isnan(strays(np.array([0, 1]), np.array([-1, -1]))) and np.isnan(strays(np.array([-1]), np.array([0])))


def test_balance_costs_uneven_groups_strays():
    """Eight and two points in two heaps: five and five leaves three of the eight elsewhere; ordinary k-means none."""
    points = np.concatenate([np.random.default_rng(0).normal(0, 0.1, (8, 2)), np.full((2, 2), 10.0)])
    groups = np.repeat([0, 1], [8, 2])
    assert strays(kmeans(points, 2, np.random.default_rng(0), balanced=True), groups) == pytest.approx(0.3)
    assert strays(kmeans(points, 2, np.random.default_rng(0), balanced=False), groups) == 0
