"""The forms in which people keep preferences, one file a form: the columns it is known by, and what makes its pairs.

To add one: write a file with a `Form`, and give it a line in `FORMS`. Most forms need a function of one row (`each`);
`tldr` is a short one to begin from.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raypref.config import DataConfig
from raypref.data.rows import PairRow, Row, RowRead, Unusable

DEALT: dict[str, Any] = {
    "client_column": "client_id",
    "group_column": "group",
    "prompt_column": "prompt",
    "chosen_column": "chosen",
    "rejected_column": "rejected",
}
"""Columns of pairs that are dealt to clients, whatever the configuration calls those of a file."""

PAIRS = "pairs"
"""The form of all that no other form claims, and what the others are made into."""

WIDE = "wide"
"""The form whose annotators `data.annotator_columns` names."""


@dataclass(frozen=True)
class Form:
    """One way to write down which of two texts a person chose."""

    columns: frozenset[str]
    """By which its rows are known, where they have all of them."""
    about: str
    """One line: what is read, and what becomes of it."""
    pairs: Callable[[Iterable[RowRead], DataConfig, int], Iterator[PairRow]]
    """(rows, configuration, seed) -> rows with `prompt`, `chosen` and `rejected` (see `pairs.extract`) and with the
    columns that name the person. Pure: the same rows in whatever order give the same pairs. A row that is no pair is
    given as `Unusable`, never dropped, and what else people should know of as `Aside`."""
    gives: tuple[str, ...] = ("client_id", "prompt", "chosen", "rejected")
    """Columns that its pairs have."""
    dealt: bool = False
    """Its rows name nobody, and `pairs` deals them to clients by the seed: of columns there are those of `gives` alone,
    under the names of `DEALT`. Otherwise a pair keeps its row's other columns, such as a topic."""
    hint: Callable[[DataConfig, Sequence[str]], str] = lambda config, columns: ""
    """(configuration, columns of the rows) -> what `python -m raypref.data check` advises; empty: nothing."""
    lacking: Callable[[Sequence[str]], str] = lambda columns: ""
    """(columns of the rows) -> what the error of a column that is not there adds, such as a file with more of them."""


FORMS: dict[str, str | Form] = {
    PAIRS: "raypref.data.forms.pairs:FORM",
    "prism": "raypref.data.forms.prism:FORM",
    "styles": "raypref.data.forms.styles:FORM",
    "tldr": "raypref.data.forms.tldr:FORM",
    WIDE: "raypref.data.forms.wide:FORM",
}
"""Name -> the form, or where it is (`module:object`), so that nothing is imported before it is needed."""


def form(name: str) -> Form:
    """The form of this name in `FORMS`."""
    entry = FORMS[name]
    return entry if isinstance(entry, Form) else pkgutil.resolve_name(entry)


def recognized(columns: Collection[str], config: DataConfig) -> str:
    """The name of the form that rows with these columns are in; empty where they name none.

    Of several it is the one that knows most of the columns. Rows with the configured chosen column are pairs already,
    unless a form knows that column, too.
    """
    chosen = {config.chosen_column} & set(columns)
    needed = {name: form(name).columns for name in FORMS if name != PAIRS}
    fitting = [name for name, needs in needed.items() if chosen <= needs <= set(columns)]
    return max(fitting, key=lambda name: len(needed[name]), default=PAIRS if chosen else "")


def known_by(name: str, config: DataConfig) -> str:
    """The columns that tell a form, for a sentence."""
    return config.chosen_column if name == PAIRS else ", ".join(sorted(form(name).columns))


def each(pair: Callable[[Row], Row]) -> Callable[[Iterable[RowRead], DataConfig, int], Iterator[PairRow]]:
    """Makes the `pairs` of a `Form` from a function that makes the pair of one row, or raises `Unusable`.

    A column of the row that has the name of one of the pair's keeps its meaning, such as a `client_id` of its own.
    """

    def pairs(rows: Iterable[RowRead], config: DataConfig, seed: int) -> Iterator[PairRow]:
        for row in rows:
            try:
                yield row if isinstance(row, Unusable) else {**pair(row), **row}
            except Unusable as reason:
                yield reason

    return pairs
