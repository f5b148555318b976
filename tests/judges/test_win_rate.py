"""From verdicts to win rates: numbers worked out by hand, the symmetries, and what an interval holds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypref.judges.win_rate import interval, orders, score, summary

VERDICTS = st.sampled_from(["ours", "theirs", "tie", "unparseable"])
SWAP = {"ours": "theirs", "theirs": "ours", "tie": "tie", "unparseable": "unparseable"}


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("ours", "ours", 1.0),
        ("theirs", "theirs", 0.0),
        ("ours", "theirs", 0.5),
        ("tie", "tie", 0.5),
        ("ours", "tie", 0.5),
        ("theirs", "tie", 0.5),
        ("ours", "unparseable", None),
        ("unparseable", "theirs", None),
        ("unparseable", "tie", None),
        ("unparseable", "unparseable", None),
    ],
)
def test_the_score_of_a_comparison(first, second, value):
    assert score((first, second)) == score((second, first)) == value


@given(st.lists(st.tuples(VERDICTS, VERDICTS), min_size=1, max_size=12))
def test_changing_sides_turns_the_win_rate_round(comparisons):
    clients = [f"c{i % 3}" for i in range(len(comparisons))]
    here = summary(comparisons, clients)
    there = summary([tuple(SWAP[v] for v in c) for c in comparisons], clients)
    assert (here["wins"], here["losses"], here["ties"]) == (there["losses"], there["wins"], there["ties"])
    assert here["wins"] + here["losses"] + here["ties"] + here["left_out"] == here["prompts"] == len(comparisons)
    if here["win_rate"] is not None:
        assert here["win_rate"] + there["win_rate"] == pytest.approx(1.0)
    assert (here["interval"] is None) == (there["interval"] is None)
    if here["interval"] is not None:
        low, high = here["interval"]
        assert 0.0 <= low <= high <= 1.0


def test_a_section_in_numbers():
    told = summary(
        [
            ("ours", "ours"),
            ("ours", "theirs"),
            ("unparseable", "theirs"),
            ("unparseable", "unparseable"),
            ("tie", "tie"),
        ],
        ["a", "a", "b", "b", "c"],
    )
    # Scores 1, 1/2, none, none, 1/2: a mean of 2 / 3. Three have both answers, of which two agree.
    assert told["scores"] == [1.0, 0.5, 0.5] and told["client_of"] == ["a", "a", "c"]
    assert (told["wins"], told["losses"], told["ties"], told["left_out"]) == (1, 0, 2, 2)
    assert (told["prompts"], told["clients"], told["unparseable"]) == (5, 3, 3)
    assert told["win_rate"] == told["agreement"] == pytest.approx(2 / 3)


def test_a_section_in_which_nothing_can_be_read():
    told = summary([("unparseable", "unparseable")], ["a"])
    assert told["win_rate"] is told["interval"] is told["agreement"] is None and told["left_out"] == 1


def test_orders_agree_only_where_there_are_two():
    assert orders([("ours",), ("tie",), ("ours", "unparseable")]) == {
        "both_read": 0,
        "agreement": None,
        "always_A": 0,
        "always_B": 0,
    }
    # Ours is A first: preferred there and not as B, A is what is preferred.
    told = orders([("ours", "theirs"), ("ours", "theirs"), ("theirs", "ours"), ("ours", "ours"), ("ours", "tie")])
    assert told == {"both_read": 5, "agreement": 0.2, "always_A": 2, "always_B": 1}


def test_the_interval_of_one_value_each_is_the_plain_bootstrap():
    values = [1.0] * 30 + [0.0] * 10
    # Binomial(40, 3/4) / 40: its 2.5 % and 97.5 % points are 24 / 40 and 35 / 40.
    assert interval(values, [f"c{i}" for i in range(40)]) == [
        pytest.approx(24 / 40, abs=0.026),
        pytest.approx(35 / 40, abs=0.026),
    ]


@pytest.mark.parametrize(
    ("values", "clients"), [([1.0, 0.0] * 10, ["a"] * 20), ([0.5], ["a"]), ([1.0] * 20, ["a", "b"] * 10)]
)
def test_where_redrawing_shows_no_spread_there_is_no_interval(values, clients):
    """One client says nothing of others, and [100, 100] would say that the rate is known for sure."""
    assert interval(values, clients) is None


def test_clients_of_one_opinion_count_as_one_each():
    """Ten clients whose prompts all end alike say what ten values say, however many prompts they have."""
    ends = np.array([1.0] * 6 + [0.0] * 4)
    names = [f"c{i}" for i in range(10)]
    once = interval(ends, names)
    many = interval(np.repeat(ends, 20), np.repeat(names, 20).tolist())
    assert once[1] - once[0] > 0.5 and many == pytest.approx(once, abs=0.101)
    low, high = interval(np.repeat(ends, 20), [f"d{i}" for i in range(200)])  # were they 200 clients
    assert high - low < 0.2


def test_few_clients_without_a_difference_still_have_a_spread():
    """Two clients of 50 % each: redrawing whole clients would say that the rate is 50 % for sure."""
    low, high = interval([1.0, 0.0] * 10, ["a"] * 10 + ["b"] * 10)
    assert low < 0.4 and high > 0.6


def test_the_interval_is_the_seeds_and_the_sections():
    values, clients = [0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 1.0], list("aabbccc")
    assert interval(values, clients) == interval(values, clients)
    draws = {tuple(interval(np.random.default_rng(1).random(50), ["a", "b"] * 25, *of)) for of in product((0, 1), "ab")}
    assert len(draws) == 4
    with pytest.raises(ValueError, match="0 values"):
        interval([], [])
