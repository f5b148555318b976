"""What counted words tell of test pairs, on data where the answer is plain."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse

from raypref.data import baselines
from raypref.data.federation import Client, Federation, Pair


def person(name: str, group: str, likes: str, other: str) -> Client:
    """Pairs that one word decides, beside a word of each pair's own."""
    pairs = [Pair("?", f"{likes} thing{i}", f"{other} thing{i}") for i in range(13)]
    return Client(name, group, tuple(pairs[:8]), tuple(pairs[8:9]), tuple(pairs[9:]))


def opposed(*groups: str) -> Federation:
    """Two who like red and one who likes blue."""
    tastes = [("red", "blue"), ("red", "blue"), ("blue", "red")]
    return Federation(
        tuple(person(f"c{i}", group, *taste) for i, (group, taste) in enumerate(zip(groups, tastes, strict=True)))
    )


def test_alone_in_the_group_and_all_together():
    """Alone and in their groups everybody is right; together two thirds like red, so that the third is wrong."""
    measured = baselines.measure(opposed("A", "A", "B"), {})
    assert measured.regression == pytest.approx((1, 1, 2 / 3))
    assert measured.neighbour[:2] == (1, 1)  # all together are a draw between opposite neighbours
    assert (measured.bayes, measured.noise, measured.cut) == (None, None, 0)
    assert measured.longer == pytest.approx(1 / 3)  # "red" is shorter than "blue"
    lines = list(baselines.lines(measured))
    assert lines[2].split() == ["logistic", "regression", "100.0", "100.0", "66.7"]
    assert not any("wish" in line for line in lines)


def test_without_groups_there_is_no_column_of_theirs():
    measured = baselines.measure(opposed("", "", ""), {})
    assert measured.regression == pytest.approx((1, 2 / 3))
    assert "own group" not in list(baselines.lines(measured))[1]


def test_only_so_many_pairs_are_looked_at_and_it_is_said(monkeypatch):
    monkeypatch.setattr(baselines, "MOST", 9)
    measured = baselines.measure(opposed("A", "A", "B"), {})
    assert measured.cut == 3 and measured.regression[0] == 1
    assert "of at most 3 pairs a client and fold" in next(baselines.lines(measured))


def matrix(*rows: list[int]) -> sparse.csr_matrix:
    return sparse.csr_matrix(np.array(rows, dtype=float))


def test_a_neighbour_is_the_most_similar_either_way_round():
    learnt = matrix([1, 1, 0], [0, 0, 2])
    judged = matrix([1, 0, 0], [-2, -1, 0], [0, 1, -3], [0, 0, 0])
    # Cosines: 0.71 and 0; -0.95 and 0; 0.22 and -0.95; none at all.
    np.testing.assert_array_equal(baselines.nearest(learnt, judged), [1, 0, 0, 0.5])


def test_a_regression_of_nothing_says_nothing():
    np.testing.assert_array_equal(baselines.regressed(matrix([0, 0]), matrix([1, 0], [0, 1])), [0.5, 0.5])
    np.testing.assert_array_equal(baselines.regressed(matrix([1, 0]), matrix([1, 0], [-1, 0], [0, 1])), [1, 0, 0.5])
