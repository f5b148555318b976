"""A row a question with two responses, and a column an annotator with 1 or 2 for the better one, or 0 for a tie.

So are tables of instructions that many people voted on, such as those for personalized alignment: each annotator is a
client.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from raypref.config import DataConfig, UserError
from raypref.data.forms import Form
from raypref.data.rows import Aside, PairRow, Row, RowRead, Unusable, as_text, listing, shortened

RESPONSES = ("response1", "response2")
QUESTION = ("instruction", "input")
"""What a prompt is made of where there is none; the second may be empty or missing."""

TIE, NO_VOTE = "0", ""
VOTES = ("1", "2", TIE)
NOT_A_VOTE = "a vote is not 1, 2, or 0 for a tie"


def pairs(rows: Iterable[RowRead], config: DataConfig, seed: int) -> Iterator[PairRow]:
    """The votes for one of the two responses, each a pair of its annotator's; ties and empty cells are counted.

    Annotators' columns are `data.annotator_columns`, else all that hold nothing but votes. A row that names the person
    itself, in the configured client column, has one column of votes, and they are that person's. Raises `UserError`
    where nobody votes.
    """
    table = list(rows)
    readable = [row for row in table if not isinstance(row, Unusable)]
    columns = dict.fromkeys(column for row in readable for column in row)
    used = {*RESPONSES, *QUESTION, config.prompt_column, config.client_column, config.group_column, config.split}
    used |= {config.fold_column, config.cover_column}
    others = [column for column in columns if column not in used]
    annotators = list(config.annotator_columns) or [c for c in others if _only_votes([row.get(c) for row in readable])]
    if not annotators:
        raise UserError(
            f"{config.source}: no column holds votes alone (1, 2, or 0 for a tie) of {listing(others)}; name those of "
            "the annotators with --data.annotator-columns"
        )
    if config.client_column in columns and len(annotators) > 1:
        raise UserError(
            f"{config.source}: column {config.client_column!r} names who voted, and so do the columns "
            f"{listing(annotators)}; name one of those with --data.annotator-columns, or give --data.client-column "
            "another name"
        )
    met: Counter[str] = Counter()
    for row in table:
        if isinstance(row, Unusable):
            yield row
            continue
        for annotator, vote in (each for column in annotators for each in _votes(column, row.get(column))):
            if vote in (TIE, NO_VOTE):
                met[vote] += 1
            elif vote not in VOTES:
                yield Unusable(NOT_A_VOTE, f"{shortened(vote)} of {annotator}")
            else:
                chosen, rejected = RESPONSES if vote == "1" else RESPONSES[::-1]
                choice = {"prompt": _prompt(row, config), "chosen": row.get(chosen), "rejected": row.get(rejected)}
                yield {"client_id": annotator, **row, **choice}
    yield Aside("rows of two responses, of which each vote for one is a row below", len(readable))
    yield Aside(f"columns of votes: {listing(annotators)}", len(annotators))
    if ignored := [column for column in others if column not in annotators]:
        yield Aside(f"columns that are no annotator's: {listing(ignored)}", len(ignored))
    yield Aside("votes for neither response (ties), left out", met[TIE])
    yield Aside("cells without a vote", met[NO_VOTE])


def _prompt(row: Row, config: DataConfig) -> object:
    if prompt := row.get(config.prompt_column):
        return prompt
    return "\n\n".join(filter(None, (as_text(row.get(column)) for column in QUESTION))) or None


def _votes(column: str, cell: object) -> Sequence[tuple[str, str]]:
    """(annotator, what it says) of a cell; of a list the i-th vote is that of annotator COLUMN-i, counted from 1."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):  # a list in a CSV
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError:
            return [(column, cell)]
    if isinstance(cell, list):
        return [(f"{column}-{i}", _said(vote)) for i, vote in enumerate(cell, 1)]
    return [(column, _said(cell))]


def _said(cell: object) -> str:
    return as_text(cell).removesuffix(".0")  # whole numbers of a column with gaps, as pandas writes them


def _only_votes(cells: Iterable[object]) -> bool:
    said = [vote for cell in cells for _, vote in _votes("", cell) if vote != NO_VOTE]
    return bool(said) and set(said) <= set(VOTES)


FORM = Form(
    columns=frozenset(RESPONSES),
    about="two responses to a prompt (or to instruction and input), and columns of votes: 1, 2, or 0 for a tie",
    pairs=pairs,
)
