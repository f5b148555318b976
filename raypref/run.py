"""`python -m raypref.run NAME [--field value …]`: one experiment, and what it is compared with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from raypref.config import RunConfig, by_another, override
from raypref.config.sizes import sizes
from raypref.config.spaces import listing, load_space
from raypref.tools import checkpoint, console
from raypref.tools.cli import given, parse
from raypref.tools.folders import output_folder

if TYPE_CHECKING:
    from raypref.clients.pool import Inputs
    from raypref.data.encode import EncodedFederation


@dataclass(frozen=True)
class Options:
    """Run one experiment: the base of tune_spaces/NAME.py with what is overridden here."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    preset: str = ""
    """A preset of the space, such as `paper`; overrides here come on top. S2's `paper` needs --data.source."""
    card: str = ""
    """Fit it to one card, `24gb` or `80gb`, for the papers' bases; overrides here come on top."""
    smoke: bool = False
    """Seconds instead of minutes: whether everything works, not how well."""
    against: tuple[str, ...] = ()
    """Algorithms to run on the same configuration first and show beside it; `none` for none."""
    out: Path | None = None
    """Where run folders go. Default: `runs` where the command is typed."""
    resume: bool = False
    """Finish what an interrupted command of the same words left; whatever is done is kept."""
    track: bool = True
    """Log to MLflow (MLFLOW_TRACKING_URI, or mlflow.db where the command is typed)."""
    adapters: bool = True
    """Also write the initialization and all personalized adapters as PEFT folders."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    if not argv or argv[0].startswith("-"):
        return listing("run", argv)
    name, *rest = argv
    space = load_space(name)
    base = space.typed(rest)
    options = parse(Options, rest, f"python -m raypref.run {name}", Options(base, against=space.against))
    space.check(options.config, options.preset, options.smoke)
    out = output_folder(options.out)
    others = [a for a in options.against if a not in ("none", options.config.algorithm)]

    from raypref.data.sources import identified
    from raypref.evaluation import report, tables
    from raypref.experiment import loop as experiment
    from raypref.experiment.publish import tables_of, write_comparison
    from raypref.experiment.tracked import closing, tracked, tracker
    from raypref.storage.results import run_folder

    config, data = identified(options.config), None
    if space.base.data.generated and not (config.data.generated or options.preset or options.card or options.smoke):
        data = experiment.read(config)
        config = fitted(config, data, given(rest))
    configs = [by_another(config, a) for a in others] + [config]
    folders = [run_folder(out, config, options.resume) for config in configs]
    inputs: list[Inputs | None] = [None] * len(configs)
    if not all((folder / "result.json").exists() for folder in folders):  # whatever any would refuse, before one starts
        prepared = experiment.prepare(config, data)
        inputs = [*(experiment.prepare_like(prepared, other) for other in configs[:-1]), prepared]
    to = tracker(name) if options.track else None
    results = []
    for config, folder, of_run in zip(configs, folders, inputs, strict=True):
        console.say(f"{config.method}: {folder}")
        lock = checkpoint.locked(folder, "wait for it, or choose another --out")
        with console.resumable("the same words with --resume go on from here"), lock:
            results.append(tracked(config, folder, to, adapters=options.adapters, bar=console.Progress, inputs=of_run))
    figure, page = write_comparison(results, folders)
    console.say("")
    console.say(report.terminal(results))
    for table in tables_of(results):
        console.say("")
        console.say(tables.terminal(table, "".join(table.notes[:1])))
    console.say(f"\nfigure: {figure}")
    closing(to, folders)
    console.say(f"report: {page}")
    return 0


def fitted(config: RunConfig, data: EncodedFederation, words: set[str]) -> RunConfig:
    """The run sized to somebody's own data, which is said, but for the fields of these names, which were given."""
    import numpy as np

    from raypref.clients.seen import unseen

    pairs = np.delete(data.sizes("train"), unseen(config, data.groups, data.group_of))
    small = sizes(config, len(pairs), int(pairs.sum()), words) if len(pairs) else {}
    if small:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in small.items())
        console.say(f"sized to {pairs.sum():,} training pairs of {len(pairs)} people: {flags} (yours come first)")
    return override(config, small)


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
