"""Rows of whatever source: what they are, how the unusable ones are counted, and how a sentence names them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypref.config import UserError, nearest

Row = Mapping[str, Any]
"""Column -> cell. A row may lack columns that others have."""


class Unusable(ValueError):
    """A row that holds no choice between two texts; the message is the reason, as it is counted."""

    def __init__(self, reason: str, place: str = "") -> None:
        """place: where it stands, such as `line 120`, or what it has instead; empty where it just lacks something."""
        super().__init__(reason)
        self.place = place


RowRead = Row | Unusable
"""A row as it was read, or why it could not be."""


@dataclass(frozen=True)
class Aside:
    """What a form met that is neither a pair nor an unusable row, such as votes for neither response; it is counted."""

    what: str
    number: int = 1


PairRow = RowRead | Aside | None
"""A row of a pair; or why a row is none; or something to be counted beside; or None for a pair dealt to nobody."""


@dataclass(frozen=True)
class Table:
    """Some rows under one header; a row may lack columns."""

    columns: tuple[str, ...]
    rows: Callable[[], Iterator[RowRead]]
    """Reads them anew at every call, from the disk."""
    name: str
    """Of the file, or of the hub data set's split, behind its configuration or folder: `helpful-base/train`."""


def columns_of(tables: Sequence[Table]) -> list[str]:
    """The columns of all tables, each once."""
    return list(dict.fromkeys(column for table in tables for column in table.columns))


class Losses:
    """Rows left out: how many for each reason, and where the first few stand."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: dict[str, list[str]] = {}

    def add(self, row: Unusable) -> None:
        """Count one more."""
        reason = str(row)
        self._counts[reason] += 1
        places = self._places.setdefault(reason, [])
        if row.place and row.place not in places and len(places) <= MOST_LISTED:
            places.append(row.place)

    def reasons(self) -> dict[str, int]:
        """Reason -> rows, the most frequent first; with the places where they are known."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        where = {reason: f" ({listing(places)})" if places else "" for reason, places in self._places.items()}
        return {reason + where[reason]: number for reason, number in ordered}


MOST_LISTED = 5
"""How many of a list a sentence names."""


def listing(items: Sequence[object], most: int = MOST_LISTED) -> str:
    """The first few of a list, for a sentence."""
    return ", ".join(map(str, items[:most])) + (", …" if len(items) > most else "")


def shortened(text: str) -> str:
    """At most 40 characters of a text, for a sentence."""
    return text if len(text) <= 40 else text[:39] + "…"


MISSING = ("nan", "NaN", "<NA>")
"""How pandas writes an empty cell that was made text."""


def as_text(value: object) -> str:
    """A person, group or topic of a row as text; '' where there is none.

    What other programs made of it is undone: 3.0, a number or text, is a 3 whose column has gaps; the texts nan, NaN
    and <NA> are an empty cell, b'ann' is ann.
    """
    if value is None or value != value:
        return ""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value).strip()
    if text in MISSING:
        return ""
    if printed := re.fullmatch(r"(\d+)\.0+|b'([^'\\]*)'", text):
        text = printed[1] or printed[2] or ""
    return text.encode(errors="replace").decode()  # half a character cannot be written anywhere


def wrapper_of(rows: Iterable[PairRow]) -> str:
    """The key of the only row under which a list of objects is kept: {"version": 1, "data": [{…}, …]}; else ''."""
    objects = (row for row in rows if isinstance(row, Mapping))
    row = next(objects, {})
    lists = [key for key, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return lists[0] if lists and next(objects, None) is None else ""


def no_column(source: str, name: str, flag: str, columns: Sequence[str], wrapper: str = "") -> UserError:
    """The error that says that rows lack a column, and what to do.

    flag: of `--data.` names it. wrapper: the key under which the rows lie instead, if any.
    """
    if wrapper:
        return UserError(
            f"{source} is one object and no list of rows; if they are what it holds under {wrapper!r}, write that list "
            f"to a file of its own, such as with jq '.{wrapper}'"
        )
    hint = nearest(name, columns)
    return UserError(
        f"{source} has no column {name!r}{hint if 'did you mean' in hint else ''}; it has {', '.join(columns)}; "
        f"say which with --data.{flag}" + (" (empty: all rows are one client's)" if flag == "client-column" else "")
    )
