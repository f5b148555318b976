"""The graded benchmark: what it is made of, and that there is something to lose and to win on it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from raypref.config import DataConfig, GradedConfig, RunConfig, UserError, override, validate
from raypref.data import baselines, graded
from raypref.data.load import hidden, load, read
from raypref.data.synthetic import AXES
from raypref.judges import style

PAPER = ("education", "humor")
SMALL = GradedConfig(train=(6, 6), validation=3, test=5)


def config(sizes=(2, 1, 1, 2), axes=PAPER, **parameters) -> DataConfig:
    made = dataclasses.replace(SMALL, **parameters)
    return DataConfig(source="graded", group_sizes=sizes, axes=axes, graded=made)


def drawn(*args, seed=100, **parameters) -> dict[str, graded.Person]:
    return {person.id: person for person in graded.people(config(*args, **parameters), seed)}


# The first pair and wish of seed 100, typed in once: a change here changes every published number.
EXPECTED = (
    "Tell me about a volcano.",
    "The heat limits the rock, while juggling socks, so a volcano is something you can play with.",
    "The heat maintains the rock, as the table shows, so a volcano is a canonical flux.",
)
EXPECTED_WISH = {"education": 0.411579, "humor": 1.600351}


def test_the_stream_is_the_same_everywhere():
    person = drawn()["G1-000"]
    choice = person.folds["train"][0]
    assert choice.pair == graded.Pair(*EXPECTED)
    assert {axis: round(weight, 6) for axis, weight in person.wish.items()} == EXPECTED_WISH


def test_clients_and_folds_are_as_configured():
    federation, counts = read(config(), seed=100)
    assert federation.ids == ("G1-000", "G1-001", "G2-000", "G3-000", "G4-000", "G4-001")
    assert federation.groups[0] == "G1 elementary/humorous" and federation.group_of.tolist() == [0, 0, 1, 2, 3, 3]
    assert [federation.sizes(fold).tolist() for fold in ("train", "validation", "test")] == [[6] * 6, [3] * 6, [5] * 6]
    assert counts.rows == counts.pairs == 6 * 14 and not counts.lost and counts.crossing == 0
    people = drawn()
    for client in federation.clients:
        for fold, choices in people[client.id].folds.items():
            assert set(client.fold(fold)) == {choice.pair for choice in choices}


def test_a_client_depends_on_its_own_coordinates_alone():
    """Not on other clients, other groups' sizes, how many pairs it trains on, or how many it is tested on."""
    people = drawn()
    assert people == drawn()
    more = drawn((5, 4, 0, 3), train=(9, 9), test=8)
    for name in ("G1-000", "G1-001", "G2-000", "G4-001"):
        assert more[name].wish == people[name].wish
        for fold, choices in people[name].folds.items():
            assert list(more[name].folds[fold][: len(choices)]) == list(choices)
    assert people["G1-000"].wish != drawn(seed=101)["G1-000"].wish
    assert len({tuple(person.wish.values()) for person in people.values()}) == 6


def test_training_pairs_rise_by_rank():
    # 20 · 10^u with u = 0, 1, 1/2, 1/4, 3/4, 1/8, 5/8, 3/8, 7/8: 35.57, 63.25, 112.47; 26.67, 84.34, 47.43, 149.98
    sizes = [graded.spaced(number, 20, 200) for number in range(9)]
    assert sizes == [20, 200, 63, 36, 112, 27, 84, 47, 150]
    assert [graded.spaced(number, 60, 60) for number in range(5)] == [60] * 5
    federation = load(config((4, 0, 0, 3), train=(5, 20)), seed=0)
    assert federation.sizes().tolist() == [5, 20, 10, 7, 5, 20, 10]  # 5 · 4^u: 10, 7.07


