"""PRISM: people who rated several answers at every turn of their conversations, and a survey of who they are (Kirk et
al. 2024, arXiv 2404.16019).

Read are its files as they are published: `conversations.jsonl` with `survey.jsonl`, or `utterances.jsonl`, whose rows
are the same responses one by one. Field names are those of its code book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raypref.config import DataConfig, UserError
from raypref.data.forms import Form
from raypref.data.rows import Aside, PairRow, Row, RowRead, Unusable, as_text

HUB = "HannahRoseKirk/prism-alignment"

CONFIGURATIONS = "conversations,survey"
"""What is read of it on the hub: `utterances` holds the same responses, and `metadata` no choices."""

EMPTY = "EMPTY STRING"
"""What PRISM has in the place of a text that is missing."""

NESTED = ("religion.simplified", "ethnicity.simplified", "location.reside_country", "location.special_region")
"""What `data.group_column` may name beside the survey's own columns: cells of its nested ones."""

SURVEY = frozenset({"survey_only", "study_locale", "age", "gender", "religion", "ethnicity", "location"})
"""Columns that tell that a survey was read."""

NO_SURVEY = (
    "no survey was read, which says who people are: give the folder that has survey.jsonl beside the conversations"
)

NO_HISTORY = "no list of turns in column 'conversation_history'"

NO_SCORE = -1.0

Turn = Mapping[str, Any]
"""One utterance of a conversation: `turn`, `role` (user or model), `content`; of a model also `score` (1 to 100),
`if_chosen` and `within_turn_id`."""


def source_of(config: DataConfig) -> str:
    """The source of the rows, with both configurations where the hub's PRISM is meant."""
    return f"{HUB}:{CONFIGURATIONS}" if config.source == HUB and not Path(HUB).exists() else config.source


def pairs(rows: Iterable[RowRead], config: DataConfig, seed: int) -> Iterator[PairRow]:
    """Of every turn with several responses the one that the person chose against each other one.

    The prompt is the conversation so far, along the chosen responses. A pair has the columns of its conversation, and
    the survey's of its person. Utterances of conversations that are there whole are left out, and counted. Raises
    `UserError` where the group is a column of the survey, and there is none.
    """
    conversations: list[tuple[Row, list[Turn]]] = []
    utterances: dict[str, tuple[Row, list[Turn]]] = {}
    people: dict[str, Row] = {}
    met: Counter[str] = Counter()
    for row in rows:
        if isinstance(row, Unusable):
            yield row
        elif "conversation_history" in row:
            history = row["conversation_history"]
            if isinstance(history, list) and all(isinstance(turn, dict) for turn in history):
                conversations.append(({k: cell for k, cell in row.items() if k != "conversation_history"}, history))
            else:
                yield Unusable(NO_HISTORY)
        elif "model_response" in row:
            _, history = utterances.setdefault(as_text(row.get("conversation_id")), (_of_conversation(row), []))
            history += _turns(row)
        elif "conversation_id" in row and "column_id" not in row:
            yield Unusable(NO_HISTORY)
        elif "user_id" in row and "column_id" not in row:
            people[as_text(row["user_id"])] = _flat(row)
        else:
            met["rows of other files (such as metadata), left out"] += 1
    for name in utterances.keys() & {as_text(row.get("conversation_id")) for row, _ in conversations}:
        responses = sum(turn["role"] == "model" for turn in utterances.pop(name)[1])
        met["utterances of conversations that are there whole, left out"] += responses
    conversations += utterances.values()
    if config.group_column in NESTED and not people and not any(config.group_column in row for row, _ in conversations):
        raise UserError(f"{config.source}: nobody has a value in column {config.group_column!r}; {NO_SURVEY}")
    for row, history in conversations:
        person = people.get(as_text(row.get("user_id")), {})
        known = {**dict.fromkeys(NESTED), **person, **row, "client_id": row.get("user_id")}
        for choice in _choices(history, met):
            yield choice if isinstance(choice, Unusable) else {**known, **choice}
    spoke = {as_text(row.get("user_id")) for row, _ in conversations}
    yield Aside("conversations", len(conversations))
    yield Aside("people in them", len(spoke))
    if people:
        yield Aside("people in them who are not in the survey", len(spoke - people.keys()))
        yield Aside("people of the survey without a conversation", len(people.keys() - spoke))
    yield from (Aside(what, number) for what, number in sorted(met.items()))


