"""`python -m raypref.sweep NAME [--field value …]`: every trial of a search space, as many at once as fit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from raypref.config import RunConfig, UserError, flatten, from_dict, nearest, override, read_config, registry, to_dict
from raypref.config.spaces import Space, listing, load_space
from raypref.experiment.tracked import Tracker, closing, mlflow_record, tracked, tracker
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse
from raypref.tools.errors import Lost, Stopped
from raypref.tools.folders import output_folder

if TYPE_CHECKING:
    from raypref.clients.pool import Inputs
    from raypref.experiment.reports import Reports

PROPOSED = 24
"""Trials that `--search optuna` proposes where nobody says how many."""
PROPOSALS = "proposals.jsonl"
"""The journal of those that it has proposed, in the sweep's folder."""
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
    search: Literal["grid", "optuna"] = "grid"
    """`optuna` proposes values from the space's ranges by what earlier trials came to, all at --seed; the grid is left
    aside. Needs `pip install raypref[optuna]`."""
    scheduler: Literal["all", "asha"] = "all"
    """`asha` stops trials that do badly beside others of the same data and seed, by validation between rounds. `all`
    runs every trial to its end, with --resume also those that were stopped."""
    grace: int = 0
    """Of asha: rounds that every trial runs before it is first compared; it is again at --reduction times as many, and
    so on. 0: a ninth of the rounds."""
    reduction: float = 3.0
    """Of asha: of the trials that have come as far, the best one in so many goes on."""
    report_every: int = 0
    """Rounds between two readings of validation; 0: none, or with asha as many as --grace. They cost time, and change
    nothing of any result."""
    report_clients: int = 10
    """Most clients that are read, drawn by the seed and the same each time."""
    max_trials: int = 0
    """Most trials, those that are there already included: the first of the grid; 0: all of it, or 24 of optuna's."""
    max_hours: float = 0.0
    """Hours after which this command stops all trials where they are, ranks what is finished and ends; 0: no limit."""
    concurrency: int = 0
    """Most trials at a time; 0: as many as fit."""
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

    @property
    def stopped(self) -> dict[str, Any]:
        """`round`, `validation` and `client_steps` where asha has stopped it; {} where it goes on, or is finished."""
        path = self.folder / "stopped.json"
        return checkpoint.read_json(path) if path.exists() and not (self.folder / "result.json").exists() else {}


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
    if options.config.clients.backend != "ray":
        raise UserError("a sweep runs on Ray, so clients.backend must be 'ray'; raypref.run runs one trial without")
    if options.config.clients.server_cpus <= 0:
        raise UserError("clients.server_cpus must be above 0 in a sweep: a placement group has no empty bundles")
    if options.config.clients.pooled_workers > 1:
        raise UserError(
            "clients.pooled_workers must be 1 in a sweep: Ray Train asks for places of its own, for which trials that "
            "hold all others would wait for ever; train such a model with raypref.run"
        )

    from raypref.data.sources import identified
    from raypref.evaluation.ranking import BEST

    if space.rank not in BEST:
        raise UserError(f"tune_spaces/{name}.py ranks by {space.rank!r}{nearest(space.rank, BEST)}")
    check_budget(options)
    folder = output_folder(options.out) / (f"{name}-smoke" if options.smoke else name)
    if options.search == "optuna":
        base = Trial(identified(options.config), folder / "proposal", {})
        ranges = space.searched(base.config)
        if options.dry_run:
            words = ", ".join(f"{key} {kind} {low:g} to {high:g}" for key, (kind, low, high) in ranges.items())
            console.say(f"up to {options.max_trials or PROPOSED} trials of {words}; one of them at the base's values:")
            return dry_run([base], options.card)
        trials = [trial for trial in proposed(folder) if override(base.config, trial.settings) == trial.config]
        return sweep(name, Search(space.rank, options, folder, trials, base, ranges))
    trials = plan(space, options, folder)
    trials = trials[: options.max_trials or len(trials)]
    return (
        dry_run(trials, options.card) if options.dry_run else sweep(name, Search(space.rank, options, folder, trials))
    )