def test_test_pairs_are_about_topics_of_their_own():
    """So no prompt of a test, or one that stage 2's judges see, is one of training."""
    assert len(graded.HELD_OUT) == 15 and len(graded.OTHERS) == 45 and not set(graded.HELD_OUT) & set(graded.OTHERS)
    topics, prompts = ({"train": set(), "validation": set(), "test": set()} for _ in range(2))
    for person in drawn((10, 10, 10, 10), test=30, train=(30, 30)).values():
        for fold, choices in person.folds.items():
            topics[fold] |= {choice.topic for choice in choices}
            prompts[fold] |= {choice.prompt for choice in choices}
    assert topics["test"] == {subject for subject, *_ in graded.HELD_OUT}
    assert topics["train"] == {subject for subject, *_ in graded.OTHERS}
    assert not prompts["test"] & (prompts["train"] | prompts["validation"])


def test_answers_hold_what_is_said_of_them():
    """By the judge that counts phrases; in most pairs an axis has both its poles."""
    mixed = 0
    choices = [c for person in drawn((3, 3, 3, 3)).values() for fold in person.folds.values() for c in fold]
    for choice in choices:
        for answer in (choice.chosen, choice.rejected):
            counted = style.counts(answer.text)
            assert tuple((counted[axis, 0], counted[axis, 1]) for axis in PAPER) == answer.holds
        both = np.add(choice.chosen.holds, choice.rejected.holds)
        mixed += bool((both > 0).all(axis=1).any())
        assert choice.chosen.holds != choice.rejected.holds
    assert mixed > 0.7 * len(choices)


def test_the_margin_is_the_wish_times_what_the_answers_differ_in():
    people = drawn((1, 1, 1, 1))
    for person in people.values():
        for choice in person.folds["test"]:
            (a, b), (c, d) = choice.chosen.holds
            (e, f), (g, h) = choice.rejected.holds
            education, humor = person.wish["education"], person.wish["humor"]
            assert choice.margin == pytest.approx(education * (a - b - e + f) + humor * (c - d - g + h))


def test_labels_are_drawn_by_the_logistic_function_of_the_margin():
    """Where |margin| is about m, a share σ(m / temperature) chooses with it, here in cells of 0.5."""
    people = drawn((1, 1, 1, 1), test=2_000, temperature=1.5)
    margins = np.array([choice.margin for person in people.values() for choice in person.folds["test"]])
    for low in np.arange(0, 3, 0.5):
        cell = margins[(np.abs(margins) >= low) & (np.abs(margins) < low + 0.5)]
        expected = np.mean(1 / (1 + np.exp(-np.abs(cell) / 1.5)))
        assert np.mean(cell > 0) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / len(cell)))


def test_wishes_are_the_groups_and_ones_own():
    exact = drawn((1, 1, 1), spread=0.0, noise=0.0, wishes=("12", "20", "00"))
    assert [list(person.wish.values()) for person in exact.values()] == [[1, -1], [-1, 0], [0, 0]]
    assert [person.group for person in exact.values()] == [
        "G1 elementary/non-humorous",
        "G2 PhD/either",
        "G3 either/either",
    ]
    strength = np.array([list(p.wish.values()) for p in drawn((400, 0), noise=0.0, train=(1, 1), test=1).values()])
    assert (strength > 0).all()
    assert np.log(strength).mean() == pytest.approx(0, abs=0.06) and np.log(strength).std() == pytest.approx(
        0.4, abs=0.04
    )
    own = np.array([list(p.wish.values()) for p in drawn((400, 0), wishes=("00", "11"), train=(1, 1), test=1).values()])
    assert own.mean() == pytest.approx(0, abs=0.07) and own.std() == pytest.approx(0.5, abs=0.05)


def test_who_wishes_nothing_tosses_a_coin():
    data = config((1, 1), noise=0.0, spread=0.0, wishes=("00", "11"), test=40)
    people = {person.id: person for person in graded.people(data, 100)}
    assert {choice.margin for choice in people["G1-000"].folds["test"]} == {0}
    measured = baselines.measure(load(data, 100), people)
    certain = [(np.sign(choice.margin) + 1) / 2 for choice in people["G2-000"].folds["test"]]
    assert measured.bayes == pytest.approx((0.5 + np.mean(certain)) / 2)