def _choices(history: Iterable[Turn], met: Counter[str]) -> Iterator[Row | Unusable]:
    """The pairs of one conversation; `met` counts turns, ties and turns without a choice.

    The best response of a turn is the chosen one; where none or several are, the one of them of the highest score. One
    that was scored like the best is a tie with it, and so is one without a score that was chosen like it; one that was
    scored higher contradicts the choice.
    """
    turns: dict[float, list[Turn]] = {}
    for utterance in history:
        turns.setdefault(_number(utterance.get("turn")), []).append(utterance)
    so_far: list[dict[str, str]] = []
    for at, (_, utterances) in enumerate(sorted(turns.items())):
        question = next((_content(u) for u in utterances if u.get("role") == "user"), "")
        responses = sorted((u for u in utterances if u.get("role") == "model"), key=_place)
        if not responses:
            met["turns without a response"] += 1
            continue
        so_far.append({"role": "user", "content": question})
        best = max(responses, key=lambda u: (u.get("if_chosen") is True, _score(u)))
        if best.get("if_chosen") is not True and _score(best) == NO_SCORE:
            met["turns from one on in which nothing was chosen or scored, left out"] += len(turns) - at
            return  # nobody knows what the conversation went on with
        met["turns with one response alone" if len(responses) == 1 else "turns with several responses"] += 1
        for other in (u for u in responses if u is not best):
            if _score(best) == _score(other) and (_score(best) > NO_SCORE or other.get("if_chosen") is True):
                met["responses that were scored like the chosen one (ties), left out"] += 1
            elif NO_SCORE < _score(best) < _score(other):
                yield Unusable("a response was scored higher than the chosen one")
            else:
                texts = {"chosen": _content(best), "rejected": _content(other)}
                yield {"prompt": list(so_far) if question else None, **texts}
        so_far.append({"role": "assistant", "content": _content(best)})


def _score(utterance: Turn) -> float:
    return _number(utterance.get("score"), NO_SCORE)


def _place(utterance: Turn) -> tuple[float, str]:
    """Orders the responses of a turn as they stood on the screen."""
    return _number(utterance.get("within_turn_id")), _content(utterance)


def _number(cell: object, otherwise: float = 0.0) -> float:
    return float(cell) if isinstance(cell, (int, float)) and cell == cell else otherwise


def _content(utterance: Turn) -> str:
    content = as_text(utterance.get("content"))
    return "" if content == EMPTY else content


def _of_conversation(row: Row) -> Row:
    """The columns of an utterance that are its conversation's."""
    names = ("conversation_id", "user_id", "conversation_type", "included_in_balanced_subset")
    return {name: row[name] for name in names if name in row}


def _turns(row: Row) -> list[Turn]:
    """A row of `utterances.jsonl` as what was said: the person's prompt, which its sisters repeat, and one response."""
    response = {key: row.get(key) for key in ("score", "if_chosen", "within_turn_id")}
    return [
        {"turn": row.get("turn"), "role": "user", "content": row.get("user_prompt")},
        {"turn": row.get("turn"), "role": "model", "content": row.get("model_response"), **response},
    ]


def _flat(person: Row) -> Row:
    """A row of the survey, and what its nested cells hold under names such as `location.special_region`."""
    nested = [(column, cells) for column, cells in person.items() if isinstance(cells, dict)]
    return {**person, **{f"{column}.{key}": cell for column, cells in nested for key, cell in cells.items()}}


FORM = Form(
    columns=frozenset({"conversation_id", "user_id", "conversation_type"}),
    about="PRISM's conversations, the best response of every turn against each other one, with the survey's columns",
    pairs=pairs,
    gives=("client_id", "prompt", "chosen", "rejected", *NESTED),
    lacking=lambda columns: "" if SURVEY & set(columns) else NO_SURVEY,
)
