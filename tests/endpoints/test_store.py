"""The store of paid answers: nothing that was paid is lost, whichever version kept it, and nothing unusable stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raypref.config import UserError
from raypref.endpoints.client import Answer
from raypref.endpoints.store import Store

SETTINGS = {"model": "m", "temperature": 1.0}
FIELDS = ("prompt", "axis", "pole")


def lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_of_judges_in_their_first_form_are_read_and_kept(tmp_path):
    path = tmp_path / "answers.jsonl"
    old = [
        ["k0", "A", 100, 1],
        ["k1", "<think>\nB is kind.</think>\nB", 100, 20],
        ["k2", [{"type": "thinking", "thinking": []}, {"type": "text", "text": "A"}], 100, 3],  # it crashed who read it
        ["k3", {"refused": True}, 100, 3],
        ["k4"],
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    with Store(path, ("key",), "--cache") as store:
        assert store.answers == {
            ("k0",): Answer("A", "", 100, 1),
            ("k1",): Answer("B", "", 100, 20),
            ("k2",): Answer("A", "", 100, 3),
        }
        assert store.dropped == 2
        store.add(("k3",), Answer("tie", "stop", 100, 1))
    assert lines(path)[:5] == old
    assert lines(path)[5:] == [{"key": "k3", "text": "tie", "finish": "stop", "tokens_in": 100, "tokens_out": 1}]
    assert Store(path, ("key",), "--cache", write=False).answers[("k3",)].text == "tie"


def test_a_journal_in_its_first_form_is_read_and_goes_on(tmp_path):
    path = tmp_path / "pairs.jsonl.journal"
    entry = {"prompt": "p", "axis": "humor", "pole": 0, "text": "x", "finish": "stop", "tokens_in": 1, "tokens_out": 2}
    path.write_text(json.dumps({"settings": SETTINGS}) + "\n" + json.dumps(entry) + "\n")
    with Store(path, FIELDS, "--out", SETTINGS) as store:
        assert store.answers == {("p", "humor", 0): Answer("x", "stop", 1, 2)}
        store.add(("p", "humor", 1), Answer("y", "length", 3, 4))
    assert lines(path) == [
        {"settings": SETTINGS},
        entry,
        {**entry, "pole": 1, "text": "y", "finish": "length", "tokens_in": 3, "tokens_out": 4},
    ]


def test_a_half_line_goes_where_there_is_one_writer_and_is_ended_where_there_are_several(tmp_path):
    for settings, left in ((SETTINGS, 2), (None, 2)):
        path = tmp_path / f"{settings is None}.jsonl"
        with Store(path, ("key",), "--out", settings) as store:
            store.add(("a",), Answer("x"))
        with path.open("a") as file:
            file.write('{"key": "b", "te')
        assert Store(path, ("key",), "--out", settings, write=False).dropped == 1
        assert path.read_text().endswith("te")  # nothing is changed by who only reads
        with Store(path, ("key",), "--out", settings) as store:
            assert store.dropped == 1
            store.add(("b",), Answer("y"))
        there = Store(path, ("key",), "--out", settings, write=False)
        assert len(there.answers) == left and there.dropped == int(settings is None)


def test_one_of_other_settings_is_refused_while_it_holds_answers(tmp_path):
    path = tmp_path / "journal"
    with Store(path, FIELDS, "--out", SETTINGS):
        assert lines(path) == [{"settings": SETTINGS}]
    assert not path.exists()  # nothing was paid
    with Store(path, FIELDS, "--out", SETTINGS) as store:
        store.add(("p", "humor", 0), Answer("x"))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"was begun with temperature 1.0, now 0.5; set it back, or give another --out"):
        Store(path, FIELDS, "--out", {**SETTINGS, "temperature": 0.5})
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_used(tmp_path):
    for write, how in ((True, "written"), (False, "read")):
        with pytest.raises(UserError, match=rf"cannot be {how} \(Is a directory\); give another --out"):
            Store(tmp_path, FIELDS, "--out", write=write)
