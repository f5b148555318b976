"""A form of data that only tests have: a person's ranking of answers, of which each neighbouring two are a pair."""

from __future__ import annotations

import itertools

from raypref.data.forms import Form
from raypref.data.rows import Unusable


def pairs(rows, config, seed):
    for row in rows:
        if isinstance(row, Unusable):
            yield row
        elif len(row["ranking"]) < 2:
            yield Unusable("nothing to compare")
        else:
            for better, worse in itertools.pairwise(row["ranking"]):
                yield {"client_id": row["by"], "prompt": row["question"], "chosen": better, "rejected": worse, **row}


FORM = Form(
    columns=frozenset({"by", "question", "ranking"}),
    about="a person's answers to a question, best first",
    pairs=pairs,
)
