"""The accuracy that somebody new can expect, by numbers worked out here."""

import numpy as np
import pytest

from raypref.evaluation.expected import Expected, from_result


def test_between_sizes_it_is_a_straight_line_over_log2():
    known = Expected((1, 4), np.array([[0.5, 0.7], [0.6, 0.6]]), True, (0, 20))
    two = known.after(2)  # half way from 1 to 4
    assert (two.mean, two.least, two.most, two.people) == (pytest.approx(0.6), 0.6, pytest.approx(0.6), 2)
    assert (known.after(1).mean, known.after(64).mean) == (pytest.approx(0.55), pytest.approx(0.65))
    assert 0.5 <= known.after(1).low <= 0.55 <= known.after(1).high <= 0.6
    assert [known.steps_for(n) for n in (1, 3, 4, 99)] == [0, 0, 20, 20]
    assert Expected((1,), np.ones((1, 1)), True).steps_for(1) == 0
    with pytest.raises(ValueError, match="0 choices"):
        known.after(0)


def test_the_sentence_says_from_whom():
    values = np.array([[0.5], [0.7]])
    assert Expected((1,), values, True).sentence(1).startswith("expect 60.0 % right after 1 choice (too few people for")
    five = Expected((1,), np.array([[0.6]] * 5), True).sentence(1)
    assert five.startswith("expect 60.0 % right after 1 choice (95 % interval of the mean 60.0 to 60.0, from 5 people")
    assert "2 people that the run never trained on; the lowest of them 50.0, the highest 70.0" in (
        Expected((1,), values, True).sentence(2)
    )
    assert "one person that the run trained on, on choices held out)" in Expected((1,), values[:1], False).sentence(2)


def test_unseen_people_are_taken_where_there_are_some():
    config = {"algorithm": "lore", "objective": "reward", "fit": {"context_marks": [1, 4]}}
    result = {
        "config": config,
        "clients": ["a", "b", "c"],
        "groups": {"names": [], "of": []},
        "test": {"accuracy": [[1.0]] * 3},
        "probes": {"context_accuracy": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]},
    }
    seen = from_result(result)
    assert not seen.unseen and seen.accuracy.shape == (3, 2) and list(seen.sizes) == [1, 4]
    away = from_result(result | {"unseen": [1]})
    assert away.unseen and away.accuracy.tolist() == [[0.3, 0.4]]
    assert from_result(result | {"probes": {}}) is None
