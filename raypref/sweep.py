"""`python -m raypref.sweep NAME [--field value …]`: every trial of a search space, as many at once as fit."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from raypref.config import RunConfig, UserError, flatten, nearest, override, read_config, registry, to_dict
from raypref.config.spaces import Space, listing, load_space
from raypref.experiment.tracked import Tracker, closing, mlflow_record, tracked, tracker
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse, peek
from raypref.tools.errors import Lost
from raypref.tools.folders import output_folder

if TYPE_CHECKING:
    from raypref.clients.pool import Inputs

ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a relative path such as --model.base ./base stays what it was
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
}
"""Set before Tune is imported: no table every few seconds, no files of its own a trial, Ctrl-C ends the sweep at once,
and a busy cluster is not an error."""


@dataclass(frozen=True)
class Options:
    """Run every trial of tune_spaces/NAME.py as one Ray Tune sweep. A field given here is fixed, not searched."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    preset: str = ""
    """A preset of the space, such as `paper`; overrides here come on top. S2's `paper` needs --data.source."""
    card: str = ""
    """Fit it to one card, `24gb` or `80gb`, for the papers' bases; overrides here come on top."""
    smoke: bool = False
    """A few trials of seconds: whether everything works, not how well."""
    seeds: tuple[int, ...] = ()
    """In place of the space's seeds; trials that are finished already are not repeated."""
    dry_run: bool = False
    """Only say: trials, what each asks for, memory, bytes, and hours by timing a few steps here. Starts no Ray."""
    out: Path | None = None
    """The sweep goes into its folder NAME (NAME-smoke). Default: `runs` where the command is typed."""
    resume: bool = False
    """Also finish trials that an interrupted sweep left, or that failed, from where they stand."""
    track: bool = True
    """Log to MLflow (MLFLOW_TRACKING_URI, or mlflow.db where the command is typed)."""
    adapters: bool = False
    """Also write every trial's adapters as PEFT folders."""


@dataclass(frozen=True)
class Trial:
    """One configuration with one seed, and its folder."""

    config: RunConfig
    folder: Path
    settings: Mapping[str, Any]
    """What tells its configuration from the others': dotted key -> value, without the seed."""

    @property
    def label(self) -> str:
        from raypref.evaluation.runs import show

        return " ".join([*(f"{key}={show(value)}" for key, value in self.settings.items()), f"seed={self.config.seed}"])

    @property
    def begun(self) -> bool:
        return (self.folder / "config.json").exists()

    @property
    def finished(self) -> bool:
        """The result is there, and where it is tracked, all of it has reached MLflow."""
        return (self.folder / "result.json").exists() and (not self.mlflow or self.mlflow.get("done", False))

    @property
    def mlflow(self) -> dict[str, Any]:
        """See `raypref.experiment.tracked.mlflow_record`."""
        return mlflow_record(self.folder)


def command(argv: list[str]) -> int:
    """The command line; see `Options`. Exit status 1 where a trial failed."""
    if not argv or argv[0].startswith("-"):
        return listing("sweep", argv)
    name, *rest = argv
    space = load_space(name)
    base = override(
        space.configured(peek(rest, "--preset"), "--smoke" in rest, peek(rest, "--card"), peek(rest, "--model.base")),
        {"clients.backend": "ray"},
    )
    options = parse(Options, rest, f"python -m raypref.sweep {name}", Options(base))
    space.check(options.config, options.preset, options.smoke)
    space = narrowed(space.under(options.preset), rest, options.config)
    if options.config.clients.backend != "ray":
        raise UserError("a sweep runs on Ray, so clients.backend must be 'ray'; raypref.run runs one trial without")
    if options.config.clients.server_cpus <= 0:
        raise UserError("clients.server_cpus must be above 0 in a sweep: a placement group has no empty bundles")
    if options.config.clients.pooled_workers > 1:
        raise UserError(
            "clients.pooled_workers must be 1 in a sweep: Ray Train asks for places of its own, for which trials that "
            "hold all others would wait for ever; train such a model with raypref.run"
        )

    from raypref.evaluation.ranking import BEST

    if space.rank not in BEST:
        raise UserError(f"tune_spaces/{name}.py ranks by {space.rank!r}{nearest(space.rank, BEST)}")
    folder = output_folder(options.out) / (f"{name}-smoke" if options.smoke else name)
    trials = plan(space, options, folder)
    return dry_run(trials, options.card) if options.dry_run else sweep(name, space, options, trials, folder)


