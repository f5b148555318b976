"""`python -m raypref.compare NAME [NAME …]`: the papers' tables and figures from the runs in MLflow."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from raypref.config import UserError, nearest
from raypref.config.conditions import conditions
from raypref.config.spaces import every_name as space_names
from raypref.config.spaces import listing
from raypref.evaluation import drawings
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse
from raypref.tools.folders import check_makeable, output_folder, working_folder

if TYPE_CHECKING:
    from raypref.evaluation.drawings import Drawing, Item
    from raypref.evaluation.runs import FinishedRun
    from raypref.evaluation.tables import Table
    from raypref.storage.fates import Fates


@dataclass(frozen=True)
class Options:
    """Draw the papers' tables and figures from finished runs of these experiments in MLflow (MLFLOW_TRACKING_URI, or
    mlflow.db where the command is typed). Each takes, of all runs that fit, those that differ in nothing but what it
    varies; where several such families exist, the one that fills most of it."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Experiments: the NAMEs that were given to raypref.run and raypref.sweep."""
    table: Annotated[tuple[str, ...], tyro.conf.arg(help=drawings.listing("table"))] = ()
    figure: Annotated[tuple[str, ...], tyro.conf.arg(help=drawings.listing("figure"))] = ()
    where: tuple[str, ...] = ()
    """Only runs with these fields, such as federation.rounds=60 data.group_sizes="15 15 5 5"."""
    reference: str = ""
    """The row that differences are taken to (default: FedGD); where a table lacks it, one of its own."""
    fold: Literal["test", "validation"] = "test"
    """Which held-out pairs accuracies are read on."""
    judge: str = ""
    """Policies by what this judge says, such as style or reward-helpful (default: of each table the one that judged
    most of its policies; judges are never mixed)."""
    results: Path | None = None
    """Read kept results (raypref.results) in this folder, such as `results`, in the place of runs in MLflow."""
    out: Path | None = None
    """Where files go; runs/compare where the command is typed unless another folder is named."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    if not argv:
        return listing("compare", argv)
    options = read_options(argv)
    if not options.names:
        raise UserError(f"{NAMES_FIRST}; there are the spaces {', '.join(space_names())}")
    wanted, everything = requested(options), not (options.table or options.figure)
    reference, where = drawings.reference(options.reference or "FedGD"), conditions(options.where)
    out = (options.out or working_folder() / "runs" / "compare").expanduser().absolute()
    check_makeable(out)

    from raypref.storage import fates, kept, tracking

    if options.results:
        uri = str(options.results.expanduser().absolute())
        runs, experiments = kept.search(Path(uri), options.names)
        check_names(options.names, experiments, uri, "results")
        kinds: dict[str, Fates] = {"runs": fates.KeptFates(runs), "policies": fates.PolicyFates((), options.judge)}
    else:
        uri = tracking.tracking_uri(working_folder())
        runs, experiments = tracking.search(uri, options.names)
        check_names(options.names, experiments, f"MLflow at {uri}", "sweep")
        kinds = {"runs": fates.Fates(runs), "policies": fates.PolicyFates(runs, options.judge)}
    kinds = {of: kind for of, kind in kinds.items() if of in {drawing.of for drawing in wanted}}  # others are of no use
    read = {of: list(kind.read(uri)) for of, kind in kinds.items()}
    fitting = {of: kind.newest(read[of], where) for of, kind in kinds.items()}
    policies_wait = "policies" in kinds and not any(read.values()) and not everything
    if not any(fitting.values()) and not policies_wait:
        if all_read := [run for of in read.values() for run in of]:
            raise UserError(
                f"no run fits --where {' '.join(options.where)}; the runs have {values_of(all_read, where)}"
            )
        how = "" if everything and kinds["policies"].waiting() else "; python -m raypref.sweep makes some"
        raise UserError(f"no run to show: {summaries(kinds, '; ') or 'none is there'}{how}")
    items = []
    for drawing in wanted:
        if drawing.of == "policies" and everything and not kinds["policies"].runs:
            continue  # there is no policy, and no table of policies was named
        items.append(with_waiting(drawing(fitting[drawing.of], options.fold), drawing, kinds[drawing.of]))
    drawn = [item for item in items if item.content is not None]
    shown = drawn if everything else items
    wants = [*wanting(shown)]
    said = [*(shortened(shown, out / "compare.md") if everything else wants)]
    said += remarks(shown, reference if options.reference else "")
    if everything and (line := undrawn(items)):
        said.append(line)
    for kind in kinds.values():
        kind.use(run.id for item in items for run in item.runs)
    if drawn:
        output_folder(out)
        for name in [drawing.name for drawing in wanted] if everything else [item.name for item in drawn]:
            clear(out, name)  # what an earlier command drew of other runs
        lines = [write(item, out, reference) for item in drawn]
        if everything:
            checkpoint.write_bytes(out / "runs.csv", to_csv(kinds, items).encode())
            ends = "\n\n".join([*wants, summaries(kinds)])
            checkpoint.write_bytes(out / "compare.md", "\n".join([*lines, ends, ""]).encode())
    for line in said:
        console.say(line)
    if words := summaries(kinds):
        console.say(f"\n{words}")
    if not drawn:
        console.warn("nothing that was asked for could be drawn; nothing was written")
        return 1
    console.say(f"{len(drawn)} of {len(items)} tables and figures: {out / 'compare.md' if everything else out}")
    return 0


NAMES_FIRST = "NAMEs come first: python -m raypref.compare NAME [NAME …] [--table 3 …]"


def read_options(argv: list[str]) -> Options:
    """Parse the command line; says what to do where a NAME stands behind an option that takes several values."""
    try:
        return parse(Options, argv, "python -m raypref.compare")
    except UserError as error:
        if argv[0].startswith("-") and "valid parse" in str(error):
            raise UserError(NAMES_FIRST) from error
        raise


def requested(options: Options) -> list[Drawing]:
    """The tables and figures that --table and --figure name, in that order; without them, all."""
    every = drawings.drawings()
    keys = [("table", word) for word in options.table] + [("figure", word) for word in options.figure]
    for kind, word in keys:
        if (kind, word) not in every:
            words = sorted(word for of, word in every if of == kind)
            raise UserError(f"there is no --{kind} {word}; there are: {', '.join(words)}")
    return [every[key] for key in keys or every]


def check_names(names: Sequence[str], known: Sequence[str], where: str, command: str) -> None:
    """Raises `UserError` on a name that is neither an experiment there nor a space; says which spaces have no runs."""
    for name in names:
        if name in known:
            continue
        if name not in space_names():
            options = {*known, *space_names()} - {"Default"}  # MLflow's own, which we never write to
            raise UserError(f"{where} has no experiment {name!r}{nearest(name, options)}")
        console.say(f"{name}: no runs in {where.partition(' at ')[0]} yet; python -m raypref.{command} {name}")


def values_of(runs: Sequence[FinishedRun], fields: Iterable[str]) -> str:
    """`federation.rounds 4, 60; seed 0, 1`: the values that these fields have in the runs."""
    from raypref.evaluation.runs import show

    values = {field: sorted({run.config[field] for run in runs}, key=str) for field in fields}
    return "; ".join(f"{field} {', '.join(map(show, shown))}" for field, shown in values.items())


def with_waiting(item: Item, drawing: Drawing, fates: Fates) -> Item:
    """The item, which lacks runs, with what becomes of those that wait, where some of them would be in it."""
    from raypref.evaluation.runs import method

    ids = [id for id in fates.waiting() if drawing.waits_for(fates.runs[id].params)]
    if item.content is not None:  # those of the methods that it lacks
        missing = {name for lacks in item.missing for name in lacks.what.removeprefix("policies by ").split(", ")}
        ids = [id for id in ids if method(fates.runs[id].params) in missing]
    if not item.missing or not ids:
        return item
    waiting = []
    for fate, count in Counter(fates.of[id] for id in ids).items():
        what, how = fates.WAITING[fate]
        waiting.append(drawings.Missing(f"{count} polic{'y that is' if count == 1 else 'ies that are'} {what}", how))
    return replace(item, missing=(*(item.missing if item.content is not None else ()), *waiting))


def wanting(items: Sequence[Item]) -> Iterator[str]:
    """A line for each item that lacks runs: which, and the commands that make them."""
    for item in items:
        if item.missing:
            how = "lacks" if item.content is not None else "not drawn, for want of"
            what, commands = (dict.fromkeys(words) for words in zip(*item.missing, strict=True))
            yield f"{item.name} {how} {'; '.join(what)} ({'; '.join(commands)})"


def shortened(items: Sequence[Item], where: Path) -> list[str]:
    """`wanting` of many in one line, where it says them in full; the only one in its own words."""
    names = [item.name for item in items if item.missing]
    if len(names) < 2:
        return list(wanting(items))
    return [f"{len(names)} lack some of their runs, which the end of {where.name} names: {', '.join(names)}"]


def remarks(items: Sequence[Item], reference: str) -> Iterator[str]:
    """Further lines about the items: another reference than the `reference` of the command line (empty: none was
    given), and each item's own remarks."""
    from raypref.evaluation.tables import Table

    for item in items if reference else ():
        if isinstance(item.content, Table) and len(item.content.rows) > 1 and not row_of(item.content, reference):
            used = f"to {item.reference}" if item.reference in item.content.rows else "left out"
            yield f"{item.name} has no row {reference}; differences {used}"
    for item in items:
        yield from item.remarks


