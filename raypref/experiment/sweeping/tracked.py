"""A sweep's run in MLflow, and what becomes of those of its trials that were stopped early."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from raypref.config import RunConfig, UserError, flatten, identity, to_dict
from raypref.experiment.sweeping.trials import Search, Trial
from raypref.experiment.tracked import Tracker
from raypref.tools import checkpoint
from raypref.tools.secrets import hidden


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
    flat = [flatten(to_dict(trial.config)) for trial in search.examples]
    usual = flatten(to_dict(RunConfig()))
    flat = [identity.logged(f, usual) for f in flat]
    flat = [{key: f.get(key, "") for of in flat for key in of} for f in flat]  # of several methods
    params = {key: flat[0][key] for key in flat[0] if all(f[key] == flat[0][key] for f in flat)}
    params |= {f"search.{k}": str(list(dict.fromkeys(str(f[k]) for f in flat))) for k in flat[0] if k not in params}
    params |= {f"search.{key}": f"{kind} {low:g} to {high:g}" for key, (kind, low, high) in search.ranges.items()}
    tags = {"raypref.folder": str(search.folder), **to.source}
    close()
    name = f"sweep {search.folder.name}"
    with tracking.Run(to.uri, to.experiment_id, name, params, tags, run_id=run_id) as run:
        checkpoint.write_json(record, {"uri": hidden(to.uri), "experiment": to.experiment, "run_id": run.id})
        try:
            yield run
        finally:
            close()


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

            if tracking.mark_stopped(tracking.revealed(record["uri"]), record["run_id"], stopped["round"]):
                checkpoint.write_json(trial.folder / "mlflow.json", record | {"done": True})
