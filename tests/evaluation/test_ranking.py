"""Ranking configurations by numbers worked out here."""

import csv
import dataclasses
import io
import itertools
import math

import pytest

from raypref.evaluation.ranking import Score, last, markdown, ranking, to_csv
from raypref.evaluation.runs import show, varying
from raypref.evaluation.tables import spread

SCORES = [
    Score({"experts.K": 2, "data.group_sizes": [3, 1]}, 1, 0.50, 0.90),
    Score({"experts.K": 2, "data.group_sizes": [3, 1]}, 0, 0.60, 0.80),
    Score({"experts.K": 4, "data.group_sizes": [3, 1]}, 0, 0.70, 0.10),
    Score({"experts.K": 4, "data.group_sizes": [3, 1]}, 1, 0.80, 0.30),
    Score({"experts.K": 3, "data.group_sizes": [3, 1]}, 0, 0.65, 0.50),
]


def order(lines):
    return [line.settings["experts.K"] for line in lines]


def test_the_mean_over_seeds_of_validation_ranks():
    """Means 0.75, 0.65, 0.55; a loss ranks the other way round."""
    lines = ranking(SCORES, "accuracy")
    assert order(lines) == [4, 3, 2]
    assert lines[2].seeds == (0, 1) and lines[2].validation == (0.60, 0.50) and lines[2].test == (0.80, 0.90)
    assert order(ranking(SCORES, "loss")) == [2, 3, 4]


def test_test_numbers_never_rank():
    """Every way of dealing the test numbers to the trials gives the same order, ties included."""
    tied = [*SCORES, Score({"experts.K": 5, "data.group_sizes": [3, 1]}, 0, 0.65, 0.99)]
    expected = order(ranking(tied, "accuracy"))
    for dealt in itertools.permutations([s.test for s in tied]):
        scores = [dataclasses.replace(s, test=value) for s, value in zip(tied, dealt, strict=True)]
        assert order(ranking(scores, "accuracy")) == expected


def test_spread_is_that_of_a_sample():
    """0.6 and 0.5: deviations of 0.05, sqrt(2 * 0.0025 / 1) = 0.0707."""
    assert spread([0.6, 0.5]) == pytest.approx(math.sqrt(0.005))
    assert math.isnan(spread([0.6]))


def test_the_table_shows_what_was_searched_and_both_folds():
    first, rule, *rows = markdown(ranking(SCORES, "accuracy"), "accuracy").splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in (first, *rows[:3])]
    assert cells == [
        ["rank", "experts.K", "data.group_sizes", "validation accuracy", "test accuracy", "n"],
        ["1", "4", "3 1", "75.0 ± 7.1", "20.0 ± 14.1", "2"],
        ["2", "3", "3 1", "65.0", "50.0", "1"],
        ["3", "2", "3 1", "55.0 ± 7.1", "85.0 ± 7.1", "2"],
    ]
    assert all(set(cell.strip()) == {"-", ":"} for cell in rule.split("|")[1:-1])
    assert "0.650" in markdown(ranking(SCORES, "loss"), "loss")  # nats, not per cent


def test_the_csv_holds_the_numbers_unrounded():
    lines = list(csv.DictReader(io.StringIO(to_csv(ranking(SCORES, "accuracy"), "accuracy"))))
    assert [line["experts.K"] for line in lines] == ["4", "3", "2"]
    assert float(lines[2]["validation_accuracy"]) == pytest.approx(0.55)
    assert float(lines[2]["test_accuracy_std"]) == pytest.approx(math.sqrt(0.005))
    assert lines[2]["seeds"] == "0 1"


def test_the_last_mark_is_read_over_clients():
    result = {"validation": {"accuracy": [[0.1, 0.5], [0.2, 0.7]]}, "test": {"accuracy": [[1.0, 0.0], [1.0, 1.0]]}}
    assert last(result, "validation", "accuracy") == pytest.approx(0.6)
    assert last(result, "test", "accuracy") == 0.5


def test_what_varies_leaves_out_the_seed():
    configs = [{"seed": s, "experts.K": k, "fedgd.w": 0.6} for s in (0, 1) for k in (2, 3)]
    assert varying(configs) == ["experts.K"]
    assert [show(v) for v in ([15, 5], 0.1 + 0.2, "tldr", 4, True)] == ["15 5", "0.3", "tldr", "4", "True"]
