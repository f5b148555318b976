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

EMPTY = ("na", "n/a", "nan")
"""How other programs, such as R's write.csv, write an empty cell; in whatever case."""

NEARLY = 0.8
"""A column of which at least this share are votes is said to be almost an annotator's, where it is none."""

MOST_NAMED = 30
"""How many columns a note names: all of most files, so that a covariate (gender 1/2) taken for a person is seen."""


def pairs(rows: Iterable[RowRead], config: DataConfig, seed: int) -> Iterator[PairRow]:
    """The votes for one of the two responses, each a pair of its annotator's; ties and empty cells are counted.

    Annotators' columns are `data.annotator_columns`, else all that hold nothing but votes. A row that names the person
    itself, in the configured client column, has one column of votes, and they are that person's. Raises `UserError`
    where nobody votes, where votes seem to be 0 and 1, and where an annotator's column is one with another meaning.
    """
    table = list(rows)
    readable = [row for row in table if not isinstance(row, Unusable)]
    columns = dict.fromkeys(column for row in readable for column in row)
    used = {*RESPONSES, *QUESTION, config.prompt_column, config.client_column, config.group_column, config.split}
    used |= {config.fold_column, config.cover_column}
    if taken := [column for column in config.annotator_columns if column in used]:
        raise UserError(
            f"{config.source}: column {taken[0]!r} has another meaning and holds no annotator's votes; leave it out of "
            "--data.annotator-columns"
        )
    others = [column for column in columns if column not in used]
    said = {c: Counter(v for row in readable for _, v in _votes(c, row.get(c)) if v != NO_VOTE) for c in others}
    strange = {column: sorted(votes.keys() - {*VOTES}) for column, votes in said.items()}
    annotators = list(config.annotator_columns) or [c for c in others if said[c] and not strange[c]]
    if not annotators:
        values = [f"{column} has {listing([*map(shortened, strange[column])], 3)}" for column in others if said[column]]
        raise UserError(
            f"{config.source}: no column holds votes alone (1, 2, or 0 for a tie) of {listing(others)}; name those of "
            f"the annotators with --data.annotator-columns, or write votes so ({'; '.join(values[:5]) or 'all empty'})"
        )
    if {value for column in annotators for value in said.get(column, ())} & set(VOTES) == {"0", "1"}:
        raise UserError(
            f"{config.source}: the votes of {listing(annotators)} are 0 and 1 and never 2, and 0 is a tie here; write "
            "1 for the first response and 2 for the second"
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
    yield Aside("rows of two responses; each vote for one of the two is a choice", len(readable))
    yield Aside(f"columns of votes: {listing(annotators, MOST_NAMED)}", len(annotators))
    if ignored := [column for column in others if column not in annotators]:
        yield Aside(f"columns that are no annotator's: {listing(ignored, MOST_NAMED)}", len(ignored))
    for column in () if config.annotator_columns else ignored:
        wrong = sum(said[column][value] for value in strange[column])
        if (votes := said[column].total() - wrong) and votes >= NEARLY * said[column].total():
            yield Aside(
                f"warning: cells of column {column!r} are no votes (such as {shortened(strange[column][0])}), so its "
                f"{votes:,} votes do not count; to count them name all annotators with --data.annotator-columns",
                wrong,
            )
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
    text = as_text(cell).removesuffix(".0")  # whole numbers of a column with gaps, as pandas writes them
    return NO_VOTE if text.lower() in EMPTY else text


FORM = Form(
    columns=frozenset(RESPONSES),
    about="two responses to a prompt (or to instruction and input), and columns of votes: 1, 2, or 0 for a tie",
    pairs=pairs,
)
