"""Files of one kind of pair each, without people, dealt to clients of one kind each (S1 5.1: HH-RLHF, helpful and
harmless)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

from raypref.config import DataConfig, UserError
from raypref.data.forms.pairs import REPEATED, extract
from raypref.data.rows import Losses, PairRow, Row, Table, Unusable, listing, no_column, wrapper_of
from raypref.data.splits import pair_key
from raypref.data.synthetic import shuffled

HH = "Anthropic/hh-rlhf"
"""The hub's HH-RLHF (Bai et al. 2022; the data of S1 5.1)."""

HH_FOLDERS = "helpful-base+harmless-base"
"""What is read of it for `data.kinds`: S1 does not say which; the other folders are helpful pairs of later models."""


def source_of(config: DataConfig) -> str:
    """The source of the files, with the folders of HH-RLHF where the hub's is meant."""
    return f"{HH}:{HH_FOLDERS}" if config.source == HH and not Path(HH).exists() else config.source


def deal(tables: Sequence[Table], config: DataConfig, seed: int) -> Iterator[PairRow]:
    """Deal the tables' rows to clients: they get a `client_id` and a `group`, which is the kind.

    Each kind's distinct pairs go to its `data.group_sizes` clients by the seed, in numbers that differ by one at most,
    all rows of a pair to one client. What is not dealt is given, too.
    Raises `UserError` for tables that do not fit the kinds, and for a kind of too few pairs.
    """
    columns = (config.prompt_column, config.chosen_column, config.rejected_column)
    pools: dict[str, dict[bytes, list[Row]]] = {kind: {} for kind in config.kinds}
    losses = {kind: Losses() for kind in ("", *config.kinds)}
    for kind, name, table in _by_kind(tables, config):
        for row in table.rows():
            try:
                if not kind:
                    raise Unusable(f"{name} is of none of the kinds {', '.join(config.kinds)}")
                if isinstance(row, Unusable):
                    raise Unusable(str(row), f"{row.place} of {name}")
                pair = extract(*(row.get(column) for column in columns))
            except Unusable as reason:
                losses[kind].add(reason)
                yield reason
                continue
            pools[kind].setdefault(pair_key(*astuple(pair)), []).append(row)
    for kind, clients in zip(config.kinds, config.group_sizes, strict=True):
        pool = pools[kind]
        if len(pool) < clients:
            loss = "".join(f"; {number:,} rows: {reason}" for reason, number in [*losses[kind].reasons().items()][:1])
            raise UserError(
                f"{config.source}: {clients} clients of {kind!r} need as many pairs, and {len(pool)} are usable{loss}; "
                "lower data.group_sizes, or mend the rows"
            )
        needed = clients * (config.pairs_per_client or len(pool))
        digits = max(2, len(str(clients - 1)))
        for i, key in enumerate(shuffled(pool, seed)):
            if i < needed:
                client = f"{kind}-{i % clients:0{digits}d}"
                yield from ({**row, "client_id": client, "group": kind} for row in pool[key])
            else:
                yield from [None, *(Unusable(REPEATED) for _ in pool[key][1:])]


def _by_kind(tables: Sequence[Table], config: DataConfig) -> list[tuple[str, str, Table]]:
    """(kind, name within the source, table) by the names; the kind is '' where none is in the name.

    Raises `UserError` for a name with several kinds, a kind without a table, a column that is missing, and for people.
    """
    root, result = str(Path(config.source).expanduser()), []
    for table in tables:
        name = table.name.removeprefix(root).lstrip("/") or Path(table.name).name
        kinds = [kind for kind in config.kinds if kind.lower() in name.lower()]
        result.append(("".join(kinds), name, table))
        if len(kinds) > 1:
            raise UserError(
                f"{config.source}: the name {name!r} has several of data.kinds: {listing(kinds)}; give each kind files "
                "or folders of its own, or words that tell them apart"
            )
        if not kinds:
            continue
        if not table.columns:
            raise UserError(f"{table.name}: the file is empty; fill or remove it")
        if config.client_column in table.columns:
            raise UserError(
                f"{table.name} names people in column {config.client_column!r}, and data.kinds deals pairs without "
                "people; leave data.kinds empty, or the column unused with --data.client-column ''"
            )
        for flag, column in (("chosen-column", config.chosen_column), ("rejected-column", config.rejected_column)):
            if column not in table.columns:
                raise no_column(table.name, column, flag, table.columns, wrapper_of(table.rows()))
    for kind in config.kinds:
        if kind not in [name for name, _, _ in result]:
            raise UserError(
                f"{config.source}: no file or folder has {kind!r} (of data.kinds) in its name; there are: "
                f"{listing([name for _, name, _ in result])}"
            )
    return result
