"""Pairs of a file that a person names on a command line, each with its place, so that what is left out can be found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from raypref.data import sources
from raypref.data.federation import Pair
from raypref.data.forms.pairs import extract
from raypref.data.rows import Unusable
from raypref.tools.errors import UserError

NAMED = 5
"""Most row numbers that a note names for each reason."""


class Place(NamedTuple):
    """The row of a pair, and its file where there are several."""

    number: int
    """In its file, from 1; a header and empty lines are no rows."""
    file: str = ""
    """Empty where there is only one."""

    @property
    def line(self) -> dict[str, Any]:
        """The fields that its line of output begins with."""
        return ({"file": self.file} if self.file else {}) | {"row": self.number}

    def __str__(self) -> str:
        return f"{self.number} of {self.file}" if self.file else str(self.number)


Left = list[tuple[Place, str]]
"""Rows that were left out, and why."""


def pairs_of(source: str, columns: dict[str, str]) -> tuple[list[tuple[Place, Pair]], Left]:
    """The usable pairs of a file or a folder, and the rows that hold none.

    columns: the flag that names each of prompt, first and second response -> the column. Raises `UserError` on a
    missing column.
    """
    pairs: list[tuple[Place, Pair]] = []
    left: Left = []
    for place, texts in _rows(source, columns):
        try:
            if isinstance(texts, Unusable):
                raise texts
            pairs.append((place, extract(*texts)))
        except Unusable as error:
            left.append((place, str(error)))
    return pairs, left


def _rows(source: str, columns: dict[str, str]) -> Iterator[tuple[Place, list[Any] | Unusable]]:
    """Every row's [prompt, first, second], or why it could not be read."""
    tables = sources.tables(source)
    for table in tables:
        for flag, name in columns.items():
            if name not in table.columns:
                raise UserError(f"{table.name} has no column {name!r} but {', '.join(table.columns)}; set {flag}")
        for number, row in enumerate(table.rows(), 1):
            place = Place(number, table.name if len(tables) > 1 else "")
            yield place, row if isinstance(row, Unusable) else [row.get(name) for name in columns.values()]


def by_reason(left: Sequence[tuple[Place, str]]) -> str:
    """Rows by reason: `2 chosen equals rejected (rows 3, 9), 1 a response is missing or empty (row 4)`."""
    places: dict[str, list[str]] = {}
    for place, why in left:
        places.setdefault(why, []).append(str(place))
    return ", ".join(
        f"{len(at)} {why} (row{'s' * (len(at) > 1)} {', '.join(at[:NAMED])}{', …' * (len(at) > NAMED)})"
        for why, at in sorted(places.items())
    )
