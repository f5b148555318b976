"""From a source (synthetic, files, a hub id) to a `Federation`. No row is lost silently: what is left out is counted.

Columns are TRL's preference format: `prompt`, `chosen`, `rejected`, as text or as conversations, the prompt explicit or
within the responses; beside them a column that names the person. Two other forms are known by their columns: OpenAI's
TL;DR comparisons, and pairs without people as `python -m raypref.data synthesize` writes them. Files that hold one kind
of pair each, without people, are dealt to clients of one kind each (S1 5.1: HH-RLHF).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, cast

from raypref.config import DataConfig, UserError, nearest
from raypref.data import sources
from raypref.data.federation import FOLDS, Client, Federation, Pair
from raypref.data.sources import Losses, Row, Unusable, some
from raypref.data.splits import crossing, exact_folds, key_fold, pair_key, pairs_needed, value_fold

TURN = "\n\nAssistant:"
"""What precedes a response in the plain-text transcripts of HH-RLHF."""

SYNTHETIC: dict[str, Any] = {
    "client_column": "client_id",
    "group_column": "group",
    "prompt_column": "prompt",
    "chosen_column": "chosen",
    "rejected_column": "rejected",
}
"""Columns of the embedded generator and of dealt pairs, whatever the configuration calls those of a file."""

COMPARISONS = frozenset({"info", "summaries", "choice", "worker"})
"""Columns by which OpenAI's TL;DR comparisons are known (Stiennon et al. 2020; the real data of S2 2.3)."""

SYNTHESIZED = frozenset({"prompt", "axis", "first", "second"})
"""Columns by which pairs without people are known: the answers in the axis's first pole and in its second."""

HH = "Anthropic/hh-rlhf"
"""The hub's HH-RLHF (Bai et al. 2022; the data of S1 5.1)."""

HH_FOLDERS = "helpful-base+harmless-base"
"""What is read of it for `data.kinds`: S1 does not say which; the other folders are helpful pairs of later models."""

REPEATED = "the same pair as another row"
NO_PROMPT = "the prompt is missing or empty"
NO_RESPONSE = "a response is missing or empty"
NO_TEXT = "a prompt or response is neither text nor a conversation"


