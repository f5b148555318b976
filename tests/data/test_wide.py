"""Tables of two responses with a column an annotator: who voted for what, and what is no vote."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raypref.config import DataConfig, UserError
from raypref.data.__main__ import main
from raypref.data.federation import FOLDS, Pair
from raypref.data.forms import wide
from raypref.data.forms.pairs import NO_PROMPT, NO_RESPONSE
from raypref.data.load import load, read
from raypref.data.rows import Unusable


@pytest.fixture(autouse=True)
def contained(monkeypatch):
    monkeypatch.setattr("raypref.tools.console.quiet", lambda: None)


def question(i: int, **votes: object) -> dict:
    return {"instruction": f"do {i}", "input": "", "response1": f"one {i}", "response2": f"two {i}", **votes}


def chosen(i: int, vote: int) -> Pair:
    """What a vote on `question(i)` says."""
    one, two = f"one {i}", f"two {i}"
    return Pair(f"do {i}", one, two) if vote == 1 else Pair(f"do {i}", two, one)


def write(path: Path, rows: list[dict]) -> str:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def everything(federation) -> set[tuple[str, Pair]]:
    return {(c.id, pair) for c in federation.clients for fold in FOLDS for pair in c.fold(fold)}


def made(rows, **options) -> tuple[list[dict], list[Unusable], dict[str, int]]:
    """What the form gives: pairs, losses and what it counted beside."""
    config = DataConfig(source="votes", **options)
    results = list(wide.pairs(rows, config, 0))
    pairs = [row for row in results if isinstance(row, dict)]
    losses = [row for row in results if isinstance(row, Unusable)]
    return pairs, losses, {a.what: a.number for a in results if a not in pairs and a not in losses}


VOTES = {"anna": [1, 2, 0, None], "ben": [2, 2, 1, 1], "cara": [0, 0, None, 1]}
"""Of the four questions that are asked again and again."""


@pytest.mark.parametrize("name", ["votes.jsonl", "votes.csv", "votes.parquet"])
def test_every_annotator_is_a_client_with_the_votes_that_choose(tmp_path, name):
    """Written as numbers, as the text that a CSV has, and as what pandas makes of numbers with gaps."""
    floats = name.endswith("parquet")
    rows = []
    for i in range(120):
        votes = {who: said[i % 4] for who, said in VOTES.items()}
        rows.append(
            question(i, topic=f"t{i}", **{w: float(v) if floats and v is not None else v for w, v in votes.items()})
        )
    expected = {(w, chosen(i, v)) for i in range(120) for w, said in VOTES.items() if (v := said[i % 4])}
    federation, counts = read(DataConfig(source=write(tmp_path / name, rows)), 0)
    assert everything(federation) == expected and counts.rows == len(expected) == 30 * (2 + 4 + 1)
    assert counts.asides == {
        "rows of two responses; each vote for one of the two is a choice": 120,
        "columns of votes: anna, ben, cara": 3,
        "columns that are no annotator's: topic": 1,
        "votes for neither response (ties), left out": 30 * 3,
        "cells without a vote": 30 * 2,
    }
    assert counts.read_as.startswith("wide: two responses") and not counts.lost
    assert "votes for neither response (ties), left out: 90" in federation.notes


def test_the_order_of_rows_does_not_matter(tmp_path):
    rows = [question(i, **{who: said[i % 4] for who, said in VOTES.items()}) for i in range(120)]
    first, _ = read(DataConfig(source=write(tmp_path / "a.jsonl", rows)), 0)
    random.Random(0).shuffle(rows)
    assert read(DataConfig(source=write(tmp_path / "b.jsonl", rows)), 0)[0] == first


@pytest.mark.parametrize("as_is", [True, False], ids=["list", "text of a CSV"])
def test_a_list_of_votes_is_an_annotator_a_place(as_is):
    votes = [[1, 0, None], [2, 2], []]
    pairs, losses, asides = made(
        [question(i, votes=said if as_is else json.dumps(said)) for i, said in enumerate(votes)]
    )
    assert not losses
    assert [(p["client_id"], p["chosen"], p["rejected"]) for p in pairs] == [
        ("votes-1", "one 0", "two 0"),
        ("votes-1", "two 1", "one 1"),
        ("votes-2", "two 1", "one 1"),
    ]
    assert (asides["votes for neither response (ties), left out"], asides["cells without a vote"]) == (1, 1)


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"instruction": "do", "input": "with it"}, "do\n\nwith it"),
        ({"instruction": "do", "input": None}, "do"),
        ({"instruction": "do"}, "do"),
        ({"prompt": "say", "instruction": "do"}, "say"),
        ({"prompt": "", "instruction": "do"}, "do"),
        ({"question": "why", "instruction": "do"}, "do"),
        ({}, None),
    ],
)
def test_the_prompt(row, prompt):
    (pair,), _, _ = made([{**row, "response1": "x", "response2": "y", "ann": 2}])
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == (prompt, "y", "x")


def test_columns_that_are_named_are_annotators_whatever_they_hold():
    rows = [question(0, anna="1", score="1", note="x"), question(1, anna="2", score="5", note="")]
    pairs, losses, asides = made(rows)
    assert {p["client_id"] for p in pairs} == {"anna"} and not losses
    assert asides["columns that are no annotator's: score, note"] == 2
    pairs, losses, _ = made(rows, annotator_columns=("score",))
    assert [(p["client_id"], p["chosen"]) for p in pairs] == [("score", "one 0")]
    assert [(str(loss), loss.place) for loss in losses] == [(wide.NOT_A_VOTE, "5 of score")]


def test_a_row_that_names_the_person_has_that_persons_vote():
    rows = [question(0, client_id="w7", preference=1), question(0, client_id="w8", preference=2)]
    pairs, _, asides = made(rows)
    assert [(p["client_id"], p["chosen"]) for p in pairs] == [("w7", "one 0"), ("w8", "two 0")]
    assert "columns of votes: preference" in asides
    with pytest.raises(UserError, match=r"'client_id' names who voted, and so do the columns preference, again"):
        made([{**row, "again": 1} for row in rows])


def test_what_is_no_pair_is_counted(tmp_path):
    rows = [question(i, anna=1) for i in range(60)]
    rows += [{**question(60, anna=1), "response2": ""}, {**question(61, anna=2), "instruction": None}]
    source = write(tmp_path / "a.jsonl", rows)
    Path(source).write_text(Path(source).read_text() + '{"response1": ' + "9" * 5000 + "}\n")
    _, counts = read(DataConfig(source=source), 0)
    lost = {reason.split(" (")[0]: number for reason, number in counts.lost.items()}
    assert lost == {NO_RESPONSE: 1, NO_PROMPT: 1, "a number of more digits than Python reads": 1}
    assert counts.rows == 63 and sum(len(c) for c in [counts.asides]) == 4


def test_what_cannot_be_meant_is_refused(tmp_path):
    source = write(tmp_path / "a.jsonl", [question(0, rating=7)])
    with pytest.raises(UserError, match=r"no column holds votes alone .* of rating; name .*--data.annotator-columns"):
        load(DataConfig(source=source), 0)
    with pytest.raises(UserError, match=r"no column 'ratings'; did you mean 'rating'.*--data.annotator-columns"):
        load(DataConfig(source=source, annotator_columns=("ratings",)), 0)
    plain = write(tmp_path / "b.jsonl", [{"client_id": "a", "prompt": "p", "chosen": "x", "rejected": "y"}])
    with pytest.raises(
        UserError, match=r"names who voted between response1, response2, and its rows are read as pairs"
    ):
        load(DataConfig(source=plain, annotator_columns=("client_id",)), 0)


def test_votes_of_0_and_1_are_refused():
    rows = [question(i, anna=i % 2, ben=1) for i in range(4)]
    for options in {}, {"annotator_columns": ("anna",)}:
        with pytest.raises(UserError, match=r"votes of anna.* are 0 and 1 and never 2, and 0 is a tie here; write 1"):
            made(rows, **options)
    assert len(made([*rows, question(4, anna=0, ben=2)])[0]) == 2 + 5
    assert not made([question(0, anna=0)])[0]  # ties alone are what they say


def test_a_column_of_votes_but_for_a_few_cells_is_warned_of():
    """Of ten cells eight are votes: 80 %, which is as few as warn."""
    rows = [question(i, anna=1 + i % 2, ben=3 if i > 7 else 1, topic=7 if i > 6 else 1) for i in range(10)]
    pairs, _, asides = made(rows)
    assert {pair["client_id"] for pair in pairs} == {"anna"}
    (warning,) = (what for what in asides if what.startswith("warning"))
    assert asides[warning] == 2 and "column 'ben' are no votes (such as 3), so its 8 votes do not count" in warning
    assert "--data.annotator-columns" in warning
    assert not any("warning" in what for what in made(rows, annotator_columns=("anna",))[2])
    pairs, losses, _ = made(rows, annotator_columns=("anna", "ben"))
    assert len(pairs) == 18 and len(losses) == 2


def test_all_columns_are_named():
    people = [f"p{i}" for i in range(30)]
    assert made([question(0, **dict.fromkeys(people, 2))])[2][f"columns of votes: {', '.join(people)}"] == 30


def test_empty_cells_of_other_programs():
    pairs, losses, asides = made([question(i, anna=v) for i, v in enumerate(["NA", "N/A", "nan", "NaN", "na", "1"])])
    assert len(pairs) == 1 and not losses and asides["cells without a vote"] == 5


def test_values_that_are_no_votes_are_said():
    with pytest.raises(UserError, match=r"winner has A, B; long has x{39}…\)"):
        made([question(0, winner="A", long="x" * 50, none=None), question(1, winner="B", none="NA")])


@pytest.mark.parametrize("column", ["prompt", "response1", "response2", "instruction", "input", "who", "topic"])
def test_columns_with_another_meaning_are_no_annotators(column):
    row = question(0, prompt="p", who="w", topic="t", anna=1)
    with pytest.raises(UserError, match=rf"column '{column}' has another meaning .*--data.annotator-columns"):
        made([row], annotator_columns=("anna", column), client_column="who", group_column="topic")


def test_a_misspelt_annotator_is_told_the_columns_of_the_file(tmp_path):
    source = write(tmp_path / "a.jsonl", [question(0, anna=1)])
    with pytest.raises(
        UserError, match=r"did you mean 'anna'\?; it has instruction, input, response1, response2, anna; "
    ):
        load(DataConfig(source=source, annotator_columns=("ana",)), 0)


def test_check_says_what_it_made_of_what(tmp_path, capsys):
    source = write(tmp_path / "votes.csv", [question(i, anna=1 + i % 2, ben=i % 3) for i in range(90)])
    assert main(["check", source]) == 0
    out = capsys.readouterr().out
    assert f"{source}: 90 rows, 150 choices, 90 distinct pairs\nread as wide: " in out
    assert "\n         2  columns of votes: anna, ben\n" in out
    assert "\n        30  votes for neither response (ties), left out\n" in out
