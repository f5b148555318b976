"""TRL's preference format: `prompt`, `chosen` and `rejected`, as text or as conversations, the prompt explicit or not.

Responses without a prompt are conversations that begin alike, or plain transcripts as in HH-RLHF (Bai et al. 2022).
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Sequence
from typing import cast

from raypref.data.federation import Pair
from raypref.data.forms import Form
from raypref.data.rows import Unusable

TURN = "\n\nAssistant:"
"""What precedes a response in the plain-text transcripts of HH-RLHF."""

SHAREGPT = {"human": "user", "gpt": "assistant"}
"""ShareGPT's names of the roles that others call `user` and `assistant`."""

REPEATED = "the same pair as another row"
NO_PROMPT = "the prompt is missing or empty"
NO_RESPONSE = "a response is missing or empty"
NO_TEXT = "a prompt or response is neither text nor a conversation"
PRINTED = "a conversation that was printed as text and cannot be read back (write it as JSON)"
HALF = "a text holds half a character (a lone surrogate), which no tokenizer takes"
OTHER_PROMPT = "the two prompts differ"


def extract(prompt: object, chosen: object, rejected: object) -> Pair:
    """One choice as three texts, from any of TRL's preference forms; raises `Unusable` where there is none.

    They are stripped at the ends. Turns that both conversations (lists of {"role", "content"}, or ShareGPT's {"from",
    "value"}) begin with belong to the prompt. A conversation that a CSV file keeps as text is read as what it is.
    Where there is no prompt (None), text is an HH-RLHF transcript and splits at its last assistant turn: the prefix
    that two transcripts merely share cuts into responses that begin alike.
    """
    prompt, chosen, rejected = map(_conversation, (prompt, chosen, rejected))
    if not chosen or not rejected:
        raise Unusable(NO_RESPONSE)
    question = "" if prompt is None else _text(_turns(prompt))
    if isinstance(chosen, str) and isinstance(rejected, str):
        if prompt is None and TURN in chosen and TURN in rejected:
            (question, _, chosen), (other, _, rejected) = chosen.rpartition(TURN), rejected.rpartition(TURN)
            if question.strip() != other.strip():
                raise Unusable(OTHER_PROMPT)
        pair = Pair(question.strip(), chosen.strip(), rejected.strip())
    elif isinstance(chosen, str) or isinstance(rejected, str):
        raise Unusable("one response is text and the other is not")
    else:
        better, worse = _turns(chosen), _turns(rejected)
        shared = 0
        while shared < min(len(better), len(worse)) - 1 and better[shared] == worse[shared]:
            shared += 1
        if {better[shared][0], worse[shared][0]} != {"assistant"}:
            raise Unusable(OTHER_PROMPT)
        history = _text(better[:shared])
        # A prompt given apart is often one of the shared turns, or the first of them, once more.
        if not history.startswith(question) and question not in [content for _, content in better[:shared]]:
            history = f"{question}\n\n{history}"
        pair = Pair(history.strip(), _text(better[shared:]).strip(), _text(worse[shared:]).strip())
    if not pair.chosen or not pair.rejected:
        raise Unusable(NO_RESPONSE)
    if not pair.prompt:
        raise Unusable(NO_PROMPT)
    if pair.chosen == pair.rejected:
        raise Unusable("chosen equals rejected")
    try:
        "".join((pair.prompt, pair.chosen, pair.rejected)).encode()
    except UnicodeEncodeError:
        raise Unusable(HALF) from None
    return pair


def _conversation(cell: object) -> object:
    """The cell, or the list of turns that its text is: in JSON, or as Python prints it."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("[{"):
        return cell
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, Unusable):
            turns = read(cell)
            _turns(turns)
            return turns
    if any(f"{{{quote}{key}{quote}:" in cell for quote in "'\"" for key in ("role", "content", "from", "value")):
        raise Unusable(PRINTED)
    return cell


def _turns(value: object) -> list[tuple[str, str]]:
    """A conversation as (role, content); text is one turn without a role."""
    if isinstance(value, str):
        return [("", value)]
    if not isinstance(value, list):
        raise Unusable(NO_TEXT)
    turns = [
        (t.get("role", SHAREGPT.get(t.get("from"), t.get("from"))), t.get("content", t.get("value")))
        if isinstance(t, dict)
        else (None, None)
        for t in value
    ]
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in turns):
        raise Unusable(NO_TEXT)
    return cast(list[tuple[str, str]], turns)


def _text(turns: Sequence[tuple[str, str]]) -> str:
    """One turn is its content; several are a transcript in the words of HH-RLHF."""
    if len(turns) == 1:
        return turns[0][1]
    names = {"user": "Human", "assistant": "Assistant", "system": "System"}
    return "\n\n".join(f"{names.get(role, role)}: {content}" for role, content in turns)


FORM = Form(
    columns=frozenset(),  # the configuration names them
    about="a prompt with a chosen and a rejected response: text, conversations, or whole transcripts as in HH-RLHF",
    pairs=lambda rows, config, seed: iter(rows),
    gives=(),
)
