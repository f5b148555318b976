"""From a source (synthetic, files, a hub id) to a `Federation`: rows, their form's pairs, people, folds.

No row is lost silently: what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from raypref.config import DataConfig, UserError
from raypref.data import forms, kinds, sources
from raypref.data.federation import Federation
from raypref.data.forms.pairs import NO_PROMPT
from raypref.data.people import Counts, assemble
from raypref.data.rows import missing, some, wrapped


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
    given = source(config, seed)
    config = given.config
    for flag, name in {
        "client-column": config.client_column,
        "chosen-column": config.chosen_column,
        "rejected-column": config.rejected_column,
        "group-column": config.group_column,
        "prompt-column": config.prompt_column if config.prompt_column != "prompt" else "",  # it may be implicit
        "split": config.split if config.split != "pair" else "",
        "cover-column": config.cover_column,
    }.items():
        if name and name not in given.columns:
            raise missing(config.source, name, flag, given.columns, wrapped(given.rows))
    federation, counts = assemble(given.rows, config)
    if "prompt" not in given.columns and counts.lost.get(NO_PROMPT) and sum(counts.lost.values()) == counts.rows:
        raise missing(config.source, "prompt", "prompt-column", given.columns)
    return federation, replace(counts, read_as=given.read_as, hint=given.hint)


@dataclass(frozen=True)
class Source:
    """Rows of pairs, and what they are."""

    config: DataConfig
    """With the names of the columns that are there."""
    columns: Sequence[str]
    rows: Iterable[forms.Made]
    """To be read once."""
    read_as: str
    hint: str = ""


def source(config: DataConfig, seed: int) -> Source:
    """The rows of `config.source` as rows of pairs, by their form; those without people are dealt by `seed`.

    Raises `UserError` where files are of different forms, or not of the kinds.
    """
    if config.source == "synthetic":
        from raypref.data.synthetic import generate

        made = generate(config.group_sizes, config.pairs_per_axis, config.axes, seed)
        about = "synthetic: the embedded generator's pairs of the clients of data.group_sizes"
        return Source(replace(config, **forms.DEALT), [*forms.DEALT.values(), "axis"], made, about)
    tables = sources.tables(kinds.named(config) if config.kinds else config.source)
    name = _form_of(tables, config)
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    if config.kinds:
        dealt = kinds.dealt(tables, config, seed)
        about = f"{name}, of the kinds {', '.join(config.kinds)} by the names of files, dealt to clients of one each"
        config = replace(config, client_column="client_id", group_column="group")
        return Source(config, list(dict.fromkeys([*columns, "client_id", "group"])), dealt, about)
    form = forms.form(name)
    pairs = form.pairs(sources.rows_of(tables), config, seed)
    about, hint = f"{name}: {form.about}", form.hint(config, columns)
    if form.dealt:
        return Source(replace(config, **forms.DEALT), form.gives, pairs, about, hint)
    return Source(config, list(dict.fromkeys([*columns, *form.gives])), pairs, about, hint)


def _form_of(tables: Sequence[sources.Table], config: DataConfig) -> str:
    """The name of the form of all tables; those whose columns name none are let through, and their rows are counted."""
    named: dict[str, list[str]] = {}
    for table in tables:
        if name := forms.recognized(table.columns, config):
            named.setdefault(name, []).append(table.name)
    if len(named) > 1:
        told = "; ".join(f"{some(files, 3)} (with {forms.known_by(name, config)})" for name, files in named.items())
        raise UserError(f"{config.source}: holds rows of different forms: {told}; name one file, or keep them apart")
    return next(iter(named), forms.PAIRS)
