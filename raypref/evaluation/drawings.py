"""The tables and figures that can be drawn of finished runs: each is a function with a decorator that names it.

    @table("table3")
    def table3(runs: Sequence[FinishedRun], fold: Fold) -> Item:
        \"\"\"The first line is what `python -m raypref.compare --help` says of it.\"\"\"

Every module of `raypref.evaluation.comparisons` is looked through; a module elsewhere need only be imported.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from raypref.config import UserError
from raypref.evaluation.curve import Fold
from raypref.evaluation.runs import FinishedRun, titles
from raypref.evaluation.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP = "python -m raypref.sweep "
MODULES = "raypref.evaluation.comparisons"


class Missing(NamedTuple):
    """What could not be filled, and the command that would make the runs."""

    what: str
    command: str


@dataclass(frozen=True)
class Item:
    """A table or a figure, drawn; `content` is None where nothing of it could be."""

    content: Table | Figure | None = None
    caption: str = ""
    """Of a figure."""
    runs: Sequence[FinishedRun] = ()
    """Those that it shows."""
    missing: Sequence[Missing] = ()
    reference: str = ""
    """The row that differences are taken to, where the one asked for is not there."""
    remarks: Sequence[str] = ()
    """What a reader must know of it, such as which runs were chosen."""
    name: str = ""
    """Of its files."""


@dataclass(frozen=True)
class Drawing:
    """A function that draws an item, and what is known of it before."""

    kind: Literal["table", "figure"]
    name: str
    """Of the item's files."""
    make: Callable[[Sequence[Any], Fold], Item]
    of: Literal["runs", "policies"]
    """The material: stage-1 runs, or the policies that followed them."""
    rows: tuple[str, ...]
    """Rows that differences may be taken to, beside the methods."""
    after_run: bool
    """Whether `python -m raypref.run` shows it of its runs, where it can be drawn."""
    waits_for: Callable[[Mapping[str, str]], bool]
    """Whether a run of these parameters, which is not finished, would be in it."""

    @property
    def word(self) -> str:
        """What a person types behind --table or --figure."""
        return self.name.removeprefix(self.kind).removeprefix("-")

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.make.__doc__ or self.name).partition("\n")[0].rstrip(".;:")

    def __call__(self, runs: Sequence[Any], fold: Fold = "test") -> Item:
        item = self.make(runs, fold)
        content = replace(item.content, name=self.name) if isinstance(item.content, Table) else item.content
        return replace(item, name=self.name, content=content)


_drawings: dict[tuple[str, str], Drawing] = {}


def _decorator(
    kind: Literal["table", "figure"],
    name: str,
    *,
    of: Literal["runs", "policies"] = "runs",
    rows: tuple[str, ...] = (),
    after_run: bool = False,
    waits_for: Callable[[Mapping[str, str]], bool] = lambda parameters: True,
) -> Callable[[Callable[[Sequence[Any], Fold], Item]], Drawing]:
    """Registers a function that draws an item; arguments as in `Drawing`. Raises `ValueError` for a name that is taken
    by a function of another module."""
    return lambda make: _register(Drawing(kind, name, make, of, rows, after_run, waits_for))


table, figure = partial(_decorator, "table"), partial(_decorator, "figure")


def _register(drawing: Drawing) -> Drawing:
    key = (drawing.kind, drawing.word)
    if key in _drawings and _drawings[key].make.__module__ != drawing.make.__module__:
        raise ValueError(f"{drawing.name} is there already, in {_drawings[key].make.__module__}")
    _drawings[key] = drawing
    return drawing


def drawings() -> dict[tuple[str, str], Drawing]:
    """(`table` or `figure`, what a person types) -> the drawing: tables first, the papers' by number, those of policies
    last."""
    for module in pkgutil.iter_modules(importlib.import_module(MODULES).__path__):
        importlib.import_module(f"{MODULES}.{module.name}")

    def place(key: tuple[str, str]) -> tuple[Any, ...]:
        kind, word = key
        return kind != "table", _drawings[key].of != "runs", int(word) if word.isdigit() else len(_drawings), word

    return {key: _drawings[key] for key in sorted(_drawings, key=place)}


def listing(kind: Literal["table", "figure"]) -> str:
    """For --help: what a person can type, and what it is."""
    lines = [f"{word}: {drawing.summary}" for (of, word), drawing in drawings().items() if of == kind]
    return "\n".join(["Only these; without --table and --figure everything is drawn.", *lines])


def reference(word: str) -> str:
    """A row that differences may be taken to, by its label or by the algorithm's name; `UserError` where no table has
    such a row."""
    rows = [*titles().values(), *(row for drawing in drawings().values() for row in drawing.rows)]
    known = {row.lower(): row for row in rows}
    if word.partition(" (")[0].lower() in known and word.endswith(")"):  # with its form or options
        return word
    known |= titles()
    if word.lower() not in known:
        close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
        hint = f"did you mean {known[close[0]]!r}?" if close else f"there are: {', '.join(titles().values())}"
        raise UserError(f"no table has a row {word!r} for --reference; {hint}")
    return known[word.lower()]
