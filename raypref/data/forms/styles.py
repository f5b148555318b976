"""Pairs without people, as `python -m raypref.data synthesize` writes them: an answer in either style (S2 2.3)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple

from raypref.config import DataConfig, UserError
from raypref.data.federation import Pair
from raypref.data.forms import DEALT, Form
from raypref.data.forms.pairs import REPEATED, extract
from raypref.data.rows import PairRow, RowRead, Unusable, as_text
from raypref.data.splits import pair_key, pairs_needed


def pairs(rows: Iterable[RowRead], config: DataConfig, seed: int) -> Iterator[PairRow]:
    """Dealt to the clients that `data.group_sizes`, `data.pairs_per_axis` and `data.axes` describe, each of which
    chooses what its group wants; repeats and pairs that nobody needs are given, too.

    Raises `UserError` where an axis has too few pairs.
    """
    from raypref.data.synthetic import deal

    pools: dict[str, dict[bytes, Pair]] = {}
    for row in rows:
        try:
            if isinstance(row, Unusable):
                raise row
            pair = extract(row.get("prompt"), row.get("first"), row.get("second"))
        except Unusable as reason:
            yield reason
            continue
        pool, key = pools.setdefault(as_text(row.get("axis")), {}), pair_key(*astuple(pair))
        if key in pool:
            yield Unusable(REPEATED)
        pool[key] = min(pair, pool.get(key, pair), key=astuple)  # the smallest, so that order does not matter
    try:
        least = functools.partial(least_per_axis, config)
        dealt = deal(pools, config.group_sizes, config.pairs_per_axis, config.axes, seed, least)
    except UserError as error:
        raise UserError(f"{config.source}: {error}") from error
    yield from dealt
    yield from [None] * (sum(map(len, pools.values())) - len(dealt))


def least_per_axis(config: DataConfig, clients: int) -> int:
    """Pairs an axis with which each of `clients`, dealt so many, all but surely has one in every fold and stays."""
    exact = config.exact_counts != (0, 0)
    least = sum(config.exact_counts) + 1 if exact else pairs_needed(clients, config.validation, config.test)
    return math.ceil(max(least, config.min_rows) / len(config.axes))


FORM = Form(
    columns=frozenset({"prompt", "axis", "first", "second"}),
    about="answers in the first and in the second style of an axis, dealt to clients who want one of them",
    pairs=pairs,
    gives=(*DEALT.values(), "axis"),
    dealt=True,
)