def narrowed(space: Space, argv: Sequence[str], config: RunConfig) -> Space:
    """The space without what the command line, parsed as `config`, fixes: `--experts.K 3` takes the place of a search
    over K."""
    given = {word[2:].split("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    return space.without({key: value for key, value in flatten(dataclasses.asdict(config)).items() if key in given})


def plan(space: Space, options: Options, folder: Path) -> list[Trial]:
    """All trials in a fixed order, whether finished or not."""
    from raypref.data.sources import identified
    from raypref.evaluation.runs import varying
    from raypref.storage.results import folder_name

    configs = list(map(identified, space.trials(options.config, options.smoke, options.seeds)))
    flat = [flatten(to_dict(config)) for config in configs]
    keys = varying(flat)
    return [
        Trial(config, folder / folder_name(config), {key: values[key] for key in keys})
        for config, values in zip(configs, flat, strict=True)
    ]


def sweep(name: str, space: Space, options: Options, trials: Sequence[Trial], folder: Path) -> int:
    """Run what is missing, then rank what there is."""
    with checkpoint.locked(folder, "wait for it, or choose another --out"):
        missing = [trial for trial in trials if not trial.finished]
        console.say(f"{folder}\ntrials: {len(trials)}, finished already: {len(trials) - len(missing)}")
        begun = [trial for trial in missing if trial.begun]
        if begun and not options.resume:
            raise UserError(
                f"{len(begun)} trials in {folder} were begun but not finished (the first: {begun[0].label}); add "
                "--resume to finish them, or choose another --out"
            )
        wanted = bundles(missing)
        to = tracker(name) if options.track else None
        if missing:
            check_cluster(list(wanted.values()), folder, to, options.config.clients.wait)
        try:
            with parent(to, folder, trials) as run:
                to = dataclasses.replace(to, parent=run.id) if to else None
                failures = execute(missing, wanted, to, folder, options.adapters, space.rank)
                conclude(trials, failures, folder, space.rank, run)
                if failures:
                    raise TrialsFailed(f"{len(failures)} of {len(trials)} trials failed")
        except TrialsFailed as failed:
            console.say(f"{failed}; what they left is kept, --resume goes on from there")
            return 1
        finally:
            closing(to, [trial.folder for trial in trials], folder)
    return 0


class TrialsFailed(Exception):
    """At least one trial failed; makes FAILED the status of the sweep's run in MLflow."""


def bundles(trials: Sequence[Trial]) -> dict[str, list[dict[str, float]]]:
    """The resources that each trial requests of Ray, by folder name. Raises `UserError` on whatever could not run."""
    from raypref.clients import actors

    return {trial.folder.name: actors.bundles(trial.config, len(inputs.sizes)) for trial, inputs in prepared(trials)}


def prepared(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Inputs]]:
    """Every trial with its inputs, trials of the same data together, so that each data set is read once and let go."""
    from raypref.experiment import loop as experiment

    def data(trial: Trial) -> str:
        # Synthetic and dealt data depend on the seed; other data are then read once a seed, which costs little.
        return repr((trial.config.data, trial.config.model.base, trial.config.seed))

    for _, group in groupby(sorted(trials, key=data), data):
        first, *others = group
        inputs = experiment.prepare(first.config)
        yield first, inputs
        for trial in others:
            yield trial, experiment.prepare_like(inputs, trial.config)


def check_cluster(
    wanted: Sequence[list[dict[str, float]]], folder: Path, to: Tracker | None, wait: float = 0.0
) -> None:
    """Join or start Ray, and wait where it grows; `UserError` where a trial would wait for ever, or a node could not
    do its part."""
    import ray

    from raypref.clients import actors

    actors.start_ray()
    # What is too large for every node type is refused before anything smaller is waited for.
    for requested in sorted(wanted, key=lambda bundles: sum(b.get("CPU", 0.0) for b in bundles), reverse=True):
        actors.check_fits(requested, wait)
    side_by_side = min(actors.at_once(requested, actors.cluster(), len(wanted)) for requested in wanted)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    where = f"{len(nodes)} node{'s' * (len(nodes) > 1)}"
    console.say(f"{len(wanted)} to run on {where}, {side_by_side} at a time")
    check_tracker(to, {node["NodeManagerAddress"] for node in nodes})
    actors.check_shared(folder)


def check_tracker(to: Tracker | None, hosts: set[str]) -> None:
    """`UserError` where trials on several machines would write to a database that is a file on one of them."""
    if to and len(hosts) > 1 and (to.uri.startswith(("sqlite:", "file:")) or "://" not in to.uri):
        raise UserError(
            f"the cluster has {len(hosts)} machines, and {to.uri} is a file on one; start `mlflow server` and set "
            "MLFLOW_TRACKING_URI to its address, or give --no-track"
        )


@contextlib.contextmanager
def parent(to: Tracker | None, folder: Path, trials: Sequence[Trial]) -> Iterator[Any]:
    """The sweep's run in MLflow (None: untracked), one for the folder however often it is continued.

    Runs that a kill -9 left open are closed when it starts, those of an interrupted sweep when it ends.
    """
    if to is None:
        yield None
        return

    from raypref.storage import tracking

    def close() -> None:
        children = {trial.mlflow["run_id"] for trial in trials if trial.mlflow.get("experiment") == to.experiment}
        tracking.close_stale(to.uri, to.experiment_id, children)

    record = folder / "sweep.json"
    run_id = checkpoint.read_json(record)["run_id"] if record.exists() else None
    flat = [flatten(to_dict(trial.config)) for trial in trials]
    params = {key: flat[0][key] for key in flat[0] if all(f[key] == flat[0][key] for f in flat)}
    params |= {f"search.{k}": str(list(dict.fromkeys(str(f[k]) for f in flat))) for k in flat[0] if k not in params}
    tags = {"raypref.folder": str(folder)}
    close()
    with tracking.Run(to.uri, to.experiment_id, f"sweep {folder.name}", params, tags, run_id=run_id) as run:
        checkpoint.write_json(record, {"uri": to.uri, "experiment": to.experiment, "run_id": run.id})
        try:
            yield run
        finally:
            close()


def execute(
    missing: Sequence[Trial],
    wanted: Mapping[str, list[dict[str, float]]],
    to: Tracker | None,
    folder: Path,
    adapters: bool,
    metric: str,
) -> dict[str, str]:
    """Run trials, each within its placement group -> reason by folder name of those that failed."""
    if not missing:
        return {}
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import logging

    import ray
    from ray import tune

    for logger in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # a failed trial is reported below, in a line
    by_name = {trial.folder.name: trial for trial in missing}

    class Lines(tune.Callback):
        """A line when a trial starts and one when it ends."""

        done, began = 0, time.monotonic()

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            console.say(f"started {by_name[trial.config['trial']].label}")

        def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            console.say(f"{by_name[trial.config['trial']].label}: its process or node was lost; it goes on")

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            last = trial.last_result
            self.end(trial, "FAILED" if "error" in last else f"validation {metric} {last[metric]:.3f}")

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.end(trial, "FAILED")

        def end(self, trial: Any, how: str) -> None:
            self.done += 1
            spent = time.monotonic() - self.began
            left = spent / self.done * (len(missing) - self.done)
            ahead = f", about {console.clock(left)} left" if left else ""
            console.say(
                f"{self.done}/{len(missing)} {by_name[trial.config['trial']].label}: {how}, "
                f"{console.clock(spent)} since the start{ahead}"
            )

    storage = folder / "tune"
    shutil.rmtree(storage, ignore_errors=True)  # only Tune's own notes: what a resume needs is in the trials' folders
    try:
        results = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(run_trial, trials=by_name, to=to, adapters=adapters, metric=metric),
                # The empty bundle is the Tune function's own: it waits, while server and clients fill the others.
                lambda point: tune.PlacementGroupFactory([{}, *wanted[point["trial"]]]),
            ),
            param_space={"trial": tune.grid_search(list(by_name))},
            tune_config=tune.TuneConfig(reuse_actors=True),  # a process that has its libraries takes the next trial
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(folder),
                verbose=0,
                callbacks=[Lines()],
                # Only a lost process or node: what a trial raises is an outcome, see `run_trial`.
                failure_config=tune.FailureConfig(max_failures=missing[0].config.clients.restarts),
            ),
        ).fit()
    except BaseException:
        # Ends the trials' processes, so that nothing writes behind us. It fails no call that may be finishing: Ray's
        # threads are stopped, as at the end of every process.
        ray.shutdown()
        raise
    failures = {}
    for result in results:
        report = by_name[result.config["trial"]].folder / "error.txt"
        report.unlink(missing_ok=True)
        error, trace = (result.metrics or {}).get("error", ""), (result.metrics or {}).get("trace", "")
        if result.error is not None:
            error, trace = reason(result.error), str(result.error)
        if error:
            checkpoint.write_bytes(report, re.sub(r"\x1b\[[0-9;]*m", "", trace).encode())
            failures[result.config["trial"]] = error
    return failures


