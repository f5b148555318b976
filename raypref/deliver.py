"""`python -m raypref.deliver RUN …`: give MLflow what it lacks of runs that are on disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from raypref.config import UserError, read_config
from raypref.experiment.tracked import Tracker, mlflow_record, tracked, tracked_policy, tracker
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse


@dataclass(frozen=True)
class Options:
    """Bring finished runs to MLflow, whether it was away when they ended or they were made without it.

    What MLflow has already stays as it is."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Folders of runs, policies or sweeps."""
    experiment: str = ""
    """MLflow experiment of runs that were made without MLflow. Default: the name of their algorithm."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`. Exit status 1 where MLflow has not taken everything."""
    options = parse(Options, argv or ["--help"], "python -m raypref.deliver")
    folders = [folder for word in options.runs for folder in finished(Path(word).expanduser().absolute())]
    missing = 0
    for folder in folders:
        if mlflow_record(folder).get("done"):
            console.say(f"{folder}: MLflow has all of it")
            continue
        with checkpoint.locked(folder):
            to = deliver(folder, options.experiment)
        done = mlflow_record(folder).get("done", False)
        missing += not done
        console.say(f"{folder}: {'delivered to' if done else 'not delivered to'} {to.uri}, experiment {to.experiment}")
    return int(missing > 0)


def finished(folder: Path) -> Iterator[Path]:
    """The finished runs and policies in this folder, itself among them. Raises `UserError` where there is none."""
    files = [path for name in ("result.json", "policy.json") for path in folder.rglob(name)]
    if not files:
        raise UserError(f"{folder} holds no finished run; python -m raypref.run with --resume finishes one")
    yield from sorted({path.parent for path in files})


def deliver(folder: Path, experiment: str) -> Tracker:
    """Track a finished run or policy in the MLflow run that it has, or else in a new one; returns where."""
    from raypref.experiment.publish import publish_judgements
    from raypref.policy import follow

    config, record = read_config(folder), mlflow_record(folder)
    to = tracker(record.get("experiment") or experiment or config.algorithm, record.get("uri"))
    if (folder / "result.json").exists():
        tracked(config, folder, to, adapters=False)
        return to
    with tracked_policy(config, folder, to, mlflow_record(folder.parent).get("run_id")) as track:
        follow.publish(folder, track)
        publish_judgements(folder, track)
    return to


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