@dataclasses.dataclass(frozen=True)
class Counts:
    """What reading met, for `notes` and for `python -m raypref.data check`."""

    rows: int = 0
    """Rows of the source."""
    lost: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Unusable rows, reason -> number."""
    pairs: int = 0
    """Distinct unordered pairs, over all people."""
    doubled: int = 0
    """Rows that repeat a row of the same person word for word; the first is kept."""
    conflicting: int = 0
    """Pairs on which one person chose both ways; both choices are kept, in one fold. Summed over people."""
    disagreed: int = 0
    """Distinct pairs on which two people chose opposite sides: not dirt, but what personalization is for."""
    crossing: int = 0
    """Distinct pairs that are in different folds for different rows; 0 when the pair's hash decides."""
    undealt: int = 0
    """Pairs without people that no client needed."""
    unfiltered: bool = False
    """TL;DR's comparisons in all of its own splits, without `data.cover_column`: not the paper's selection (S2 2.3)."""
    left_out: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """People left out, reason -> ids in order."""

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of thing that was met."""
        said = [f"rows left out, {why}: {n:,} of {self.rows:,}" for why, n in self.lost.items()]
        if self.doubled:
            said.append(f"rows that repeat one of the same client, kept once: {self.doubled:,}")
        if self.conflicting:
            said.append(f"pairs on which one client chose both ways, both kept: {self.conflicting:,}")
        if self.crossing:
            said.append(
                f"warning: pairs in different folds for different rows: {self.crossing:,}, so a model may have been "
                "trained on what it is tested on; data.split 'pair' without data.exact_counts has no such overlap"
            )
        if self.undealt:
            said.append(f"pairs dealt to no client, since none needed more: {self.undealt:,}")
        said += [f"clients left out, {why}: {len(ids):,} ({some(ids)})" for why, ids in self.left_out.items()]
        return tuple(said)


def load(config: DataConfig, seed: int) -> Federation:
    """Read `config.source` into people with folds. `seed` makes the synthetic data; it does not touch the folds.

    Raises `UserError` for a source that cannot be read, a missing column, or when no client is left.
    """
    federation, _ = read(config, seed)
    if not federation.clients:
        raise UserError(f"{config.source}: no client is left; {'; '.join(federation.notes) or 'there are no rows'}")
    return federation


def read(config: DataConfig, seed: int) -> tuple[Federation, Counts]:
    """`load` with its counts, and without an error where no client is left."""
    held_out = config.exact_counts
    if held_out != (0, 0):
        if min(held_out) < 1:
            raise UserError(f"data.exact_counts is {held_out}; both numbers must be above 0, or both 0 for off")
        if config.split != "pair":
            raise UserError("data.exact_counts draws pairs, whatever their data.split; set one of the two only")
    config, columns, rows = source(config, seed)
    for flag, name in {
        "client-column": config.client_column,
        "chosen-column": config.chosen_column,
        "rejected-column": config.rejected_column,
        "group-column": config.group_column,
        "prompt-column": config.prompt_column if config.prompt_column != "prompt" else "",  # it may be implicit
        "split": config.split if config.split != "pair" else "",
        "cover-column": config.cover_column,
    }.items():
        if name and name not in columns:
            raise _missing(config.source, name, flag, columns, sources.wrapped(rows))
    federation, counts = assemble(rows, config)
    if "prompt" not in columns and counts.lost.get(NO_PROMPT) and sum(counts.lost.values()) == counts.rows:
        raise _missing(config.source, "prompt", "prompt-column", columns)
    unfiltered = not config.cover_column and set(columns) >= COMPARISONS | {"split"}
    return federation, dataclasses.replace(counts, unfiltered=unfiltered)


def assemble(rows: Iterable[Row | Unusable | None], config: DataConfig) -> tuple[Federation, Counts]:
    """Rows to a federation, independent of their order. Columns as `config` names them; '' is a column not used.

    Without a client column all rows are one client's, 'all'. A row may be the reason why it is none, or None: a pair
    that was dealt to nobody.
    """
    seen, doubled, undealt, lost = 0, 0, 0, Losses()
    people: dict[str, dict[Pair, str]] = {}  # client -> choice -> value that decides the fold
    groups: dict[str, set[str]] = {}
    covered: dict[str, Counter[str]] = {}  # client -> value of the column to cover -> usable rows
    for row in rows:
        seen += 1
        if row is None:
            undealt += 1
            continue
        try:
            if isinstance(row, Unusable):
                raise row
            name = _name(row.get(config.client_column)) if config.client_column else "all"
            value = _name(row.get(config.split)) if config.split != "pair" else "pair"
            if not name:
                raise Unusable("no client id")
            if not value:
                raise Unusable(f"nothing in column {config.split!r}, which decides the fold")
            texts = (row.get(column) for column in (config.prompt_column, config.chosen_column, config.rejected_column))
            pair = extract(*texts)
        except Unusable as reason:
            lost.add(reason)
            continue
        choices = people.setdefault(name, {})
        doubled += pair in choices
        choices[pair] = min(value, choices.get(pair, value))  # the smallest, so that order does not matter
        group = _name(row.get(config.group_column)) if config.group_column else ""
        groups.setdefault(name, set()).update({group} - {""})
        if config.cover_column:
            covered.setdefault(name, Counter())[_name(row.get(config.cover_column))] += 1

    clients: list[Client] = []
    left_out: dict[str, list[str]] = {}
    assigned: list[tuple[bytes, str]] = []
    chosen_by: dict[bytes, dict[str, set[str]]] = {}  # pair -> chosen text -> people
    conflicting = 0
    to_cover = sorted({value for values in covered.values() for value in values} - {""})
    for name in sorted(people):
        if len(groups[name]) > 1:
            raise UserError(
                f"client {name!r} is in the groups {some(sorted(groups[name]))}; give each client one value in column "
                f"{config.group_column!r}, or leave data.group_column empty"
            )
        keyed = sorted(((pair_key(*astuple(pair)), pair.chosen, pair) for pair in people[name]), key=lambda x: x[:2])
        keys, pairs = [key for key, _, _ in keyed], [pair for _, _, pair in keyed]
        folds = _folds(name, keys, [people[name][pair] for pair in pairs], config)
        conflicting += len(keys) - len(set(keys))
        for key, pair in zip(keys, pairs, strict=True):
            chosen_by.setdefault(key, {}).setdefault(pair.chosen, set()).add(name)
        parts = {fold: tuple(p for p, f in zip(pairs, folds, strict=True) if f == fold) for fold in FOLDS}
        empty = [fold for fold in FOLDS if not parts[fold]]
        few = [value for value in to_cover if covered[name][value] < config.cover_min_rows]
        if len(pairs) < config.min_rows:
            why = f"fewer than {config.min_rows} usable pairs (data.min_rows)"
        elif few:
            where = " or ".join(few) if len(few) <= 3 else f"{len(few)} of the {len(to_cover)} values"
            why = (
                f"fewer than {config.cover_min_rows} usable rows with {where} in column {config.cover_column!r} "
                "(data.cover_min_rows)"
            )
        elif config.exact_counts not in ((0, 0), (len(parts["validation"]), len(parts["test"]))):
            why = f"too few usable pairs to hold out exactly {some(config.exact_counts)} (data.exact_counts)"
        elif empty:
            why = f"no pair in {' or '.join(empty)}"
        else:
            if config.group_column and not groups[name]:
                raise UserError(
                    f"client {name!r} has no value in column {config.group_column!r}; give every client its group, or "
                    "leave data.group_column empty"
                )
            clients.append(Client(name, "".join(groups[name]), **parts))
            assigned += zip(keys, folds, strict=True)
            continue
        left_out.setdefault(why, []).append(name)

    counts = Counts(
        rows=seen,
        pairs=len(chosen_by),
        lost=lost.reasons(),
        doubled=doubled,
        conflicting=conflicting,
        disagreed=sum(_disagree(sides) for sides in chosen_by.values()),
        crossing=crossing(assigned),
        undealt=undealt,
        left_out={why: tuple(ids) for why, ids in left_out.items()},
    )
    return Federation(tuple(clients), counts.notes()), counts


def extract(prompt: object, chosen: object, rejected: object) -> Pair:
    """One choice as three texts, stripped at the ends, from any of TRL's preference forms; else raises `Unusable`.

    Text, or conversations (lists of {"role", "content"}). Turns that both begin with belong to the prompt.
    Where there is no prompt (None), text is an HH-RLHF transcript and splits at its last assistant turn: the prefix
    that two transcripts merely share cuts into responses that begin alike.
    """
    if not chosen or not rejected:
        raise Unusable(NO_RESPONSE)
    given = "" if prompt is None else _text(_turns(prompt))
    if isinstance(chosen, str) and isinstance(rejected, str):
        if prompt is None and TURN in chosen and TURN in rejected:
            (given, _, chosen), (other, _, rejected) = chosen.rpartition(TURN), rejected.rpartition(TURN)
            if given.strip() != other.strip():
                raise Unusable("the two prompts differ")
        pair = Pair(given.strip(), chosen.strip(), rejected.strip())
    elif isinstance(chosen, str) or isinstance(rejected, str):
        raise Unusable("one response is text and the other is not")
    else:
        ours, theirs = _turns(chosen), _turns(rejected)
        shared = 0
        while shared < min(len(ours), len(theirs)) - 1 and ours[shared] == theirs[shared]:
            shared += 1
        if {ours[shared][0], theirs[shared][0]} != {"assistant"}:
            raise Unusable("the two prompts differ")
        before = _text(ours[:shared])
        # A prompt given apart is often one of the shared turns, or the first of them, once more.
        if not before.startswith(given) and given not in [content for _, content in ours[:shared]]:
            before = f"{given}\n\n{before}"
        pair = Pair(before.strip(), _text(ours[shared:]).strip(), _text(theirs[shared:]).strip())
    if not pair.chosen or not pair.rejected:
        raise Unusable(NO_RESPONSE)
    if not pair.prompt:
        raise Unusable(NO_PROMPT)
    if pair.chosen == pair.rejected:
        raise Unusable("chosen equals rejected")
    return pair


def source(config: DataConfig, seed: int) -> tuple[DataConfig, list[str], Iterator[Row | Unusable | None]]:
    """Column names and rows of the source, and the configuration with the names of the columns that are then there.

    Rows of TL;DR's comparisons gain TRL's columns; pairs without people become those of the clients that
    `data.group_sizes`, `data.pairs_per_axis` and `data.axes` (or `data.kinds`) describe, dealt by `seed`.
    Raises `UserError` where files are of different forms, or not of the kinds.
    """
    if config.source == "synthetic":
        from raypref.data.synthetic import generate

        made = generate(config.group_sizes, config.pairs_per_axis, config.axes, seed)
        return dataclasses.replace(config, **SYNTHETIC), [*SYNTHETIC.values(), "axis"], iter(made)
    hh = config.kinds and config.source == HH and not Path(HH).exists()
    found = sources.tables(f"{HH}:{HH_FOLDERS}" if hh else config.source)
    _of_one_form(config, found)
    columns = list(dict.fromkeys(column for table in found for column in table.columns))
    if config.kinds:
        dealt = _dealt_by_kind(_by_kind(config, found), config, seed)
        config = dataclasses.replace(config, client_column="client_id", group_column="group")
        return config, list(dict.fromkeys([*columns, "client_id", "group"])), dealt
    rows = sources.rows_of(found)
    if config.chosen_column not in columns:
        if set(columns) >= SYNTHESIZED:
            config = dataclasses.replace(config, **SYNTHETIC)
            return config, [*SYNTHETIC.values(), "axis"], _dealt(rows, config, seed)
        if set(columns) >= COMPARISONS:
            # A column that is there keeps its meaning, such as another one for data.client_column.
            names = [n for n in ("client_id", "prompt", "chosen", "rejected") if n not in columns]
            return config, [*columns, *names], (_comparison(row) for row in rows)
    return config, columns, rows


def least_per_axis(config: DataConfig, clients: int) -> int:
    """Pairs an axis with which each of `clients`, dealt so many, all but surely has one in every fold and stays."""
    exact = config.exact_counts != (0, 0)
    least = sum(config.exact_counts) + 1 if exact else pairs_needed(clients, config.validation, config.test)
    return math.ceil(max(least, config.min_rows) / len(config.axes))


def _of_one_form(config: DataConfig, tables: Sequence[sources.Table]) -> None:
    """Files whose columns name no form are let through: their rows are counted."""
    forms: dict[str, list[str]] = {}
    for table in tables:
        form = next((f for f in ({config.chosen_column}, SYNTHESIZED, COMPARISONS) if f <= set(table.columns)), None)
        if form:
            forms.setdefault(", ".join(sorted(form)), []).append(table.name)
    if len(forms) > 1:
        told = "; ".join(f"{some(names, 3)} (with {columns})" for columns, names in forms.items())
        raise UserError(f"{config.source}: holds rows of different forms: {told}; name one file, or keep them apart")


def _comparison(row: Row | Unusable) -> Row | Unusable:
    """A row of TL;DR's comparisons with TRL's columns: the worker chose one of two summaries of a post.

    Rows on news articles (CNN/DM), which the same files may hold, have `article` in the place of `post`.
    """
    if isinstance(row, Unusable):
        return row
    info, pair, choice = row.get("info"), row.get("summaries"), row.get("choice")
    if choice not in (0, 1):
        return Unusable("no choice between the two summaries")
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(summary, dict) for summary in pair):
        return Unusable("not two summaries")
    info = info if isinstance(info, dict) else {}
    head = {
        "SUBREDDIT": info.get("subreddit") and f"r/{info['subreddit']}",
        "TITLE": info.get("title"),
        "POST": info.get("post") or info.get("article"),
    }
    if not head["POST"]:
        return Unusable(NO_PROMPT)
    return {
        "client_id": row.get("worker"),
        "prompt": "\n\n".join(f"{name}: {text}" for name, text in head.items() if text),
        "chosen": pair[int(choice)].get("text"),
        "rejected": pair[1 - int(choice)].get("text"),
        **row,
    }


def _dealt(rows: Iterable[Row | Unusable], config: DataConfig, seed: int) -> Iterator[Row | Unusable | None]:
    """Pairs without people as rows of clients (S2 2.3); repeats and pairs that nobody needs are told, too."""
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
        pool, key = pools.setdefault(_name(row.get("axis")), {}), pair_key(*astuple(pair))
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


def _by_kind(config: DataConfig, tables: Sequence[sources.Table]) -> list[tuple[str, str, sources.Table]]:
    """(kind, name within the source, table) by the names; the kind is '' where none is in the name.

    Raises `UserError` for a name with several kinds, a kind without a table, a column that is missing, and for people.
    """
    root, named = str(Path(config.source).expanduser()), []
    for table in tables:
        name = table.name.removeprefix(root).lstrip("/") or Path(table.name).name
        kinds = [kind for kind in config.kinds if kind.lower() in name.lower()]
        if len(kinds) > 1:
            raise UserError(
                f"{config.source}: the name {name!r} has several of data.kinds: {some(kinds)}; give each kind files or "
                "folders of its own, or words that tell them apart"
            )
        named.append(("".join(kinds), name, table))
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
                raise _missing(table.name, column, flag, table.columns, sources.wrapped(table.rows()))
    for kind in config.kinds:
        if kind not in [found for found, _, _ in named]:
            raise UserError(
                f"{config.source}: no file or folder has {kind!r} (of data.kinds) in its name; there are: "
                f"{some([name for _, name, _ in named])}"
            )
    return named


def _dealt_by_kind(
    tables: Iterable[tuple[str, str, sources.Table]], config: DataConfig, seed: int
) -> Iterator[Row | Unusable | None]:
    """Each kind's distinct pairs as rows of its `data.group_sizes` clients, in numbers that differ by one at most
    (S1 5.1); all rows of a pair go to one client. What is not dealt is told, too."""
    from raypref.data.synthetic import shuffled

    columns = (config.prompt_column, config.chosen_column, config.rejected_column)
    pools: dict[str, dict[bytes, list[Row]]] = {kind: {} for kind in config.kinds}
    lost = {kind: Losses() for kind in ("", *config.kinds)}
    for kind, name, table in tables:
        for row in sources.rows_of([table]):
            try:
                if not kind:
                    raise Unusable(f"{name} is of none of the kinds {', '.join(config.kinds)}")
                if isinstance(row, Unusable):
                    raise Unusable(str(row), f"{row.place} of {name}")
                pair = extract(*(row.get(column) for column in columns))
            except Unusable as reason:
                lost[kind].add(reason)
                yield reason
                continue
            pools[kind].setdefault(pair_key(*astuple(pair)), []).append(row)
    for kind, clients in zip(config.kinds, config.group_sizes, strict=True):
        pool = pools[kind]
        if len(pool) < clients:
            why = "".join(f"; {number:,} rows: {reason}" for reason, number in [*lost[kind].reasons().items()][:1])
            raise UserError(
                f"{config.source}: {clients} clients of {kind!r} need as many pairs, and {len(pool)} are usable{why}; "
                "lower data.group_sizes, or mend the rows"
            )
        wanted = clients * (config.pairs_per_client or len(pool))
        digits = max(2, len(str(clients - 1)))
        for i, key in enumerate(shuffled(pool, seed)):
            if i < wanted:
                client = f"{kind}-{i % clients:0{digits}d}"
                yield from ({**row, "client_id": client, "group": kind} for row in pool[key])
            else:
                yield from [None, *(Unusable(REPEATED) for _ in pool[key][1:])]


def _missing(source: str, name: str, flag: str, columns: Sequence[str], wrapped: str = "") -> UserError:
    if wrapped:
        return UserError(
            f"{source} is one object and no list of rows; if they are what it holds under {wrapped!r}, write that list "
            f"to a file of its own, such as with jq '.{wrapped}'"
        )
    hint = nearest(name, columns)
    return UserError(
        f"{source} has no column {name!r}{hint if 'did you mean' in hint else ''}; it has {', '.join(columns)}; "
        f"say which with --data.{flag}" + (" (empty: all rows are one client's)" if flag == "client-column" else "")
    )


def _folds(client: str, keys: Sequence[bytes], values: Sequence[str], config: DataConfig) -> list[str]:
    if config.exact_counts != (0, 0):
        return exact_folds(client, keys, *config.exact_counts)
    if config.split == "pair":
        return [key_fold(key, config.validation, config.test) for key in keys]
    return [value_fold(value, config.validation, config.test) for value in values]


def _disagree(sides: Mapping[str, set[str]]) -> bool:
    """Whether some two people chose opposite texts of one pair: both were chosen, and not by one person alone."""
    return len(sides) == 2 and len(set().union(*sides.values())) > 1


def _name(value: object) -> str:
    """A person, group or topic as text; '' where there is none. 3.0 is a 3 whose column has gaps."""
    if value is None or value != value:
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def _turns(value: object) -> list[tuple[str, str]]:
    """A conversation as (role, content); text is one turn without a role."""
    if isinstance(value, str):
        return [("", value)]
    if not isinstance(value, list):
        raise Unusable(NO_TEXT)
    turns = [(t.get("role"), t.get("content")) if isinstance(t, dict) else (None, None) for t in value]
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in turns):
        raise Unusable(NO_TEXT)
    return cast(list[tuple[str, str]], turns)


def _text(turns: Sequence[tuple[str, str]]) -> str:
    """One turn is its content; several are a transcript in the words of HH-RLHF."""
    if len(turns) == 1:
        return turns[0][1]
    names = {"user": "Human", "assistant": "Assistant", "system": "System"}
    return "\n\n".join(f"{names.get(role, role)}: {content}" for role, content in turns)
