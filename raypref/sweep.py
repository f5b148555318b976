"""`python -m raypref.sweep NAME [--field value …]`: every trial of a search space, as many at once as fit."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raypref.config import RunConfig, UserError, flatten, nearest, override
from raypref.config.spaces import Space, listing, load_space
from raypref.experiment.sweeping.options import Options, check_budget
from raypref.tools import checkpoint, console
from raypref.tools.cli import given, parse
from raypref.tools.folders import output_folder

if TYPE_CHECKING:
    from raypref.experiment.sweeping.trials import Search


def command(argv: list[str]) -> int:
    """The command line; see `Options`. Exit status 1 where a trial failed."""
    if not argv or argv[0].startswith("-"):
        return listing("sweep", argv)
    name, *rest = argv
    space = load_space(name)
    base = override(space.typed(rest), {"clients.backend": "ray"})
    options = parse(Options, rest, f"python -m raypref.sweep {name}", Options(base))
    space.check(options.config, options.preset, options.smoke)
    space = narrowed(space.under(options.preset), rest, options.config)
    check_clients(options.config)

    from raypref.data.sources import identified
    from raypref.evaluation.ranking import BEST
    from raypref.experiment.sweeping.trials import Search, Trial, plan, proposed

    if space.rank not in BEST:
        raise UserError(f"tune_spaces/{name}.py ranks by {space.rank!r}{nearest(space.rank, BEST)}")
    check_budget(options)
    folder = output_folder(options.out) / (f"{name}-smoke" if options.smoke else name)
    if options.search == "optuna":
        first = Trial(identified(options.config), folder / "proposal", {})
        ranges = space.searched(first.config)
        search = Search(space.rank, options, folder, proposed(folder, first), first, ranges)
    else:
        search = Search(space.rank, options, folder, plan(space, options, folder))
    if not options.dry_run:
        return sweep(name, search)

    from raypref.experiment.sweeping.dry_run import dry_run

    if search.base:
        words = ", ".join(f"{key} {kind} {low:g} to {high:g}" for key, (kind, low, high) in search.ranges.items())
        console.say(f"up to {search.most} trials of {words}; one of them at the base's values:")
    return dry_run(search.examples, options.card)


def check_clients(config: RunConfig) -> None:
    """`UserError` where trials could not have clients such as these."""
    if config.clients.backend != "ray":
        raise UserError("a sweep runs on Ray, so clients.backend must be 'ray'; raypref.run runs one trial without")
    if config.clients.server_cpus <= 0:
        raise UserError("clients.server_cpus must be above 0 in a sweep: a placement group has no empty bundles")
    if config.clients.pooled_workers > 1:
        raise UserError(
            "clients.pooled_workers must be 1 in a sweep: Ray Train asks for places of its own, for which trials that "
            "hold all others would wait for ever; train such a model with raypref.run"
        )


def narrowed(space: Space, argv: Sequence[str], config: RunConfig) -> Space:
    """The space without what the command line, parsed as `config`, fixes: `--experts.K 3` takes the place of a search
    over K."""
    words = given(argv)
    return space.without({key: value for key, value in flatten(dataclasses.asdict(config)).items() if key in words})


def sweep(name: str, search: Search) -> int:
    """Run what is missing, then rank what there is."""
    from raypref.experiment.page import COMMAND, PAGE
    from raypref.experiment.sweeping.ending import conclude
    from raypref.experiment.sweeping.tracked import mark_stopped, parent, unstop
    from raypref.experiment.tracked import closing, tracker

    options, folder, trials = search.options, search.folder, search.trials
    lock = checkpoint.locked(folder, "wait for it, or choose another --out")
    with console.resumable("the same words with --resume go on from here"), lock:
        missing = search.missing
        ended = [trial for trial in trials if trial not in missing]
        stopped = sum(bool(trial.stopped) for trial in ended)
        also = f", stopped early: {stopped}" if stopped else ""
        console.say(f"{folder}\ntrials: {search.most}, finished already: {len(ended) - stopped}{also}")
        begun = [trial for trial in missing if trial.begun]
        if begun and not options.resume:
            early = sum(bool(trial.stopped) for trial in begun)
            hint = f"; asha has stopped {early} of them early and leaves them so: --scheduler asha" if early else ""
            raise UserError(
                f"{len(begun)} trials in {folder} were begun but not finished (the first: {begun[0].label}); add "
                f"--resume to finish them, or choose another --out{hint}"
            )
        left, failures = search.most - len(ended), {}
        if left > 0:
            from raypref.experiment.sweeping import running

            wanted = running.bundles([search.base] if search.base else missing)
        to = tracker(name) if options.track else None
        if left > 0:
            running.check_cluster(list(wanted.values()) * (left if search.base else 1), search, to)
        for trial in missing:
            unstop(trial)
        checkpoint.write_bytes(folder / COMMAND, f"{console.typed()}\n".encode())
        try:
            with parent(to, search) as run:
                if left > 0:
                    to = dataclasses.replace(to, parent=run.id) if to else None
                    failures = running.execute(search, missing, wanted, to)
                mark_stopped(trials)
                conclude(search, failures, run)
                if failures:
                    raise TrialsFailed(f"{len(failures)} of {len(trials)} trials failed")
        except TrialsFailed as failed:
            console.say(f"{failed}; what they left is kept, --resume goes on from there")
            return 1
        finally:
            # Of what is unfinished nothing can be delivered yet.
            closing(to, [t.folder for t in trials if (t.folder / "result.json").exists()], folder)
            if (folder / PAGE).exists():
                console.say(f"report: {folder / PAGE}")
    return 0


class TrialsFailed(Exception):
    """At least one trial failed; makes FAILED the status of the sweep's run in MLflow."""


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
