"""`python -m raypref.claims [NAME …]`: what the papers claim, and what the kept runs say of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from raypref.config import UserError, nearest
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse
from raypref.tools.folders import check_makeable, output_folder, working_folder

if TYPE_CHECKING:
    from raypref.evaluation.claims.claim import Claim
    from raypref.evaluation.runs import FinishedRun


@dataclass(frozen=True)
class Options:
    """Judge the papers' empirical claims by the runs that are kept. Each claim is tested in one way, fixed beforehand:
    paired by client within seeds, the seed as the unit, by Holm within each paper (docs/claims.md)."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Claims to show in full; none: a table of all."""
    list: bool = False
    """Only what the claims are, without reading a run."""
    results: Path | None = None
    """Where runs are kept; results where the command is typed unless another folder is named."""
    out: Path | None = None
    """Folder for claims.md and claims.csv; without it nothing is written."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv, "python -m raypref.claims")
    from raypref.evaluation import claims, tables
    from raypref.evaluation.claims import report
    from raypref.evaluation.claims.judge import CHOOSING, judge

    every = claims.every()
    wanted = named(options.names, every)
    if options.list:
        for claim in wanted:
            console.say(f"{claim.name} ({claim.place}): {claim.statement}")
        return 0
    out = options.out and options.out.expanduser().absolute()
    if out:
        check_makeable(out)
    folder = (options.results or working_folder() / "results").expanduser().absolute()
    if options.results and not folder.is_dir():
        raise UserError(f"--results {options.results}: there is no such folder; the project's own is results/")
    runs = load(folder, {space for claim in every for space in claim.space.split()})
    judged = judge(every, runs)  # all of them, also where one is shown, for Holm counts those of its paper
    if options.names:
        shown = [of for name in options.names for of in judged if of.claim.name == name]
        console.say("\n\n".join(map(report.full, shown)))
    else:
        for paper, of in report.by_paper(judged).items():
            console.say(tables.terminal(report.table(paper, of)))
            console.say("")
        wanting = [f"{command}: {runs}" for command, runs in report.wanting(judged).items()]
        for line in (report.NOTE, *report.left_out(judged), *wanting, report.counts(judged)):
            console.say(line)
        chosen_by = sum(run.seed >= CHOOSING for run in runs)
        away = f", but {chosen_by} of seeds from {CHOOSING} on, where settings are chosen" * bool(chosen_by)
        console.say(f"by {len(runs)} runs in {folder}{away}; python -m raypref.claims NAME shows one in full")
    if out:
        output_folder(out)
        pages = [tables.markdown(report.table(paper, of, True)) for paper, of in report.by_paper(judged).items()]
        wanting = [f"| `{command}` | {runs} |" for command, runs in report.wanting(judged).items()]
        lacking = ["\n".join(["| command | would make |", "|---|---|", *wanting])] if wanting else []
        more = [*report.left_out(judged), *lacking, report.counts(judged)]
        checkpoint.write_bytes(out / "claims.md", "\n".join([*pages, "\n\n".join(more), ""]).encode())
        checkpoint.write_bytes(out / "claims.csv", report.to_csv(judged).encode())
        console.say(f"{out / 'claims.md'} and claims.csv")
    return 0


def named(names: Sequence[str], every: Sequence[Claim]) -> Sequence[Claim]:
    """The claims of these names, all without any. Raises `UserError` for a name that none has."""
    known = {claim.name: claim for claim in every}
    for name in names:
        if name not in known:
            close = nearest(name, known)
            hint = close if "did you mean" in close else "; python -m raypref.claims --list shows them"
            raise UserError(f"there is no claim {name!r}{hint}")
    return [known[name] for name in names] or every


def load(folder: Path, spaces: Collection[str]) -> list[FinishedRun]:
    """The kept runs of these spaces; says how many others are there, of another version of the results."""
    from raypref.storage import kept

    runs = [run for space in sorted(spaces) for run in kept.read_all(folder / space)]
    if others := sum(len(list((folder / space).glob("*.parquet"))) for space in spaces) - len(runs):
        console.warn(f"{others} of the kept results are of another version and count for nothing")
    return runs


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
