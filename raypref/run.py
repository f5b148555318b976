"""`python -m raypref.run NAME [--field value …]`: one experiment, and what it is compared with."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from raypref import checkpoint, console
from raypref.cli import parse
from raypref.config import RunConfig, UserError, flatten, to_dict
from raypref.spaces import load_space, names

if TYPE_CHECKING:
    from raypref.clients.pool import Inputs


@dataclass(frozen=True)
class Options:
    """Run one experiment: the base of tune_spaces/NAME.py with what is overridden here."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    preset: str = ""
    """A preset of the space, such as `paper`; overrides here come on top."""
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
    base = space.configured(peek(rest, "--preset"), "--smoke" in rest)
    options = parse(Options, rest, f"python -m raypref.run {name}", Options(base, against=space.against))
    out = output_folder(options.out)
    others = [a for a in options.against if a not in ("none", options.config.algorithm)]
    configs = [dataclasses.replace(options.config, algorithm=a) for a in others] + [options.config]

    from raypref import experiment
    from raypref.evaluation import report, tables
    from raypref.publish import compare, context_table, diagnostics_table

    folders = [run_folder(out, config, options.resume) for config in configs]
    inputs: list[Inputs | None] = [None] * len(configs)
    if not all((folder / "result.json").exists() for folder in folders):  # whatever any would refuse, before one starts
        first = experiment.prepare(configs[0])
        inputs = [first, *(experiment.prepare_like(first, config) for config in configs[1:])]
    to = tracker(name) if options.track else None
    results = []
    for config, folder, own in zip(configs, folders, inputs, strict=True):
        console.say(f"{config.method}: {folder}")
        results.append(tracked(config, folder, to, adapters=options.adapters, bar=console.Progress, inputs=own))
    figure = compare(results, folders[-1])
    console.say("")
    console.say(report.terminal(results))
    for table in (diagnostics_table(results), context_table(results)):
        if table:
            console.say("")
            console.say(tables.terminal(table))
    console.say(f"\nfigure: {figure}")
    if to:
        console.say(f"tracked: mlflow ui --backend-store-uri {to.uri}")
    return 0


@dataclass(frozen=True)
class Tracker:
    """Where runs are tracked: strings, so that it reaches other processes and nodes as it is."""

    uri: str
    experiment: str
    experiment_id: str
    parent: str | None = None
    """Run id of the sweep that the runs belong to."""


def tracker(experiment: str) -> Tracker:
    """Makes the database and the experiment where they are missing; only in the process where the command was typed."""
    from raypref import tracking

    uri = tracking.tracking_uri(working_folder())
    return Tracker(uri, experiment, tracking.prepare(uri, experiment))


def tracked(
    config: RunConfig,
    folder: Path,
    to: Tracker | None,
    *,
    adapters: bool,
    bar: Callable[[int, str, int], Any] | None = None,
    label: str = "",
    tags: Mapping[str, str] | None = None,
    inputs: Inputs | None = None,
) -> dict[str, Any]:
    """One run inside its MLflow run (none: untracked), which a resume continues; returns the result."""
    from raypref import experiment

    known = folder / "mlflow.json"
    held = checkpoint.read_json(known) if known.exists() else {}
    if to is None or held.get("done"):
        return experiment.run(config, folder, bar=bar, say=console.say, adapters=adapters, inputs=inputs)

    from raypref import tracking

    label = label or f"{config.method} seed {config.seed}"
    params = flatten(to_dict(config))
    tags = {"raypref.key": config.key, "raypref.folder": str(folder), **(tags or {})}
    with tracking.Run(to.uri, to.experiment_id, label, params, tags, to.parent, held.get("run_id")) as track:
        held = {"uri": to.uri, "experiment": to.experiment, "run_id": track.id}
        checkpoint.write_json(known, held)
        result = experiment.run(config, folder, track=track, bar=bar, say=console.say, adapters=adapters, inputs=inputs)
    checkpoint.write_json(known, held | {"done": True})
    return result


def listing(what: str, argv: Sequence[str]) -> int:
    """What NAME can be: for a command line without one."""
    if argv and argv[0] not in ("-h", "--help"):
        raise UserError(f"the first word is the NAME of a space, not {argv[0]!r}; there are: {', '.join(names())}")
    console.say(f"usage: python -m raypref.{what} NAME [--help] [--field value …]\n\nNAME is one of")
    for name in names():
        console.say(f"  {name:14} {load_space(name).about}")
    if what == "run":
        console.say("\nWhat a run makes is the base and --against of a space; python -m raypref.sweep makes all of it")
    return 0


def working_folder() -> Path:
    """Where the command was typed; for a Ray job started with --working-dir, whose folder is a copy that is soon
    deleted, `raypref` in the home directory."""
    here = Path.cwd()
    packaged = "working_dir_files" in here.parts or "_ray_pkg_" in str(here)
    return Path.home() / "raypref" if packaged else here


def output_folder(out: Path | None) -> Path:
    """The absolute base of run folders, made and found writable, else `UserError`."""
    folder = (working_folder() / "runs" if out is None else out.expanduser()).absolute()
    if folder.is_file():
        raise UserError(f"--out {folder} is a file; give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make --out {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {folder} is not writable; choose another folder")
    return folder


def folder_name(config: RunConfig) -> str:
    """What a run's folder is called."""
    return f"{config.method}-seed{config.seed}-{config.key}"


def run_folder(out: Path, config: RunConfig, resume: bool) -> Path:
    """`METHOD-seedN-KEY` in `out`; a repeat gets its own (-2, -3, …), a resume the newest there is."""
    stem = folder_name(config)
    taken = [out / stem] if (out / stem).exists() else []
    while (out / f"{stem}-{len(taken) + 1}").exists():
        taken.append(out / f"{stem}-{len(taken) + 1}")
    if resume and taken:
        return taken[-1]
    if taken and not (taken[-1] / "result.json").exists():
        console.say(f"note: {taken[-1]} was begun and not finished; the same words with --resume would go on with it")
    return out / f"{stem}-{len(taken) + 1}" if taken else out / stem


def peek(argv: Sequence[str], flag: str) -> str:
    """The value of a flag that decides the defaults of all others."""
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return ""


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:], "; the same words with --resume go on from here"))
