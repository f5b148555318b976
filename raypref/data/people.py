"""Rows of pairs to people with folds, independent of the order of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field

from raypref.config import DataConfig, UserError
from raypref.data.federation import FOLDS, Client, Federation, Pair
from raypref.data.forms.pairs import extract
from raypref.data.rows import Aside, Losses, PairRow, Row, Unusable, as_text, listing, shortened
from raypref.data.splits import FOLD_NAMES, crossing, exact_folds, key_fold, pair_key, value_fold


@dataclass
class Counts:
    """What reading a data set met, for `notes` and for `python -m raypref.data check`."""

    rows: int = 0
    """Rows of the source, as its form gave them."""
    lost: Mapping[str, int] = field(default_factory=dict)
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
    asides: Mapping[str, int] = field(default_factory=dict)
    """What the form met beside pairs and unusable rows -> how many of it."""
    undealt: int = 0
    """Pairs without people that no client needed."""
    alike: tuple[str, ...] = ()
    """People whose ids differ by case alone, next to each other."""
    joined: tuple[str, ...] = ()
    """People whose ids were there with and without blanks at their ends, or with other ones."""
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """People left out, reason -> ids in order."""
    read: int = field(default=0, compare=False)
    """Rows of the files, of which a form may make more or fewer."""
    read_as: str = field(default="", compare=False)
    """The form in which the rows were, in a line."""
    hint: str = field(default="", compare=False)
    """What that form advises; empty: nothing."""

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of thing that was met."""
        overlap = (
            ", so a model may have been trained on what it is tested on; data.split 'pair' without data.exact_counts "
            "or data.fold_column has no such overlap"
        )
        sentences = [
            *((what, number, "") for what, number in self.asides.items()),
            *((f"rows left out, {reason}", number, f" of {self.rows:,}") for reason, number in self.lost.items()),
            ("rows that repeat one of the same client, kept once", self.doubled, ""),
            ("pairs on which one client chose both ways, both kept", self.conflicting, ""),
            ("warning: pairs in different folds for different rows", self.crossing, overlap),
            ("pairs dealt to no client, since none needed more", self.undealt, ""),
            ("warning: groups of clients whose ids differ by case alone", len(self.alike), f" ({listing(self.alike)})"),
            (
                "clients whose ids differ by blanks at their ends, taken as one",
                len(self.joined),
                f" ({listing(self.joined)})",
            ),
            *((f"clients left out, {reason}", len(ids), f" ({listing(ids)})") for reason, ids in self.left_out.items()),
        ]
        return tuple(f"{event}: {number:,}{remark}" for event, number, remark in sentences if number)


@dataclass
class Person:
    """What the rows say of one person."""

    spellings: set[str] = field(default_factory=set)
    """Its id as texts have it, with blanks at their ends."""
    choices: dict[Pair, str] = field(default_factory=dict)
    """Choice -> the value that decides its fold."""
    groups: set[str] = field(default_factory=set)
    covered: Counter[str] = field(default_factory=Counter)
    """Value of the column to cover -> usable rows."""


def assemble(rows: Iterable[PairRow], config: DataConfig) -> tuple[Federation, Counts]:
    """Turn rows of pairs into a federation, whatever their order.

    Columns as `config` names them; '' is a column not used. Without a client column all rows are one client's, 'all'.
    """
    people, counts = gather(rows, config)
    clients: list[Client] = []
    left_out: dict[str, list[str]] = {}
    assigned: list[tuple[bytes, str]] = []
    chosen_by: dict[bytes, dict[str, set[str]]] = {}  # pair -> chosen text -> people
    to_cover = sorted({value for person in people.values() for value in person.covered} - {""})
    for name, person in sorted(people.items()):
        if len(person.groups) > 1:
            raise UserError(
                f"client {name!r} is in the groups {listing(sorted(person.groups))}; give each client one value in "
                f"column {config.group_column!r}, or leave data.group_column empty"
            )
        keyed = sorted(((pair_key(*astuple(pair)), pair.chosen, pair) for pair in person.choices), key=lambda x: x[:2])
        keys, pairs = [key for key, _, _ in keyed], [pair for _, _, pair in keyed]
        folds = _folds(name, keys, [person.choices[pair] for pair in pairs], config)
        counts.conflicting += len(keys) - len(set(keys))
        for key, pair in zip(keys, pairs, strict=True):
            chosen_by.setdefault(key, {}).setdefault(pair.chosen, set()).add(name)
        parts = {fold: tuple(p for p, f in zip(pairs, folds, strict=True) if f == fold) for fold in FOLDS}
        if reason := _why_left_out(person, parts, to_cover, config):
            left_out.setdefault(reason, []).append(name)
            continue
        if config.group_column and not person.groups:
            raise UserError(
                f"client {name!r} has no value in column {config.group_column!r}; give every client its group, or "
                "leave data.group_column empty"
            )
        clients.append(Client(name, "".join(person.groups), **parts))
        assigned += zip(keys, folds, strict=True)
    counts.alike = tuple(", ".join(names) for names in _alike(people))
    counts.pairs = len(chosen_by)
    # Two people chose opposite texts of one pair where both were chosen, and not by one person alone.
    counts.disagreed = sum(len(c) == 2 and len(set().union(*c.values())) > 1 for c in chosen_by.values())
    counts.crossing = crossing(assigned)
    counts.left_out = {reason: tuple(ids) for reason, ids in left_out.items()}
    return Federation(tuple(clients), counts.notes()), counts


