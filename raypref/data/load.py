"""From a source (a generator, files, a hub id) to a `Federation`: rows, their form's pairs, people, folds.

No row is lost silently: what is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raypref.config import DataConfig, UserError
from raypref.data import forms, graded, kinds, sources, synthetic
from raypref.data.federation import Federation
from raypref.data.forms import prism
from raypref.data.forms.pairs import NO_PROMPT
from raypref.data.people import Counts, assemble
from raypref.data.rows import PairRow, RowRead, Table, columns_of, listing, no_column, wrapper_of
from raypref.tools.rng import stream

SHUFFLED = "data.shuffled: choices are dealt to people at random, so that nothing personal is in them"


def load(config: DataConfig, seed: int) -> Federation:
    """Read a data set into people with folds.

    `seed` makes generated data and deals pairs without people; it does not touch the folds. Raises `UserError` for
    a source that cannot be read, a missing column, or when no client is left.
    """
    federation, _ = read(config, seed)
    if not federation.clients:
        raise UserError(f"{config.source}: no client is left; {'; '.join(federation.notes) or 'there are no rows'}")
    return federation


def read(config: DataConfig, seed: int) -> tuple[Federation, Counts]:
    """`load` with its counts, and without an error where no client is left."""
    if config.exact_counts != (0, 0):
        if min(config.exact_counts) < 1:
            raise UserError(
                f"data.exact_counts is {config.exact_counts}; both numbers must be above 0, or both 0 for off"
            )
        if config.split != "pair":
            raise UserError("data.exact_counts draws pairs, whatever their data.split; set one of the two only")
    if config.fold_column and (config.split != "pair" or config.exact_counts != (0, 0)):
        other = "data.split" if config.split != "pair" else "data.exact_counts"
        raise UserError(f"data.fold_column takes folds as they are, and {other} cuts others; set one of the two only")
    source = _source(config, seed)
    config, columns = source.config, source.columns
    needed = {
        "client-column": config.client_column,
        "chosen-column": config.chosen_column,
        "rejected-column": config.rejected_column,
        "group-column": config.group_column,
        "prompt-column": config.prompt_column if config.prompt_column != "prompt" else "",  # it may be implicit
        "split": config.split if config.split != "pair" else "",
        "fold-column": config.fold_column,
        "cover-column": config.cover_column,
    }
    for flag, name in needed.items():
        if name and name not in columns:
            error = no_column(config.source, name, flag, columns, wrapper_of(source.rows))
            raise UserError(f"{error}; {source.lacking}") if source.lacking else error
    rows = _shuffled(source.rows, config, seed) if config.shuffled else source.rows
    federation, counts = assemble(rows, config)
    if "prompt" not in columns and counts.lost.get(NO_PROMPT) and sum(counts.lost.values()) == counts.rows:
        raise no_column(config.source, "prompt", "prompt-column", columns)
    read = source.read.total() or counts.rows
    if config.shuffled:
        federation = replace(federation, notes=(*federation.notes, SHUFFLED))
    return federation, replace(counts, read=read, read_as=source.read_as, hint=source.hint)


def hidden(config: DataConfig, seed: int) -> dict[str, graded.Person]:
    """By client id what a generator knows and no run sees: its wish, and what its answers are made of; empty where
    the source has no such thing."""
    return {person.id: person for person in graded.people(config, seed)} if config.source == "graded" else {}


@dataclass(frozen=True)
class Source:
    """A source made into rows of pairs, and what they are."""

    config: DataConfig
    """With the names of the columns that are there."""
    columns: Sequence[str]
    rows: Iterable[PairRow]
    """To be read once."""
    read_as: str
    hint: str = ""
    lacking: str = ""
    """What the error of a column that is not there adds."""
    read: Counter[str] = field(default_factory=Counter)
    """Rows of its files, counted while `rows` are read; empty where they are the same."""


def _source(config: DataConfig, seed: int) -> Source:
    """The rows of `config.source` as rows of pairs, by their form; those without people are dealt by `seed`.

    Raises `UserError` where files are of different forms.
    """
    as_dealt = replace(config, **forms.DEALT)
    if config.source == "synthetic":
        rows = synthetic.generate(config.group_sizes, config.pairs_per_axis, config.axes, seed)
        read_as = "synthetic: the embedded generator's pairs of the clients of data.group_sizes"
        return Source(as_dealt, (*forms.DEALT.values(), "axis"), rows, read_as)
    if config.source == "graded":
        read_as = "graded: the embedded generator's mixed answers, chosen by the clients of data.group_sizes"
        as_drawn = replace(as_dealt, fold_column="fold")
        return Source(as_drawn, (*forms.DEALT.values(), "topic", "fold"), graded.rows(config, seed), read_as)
    tables = sources.tables(kinds.source_of(config) if config.kinds else prism.source_of(config))
    name, columns = _form_of(tables, config), columns_of(tables)
    if config.annotator_columns and name != forms.WIDE:
        between = forms.known_by(forms.WIDE, config)
        raise UserError(
            f"{config.source}: data.annotator_columns names who voted between {between}, and its rows are read as "
            f"{name}; leave it empty"
        )
    for column in config.annotator_columns:
        if column not in columns:
            raise no_column(config.source, column, "annotator-columns", columns)
    if config.kinds:
        rows = kinds.deal(tables, config, seed)
        read_as = f"{name}, of the kinds {', '.join(config.kinds)} by the names of files, dealt to clients of one each"
        config = replace(config, client_column="client_id", group_column="group")
        return Source(config, list(dict.fromkeys([*columns, "client_id", "group"])), rows, read_as)
    form = forms.form(name)
    read: Counter[str] = Counter()
    rows = form.pairs(_counted(sources.rows_of(tables), read), config, seed)
    read_as, hint = f"{name}: {form.about}", form.hint(config, columns)
    if form.dealt:
        return Source(as_dealt, form.gives, rows, read_as, hint)
    columns = list(dict.fromkeys([*columns, *form.gives]))
    return Source(config, columns, rows, read_as, hint, form.lacking(columns), read)


def _shuffled(rows: Iterable[PairRow], config: DataConfig, seed: int) -> Iterator[PairRow]:
    """The same rows, with people (and what group they are in) permuted over them."""
    every = list(rows)
    at = [i for i, row in enumerate(every) if isinstance(row, Mapping)]
    names = [name for name in (config.client_column, config.group_column) if name]
    order = stream(seed, "shuffled people").permutation(len(at))
    whose = {i: {name: every[at[j]].get(name) for name in names} for i, j in zip(at, order, strict=True)}
    return (row if i not in whose else {**row, **whose[i]} for i, row in enumerate(every))


def _counted(rows: Iterable[RowRead], read: Counter[str]) -> Iterator[RowRead]:
    """The rows, which `read` counts on the way."""
    for row in rows:
        read["rows"] += 1
        yield row


def _form_of(tables: Sequence[Table], config: DataConfig) -> str:
    """The name of the form of all tables; those whose columns name none are let through, and their rows are counted."""
    files: dict[str, list[str]] = {}
    for table in tables:
        if name := forms.recognized(table.columns, config):
            files.setdefault(name, []).append(table.name)
    if len(files) > 1:
        listed = "; ".join(f"{listing(files[name], 3)} (with {forms.known_by(name, config)})" for name in files)
        raise UserError(f"{config.source}: holds rows of different forms: {listed}; name one file, or keep them apart")
    return next(iter(files), forms.PAIRS)