def undrawn(items: Sequence[Item]) -> str:
    """`not drawn, for want of runs: table3 (python -m raypref.sweep main_results); …`, by the command for the runs."""
    by_command: dict[str, list[str]] = {}
    for item in items:
        if item.content is None:
            commands = " and ".join(dict.fromkeys(missing.command for missing in item.missing))
            by_command.setdefault(commands, []).append(item.name)
    words = [f"{', '.join(names)}{f' ({commands})' if commands else ''}" for commands, names in by_command.items()]
    return f"not drawn, for want of runs: {'; '.join(words)}" if words else ""


def row_of(table: Table, reference: str) -> str:
    """The row of that label, or the only one of that method in some form, as `FedVPL (printed)`; '' where none is."""
    of_method = [row for row in dict.fromkeys(table.rows) if row == reference or row.startswith(f"{reference} (")]
    return reference if reference in of_method else of_method[0] if len(of_method) == 1 else ""


def clear(out: Path, name: str) -> None:
    """Remove the files of an item."""
    for stem in (name, f"{name}-differences"):
        for kind in ("md", "csv", "tex", "png", "pdf"):
            (out / f"{stem}.{kind}").unlink(missing_ok=True)


def write(item: Item, out: Path, reference: str) -> str:
    """Write a drawn item's files; returns its Markdown."""
    from raypref.evaluation import paired, tables

    assert item.content is not None
    if not isinstance(item.content, tables.Table):
        for kind in ("png", "pdf"):
            file = io.BytesIO()
            item.content.savefig(file, format=kind, dpi=150, metadata={"CreationDate": None} if kind == "pdf" else None)
            checkpoint.write_bytes(out / f"{item.name}.{kind}", file.getvalue())
        return f"![{item.name}]({item.name}.png)\n\n{item.caption}\n"
    table = item.content
    small = paired.against(table, row_of(table, reference) or item.reference)
    console.say(tables.terminal(table, "".join(table.notes[:1])))
    console.say("")
    both = [table] if small is None else [table, small]
    for part in both:
        for kind, render in (("md", tables.markdown), ("csv", tables.to_csv), ("tex", tables.latex)):
            checkpoint.write_bytes(out / f"{part.name}.{kind}", render(part).encode())
    return "\n".join(map(tables.markdown, both))


def summaries(kinds: Mapping[str, Fates], between: str = "\n") -> str:
    """What became of all runs, and of all policies where there are any."""
    return between.join(filter(None, (kind.summary() for kind in kinds.values())))


def to_csv(kinds: Mapping[str, Fates], items: Sequence[Item]) -> str:
    """A line a run: what it is, what became of it, and which tables and figures show it."""
    from raypref.evaluation.tables import csv_text

    shown: dict[str, list[str]] = {}
    for item in items:
        for run in item.runs:
            shown.setdefault(run.id, []).append(item.name)
    return csv_text([line for kind in kinds.values() for line in kind.lines(shown)])


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
