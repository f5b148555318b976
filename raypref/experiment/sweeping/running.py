"""A sweep's trials, run through Ray Tune, each within a placement group of its own."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import tune
from ray.util import get_current_placement_group, placement_group_table

from raypref.clients import actors
from raypref.config import UserError, override
from raypref.evaluation.ranking import last
from raypref.experiment.sweeping.tracked import check_tracker
from raypref.experiment.sweeping.trials import Search, Trial, in_one_process, prepared
from raypref.experiment.sweeping.tuning import asha, proposals
from raypref.experiment.tracked import Tracker, tracked
from raypref.tools import checkpoint, console
from raypref.tools.errors import Lost, Stopped
from raypref.tools.secrets import hidden

ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a relative path such as --model.base ./base stays what it was
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
}
"""Set before Tune runs: no table every few seconds, no files of its own a trial, Ctrl-C ends the sweep at once, and a
busy cluster is not an error."""

Bundles = list[dict[str, float]]
"""What a trial asks of Ray; see `raypref.clients.actors.bundles`."""


def bundles(trials: Sequence[Trial]) -> dict[str, Bundles]:
    """The resources that each trial requests of Ray, by folder name. Raises `UserError` on whatever could not run."""
    return {trial.folder.name: actors.bundles(trial.config, len(inputs.sizes)) for trial, inputs in prepared(trials)}


def check_cluster(wanted: Sequence[Bundles], search: Search, to: Tracker | None) -> None:
    """Join or start Ray, and wait where it grows; `UserError` where a trial would wait for ever, or a node could not
    do its part."""
    actors.start_ray()
    # What is too large for every node type is refused before anything smaller is waited for.
    for requested in sorted(wanted, key=lambda bundles: sum(b.get("CPU", 0.0) for b in bundles), reverse=True):
        actors.check_fits(requested, search.options.config.clients.wait)
    side_by_side = min(actors.at_once(requested, actors.cluster(), len(wanted)) for requested in wanted)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    where = f"{len(nodes)} node{'s' * (len(nodes) > 1)}"
    console.say(f"{len(wanted)} to run on {where}, {side_by_side} at a time")
    check_tracker(to, {node["NodeManagerAddress"] for node in nodes})
    actors.check_shared(search.folder)


class Lines(tune.Callback):  # type: ignore[misc]
    """A line when a trial starts and one when it ends."""

    def __init__(self, search: Search, left: int) -> None:
        """left: trials that are to run."""
        self.search, self.left = search, left
        self.done, self.began = 0, time.monotonic()

    def of(self, trial: Any) -> Trial:
        return self.search.trial(trial.config["trial"])

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        console.say(f"started {self.of(trial).label}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        console.say(f"{self.of(trial).label}: its process or node was lost; it goes on")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        read, metric = trial.last_result or {}, self.search.metric
        value = f"{metric} {read.get(metric, math.nan):.3f}"
        if "error" in read:
            self.end(trial, "FAILED")
        elif self.of(trial).stopped:
            self.end(trial, f"stopped early after round {read['round']}, {value}")
        elif metric in read and "round" not in read:
            self.end(trial, value)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.end(trial, "FAILED")

    def end(self, trial: Any, how: str) -> None:
        self.done += 1
        spent = time.monotonic() - self.began
        ahead = spent / self.done * (self.left - self.done)
        console.say(
            f"{self.done}/{self.left} {self.of(trial).label}: {how}, "
            f"{console.clock(spent)} since the start{f', about {console.clock(ahead)} left' if ahead else ''}"
        )


def execute(
    search: Search, missing: Sequence[Trial], wanted: Mapping[str, Bundles], to: Tracker | None
) -> dict[str, str]:
    """Run the missing trials, each within its placement group -> reason by folder name of those that failed.

    missing: `Search.missing` as it was when the command began; of a search proposals are added to it.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for logger in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # a failed trial is reported below, in a line
    options, folder = search.options, search.folder
    left = search.most - len(search.trials) + len(missing)
    shutil.rmtree(folder / "tune", ignore_errors=True)  # only Tune's own notes: a resume needs the trials' folders
    of_any = next(iter(wanted.values()))  # proposals differ in nothing that Ray is asked for
    began = time.monotonic()
    try:
        results = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(run_trial, search=search, to=to),
                # The empty bundle is the Tune function's own: it waits, while server and clients fill the others, or
                # does their work on the first one's node.
                lambda point: tune.PlacementGroupFactory([{}, *wanted.get(point["trial"], of_any)]),
            ),
            param_space={} if search.base else {"trial": tune.grid_search([trial.folder.name for trial in missing])},
            tune_config=tune.TuneConfig(
                reuse_actors=True,  # a process that has its libraries takes the next trial
                search_alg=proposals(search, missing) if search.base else None,
                num_samples=left if search.base else 1,
                scheduler=asha(search, missing) if options.scheduler == "asha" else None,
                max_concurrent_trials=options.concurrency or None,
                time_budget_s=3600 * options.max_hours or None,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(folder),
                verbose=0,
                callbacks=[Lines(search, left)],
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
        if name := (result.config or {}).get("trial"):
            report, read = folder / name / "error.txt", result.metrics or {}
            report.unlink(missing_ok=True)
            error, trace = read.get("error", ""), read.get("trace", "")
            if result.error is not None:
                error, trace = reason(result.error), hidden(str(result.error))
            if error:
                checkpoint.write_bytes(report, re.sub(r"\x1b\[[0-9;]*m", "", trace).encode())
                failures[name] = error
    return failures


def run_trial(point: Mapping[str, str], search: Search, to: Tracker | None) -> None:
    """Tune's function: the only process of its trial that saves and tracks. Tune hears validation numbers only, of the
    result and of the readings before it, or what was raised."""
    trial, reports = search.trial(point["trial"]), search.reports
    checkpoint.clear(trial.folder)  # of a process of this trial that was lost
    where = placement_group_table(get_current_placement_group())["bundles_to_node_id"]
    nodes, config = [where[bundle] for bundle in sorted(where)], trial.config
    if len(set(nodes)) == 1 and in_one_process(config, len(nodes)):
        config = override(config, {"clients.backend": "local"})

    def heard(read: Mapping[str, Any]) -> None:
        try:
            tune.report({search.metric: read["metrics"][search.rank]} | {k: read[k] for k in ("round", "client_steps")})
        except SystemExit as end:  # this is how Tune ends a trial
            raise Stopped from end

    try:
        result = tracked(
            config, trial.folder, to, adapters=search.options.adapters, label=trial.label,
            tags={"raypref.nodes": " ".join(nodes)}, reports=reports, heard=heard if reports else None,
        )  # fmt: skip
    except Stopped:
        raise SystemExit(0) from None
    except Exception as error:  # Tune would begin it again as it does a lost process
        if isinstance(error, Lost) and error.displaced:
            raise  # in other places: two trials that each keep a part of theirs could wait for each other for ever
        tune.report({search.metric: math.nan, "error": reason(error), "trace": hidden(traceback.format_exc())})
    else:
        tune.report({search.metric: last(result, "validation", search.rank)})


def reason(error: Exception) -> str:
    """The first line of what went wrong in a trial."""
    cause = getattr(error, "cause", None) or error
    line = (str(cause).strip().splitlines() or ["no reason given"])[0]
    return line if isinstance(cause, UserError) else hidden(f"{type(cause).__name__}: {line}")
