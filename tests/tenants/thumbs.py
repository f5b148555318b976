"""A form of data and a table that only tests have, with one line each.

The form is a person's thumbs: an answer that got thumbs up and one that got thumbs down. The table is how many choices
each run's clients had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raypref.data.forms import FORMS, Form
from raypref.data.rows import PairRow, RowRead, Unusable
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import Item, table
from raypref.evaluation.runs import FinishedRun, label
from raypref.evaluation.tables import Cell, Column, Table


def pairs(rows: Iterable[RowRead], config: object, seed: int) -> Iterator[PairRow]:
    for row in rows:
        if isinstance(row, Unusable):
            yield row
        elif row["up"] == row["down"]:
            yield Unusable("one answer got both thumbs")
        else:
            yield {"client_id": row["who"], "prompt": row["about"], "chosen": row["up"], "rejected": row["down"]}


FORMS["thumbs"] = Form(frozenset({"who", "about", "up", "down"}), "an answer with thumbs up and one with down", pairs)


@table("thumbs")
def thumbs(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """How many choices the clients of each run had"""
    cells = [(Cell(tuple(map(float, (sum(run.result["sizes"]),)))),) for run in runs]
    names = tuple(label(run.config) for run in runs)
    column = Column("choices", "choices", digits=0)
    return Item(Table("thumbs", "Choices", "method", columns=(column,), rows=names, cells=tuple(cells)), runs=runs)
