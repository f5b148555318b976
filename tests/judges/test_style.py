"""Styles counted: the benchmark's own answers are told right, and shares and scores are those worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from raypref.config import UserError
from raypref.data.synthetic import AXES, NEUTRAL_VERBS, STYLES, groups, members, pairs
from raypref.judges import style


@pytest.mark.parametrize("axis", AXES)
def test_answers_of_the_benchmark_are_wholly_in_their_style(axis):
    for _, *answers in itertools.islice(pairs(axis, 0, 0), 200):
        for pole, text in enumerate(answers):
            found = style.shares(text)
            assert found[axis, pole] == 1.0 and sum(found.values()) == 1.0


@pytest.mark.parametrize("pole", STYLES)
def test_every_phrase_is_known(pole):
    for slot, phrases in STYLES[pole].items():
        for phrase in phrases:
            written = phrase[0].upper() + phrase[1:] if slot == "VERB" else f"Here {phrase}"
            assert style.counts(written) == {pole: 1}


def test_shares_in_numbers():
    # PhD: the start and the verb; humorous: the tail; the neutral verb and the rest are nobody's.
    text = "Formally, sunlight mediates the drops, no refunds, and the wind shapes the sail."
    assert "shapes" in NEUTRAL_VERBS
    assert style.counts(text) == {("education", 1): 2, ("humor", 0): 1}
    assert {pole: share for pole, share in style.shares(text).items() if share} == {
        ("education", 1): 2 / 3,
        ("humor", 0): 1 / 3,
    }
    assert style.score(text, {"education": 1, "humor": 0}) == 1.0
    assert style.score(text, {"education": 1, "humor": 1}) == pytest.approx(1 / 3)  # (2 - 1) / 3
    assert style.score(text, {"education": 0, "humor": 1}) == -1.0
    assert style.score(text, {"education": 1}) == pytest.approx(2 / 3)
    assert style.score("", {"education": 1}) == style.score("It makess sense.", {"education": 0}) == 0.0
    assert style.shares("nothing") == dict.fromkeys(STYLES, 0.0)


def test_case_matters_but_for_the_first_letter():
    assert style.counts("makes it") == style.counts("Makes it") == style.counts("  Makes it") == {("education", 0): 1}
    assert style.counts("formally, it") == {("education", 1): 1}
    assert style.counts("It Makes it") == style.counts("She said formally, it") == {}


def test_the_longest_phrase_that_fits_counts_once(monkeypatch):
    pools = {("x", 0): {"VERB": ("go", "go far")}, ("x", 1): {"VERB": ("far", "both")}, ("y", 0): {"VERB": ("both",)}}
    monkeypatch.setattr(style, "STYLES", pools)
    style._phrases.cache_clear()
    try:
        assert style.counts("they go far") == {("x", 0): 1}
        assert style.counts("go both far") == {("x", 0): 1, ("x", 1): 1}  # what two poles share is nobody's
    finally:
        style._phrases.cache_clear()


@pytest.mark.parametrize("axes", [("education", "humor"), ("manners",), ("humor", "manners", "education")])
def test_groups_wish_what_their_members_choose(axes):
    for _, group, poles in members([2] * 2 ** len(axes), axes):
        assert style.wish(group, axes) == style.wish(group.split()[0], axes) == poles
    with pytest.raises(UserError, match="group 'helpful' is none of the embedded"):
        style.wish("helpful", axes)
    assert list(style.wishes(axes)) == [name.split()[0] for name in groups(axes)]


def test_equal_shares_are_a_tie_however_they_add_up():
    wish = {"education": 0, "humor": 0}
    few, many = (
        "makes it, no refunds, the regular one mediates",
        "makes makes no refunds no refunds it mediates mediates",
    )
    assert style.score(few, wish) == style.score(many, wish) == pytest.approx(1 / 3)
    assert style.prefer(style.score(few, wish), style.score(many, wish)) == "tie"
    assert [style.prefer(1.0, 0.0), style.prefer(-0.5, 0.0)] == ["ours", "theirs"]