def test_up_to_sixteen_groups_on_any_axes():
    words = [f"{a}{b}{c}" for a in "012" for b in "012" for c in "12"][:16]
    people = drawn((1,) * 16, tuple(AXES), wishes=tuple(words))
    assert list(people) == [f"G{g:02d}-000" for g in range(1, 17)]
    assert list(drawn((1, 1), ("manners",))) == ["G1-000", "G2-000"]
    opposed = drawn((1, 1), tuple(AXES), spread=0.0, noise=0.0)  # the first and the last of eight
    assert [list(person.wish.values()) for person in opposed.values()] == [[1, 1, 1], [-1, -1, -1]]
    assert len({c.pair for p in drawn((1, 1), ("humor",), sentences=3).values() for c in p.folds["train"]}) == 12


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"data.graded.wishes": ("1", "2")}, "wishes 1 2: give 2 to 16 different ones, each a digit for each of"),
        ({"data.graded.wishes": ("11", "11")}, "different ones"),
        ({"data.graded.wishes": ("11", "13")}, "1 for its first pole, 2 for its second, 0 for neither"),
        ({"data.graded.wishes": ("11",), "data.group_sizes": (1,)}, "2 to 16"),
        ({"data.graded.wishes": ("11", "12", "22"), "data.group_sizes": (1, 1)}, "2 group sizes for 2 axes: give 3"),
        ({"data.group_sizes": (1, 1, 1)}, "give 4, .* or two"),
        ({"data.axes": ("politics",)}, "politics"),
        ({"data.graded.train": (60, 20)}, r"data.graded.train is \(60, 20\); give the fewest pairs first"),
        ({"data.graded.train": (0, 20)}, r"data.graded.train is \(0, 20\); it must be at least 1"),
        ({"data.graded.temperature": 0.0}, "data.graded.temperature is 0; it must be above 0"),
        ({"data.split": "topic"}, "data.split cuts folds, and data.source graded has its own"),
        ({"data.exact_counts": (5, 5)}, "data.exact_counts cuts folds"),
        ({"data.fold_column": "fold"}, "data.fold_column cuts folds"),
        ({"data.kinds": ("a", "b")}, "data.source is graded; leave data.kinds empty"),
    ],
)
def test_faults_are_said_in_one_line(values, says):
    with pytest.raises(UserError, match=says) as caught:
        run = override(RunConfig(), {"data.source": "graded", **values})
        validate(run)
        load(run.data, 0)
    assert "\n" not in str(caught.value)


def test_judges_know_the_wishes_of_its_groups():
    words = ("101", "021")
    assert style.wish("G2 either/non-humorous/warm", tuple(AXES), words) == {"humor": 1, "manners": 0}
    assert style.wishes(tuple(AXES), words)["G1"] == {"education": 0, "manners": 0}


@pytest.mark.slow
def test_there_is_something_to_lose_and_to_win():
    """Balanced opposed groups on the calibration seeds, 60 training pairs: docs/data.md has these numbers."""
    measured = []
    for seed in (100, 101, 102):
        data = config((10, 10, 10, 10), train=(60, 60), validation=10, test=200)
        measured.append(baselines.measure(load(data, seed), hidden(data, seed)))
    alone, group, pooled = 100 * np.mean([m.regression for m in measured], axis=0)
    bayes, noise, longer = (
        100 * np.mean([getattr(m, name) for m in measured]) for name in ("bayes", "noise", "longer")
    )
    assert 88 < bayes < 93 and noise == pytest.approx(100 - bayes, abs=1)
    assert 58 < alone < 66 and 72 < group < 80 and 48 < pooled < 56
    assert 48 < longer < 52
    assert 50 < 100 * np.mean([m.neighbour[0] for m in measured]) < 60


def test_the_defaults_are_those_that_were_chosen():
    assert GradedConfig() == GradedConfig((), (20, 200), 10, 200, 1, 0.65, 0.4, 0.5)
    people = drawn((1, 1), train=(20, 20), test=20)
    assert Counter(len(c.chosen.text.split(". ")) for p in people.values() for c in p.folds["train"]) == {1: 40}
