"""`--where FIELD=VALUE`: which runs are meant, by what they were configured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raypref.config import RunConfig, flatten, to_dict
from raypref.tools.errors import UserError, nearest


def conditions(where: Sequence[str]) -> Mapping[str, str]:
    """`KEY=VALUE` words by key. Raises `UserError` on a word of another form or an unknown field."""
    known = flatten(to_dict(RunConfig()))
    chosen = {}
    for word in where:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"--where takes FIELD=VALUE, not {word!r}; such as federation.rounds=60")
        if key not in known:
            hint = nearest(key, known)
            if "did you mean" not in hint:  # all of them are some forty
                hint = "; python -m raypref.run NAME --help lists the fields"
            raise UserError(f"--where: unknown field {key!r}{hint}")
        chosen[key] = value
    return chosen


def matches(value: Any, word: str) -> bool:
    """Whether a field's value is what a person typed: numbers by value, tuples as on a command line."""
    if isinstance(value, list):
        words = word.split()
        return len(words) == len(value) and all(map(matches, value, words))
    if isinstance(value, (int, float)):
        try:
            return float(word) == value
        except ValueError:
            return False
    return str(value) == word
