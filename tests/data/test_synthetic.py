"""The embedded benchmark's generator: what a reader of its numbers takes for granted."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import islice

import numpy as np
import pytest

from raypref.config import UserError
from raypref.data.synthetic import AXES, STYLES, WORDS, Draws, generate, groups, members, pairs

PAPER = ("education", "humor")


def rows(sizes=(2, 1, 1, 2), n=40, axes=PAPER, seed=100):
    return list(generate(sizes, n, axes, seed))


# The first draws and pair of seed 100, client 0, axis 0, typed in once: a change here changes every published number.
EXPECTED_DRAWS = [427, 536, 750, 911, 89]
EXPECTED_PAIR = (
    "What should I know about a forest?",
    "Here the rain pulls the trees, and a forest is like a puzzle.",
    "On this formalism, with a forest, the rain induces the trees, as the theorem implies.",
)


def test_groups_are_the_papers():
    assert groups(PAPER) == [
        "G1 elementary/humorous",
        "G2 elementary/non-humorous",
        "G3 PhD/humorous",
        "G4 PhD/non-humorous",
    ]
    assert len(groups(tuple(AXES))) == 8
    assert groups(["manners"]) == ["G1 warm", "G2 blunt"]


def test_counts_and_order_of_clients():
    drawn = rows()
    assert len(drawn) == 6 * 2 * 40
    assert Counter((row["client_id"], row["axis"]) for row in drawn) == {
        (f"c{client:02d}", axis): 40 for client in range(6) for axis in PAPER
    }
    g1, g2, g3, g4 = groups(PAPER)
    owners = [("c00", g1), ("c01", g1), ("c02", g2), ("c03", g3), ("c04", g4), ("c05", g4)]
    assert list(dict.fromkeys((row["client_id"], row["group"]) for row in drawn)) == owners
    assert [row["client_id"] for row in generate((101, 0), 1, ["humor"], 100)][:2] == ["c000", "c001"]


def test_a_client_depends_on_its_coordinates_alone():
    drawn = rows()
    assert drawn == rows()
    # Fewer pairs, one axis, other clients: what remains is the same.
    alone = [row for row in drawn if row["client_id"] == "c00" and row["axis"] == "humor"][:7]
    fewer = [row | {"group": alone[0]["group"]} for row in rows((1, 0), 7, ["humor"])]
    assert fewer == alone
    assert {row["chosen"] for row in drawn}.isdisjoint(row["chosen"] for row in rows(n=3, seed=101)[:3])


def test_opposed_groups_label_the_same_pairs_oppositely():
    first = rows((1, 0, 0, 0))
    for g, flipped in enumerate((set(), {"humor"}, {"education"}, {"education", "humor"})):
        other = rows(tuple(int(i == g) for i in range(4)))
        for mine, theirs in zip(first, other, strict=True):
            swap = mine["axis"] in flipped
            want = (mine["rejected"], mine["chosen"]) if swap else (mine["chosen"], mine["rejected"])
            assert (theirs["prompt"], theirs["chosen"], theirs["rejected"]) == (mine["prompt"], *want)


def test_the_stream_is_the_same_everywhere():
    draws = Draws(100, 0, 0)
    assert [draws.below(1_000) for _ in range(5)] == EXPECTED_DRAWS
    assert next(pairs("education", 0, 100)) == EXPECTED_PAIR
    code = "from raypref.data.synthetic import pairs; print(next(pairs('education', 0, 100)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(EXPECTED_PAIR)


@pytest.mark.parametrize("axis", AXES)
def test_pairs_are_distinct_varied_and_short(axis):
    drawn = list(islice(pairs(axis, 0, 100), 2_000))
    assert len({frozenset(answers) for _, *answers in drawn}) == 2_000
    assert len({answer for _, *answers in drawn for answer in answers}) > 3_800  # answers hardly repeat
    assert len({question for question, *_ in drawn}) > 300
    for _, *answers in drawn:
        assert all(WORDS[0] <= len(answer.split()) <= WORDS[1] for answer in answers)
        assert all(answer.isascii() and answer.endswith(".") and answer == answer.strip() for answer in answers)


def test_clients_seldom_share_a_pair():
    owners = defaultdict(set)
    for row in rows((10, 10, 10, 10), 64):
        owners[frozenset((row["chosen"], row["rejected"]))].add(row["client_id"])
    assert sum(len(clients) > 1 for clients in owners.values()) <= 0.01 * len(owners)


@pytest.mark.parametrize("axes", [PAPER, ("manners",)])
@pytest.mark.parametrize("size", [len, lambda text: len(text.split())], ids=["characters", "words"])
def test_the_longer_answer_is_no_hint(axes, size):
    drawn = defaultdict(list)
    for row in rows([10] * 2 ** len(axes), 100, axes):
        drawn[row["group"], row["axis"]].append(
            (np.sign(size(row["chosen"]) - size(row["rejected"])) + 1) / 2  # a tie is half right
        )
    for (group, axis), right in drawn.items():
        assert 0.45 < np.mean(right) < 0.55, (group, axis)


@pytest.mark.parametrize("axis", AXES)
def test_no_single_word_gives_the_pole_away(axis):
    drawn = list(islice(pairs(axis, 0, 100), 2_000))
    words = [[set(re.findall(r"[a-z]+", answer.lower())) for answer in answers] for _, *answers in drawn]
    vocabulary = set().union(*(w for pair in words for w in pair))
    shares = {word: [np.mean([word in pair[pole] for pair in words]) for pole in (0, 1)] for word in vocabulary}
    # A pair on which both answers or neither have the word is a coin's toss.
    best = max(0.5 + abs(a - b) / 2 for a, b in shares.values())
    assert best < 0.68
    # ... and yet all words together do: every answer says at least one thing that only its pole says.
    typical = [{word for word, share in shares.items() if share[pole] > 0 and share[1 - pole] == 0} for pole in (0, 1)]
    assert np.mean([bool(pair[pole] & typical[pole]) for pair in words for pole in (0, 1)]) > 0.99


@pytest.mark.parametrize("axis", AXES)
def test_answers_do_not_name_their_pole(axis):
    names = {pole.removeprefix("non-").lower() for pole in AXES[axis]}
    text = " ".join(answer for _, *answers in islice(pairs(axis, 0, 100), 2_000) for answer in answers)
    assert not re.search("|".join(names), text.lower())


def test_every_pole_has_every_slot_and_pools_do_not_overlap():
    for axis in AXES:
        for slot in ("START", "LIKE", "VERB", "TAIL"):
            first, second = (STYLES[axis, pole][slot] for pole in (0, 1))
            assert min(len(set(first)), len(set(second))) >= 10
            assert not set(first) & set(second)


def test_two_sizes_are_the_groups_that_wish_the_opposite_on_every_axis():
    first, *_, last = members((2, 1), PAPER)
    assert (first[1], last[1]) == ("G1 elementary/humorous", "G4 PhD/non-humorous") and len(members((2, 1), PAPER)) == 3
    assert all(first[2][axis] != last[2][axis] for axis in PAPER)


@pytest.mark.parametrize(
    ("sizes", "n", "axes", "seed", "says"),
    [
        ((1, 1, 1), 1, PAPER, 0, "give 4, .* or two"),
        ((1, 1, 1, 1), 1, ("education", "politics"), 0, "politics"),
        ((1, 1, 1, 1), 1, ("humor", "humor"), 0, "each once"),
        ((1,), 1, (), 0, "one or more"),
        ((1, -1), 1, ("humor",), 0, "negative"),
        ((1, 1), -1, ("humor",), 0, "negative"),
        ((1, 1), 1, ("humor",), -1, "negative"),
    ],
)
def test_faults_are_said_in_one_line(sizes, n, axes, seed, says):
    with pytest.raises(UserError, match=says) as caught:
        list(generate(sizes, n, axes, seed))
    assert "\n" not in str(caught.value)