def _alike(ids: Iterable[str]) -> list[list[str]]:
    """Groups of ids that differ by case alone."""
    of: dict[str, list[str]] = {}
    for name in sorted(ids):
        of.setdefault(name.casefold(), []).append(name)
    return [names for names in of.values() if len(names) > 1]


def gather(rows: Iterable[PairRow], config: DataConfig) -> tuple[dict[str, Person], Counts]:
    """Give each row's choice to its person, by id; what is lost is counted."""
    people: dict[str, Person] = {}
    counts, losses, asides = Counts(), Losses(), Counter[str]()
    for row in rows:
        if isinstance(row, Aside):
            asides[row.what] += row.number
            continue
        counts.rows += 1
        if row is None:
            counts.undealt += 1
            continue
        try:
            if isinstance(row, Unusable):
                raise row
            value = row.get(config.client_column) if config.client_column else "all"
            name = as_text(value)
            if not name:
                raise Unusable("no client id")
            deciding = _deciding(row, config)
            texts = (row.get(column) for column in (config.prompt_column, config.chosen_column, config.rejected_column))
            pair = extract(*texts)
        except Unusable as reason:
            losses.add(reason)
            continue
        person = people.setdefault(name, Person())
        counts.doubled += pair in person.choices
        # The smallest, so that order is nothing; of ready folds it is the test, so that nobody trains on it.
        person.choices[pair] = min(deciding, person.choices.get(pair, deciding))
        person.spellings |= {value} if isinstance(value, str) else set()
        if config.group_column:
            person.groups |= {as_text(row.get(config.group_column))} - {""}
        if config.cover_column:
            person.covered[as_text(row.get(config.cover_column))] += 1
    counts.joined = tuple(
        name for name, p in sorted(people.items()) if len({s for s in p.spellings if s.strip() == name}) > 1
    )
    counts.lost, counts.asides = losses.reasons(), asides
    return people, counts


def _deciding(row: Row, config: DataConfig) -> str:
    """What decides the fold of a row: its fold itself, where a column says it, or a value; raises `Unusable`."""
    column = config.fold_column or (config.split if config.split != "pair" else "")
    if not column:
        return "pair"
    value = as_text(row.get(column))
    if not value:
        raise Unusable(f"nothing in column {column!r}, which decides the fold")
    if not config.fold_column:
        return value
    if value.lower() not in FOLD_NAMES:
        raise Unusable(f"column {column!r} names none of {', '.join(FOLD_NAMES)}", f"it says {shortened(value)}")
    return FOLD_NAMES[value.lower()]


def _why_left_out(
    person: Person, parts: Mapping[str, Sequence[Pair]], to_cover: Sequence[str], config: DataConfig
) -> str:
    """Why somebody takes no part; empty: for no reason.

    parts: fold -> pairs. to_cover: all values of the column in which everybody must have rows.
    """
    empty = [fold for fold in FOLDS if not parts[fold]]
    few = [value for value in to_cover if person.covered[value] < config.cover_min_rows]
    if len(person.choices) < config.min_rows:
        return f"fewer than {config.min_rows} usable pairs (data.min_rows)"
    if few:
        values = " or ".join(few) if len(few) <= 3 else f"{len(few)} of the {len(to_cover)} values"
        return (
            f"fewer than {config.cover_min_rows} usable rows with {values} in column {config.cover_column!r} "
            "(data.cover_min_rows)"
        )
    if config.exact_counts not in ((0, 0), (len(parts["validation"]), len(parts["test"]))):
        return f"too few usable pairs to hold out exactly {listing(config.exact_counts)} (data.exact_counts)"
    return f"no pair in {' or '.join(empty)}" if empty else ""


def _folds(client: str, keys: Sequence[bytes], values: Sequence[str], config: DataConfig) -> list[str]:
    if config.fold_column:
        return list(values)
    if config.exact_counts != (0, 0):
        return exact_folds(client, keys, *config.exact_counts)
    if config.split == "pair":
        return [key_fold(key, config.validation, config.test) for key in keys]
    return [value_fold(value, config.validation, config.test) for value in values]
