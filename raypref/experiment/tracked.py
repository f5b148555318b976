"""A run inside its MLflow run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypref.config import RunConfig, flatten, to_dict
from raypref.tools import checkpoint, console
from raypref.tools.folders import working_folder

if TYPE_CHECKING:
    from raypref.clients.pool import Inputs


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
    from raypref.storage import tracking

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
    from raypref.experiment import loop as experiment

    known = folder / "mlflow.json"
    held = checkpoint.read_json(known) if known.exists() else {}
    if to is None or held.get("done"):
        return experiment.run(config, folder, bar=bar, say=console.say, adapters=adapters, inputs=inputs)

    from raypref.storage import tracking

    label = label or f"{config.method} seed {config.seed}"
    params = flatten(to_dict(config))
    tags = {"raypref.key": config.key, "raypref.folder": str(folder), **(tags or {})}
    with tracking.Run(to.uri, to.experiment_id, label, params, tags, to.parent, held.get("run_id")) as track:
        held = {"uri": to.uri, "experiment": to.experiment, "run_id": track.id}
        checkpoint.write_json(known, held)
        result = experiment.run(config, folder, track=track, bar=bar, say=console.say, adapters=adapters, inputs=inputs)
    checkpoint.write_json(known, held | {"done": True})
    return result