def check_budget(options: Options) -> None:
    """`UserError` where what is said of readings, of asha or of budgets cannot be."""
    rounds, grace = options.config.federation.rounds, options.grace
    for name in ("grace", "report_every", "max_trials", "max_hours", "concurrency"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must not be negative")
    if options.report_clients < 1:
        raise UserError(f"--report-clients is {options.report_clients}; it must be at least 1")
    if options.reduction <= 1:
        raise UserError(f"--reduction is {options.reduction:g}; it must be above 1, such as 3: the best third goes on")
    if options.scheduler == "asha" and (first := max(grace, options.report_every)) >= rounds:
        raise UserError(
            f"asha compares trials after {max(first, 1)} rounds at the earliest, which is all that they have "
            f"(federation.rounds is {rounds}); lower --grace or --report-every, or give --scheduler all"
        )
    if options.search == "optuna" and options.seeds:
        raise UserError("--search optuna compares trials of one seed; give --seed in the place of --seeds")


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


@dataclass(frozen=True)
class Search:
    """A sweep on its way: what it ranks by, how it goes about it, and its trials so far."""

    rank: str
    """Metric on the validation fold."""
    options: Options
    folder: Path
    trials: list[Trial]
    """Of a grid all there will be; proposals are added as they are made."""
    base: Trial | None = None
    """What proposals differ from; None: the grid."""
    ranges: Mapping[str, tuple[str, float, float]] = field(default_factory=dict)
    """What is searched: dotted key -> kind, low, high."""

    @property
    def metric(self) -> str:
        """What Tune calls the number that trials are compared by."""
        return f"validation {self.rank}"

    @property
    def mode(self) -> str:
        from raypref.evaluation.ranking import BEST

        return "max" if BEST[self.rank] > 0 else "min"

    @property
    def missing(self) -> list[Trial]:
        """The trials that are to run, or to run on; what asha has stopped is not, while asha is asked for."""
        ended = [bool(t.finished or (t.stopped and self.options.scheduler == "asha")) for t in self.trials]
        return [trial for trial, over in zip(self.trials, ended, strict=True) if not over]

    @property
    def most(self) -> int:
        """Trials that there will be at most."""
        return (self.options.max_trials or PROPOSED) if self.base else len(self.trials)

    @property
    def grace(self) -> int:
        return self.options.grace or max(1, self.options.config.federation.rounds // 9)

    @property
    def reports(self) -> Reports | None:
        """When validation is read between rounds; None: never."""
        from raypref.experiment.reports import Reports

        asha = self.options.scheduler == "asha"
        every = self.options.report_every or (self.grace if asha else 0)
        return Reports(every, self.options.report_clients) if every else None


def sweep(name: str, search: Search) -> int:
    """Run what is missing, then rank what there is."""
    options, folder, trials = search.options, search.folder, search.trials
    with checkpoint.locked(folder, "wait for it, or choose another --out"):
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
        left = search.most - len(ended)
        wanted = bundles([search.base] if search.base else missing) if left > 0 else {}
        to = tracker(name) if options.track else None
        if wanted:
            check_cluster(list(wanted.values()) * (left if search.base else 1), folder, to, options.config.clients.wait)
        for trial in missing:
            unstop(trial)
        try:
            with parent(to, search) as run:
                to = dataclasses.replace(to, parent=run.id) if to else None
                failures = execute(search, left, wanted, to) if wanted else {}
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
    return 0


def unstop(trial: Trial) -> None:
    """Have a trial that was stopped early go on, in its MLflow run."""
    if trial.stopped:
        (trial.folder / "stopped.json").unlink()
        if record := trial.mlflow:
            checkpoint.write_json(trial.folder / "mlflow.json", record | {"done": False})


def mark_stopped(trials: Sequence[Trial]) -> None:
    """Tell MLflow which trials were stopped early, whatever became of their processes."""
    for trial in trials:
        record, stopped = trial.mlflow, trial.stopped
        if stopped and record.get("run_id") and not record.get("done"):
            from raypref.storage import tracking

            if tracking.mark_stopped(record["uri"], record["run_id"], stopped["round"]):
                checkpoint.write_json(trial.folder / "mlflow.json", record | {"done": True})


def proposed(folder: Path) -> list[Trial]:
    """The trials that Optuna has proposed in this folder, whatever they differ from, in their order."""
    lines = checkpoint.read_lines(folder / PROPOSALS)
    return [Trial(from_dict(line["config"]), folder / line["trial"], line["values"]) for line in lines]


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
def parent(to: Tracker | None, search: Search) -> Iterator[Any]:
    """The sweep's run in MLflow (None: untracked), one for the folder however often it is continued.

    Runs that a kill -9 left open are closed when it starts, those of an interrupted sweep when it ends.
    """
    if to is None:
        yield None
        return

    from raypref.storage import tracking

    def close() -> None:
        children = {
            trial.mlflow["run_id"] for trial in search.trials if trial.mlflow.get("experiment") == to.experiment
        }
        tracking.close_stale(to.uri, to.experiment_id, children)

    record = search.folder / "sweep.json"
    run_id = checkpoint.read_json(record)["run_id"] if record.exists() else None
    flat = [flatten(to_dict(trial.config)) for trial in ([search.base] if search.base else search.trials)]
    params = {key: flat[0][key] for key in flat[0] if all(f[key] == flat[0][key] for f in flat)}
    params |= {f"search.{k}": str(list(dict.fromkeys(str(f[k]) for f in flat))) for k in flat[0] if k not in params}
    params |= {f"search.{key}": f"{kind} {low:g} to {high:g}" for key, (kind, low, high) in search.ranges.items()}
    tags = {"raypref.folder": str(search.folder)}
    close()
    name = f"sweep {search.folder.name}"
    with tracking.Run(to.uri, to.experiment_id, name, params, tags, run_id=run_id) as run:
        checkpoint.write_json(record, {"uri": to.uri, "experiment": to.experiment, "run_id": run.id})
        try:
            yield run
        finally:
            close()


def execute(
    search: Search, left: int, wanted: Mapping[str, list[dict[str, float]]], to: Tracker | None
) -> dict[str, str]:
    """Run at most `left` trials, each within its placement group -> reason by folder name of those that failed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import logging

    import ray
    from ray import tune

    for logger in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # a failed trial is reported below, in a line
    options, folder = search.options, search.folder
    by_name = {trial.folder.name: trial for trial in search.trials}
    missing = [trial.folder.name for trial in search.missing]

    class Lines(tune.Callback):
        """A line when a trial starts and one when it ends."""

        done, began = 0, time.monotonic()

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            console.say(f"started {by_name[trial.config['trial']].label}")

        def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            console.say(f"{by_name[trial.config['trial']].label}: its process or node was lost; it goes on")

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            last = trial.last_result or {}
            value = f"{search.metric} {last.get(search.metric, math.nan):.3f}"
            if "error" in last:
                self.end(trial, "FAILED")
            elif by_name[trial.config["trial"]].stopped:
                self.end(trial, f"stopped early after round {last['round']}, {value}")
            elif search.metric in last and "round" not in last:
                self.end(trial, value)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.end(trial, "FAILED")

        def end(self, trial: Any, how: str) -> None:
            self.done += 1
            spent = time.monotonic() - self.began
            ahead = spent / self.done * (left - self.done)
            console.say(
                f"{self.done}/{left} {by_name[trial.config['trial']].label}: {how}, "
                f"{console.clock(spent)} since the start{f', about {console.clock(ahead)} left' if ahead else ''}"
            )

    storage = folder / "tune"
    shutil.rmtree(storage, ignore_errors=True)  # only Tune's own notes: what a resume needs is in the trials' folders
    of_any = next(iter(wanted.values()))  # proposals differ in nothing that Ray is asked for
    known = {name: by_name[name] for name in missing}
    function = tune.with_parameters(
        run_trial, trials=known, folder=folder, to=to, adapters=options.adapters, metric=search.rank,
        reports=search.reports,
    )  # fmt: skip
    began = time.monotonic()
    try:
        results = tune.Tuner(
            tune.with_resources(
                function,
                # The empty bundle is the Tune function's own: it waits, while server and clients fill the others.
                lambda point: tune.PlacementGroupFactory([{}, *wanted.get(point["trial"], of_any)]),
            ),
            param_space={} if search.base else {"trial": tune.grid_search(missing)},
            tune_config=tune.TuneConfig(
                reuse_actors=True,  # a process that has its libraries takes the next trial
                search_alg=proposals(search, by_name) if search.base else None,
                num_samples=left if search.base else 1,
                scheduler=asha(search, by_name) if options.scheduler == "asha" else None,
                max_concurrent_trials=options.concurrency or None,
                time_budget_s=3600 * options.max_hours or None,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(folder),
                verbose=0,
                callbacks=[Lines()],
                # Only a lost process or node: what a trial raises is an outcome, see `run_trial`.
                failure_config=tune.FailureConfig(max_failures=options.config.clients.restarts),
            ),
        ).fit()
    except BaseException:
        # Ends the trials' processes, so that nothing writes behind us. It fails no call that may be finishing: Ray's
        # threads are stopped, as at the end of every process.
        ray.shutdown()
        raise
    if options.max_hours and time.monotonic() - began >= 3600 * options.max_hours:
        ray.shutdown()  # as above: trials were stopped in the middle
        console.say(f"the {options.max_hours:g} hours are over")
    failures = {}
    for result in results:
        if "trial" not in (result.config or {}):
            continue
        report = by_name[result.config["trial"]].folder / "error.txt"
        report.unlink(missing_ok=True)
        error, trace = (result.metrics or {}).get("error", ""), (result.metrics or {}).get("trace", "")
        if result.error is not None:
            error, trace = reason(result.error), str(result.error)
        if error:
            checkpoint.write_bytes(report, re.sub(r"\x1b\[[0-9;]*m", "", trace).encode())
            failures[result.config["trial"]] = error
    return failures


def asha(search: Search, by_name: Mapping[str, Trial]) -> Any:
    """Tune's scheduler, which knows the readings of all trials that have ended."""
    from raypref.experiment.tuning import Asha

    def kind(name: str) -> str:
        config = by_name[name].config
        return repr((config.data, config.seed, config.federation.rounds))

    def stop(name: str, read: Mapping[str, Any]) -> None:
        """Written before the trial hears of it: whatever is killed from here on, it has been stopped."""
        values = {"round": read["round"], "validation": read[search.metric], "client_steps": read["client_steps"]}
        checkpoint.write_json(by_name[name].folder / "stopped.json", values)

    rounds = max(trial.config.federation.rounds for trial in (search.base, *search.trials) if trial)
    scheduler = Asha(kind, search.metric, search.mode, search.grace, search.options.reduction, rounds, stop)
    missing = {trial.folder for trial in search.missing}
    for trial in search.trials:
        if trial.folder not in missing:
            readings = checkpoint.read_lines(trial.folder / "reports.jsonl")
            told = [{"round": r["round"], search.metric: r["metrics"][search.rank]} for r in readings]
            scheduler.remember(trial.folder.name, told)
    return scheduler


def proposals(search: Search, by_name: dict[str, Trial]) -> Any:
    """Optuna as Tune is given it: it knows what earlier trials came to, and first has those finished that were begun.

    New trials join `by_name` and the sweep's own list, and its journal before they start.
    """
    from raypref.evaluation.ranking import last
    from raypref.experiment import loop as experiment
    from raypref.experiment.tuning import Proposals
    from raypref.storage.results import folder_name

    assert search.base is not None
    base, folder = search.base.config, search.folder
    begun = {trial.folder.name: trial for trial in search.missing}
    journal = checkpoint.read_lines(folder / PROPOSALS)
    checkpoint.write_lines(folder / PROPOSALS, journal)  # whole again, where a kill has cut its last line

    def make(values: dict[str, Any]) -> str | None:
        config = override(base, values)
        name = folder_name(config)
        if begun.pop(name, None):
            return name
        try:
            experiment.check(config)
        except UserError:
            return None
        if name in by_name:
            return None
        by_name[name] = trial = Trial(config, folder / name, values)
        search.trials.append(trial)
        with open(folder / PROPOSALS, "a") as file:
            file.write(json.dumps({"trial": name, "values": values, "config": to_dict(config)}) + "\n")
        return name

    done = []
    for trial in search.trials:
        if trial.folder.name not in begun:
            number = trial.stopped.get("validation")
            if number is None:
                result = checkpoint.read_json(trial.folder / "result.json")
                number = last(result, "validation", search.rank)
            if math.isfinite(number):
                done.append((trial.settings, number))
    values = [trial.settings for trial in begun.values()]
    return Proposals(search.ranges, search.metric, search.mode, base.seed, make, done, values)


def run_trial(
    point: Mapping[str, str],
    trials: Mapping[str, Trial],
    folder: Path,
    to: Tracker | None,
    adapters: bool,
    metric: str,
    reports: Reports | None,
) -> None:
    """Tune's function: the only process of its trial that saves and tracks. Tune hears validation numbers only, of the
    result and of the `reports` before it, or what was raised."""
    from ray import tune
    from ray.util import get_current_placement_group, placement_group_table

    from raypref.evaluation.ranking import last

    name = point["trial"]
    trial = trials.get(name) or {trial.folder.name: trial for trial in proposed(folder)}[name]
    checkpoint.clear(trial.folder)  # of a process of this trial that was lost
    nodes = placement_group_table(get_current_placement_group())["bundles_to_node_id"]
    tags = {"raypref.nodes": " ".join(nodes[bundle] for bundle in sorted(nodes))}

    def heard(read: Mapping[str, Any]) -> None:
        try:
            tune.report(
                {f"validation {metric}": read["metrics"][metric]} | {k: read[k] for k in ("round", "client_steps")}
            )
        except SystemExit as end:  # this is how Tune ends a trial
            raise Stopped from end

    try:
        result = tracked(
            trial.config, trial.folder, to, adapters=adapters, label=trial.label, tags=tags, reports=reports,
            heard=heard if reports else None,
        )  # fmt: skip
    except Stopped:
        raise SystemExit(0) from None
    except Exception as error:  # Tune would begin it again as it does a lost process
        if isinstance(error, Lost) and error.displaced:
            raise  # in other places: two trials that each keep a part of theirs could wait for each other for ever
        tune.report({f"validation {metric}": math.nan, "error": reason(error), "trace": traceback.format_exc()})
    else:
        tune.report({f"validation {metric}": last(result, "validation", metric)})


def reason(error: Exception) -> str:
    """The first line of what went wrong in a trial."""
    cause = getattr(error, "cause", None) or error
    line = (str(cause).strip().splitlines() or ["no reason given"])[0]
    return line if isinstance(cause, UserError) else f"{type(cause).__name__}: {line}"


def conclude(search: Search, failures: Mapping[str, str], run: Any | None) -> None:
    """Write, show and track `sweep.md`, `sweep.csv` and `table.md` of the finished trials, and `trials.csv` of all;
    then say which trials are in no table."""
    from raypref.evaluation import ranking, seeds, tables

    folder, metric, trials = search.folder, search.rank, search.trials
    scores, runs = [], []
    for trial in finished(trials, folder):
        result = checkpoint.read_json(trial.folder / "result.json")
        runs.append((trial.settings, result))
        values = (ranking.last(result, fold, metric) for fold in ("validation", "test"))
        scores.append(ranking.Score(trial.settings, trial.config.seed, *values))
    lines = ranking.ranking(scores, metric)
    ends = [end_of(trial, failures, metric) for trial in trials]
    written = {"trials.csv": tables.csv_text(ends)} if ends else {}
    if lines:
        written |= {
            "sweep.md": ranking.markdown(lines, metric),
            "sweep.csv": ranking.to_csv(lines, metric),
            "table.md": seeds.markdown(runs),
        }
    for name, text in written.items():
        checkpoint.write_bytes(folder / name, text.encode())
        if run:
            run.artifact(folder / name)
    if lines:
        console.say(f"\n{written['sweep.md']}")
    for trial in trials:
        if trial.folder.name in failures:
            console.say(f"FAILED {trial.label}: {failures[trial.folder.name]} ({trial.folder}/error.txt)")
    if stopped := [end for end in ends if end["fate"] == "stopped"]:
        spent, all_spent = (sum(end["client_steps"] or 0 for end in of) for of in (stopped, ends))
        console.say(
            f"stopped early and in no table: {len(stopped)} of {len(ends)} trials, with {spent:,} of all "
            f"{all_spent:,} client steps ({folder}/trials.csv)"
        )
    if waiting := sum(end["fate"] == "unfinished" for end in ends):
        console.say(f"not finished: {waiting} trials; the same words with --resume go on")


def end_of(trial: Trial, failures: Mapping[str, str], metric: str) -> dict[str, Any]:
    """How a trial ended, as a line of `trials.csv`: its fate, rounds, the last validation number, optimizer steps over
    clients, and beside them those of the readings between rounds."""
    from raypref.evaluation import ranking
    from raypref.evaluation.runs import show

    end: dict[str, Any] = {"round": None, "validation": None, "client_steps": None}
    if (trial.folder / "result.json").exists():
        result = checkpoint.read_json(trial.folder / "result.json")
        steps = result["client_steps"]
        end = {
            "round": result["rounds"],
            "validation": ranking.last(result, "validation", metric),
            "client_steps": steps,
        }
    fate = "finished" if end["client_steps"] is not None else "stopped" if trial.stopped else "unfinished"
    settings = {key: show(v) if isinstance(v, list) else v for key, v in trial.settings.items()}
    fate = "failed" if trial.folder.name in failures else fate
    read = checkpoint.read_lines(trial.folder / "reports.jsonl")
    return {
        "trial": trial.folder.name, **settings, "seed": trial.config.seed, "fate": fate,
        **end, **trial.stopped, "report_steps": sum(line["report_steps"] for line in read),
    }  # fmt: skip


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
    trial_size = 2 * process + max(client_actors) * actor
    console.say(
        f"memory: {actor:.2f} GB a client actor, {process:.2f} GB a server and as much for the trial's function; so "
        f"{trial_size:.1f} GB a trial, {max(fitting, 1) * trial_size:.1f} GB for {max(fitting, 1)} at a time"
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
