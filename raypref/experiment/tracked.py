"""A run inside its MLflow run; `mlflow.json` in the run's folder says where that is and whether it is done."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypref.config import RunConfig, flatten, identity, to_dict
from raypref.config.identity import policy_key
from raypref.config.spaces import every_name, load_space
from raypref.tools import checkpoint, console
from raypref.tools.folders import working_folder
from raypref.tools.secrets import hidden

if TYPE_CHECKING:
    from raypref.clients.pool import Inputs
    from raypref.experiment.reports import Reports


@dataclass(frozen=True)
class Tracker:
    """Where runs are tracked: strings, so that it reaches other processes and nodes as it is."""

    uri: str
    experiment: str
    experiment_id: str
    parent: str | None = None
    """Run id of the sweep that the runs belong to."""
    command: str = ""
    """What was typed: the source of every run, also of those that a worker computes."""

    @property
    def source(self) -> dict[str, str]:
        """The tags of a run that MLflow shows as its source."""
        return {"mlflow.source.name": self.command, "mlflow.source.type": "LOCAL"} if self.command else {}


def tracker(experiment: str, uri: str | None = None) -> Tracker:
    """Make the MLflow experiment where it is missing; call it only in the process where the command was typed.

    uri: None for that of the environment and of the folder where the command was typed."""
    from raypref.storage import tracking

    uri = tracking.revealed(uri) if uri else tracking.tracking_uri(working_folder())
    command = console.typed()
    return Tracker(uri, experiment, tracking.prepare(uri, experiment, about(experiment)), command=command)


def about(experiment: str) -> str:
    """The description of an experiment, in Markdown."""
    words = load_space(experiment).about if experiment in every_name() else ""
    return f"""**{experiment}** {words}

Runs of `python -m raypref.run {experiment}` and `python -m raypref.sweep {experiment}`; a sweep's trials are inside its
run. A run's artifact `report.html` shows all that is known of it. Metrics: `train/` and `rounds/` by communication
round, `after local steps/` by steps of personalization, `context pairs/` by pairs that a client's part is inferred
from, `total/` what the run took.
"""


def mlflow_record(folder: Path) -> dict[str, Any]:
    """`uri` (without its password), `experiment` and `run_id` of a folder's MLflow run, and `done` once all is tracked;
    {} without a run."""
    path = folder / "mlflow.json"
    return checkpoint.read_json(path) if path.exists() else {}


@contextlib.contextmanager
def mlflow_run(
    config: RunConfig,
    folder: Path,
    to: Tracker | None,
    label: str,
    tags: Mapping[str, str],
    parent: str | None = None,
) -> Iterator[Any | None]:
    """The folder's MLflow run, open inside and done afterwards; None where nothing is tracked, or all is already."""
    record = mlflow_record(folder)
    if to is None or record.get("done"):
        yield None
        return

    from raypref.storage import tracking

    policy = "raypref.policy" in tags
    params = identity.logged(flatten(to_dict(config)), flatten(to_dict(RunConfig())), policy)
    tags = {**tags, **to.source, "raypref.folder": str(folder)}
    record = {"uri": hidden(to.uri), "experiment": to.experiment, "run_id": record.get("run_id", "")}
    run = tracking.Run(to.uri, to.experiment_id, label, params, tags, parent or None, record["run_id"])
    try:
        with run:
            checkpoint.write_json(folder / "mlflow.json", record | {"run_id": run.id})
            yield run
    finally:
        record["run_id"] = run.id
        checkpoint.write_json(folder / "mlflow.json", record)
    if run.delivered:
        checkpoint.write_json(folder / "mlflow.json", record | {"done": True})


def tracked_policy(
    config: RunConfig, folder: Path, to: Tracker | None, parent: str | None
) -> AbstractContextManager[Any]:
    """`mlflow_run` of a policy's folder; parent: the MLflow run of its stage 1."""
    tags = {"raypref.policy": policy_key(config), "raypref.stage1": config.key}
    return mlflow_run(config, folder, to, f"policy of {config.method} seed {config.seed}", tags, parent)


def closing(to: Tracker | None, folders: Iterable[Path], within: Path | None = None) -> None:
    """Say last of all where the runs of these folders are tracked, and what is not. within: the folder of all."""
    if to is None:
        return
    from raypref.storage import tracking

    if not to.uri.startswith("http"):
        console.say(f"tracked: mlflow ui --backend-store-uri {shlex.quote(to.uri)}")
    console.say(f"MLflow: {tracking.address(to.uri, to.experiment_id, to.parent or '')}")
    left = [str(folder) for folder in folders if (record := mlflow_record(folder)) and not record.get("done")]
    if left:
        words = shlex.join([str(within)] if within else left)
        console.warn(
            f"MLflow at {to.uri} lacks parts of {len(left)} run{'s' * (len(left) > 1)}, which lie in their folders; "
            f"once it answers: python -m raypref.deliver {words}"
        )


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
    reports: Reports | None = None,
    heard: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run, or finish, the configuration inside its MLflow run, which a resume continues; returns the result."""
    from raypref.experiment import loop

    label, tags = label or f"{config.method} seed {config.seed}", {"raypref.key": config.key, **(tags or {})}
    with mlflow_run(config, folder, to, label, tags, to.parent if to else None) as track:
        return loop.run(
            config, folder, track=track, bar=bar, adapters=adapters, inputs=inputs, reports=reports, heard=heard
        )
