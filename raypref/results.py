"""`python -m raypref.results [NAME …]`: the kept results that the pages rest on: which are there, and making the rest.

A kept result is a small file a run (`raypref.storage.kept`), so that whoever has the project has its numbers, and can
recompute every table from them.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from raypref.config import RunConfig, UserError, override
from raypref.config.spaces import every_name, load_space
from raypref.storage import kept
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse
from raypref.tools.errors import nearest
from raypref.tools.folders import check_makeable, working_folder


@dataclass(frozen=True)
class Options:
    """List the kept results of search spaces: which are there, which are missing or of an earlier version of the
    results, and what makes them."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Spaces; without one those of which any is kept."""
    seeds: tuple[int, ...] = ()
    """In place of the space's seeds."""
    source: Annotated[str, tyro.conf.arg(name="data.source")] = ""
    """In place of the space's, whose data may lie elsewhere."""
    base: Annotated[str, tyro.conf.arg(name="model.base")] = ""
    """In place of the space's."""
    smoke: bool = False
    """The space's trials of seconds, kept as NAME-smoke."""
    make: bool = False
    """Make what is missing, one run a process and without MLflow, and keep each as it ends. What an interruption
    leaves is gone on with."""
    concurrency: int = 1
    """Runs at a time."""
    runs: Path = Path("runs/results")
    """Folder of the runs that are made, or of a sweep (`--out`) whose finished ones are kept."""
    out: Path = Path("results")
    """Folder of the kept results."""


@dataclass(frozen=True)
class Wanted:
    """A run whose result is to be kept."""

    words: str
    """The space, as it is typed."""
    config: RunConfig
    command: str
    folder: Path
    """Of the run, while it is made."""
    kept: Path
    """The file of its result."""

    @property
    def state(self) -> str:
        """`kept`, `of an earlier version`, `begun` or `missing`."""
        if self.kept.exists():
            return "kept" if kept.version(self.kept) == kept.VERSION else "of an earlier version"
        return "begun" if (self.folder / "config.json").exists() else "missing"


def command(argv: list[str]) -> int:
    """The command line; see `Options`. Exit status 1 where a run failed."""
    options = parse(Options, argv, "python -m raypref.results")
    out, runs = (working_folder() / folder.expanduser() for folder in (options.out, options.runs))
    if options.concurrency < 1:
        raise UserError(f"--concurrency is {options.concurrency}; it must be at least 1")
    for name in options.names:
        if name not in every_name():
            raise UserError(f"there is no space {name}{nearest(name, every_name())}")
    names = options.names or [name for name in kept.names(out) if name in every_name()]
    wanted = [w for name in names for w in wanted_of(name, options, runs, out)]
    if not wanted:
        raise UserError(f"{out} holds no kept results; python -m raypref.results NAME lists those of a space")
    for w in wanted:
        if w.state == "begun" and (w.folder / "result.json").exists():
            kept.keep(w.folder, w.kept.parent, w.command)
    failures = make([w for w in wanted if w.state != "kept"], options.concurrency, out) if options.make else {}
    for words in dict.fromkeys(w.words for w in wanted):
        console.say(line(words, [w for w in wanted if w.words == words], options.make))
    for what, why in failures.items():
        console.say(f"FAILED {what}: {why}")
    return int(bool(failures))


def wanted_of(name: str, options: Options, runs: Path, out: Path) -> Iterator[Wanted]:
    """The trials of a space, in its order."""
    from raypref.data.sources import identified
    from raypref.storage.results import folder_name

    space = load_space(name)
    folder, words = (f"{name}-smoke", f"{name} --smoke") if options.smoke else (name, name)
    elsewhere = {key: value for key, value in (("data.source", options.source), ("model.base", options.base)) if value}
    words = " ".join([words, *(f"--{key} {value}" for key, value in elsewhere.items())])
    base = override(space.configured(smoke=options.smoke), elsewhere)
    for config in space.trials(base, options.smoke, options.seeds):
        trial = identified(override(config, {"clients.backend": "local"}))
        stem = folder_name(trial)
        again = f"python -m raypref.results {words} --seeds {config.seed} --make"
        yield Wanted(words, trial, again, runs / folder / stem, out / folder / f"{stem}.parquet")


def line(words: str, wanted: Sequence[Wanted], made: bool) -> str:
    """`graded: 12 of 96 kept; missing 84, fedgd 2, …; python -m raypref.results graded --make`."""
    states = [(w.state, w.config.method) for w in wanted]
    counts = Counter(state for state, _ in states)
    said = [f"{words}: {counts.pop('kept', 0)} of {len(wanted)} kept"]
    for state, count in counts.items():
        of = Counter(method for at, method in states if at == state)
        said.append(f"{state} {count}: {', '.join(f'{method} {n}' for method, n in of.items())}")
    if counts and not made:
        said.append(f"python -m raypref.results {words} --make")
    return "; ".join(said)


def make(wanted: Sequence[Wanted], concurrency: int, out: Path) -> dict[str, str]:
    """Run these, so many at a time in processes of their own; returns what failed, and why."""
    check_makeable(out)
    context, failures = multiprocessing.get_context("spawn"), {}
    leave = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches them all; it is this process that ends the others
    with (
        console.resumable("the same words with --make go on from here"),
        checkpoint.locked(out, "wait for it, or choose another --out"),
        ProcessPoolExecutor(min(concurrency, len(wanted) or 1), context, signal.signal, leave) as pool,
    ):
        futures = {pool.submit(make_one, w): w for w in wanted}
        try:
            for count, future in enumerate(as_completed(futures), 1):
                name, error = futures[future].kept.stem, future.exception()
                console.say(f"{count} of {len(wanted)}: {name} {'failed' if error else 'kept'}")
                if error:
                    failures[name] = (str(error).splitlines() or [type(error).__name__])[0]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return failures


def make_one(wanted: Wanted) -> None:
    """Run, or finish, one and keep its result."""
    import torch

    from raypref.experiment import loop

    torch.set_num_threads(wanted.config.clients.threads)
    if wanted.kept.exists():  # of an earlier version, and so is what may be left of its run
        shutil.rmtree(wanted.folder, ignore_errors=True)
        wanted.kept.unlink()
    whole, began = wanted.state == "missing", time.process_time()
    loop.run(wanted.config, wanted.folder, adapters=False)
    cpu = time.process_time() - began if whole else None
    kept.keep(wanted.folder, wanted.kept.parent, wanted.command, cpu)


if __name__ == "__main__":
    from raypref.results import command as importable  # processes of the pool look functions up by their module's name

    sys.exit(console.main(importable, sys.argv[1:]))