def run_trial(
    point: Mapping[str, str], trials: Mapping[str, Trial], to: Tracker | None, adapters: bool, metric: str
) -> None:
    """Tune's function: the only process of its trial that saves and tracks. Tune hears the validation number only, or
    what was raised."""
    from ray import tune
    from ray.util import get_current_placement_group, placement_group_table

    from raypref.evaluation.ranking import last

    trial = trials[point["trial"]]
    checkpoint.clear(trial.folder)  # of a process of this trial that was lost
    nodes = placement_group_table(get_current_placement_group())["bundles_to_node_id"]
    tags = {"raypref.nodes": " ".join(nodes[bundle] for bundle in sorted(nodes))}
    try:
        result = tracked(trial.config, trial.folder, to, adapters=adapters, label=trial.label, tags=tags)
    except Exception as error:  # Tune would begin it again as it does a lost process
        if isinstance(error, Lost) and error.displaced:
            raise  # in other places: two trials that each keep a part of theirs could wait for each other for ever
        tune.report({metric: math.nan, "error": reason(error), "trace": traceback.format_exc()})
    else:
        tune.report({metric: last(result, "validation", metric)})


def reason(error: Exception) -> str:
    """The first line of what went wrong in a trial."""
    cause = getattr(error, "cause", None) or error
    line = (str(cause).strip().splitlines() or ["no reason given"])[0]
    return line if isinstance(cause, UserError) else f"{type(cause).__name__}: {line}"


