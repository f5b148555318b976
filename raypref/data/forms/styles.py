"""Pairs without people, as `python -m raypref.data synthesize` writes them: an answer in either style (S2 2.3)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple

from raypref.config import DataConfig, UserError
from raypref.data.federation import Pair
from raypref.data.forms import DEALT, Form
from raypref.data.forms.pairs import REPEATED, extract
from raypref.data.rows import PairRow, RowRead, Unusable, as_text
from raypref.data.splits import pair_key, pairs_needed
from raypref.data.synthetic import choice, members, shuffled


def pairs(rows: Iterable[RowRead], config: DataConfig, seed: int) -> Iterator[PairRow]:
    """Deal the pairs to clients, each of which chooses the style that its group wants.

    Clients are as `data.group_sizes`, `data.pairs_per_axis` and `data.axes` describe them; repeats and pairs that
    nobody needs are given, too. Each pair goes to at most one client (S2 2.3), by a hash of the seed and the pair,
    whatever the order of the rows. Raises `UserError` where an axis has too few pairs.
    """
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
        clients = members(config.group_sizes, config.axes)
    except UserError as error:
        raise UserError(f"{config.source}: {error}") from error
    needed = len(clients) * config.pairs_per_axis
    scarce = min(config.axes, key=lambda axis: len(pools.get(axis, {})))
    if len(pools.get(scarce, {})) < needed:
        raise _too_few(config, scarce, len(pools.get(scarce, {})), len(clients))
    for axis in config.axes:
        keys = iter(shuffled(pools[axis], seed))
        for name, group, poles in clients:
            for key in itertools.islice(keys, config.pairs_per_axis):
                yield choice(name, group, axis, poles[axis], *astuple(pools[axis][key]))
    yield from [None] * (sum(map(len, pools.values())) - needed * len(config.axes))


def _too_few(config: DataConfig, axis: str, available: int, clients: int) -> UserError:
    needed = clients * config.pairs_per_axis
    enough_for = most_clients(config, available, clients)
    advice = f", or set --data.pairs-per-axis {available // enough_for}" if enough_for else ""
    if 0 < enough_for < clients:
        advice += f" and lower --data.group-sizes to {enough_for} clients in all"
    return UserError(
        f"{config.source}: {clients} clients of {config.pairs_per_axis:,} pairs need {needed:,} pairs on the axis "
        f"{axis!r}, and there are {available:,}; synthesize {needed - available:,} more{advice}"
    )


def least_per_axis(config: DataConfig, clients: int) -> int:
    """Pairs on each axis with which each of `clients`, dealt so many, almost surely has one in every fold and stays."""
    exact = config.exact_counts != (0, 0)
    least = sum(config.exact_counts) + 1 if exact else pairs_needed(clients, config.validation, config.test)
    return math.ceil(max(least, config.min_rows) / len(config.axes))


def most_clients(config: DataConfig, pairs: int, most: int) -> int:
    """How many clients, up to `most`, `pairs` on each axis are enough for; 0: not even for one."""
    numbers = range(min(pairs, most), 0, -1)
    return next((clients for clients in numbers if pairs // clients >= least_per_axis(config, clients)), 0)


FORM = Form(
    columns=frozenset({"prompt", "axis", "first", "second"}),
    about="answers in the first and in the second style of an axis, dealt to clients who want one of them",
    pairs=pairs,
    gives=(*DEALT.values(), "axis"),
    dealt=True,
)
