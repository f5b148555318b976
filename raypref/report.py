"""`python -m raypref.report RUN|SWEEP …`: a page of finished runs, one HTML file that needs no network."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from raypref.config import UserError
from raypref.tools import console
from raypref.tools.cli import parse
from raypref.tools.folders import check_makeable, working_folder


@dataclass(frozen=True)
class Options:
    """Write the page of a finished run or sweep anew, or one of several runs beside each other. A run and a sweep
    leave theirs, report.html, in their folder when they end."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Folders of runs or their MLflow run ids, the first the one that others are compared with; or one sweep's."""
    out: Path | None = None
    """The file. Default: report.html in the folder of the one run or sweep; of several where the command is typed."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv or ["--help"], "python -m raypref.report")
    if not options.runs:
        raise UserError("RUN or SWEEP comes first: python -m raypref.report runs/fedgd-seed0-…")
    to = options.out and options.out.expanduser().absolute()
    if to and to.is_dir():
        raise UserError(f"--out {to} is a folder; give a file, such as {to / 'report.html'}")
    if to:
        check_makeable(to.parent)

    from raypref.experiment import page
    from raypref.storage import locate

    first = Path(options.runs[0]).expanduser().absolute()
    if (first / "trials.csv").exists():
        if len(options.runs) > 1:
            raise UserError(f"{first} is a sweep, whose page is its own; give it alone")
        written = page.write_sweep(first, to)
        if written is None:
            raise UserError(f"{first} has no finished trial; python -m raypref.sweep with --resume finishes some")
    else:
        folders = [locate.stage1(run) for run in options.runs]
        alone = folders[0] if len(folders) == 1 else working_folder()
        written = page.write(folders, to or alone / page.PAGE)
    console.say(f"report: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
