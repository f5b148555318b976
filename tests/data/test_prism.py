"""PRISM's conversations (Kirk et al. 2024) in its public files' fields: who preferred what to what, after what."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from raypref.config import DataConfig, UserError
from raypref.data.__main__ import main
from raypref.data.federation import FOLDS, Pair
from raypref.data.forms import prism
from raypref.data.forms.pairs import NO_RESPONSE
from raypref.data.load import load, read
from raypref.data.rows import Unusable


@pytest.fixture(autouse=True)
def contained(monkeypatch):
    monkeypatch.setattr("raypref.tools.console.quiet", lambda: None)


def said(turn: int, content: str) -> dict:
    """What a person wrote, as in `conversation_history`; the hub fills what only models have with nothing."""
    nothing = dict.fromkeys(("model_name", "model_provider", "score", "if_chosen", "within_turn_id"))
    return {"turn": turn, "role": "user", "content": content, **nothing}


def answered(turn: int, *scored: tuple[str, int | None], best: int | str | None = 0) -> list[dict]:
    return [
        {
            "turn": turn,
            "role": "model",
            "content": text,
            "model_name": f"model-{i}",
            "model_provider": "provider",
            "score": score,
            "if_chosen": best == "all" or i == best,
            "within_turn_id": i,
        }
        for i, (text, score) in enumerate(scored)
    ]


def conversation(name: str, user: str | None, *history: dict) -> dict:
    return {
        "conversation_id": name,
        "user_id": user,
        "conversation_type": "values guided",
        "opening_prompt": history[0]["content"] if history else "",
        "conversation_turns": 2,
        "conversation_history": list(history),
        "performance_attributes": {"values": 90, "factuality": None},
        "choice_attributes": {"values": 80},
        "open_feedback": "good",
        "generated_datetime": "2023-12-01 10:00:00",
        "included_in_balanced_subset": True,
    }


def person(user: str, locale: str, age: str = "18-24 years old") -> dict:
    """A row of the survey."""
    return {
        "user_id": user,
        "survey_only": False,
        "num_completed_conversations": 6,
        "lm_familiarity": "Very familiar",
        "age": age,
        "religion": {"self_described": "none", "categorised": "Non-religious", "simplified": "No Affiliation"},
        "ethnicity": {"self_described": "x", "categorised": "White", "simplified": "White"},
        "study_locale": locale,
        "location": {"birth_country": "Chile", "reside_country": "Chile", "special_region": "Latin America"},
        "stated_prefs": {"values": 100},
    }


def utterances(row: dict) -> list[dict]:
    """The rows of `utterances.jsonl` that a conversation has there."""
    asked = {u["turn"]: u["content"] for u in row["conversation_history"] if u["role"] == "user"}
    return [
        {
            "utterance_id": f"ut{n}",
            "interaction_id": f"int{u['turn']}",
            **{key: row[key] for key in ("conversation_id", "user_id", "conversation_type")},
            **{key: u[key] for key in ("turn", "within_turn_id", "model_name", "model_provider", "score", "if_chosen")},
            "user_prompt": asked[u["turn"]],
            "model_response": u["content"],
            "included_in_balanced_subset": True,
        }
        for n, u in enumerate(row["conversation_history"])
        if u["role"] == "model"
    ]


OPENING = [said(0, "hi"), *answered(0, ("yo", 90), ("hello", 40), ("what", 90), ("", 10))]
TWO_TURNS = conversation(
    "c1", "user1", *OPENING, said(1, "why"), *answered(1, ("no idea", 20), ("because", 70), best=1)
)
BECAUSE = Pair("Human: hi\n\nAssistant: yo\n\nHuman: why", "because", "no idea")


def pairs_of(*rows: dict) -> tuple[set[tuple[str, str, str]], list[str], dict[str, int]]:
    """(prompt, chosen, rejected) with a prompt of one or several turns in short, losses, and what was counted."""
    results = list(prism.pairs(rows, DataConfig(), 0))
    pairs = [row for row in results if isinstance(row, dict)]
    short = {("/".join(t["content"] for t in p["prompt"] or ()), p["chosen"], p["rejected"]) for p in pairs}
    losses = [str(row) for row in results if isinstance(row, Unusable)]
    return short, losses, {a.what: a.number for a in results if isinstance(a, prism.Aside)}


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def everything(federation) -> set[tuple[str, Pair]]:
    return {(c.id, pair) for c in federation.clients for fold in FOLDS for pair in c.fold(fold)}


def talks(users: int = 3, each: int = 25) -> list[dict]:
    """Three pairs a conversation: two of its opening, one of its second turn."""
    return [
        conversation(
            f"c{u}-{i}",
            f"user{u}",
            said(0, f"{u} asks {i}"),
            *answered(0, (f"fair {i}", 50), (f"best {i}", 90), (f"bad {i}", 5), best=1),
            said(1, "go on"),
            *answered(1, (f"more {i}", 60), (f"less {i}", 30)),
        )
        for u in range(users)
        for i in range(each)
    ]


# --- pairs of a conversation


def test_the_best_of_a_turn_against_each_other_one_after_the_conversation_so_far():
    pairs, losses, counted = pairs_of(TWO_TURNS)
    assert pairs == {
        ("hi", "yo", "hello"),
        ("hi", "yo", ""),  # to be counted as a response that is missing
        ("hi/yo/why", "because", "no idea"),
    }
    assert not losses
    assert counted == {
        "conversations": 1,
        "people in them": 1,
        "responses that were scored like the chosen one (ties), left out": 1,
        "turns with several responses": 2,
    }


@pytest.mark.parametrize(
    ("scored", "best", "pairs", "lost"),
    [
        ([("a", 30), ("b", 60)], None, {("q", "b", "a")}, 0),  # nothing is chosen: the highest score
        ([("a", None), ("b", None)], 1, {("q", "b", "a")}, 0),  # nothing is scored: what was chosen
        ([("a", None), ("b", 60)], 0, {("q", "a", "b")}, 0),
        ([("a", 30), ("b", 60), ("c", 10)], 0, {("q", "a", "c")}, 1),  # b was scored higher than what was chosen
        ([("a", 30), ("b", 60)], "all", {("q", "b", "a")}, 0),  # all are chosen: the highest score
        ([("a", None), ("b", None)], "all", set(), 0),  # and ties where nothing is scored
        ([("a", 30)], 0, set(), 0),
        ([("a", None), ("b", None)], None, set(), 0),
    ],
)
def test_what_is_the_best(scored, best, pairs, lost):
    made, losses, _ = pairs_of(conversation("c", "u", said(0, "q"), *answered(0, *scored, best=best)))
    assert made == pairs and len(losses) == lost


def test_a_conversation_of_which_nobody_knows_how_it_went_on_ends_there():
    rest = [said(1, "why"), *answered(1, ("x", None), ("y", None), best=None), said(2, "so"), *answered(2, ("v", 9))]
    pairs, _, counted = pairs_of(conversation("c", "u", *OPENING[:3], *rest))
    assert pairs == {("hi", "yo", "hello")}
    assert counted["turns from one on in which nothing was chosen or scored, left out"] == 2


def test_texts_that_are_missing_have_a_name_of_their_own():
    row = conversation("c", "u", said(0, "EMPTY STRING"), *answered(0, ("a", 60), ("EMPTY STRING", 5)))
    assert pairs_of(row)[0] == {("", "a", "")}


def test_no_history_is_counted():
    pairs, losses, _ = pairs_of(
        {**TWO_TURNS, "conversation_history": None}, {**TWO_TURNS, "conversation_history": ["x"]}
    )
    assert not pairs and losses == ["no list of turns in column 'conversation_history'"] * 2


def test_a_row_without_a_history_is_counted_and_is_no_person_of_the_survey():
    bare = {key: cell for key, cell in TWO_TURNS.items() if key != "conversation_history"}
    rows = list(prism.pairs([person("user1", "uk"), bare, TWO_TURNS], DataConfig(), 0))
    assert [str(row) for row in rows if isinstance(row, Unusable)] == [prism.NO_HISTORY]
    assert {row["study_locale"] for row in rows if isinstance(row, dict)} == {"uk"}


# --- files


def test_conversations_are_joined_to_people(tmp_path):
    survey = [person("user0", "chile"), person("user1", "uk"), person("user2", "uk"), person("user9", "us")]
    write(tmp_path / "conversations.jsonl", [*talks(), TWO_TURNS])
    write(tmp_path / "survey.jsonl", survey)
    federation, counts = read(DataConfig(source=str(tmp_path), group_column="study_locale"), 0)
    assert federation.ids == ("user0", "user1", "user2") and federation.groups == ("chile", "uk")
    assert everything(federation) == {
        pair
        for u in range(3)
        for i in range(25)
        for pair in (
            (f"user{u}", Pair(f"{u} asks {i}", f"best {i}", f"fair {i}")),
            (f"user{u}", Pair(f"{u} asks {i}", f"best {i}", f"bad {i}")),
            (f"user{u}", Pair(f"Human: {u} asks {i}\n\nAssistant: best {i}\n\nHuman: go on", f"more {i}", f"less {i}")),
        )
    } | {("user1", Pair("hi", "yo", "hello")), ("user1", BECAUSE)}
    assert counts.lost == {NO_RESPONSE: 1} and counts.rows == 3 * 75 + 3
    assert counts.asides == {
        "conversations": 76,
        "people in them": 3,
        "people in them who are not in the survey": 0,
        "people of the survey without a conversation": 1,
        "responses that were scored like the chosen one (ties), left out": 1,
        "turns with several responses": 152,
    }


@pytest.mark.parametrize(
    ("column", "groups"), [("age", ("18-24 years old",)), ("location.special_region", ("Latin America",))]
)
def test_groups_of_the_surveys_columns(tmp_path, column, groups):
    write(tmp_path / "conversations.jsonl", talks())
    write(tmp_path / "survey.jsonl", [person(f"user{u}", "uk") for u in range(3)])
    assert load(DataConfig(source=str(tmp_path), group_column=column), 0).groups == groups


def test_conversations_alone_have_no_columns_of_people(tmp_path):
    source = write(tmp_path / "conversations.jsonl", talks())
    assert len(everything(load(DataConfig(source=source), 0))) == 225
    with pytest.raises(UserError, match=r"no column 'age'.*--data\.group-column; no survey was read, .* survey\.jsonl"):
        load(DataConfig(source=source, group_column="age"), 0)
    with pytest.raises(UserError, match=r"nobody has a value in column 'religion\.simplified'; no survey .*\.jsonl"):
        load(DataConfig(source=source, group_column="religion.simplified"), 0)
    write(tmp_path / "survey.jsonl", [person("user0", "uk")])
    with pytest.raises(UserError, match=r"no column 'agee'; did you mean 'age'.*--data\.group-column$"):
        load(DataConfig(source=str(tmp_path), group_column="agee"), 0)
    with pytest.raises(UserError, match=r"client 'user1' has no value in column 'religion\.simplified'"):
        load(DataConfig(source=str(tmp_path), group_column="religion.simplified"), 0)


def test_utterances_are_the_same_pairs_and_count_once(tmp_path):
    """Whatever the order of their rows, alone, and beside the conversations that they are of."""
    rows = [u for row in talks() for u in utterances(row)]
    random.Random(0).shuffle(rows)
    (tmp_path / "all").mkdir()
    alone = read(DataConfig(source=write(tmp_path / "utterances.jsonl", rows)), 0)
    whole = read(DataConfig(source=write(tmp_path / "all" / "conversations.jsonl", talks())), 0)
    assert alone[0].clients == whole[0].clients and alone[1] == whole[1]
    write(tmp_path / "all" / "utterances.jsonl", rows)
    metadata = {
        "column_id": "user_prompt",
        "user_id": "user0",
        "conversation_id": "c0-0",
        "text": "x",
        "pii_flag": False,
    }
    write(tmp_path / "all" / "metadata.jsonl", [metadata, {**metadata, "conversation_id": None}])
    together, counts = read(DataConfig(source=str(tmp_path / "all")), 0)
    assert together.clients == whole[0].clients and counts.rows == whole[1].rows
    assert dict(counts.asides).items() >= {
        ("utterances of conversations that are there whole, left out", 75 * 5),
        ("rows of other files (such as metadata), left out", 2),
    }


def test_the_hub_has_both_in_configurations(tmp_path, monkeypatch):
    """Loaded by `datasets` itself, from files as they lie on the hub."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    files = {"conversations": talks(), "survey": [person(f"user{u}", f"l{u}") for u in range(3)]}
    paths = {name: write(tmp_path / f"{name}.jsonl", rows) for name, rows in files.items()}
    real, asked = datasets.load_dataset, []

    def load_dataset(path, name=None):
        asked.append((path, name))
        return real("json", data_files=paths[name])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    federation = load(DataConfig(source=prism.HUB, group_column="study_locale"), 0)
    assert asked == [(prism.HUB, "conversations"), (prism.HUB, "survey")]
    assert federation.groups == ("l0", "l1", "l2")
    local = load(DataConfig(source=paths["conversations"]), 0)
    assert everything(federation) == everything(local)


def test_check_says_what_it_made_of_what(tmp_path, capsys):
    write(tmp_path / "conversations.jsonl", talks())
    write(tmp_path / "survey.jsonl", [person(f"user{u}", "uk") for u in range(3)])
    assert main(["check", str(tmp_path), "--data.group-column", "study_locale"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}: 78 rows, 225 choices, 225 distinct pairs\nread as prism: PRISM's conversations" in out
    assert "\n        75  conversations\n         3  people in them\n" in out
    assert "\n       150  turns with several responses\n" in out