def conclude(trials: Sequence[Trial], failures: Mapping[str, str], folder: Path, metric: str, run: Any | None) -> None:
    """Write, show and track `sweep.md`, `sweep.csv` and `table.md`; then say which trials failed."""
    from raypref.evaluation import ranking, seeds

    scores, runs = [], []
    for trial in finished(trials, folder):
        result = checkpoint.read_json(trial.folder / "result.json")
        runs.append((trial.settings, result))
        values = (ranking.last(result, fold, metric) for fold in ("validation", "test"))
        scores.append(ranking.Score(trial.settings, trial.config.seed, *values))
    lines = ranking.ranking(scores, metric)
    if lines:
        written = {
            "sweep.md": ranking.markdown(lines, metric),
            "sweep.csv": ranking.to_csv(lines, metric),
            "table.md": seeds.markdown(runs),
        }
        for name, text in written.items():
            checkpoint.write_bytes(folder / name, text.encode())
            if run:
                run.artifact(folder / name)
        console.say(f"\n{written['sweep.md']}")
    for trial in trials:
        if trial.folder.name in failures:
            console.say(f"FAILED {trial.label}: {failures[trial.folder.name]} ({trial.folder}/error.txt)")


def finished(trials: Sequence[Trial], folder: Path) -> list[Trial]:
    """Finished trials of these configurations, those with other seeds from earlier sweeps in the folder included."""
    settings = {dataclasses.replace(trial.config, seed=0).key: trial.settings for trial in trials}
    order = list(settings)
    done = []
    for path in sorted(folder.glob("*/result.json")):
        config = read_config(path.parent)
        key = dataclasses.replace(config, seed=0).key
        if key in settings:
            done.append((order.index(key), config.seed, Trial(config, path.parent, settings[key])))
    return [trial for _, _, trial in sorted(done, key=lambda entry: entry[:2])]


