"""What judges read: a policy's responses beside the frozen base's, by section, and a fair sample of each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from raypref.config import RunConfig, UserError, read_config
from raypref.tools import checkpoint
from raypref.tools.rng import stream

FILE = "responses.jsonl"

AGAIN = "remove it, and raypref.rlhf with the same words writes it again"


class Response(NamedTuple):
    """One comparison: a line of the file."""

    prompt: str
    client: str
    """Whose test prompt it is; its z conditions `ours`."""
    group: str
    """That client's true group: the axis that its test prompts belong to."""
    unseen: bool
    """Whether the client took no part in training."""
    ours: str
    """The fine-tuned policy's response."""
    theirs: str
    """The frozen base's."""


Section = tuple[str, bool]
"""Group, unseen."""

Sections = Mapping[Section, Sequence[Response]]


def configuration(folder: Path) -> RunConfig:
    """The run's. Raises `UserError` where it is not there."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json; give the folder of a finished policy run")
    return read_config(folder)


def read(folder: Path) -> list[Response]:
    """The folder's comparisons. Raises `UserError` where there are none, or a line is none."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} holds no {FILE}; raypref.rlhf with the same words writes it again")
    with checkpoint.reading(path):
        text = path.read_text(encoding="utf-8").strip("\n")
    if not text:
        raise UserError(f"{path} is empty; {AGAIN}")
    return [_response(line, f"{path}, line {number}") for number, line in enumerate(text.split("\n"), start=1)]


def _response(line: str, where: str) -> Response:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where} is no JSON; {AGAIN}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} is no JSON object; {AGAIN}")
    missing = [repr(name) for name in Response._fields if name not in value]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}; {AGAIN}")
    response = Response(**{name: value[name] for name in Response._fields})
    if not all(isinstance(text, bool if name == "unseen" else str) for name, text in response._asdict().items()):
        raise UserError(f"{where}: unseen must be true or false, the rest text")
    return response


def sections(lines: Sequence[Response], samples: int, seed: int) -> Sections:
    """(group, unseen) -> at most `samples` of its comparisons (0: all), seen clients' sections first.

    Drawn by `seed`, evenly over clients: each gives one more before any gives two more, as long as it has them. A
    larger sample holds the smaller one, so that answers of a judge that were paid for stay useful.
    """
    of: dict[Section, list[Response]] = {}
    for line in lines:
        of.setdefault((line.group, line.unseen), []).append(line)
    return {key: _drawn(of[key], samples, key, seed) for key in sorted(of, key=lambda key: (key[1], key[0]))}


def _drawn(lines: Sequence[Response], samples: int, section: Section, seed: int) -> list[Response]:
    generator = stream(seed, f"judgement sample {section[0]}", section[1])
    of_client: dict[str, list[Response]] = {}
    for line in lines:
        of_client.setdefault(line.client, []).append(line)
    hands = [[each[i] for i in generator.permutation(len(each))] for _, each in sorted(of_client.items())]
    rounds = itertools.zip_longest(*(hands[i] for i in generator.permutation(len(hands))))
    return [line for line in itertools.chain.from_iterable(rounds) if line is not None][: samples or None]
