"""S2's table columns on a result small enough to work out by hand."""

import math

import numpy as np
import pytest

from raypref.evaluation.diagnostics import retention_curve, summary

NAN = math.nan
RESULT = {
    "marks": [0, 10, 20],
    # Client 0 at mark 0: R = pairs 0, 1 (margins 2, 4), W = pairs 2, 3 (0, -3). Client 1: all right.
    "margins": {
        "test": [
            [[2.0, 4.0, 0.0, -3.0], [1.0, -1.0, 1.0, -1.0], [1.0, 1.0, 1.0, 2.0]],
            [[1.0, 3.0], [1.0, 2.0], [0.0, 5.0]],
        ]
    },
    "diagnostics": [
        {
            "mark": 0,
            "gq": [[1.0, 2.0, NAN], [3.0, 6.0, 5.0]],
            "gq_median": [[0.5, 1.0, NAN], [0.5, 1.0, 2.0]],
            "gq_excluded": [[0.5, 0.0, 1.0], [0.5, 0.0, 0.0]],
            "headroom": [[-1.0, 3.0, 2.0, -4.0], [0.5, 0.5]],
        },
        {
            "mark": 10,
            "gq": [[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]],
            "gq_median": [[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]],
            "gq_excluded": [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
            "headroom": [[1.0, 1.0, 1.0, 1.0], [-1.0, 1.0]],
        },
    ],
}


def test_summary_by_hand():
    """GQ(l) = 2, 4 and, from one client, 5; two of three blocks are the body."""
    told = summary(RESULT)
    assert told["gq_layers"] == [2.0, 4.0, 5.0] and told["gq_clients"] == [2, 2, 1]
    expected = {
        "gq": 11 / 3,
        "gq_std": math.sqrt(((11 / 3 - 2) ** 2 + (11 / 3 - 4) ** 2 + (11 / 3 - 5) ** 2) / 3),
        "gq_body": 3.0,
        "gq_head": 5.0,
        "gq_median": (0.5 + 1 + 0.5 + 1 + 2) / 5,
        "gq_excluded": 2 / 6,
        "m0_R": (3.0 + 2.0) / 2,
        "m0_W": -1.5,  # a tie is wrong
        "H0_R": (1.0 + 0.5) / 2,
        "H0_W": -1.0,
        "Hplus_R": (0.5 + 1.0) / 2,
        "Hplus_W": 0.5,
        "clients_R": 2,
        "clients_W": 1,
    }
    assert {name: told[name] for name in expected} == pytest.approx(expected)
    assert set(told) == {*expected, "gq_layers", "gq_clients"}


def test_a_later_mark_has_its_own_sets():
    """At mark 10 client 0 has R = {0, 2}, W = {1, 3}."""
    told = summary(RESULT, 10)
    assert (told["m0_R"], told["m0_W"], told["gq_std"]) == (pytest.approx((1.0 + 1.5) / 2), -1.0, 0.0)
    assert (told["Hplus_R"], told["Hplus_W"]) == ((1.0 + 0.5) / 2, 1.0)


def test_retention_by_hand():
    """Client 0 keeps one of two right after 10 steps and wins one of two; client 1 has no W and loses one at 20."""
    marks, R, W = retention_curve(RESULT)
    assert marks == [0, 10, 20]
    assert R.tolist() == [1.0, (0.5 + 1) / 2, (1 + 0.5) / 2]
    assert W.tolist() == [0.0, 0.5, 1.0]
    assert retention_curve(RESULT, 10).marks == [10, 20]
    assert retention_curve(RESULT, 10).R.tolist() == [1.0, (1 + 0.5) / 2]


@pytest.mark.filterwarnings("error")
def test_nobody_wrong_is_nan_and_said_quietly():
    """A client that is all right, and one with no test pairs at all."""
    right = {
        "marks": [0, 10],
        "margins": {"test": [[[1.0], [2.0]], [[], []]]},
        "diagnostics": [
            {"mark": 0, "gq": [[NAN]], "gq_median": [[NAN]], "gq_excluded": [[1.0]], "headroom": [[1.0], []]}
        ],
    }
    told = summary(right)
    assert (told["m0_R"], told["clients_R"], told["clients_W"], told["gq_clients"]) == (1.0, 1, 0, [0])
    assert all(math.isnan(told[name]) for name in ("m0_W", "H0_W", "Hplus_W", "gq", "gq_std", "gq_head"))
    assert np.isnan(retention_curve(right).W).all() and retention_curve(right).R.tolist() == [1.0, 1.0]


def test_marks_that_were_not_diagnosed_or_read():
    with pytest.raises(ValueError, match="no diagnostics at mark 20"):
        summary(RESULT, 20)
    with pytest.raises(ValueError, match="mark 5 is not one of the run's: 0, 10, 20"):
        retention_curve(RESULT, 5)