def dry_run(trials: Sequence[Trial], card: str = "") -> int:
    """Print what the trials would take, for `--dry-run`; card: that they were fitted to."""
    import torch

    from raypref.clients import actors
    from raypref.config.spaces import usable_gib
    from raypref.experiment import forecast, memory

    missing = [trial for trial in trials if not trial.finished]
    configurations = len({dataclasses.replace(trial.config, seed=0).key for trial in trials})
    console.say(
        f"trials: {len(trials)}, of {configurations} configurations; finished already: {len(trials) - len(missing)}; "
        f"to run: {len(missing)}"
    )
    if not missing:
        return 0
    machine = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
    costs = forecast.Costs()
    runs, requests, on_card = [], [], []
    for trial, inputs in prepared(missing):
        if not runs and (machine["GPU"] or not trial.config.clients.gpus_per_actor):
            costs = forecast.measure(inputs)
        runs.append(forecast.predict(inputs, costs))
        requests.append(actors.bundles(trial.config, len(inputs.sizes)))
        if trial.config.clients.gpus_per_actor:
            on_card.append((forecast.actor_memory(inputs, runs[-1]), trial.config))

    client_actors = [len(bundles) - 1 for bundles in requests]
    share = ", ".join(f"{n:g} {kind}" for kind, n in requests[0][-1].items())
    fitting = min(actors.at_once(bundles, [machine], len(missing)) for bundles in requests)
    console.say(
        f"each asks for {requests[0][0]['CPU']:g} CPU for its server and {share} for each client actor "
        f"({span(client_actors, '{:.0f}')}); {fitting} at a time fit on this machine "
        f"({machine['CPU']:g} CPU, {machine['GPU']:g} GPU)"
    )
    up, down = ([getattr(run.used, name) / 1e6 for run in runs] for name in ("bytes_up", "bytes_down"))
    rounds = [max(run.rounds, 1) for run in runs]
    round_up, round_down = ([mb / n for mb, n in zip(total, rounds, strict=True)] for total in (up, down))
    console.say(
        f"parameters: {span([run.width for run in runs], '{:,.0f}')} trainable (D); state of an algorithm "
        f"{span([run.state / 1e6 for run in runs])} MB\n"
        f"bytes: a round {span(round_up)} MB up and {span(round_down)} MB down, "
        f"a trial {span(up)} and {span(down)}, together {sum(up):,.1f} and {sum(down):,.1f}"
    )
    size = usable_gib(card) if card else memory.here()
    if on_card:
        most, config = max(on_card, key=lambda entry: memory.on_a_card(entry[1]) * entry[0].total)
        actor = f"GiB of its card that a client actor takes at most ({config.method})"
        console.say(most.sentence(actor, memory.on_a_card(config), size))
        if config.rlhf.gpus_per_worker and not registry.objective(config.objective).is_policy:
            console.say(memory.policy_worker(config).sentence("GiB that stage 2 takes there", card=size))
    if costs == forecast.Costs():
        console.say("hours and the machine's own memory: not known, for there is no GPU here to time a step on")
        return 0
    process, actor = costs.process / 1e9, costs.actor / 1e9
    memory = 2 * process + max(client_actors) * actor
    console.say(
        f"memory: {actor:.2f} GB a client actor, {process:.2f} GB a server and as much for the trial's function; so "
        f"{memory:.1f} GB a trial, {max(fitting, 1) * memory:.1f} GB for {max(fitting, 1)} at a time"
    )
    minutes = [run.seconds / 60 for run in runs]
    console.say(
        f"time: {span(minutes)} minutes a trial, {sum(minutes) / 60 / max(fitting, 1):,.2f} hours for all, "
        f"{max(fitting, 1)} at a time: an estimate from {1e3 * costs.step:.1f} ms a client's step and "
        f"{1e3 * costs.comparison:.2f} ms a comparison, timed here; start-up and transfers come on top"
    )
    return 0


def span(values: Sequence[float], form: str = "{:,.2f}") -> str:
    """The range of the values: 'a to b', or 'a' where they read alike."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    from raypref.sweep import command as importable  # Tune's workers look functions up by their module's name

    sys.exit(console.main(importable, sys.argv[1:], "; the same words with --resume go on from here"))
