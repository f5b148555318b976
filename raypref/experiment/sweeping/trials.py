"""Trials and the search that they are part of, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from raypref.clients.pool import Inputs
from raypref.config import RunConfig, flatten, from_dict, override, read_config, to_dict
from raypref.config.spaces import Space
from raypref.data.sources import identified
from raypref.evaluation.ranking import BEST
from raypref.evaluation.runs import show, varying
from raypref.experiment import loop as experiment
from raypref.experiment.reports import Reports
from raypref.experiment.sweeping.options import PROPOSED, Options
from raypref.experiment.tracked import mlflow_record
from raypref.storage.results import folder_name
from raypref.tools import checkpoint

PROPOSALS = "proposals.jsonl"
"""The journal of what Optuna has proposed, in the sweep's folder."""


@dataclass(frozen=True)
class Trial:
    """One configuration with one seed, and its folder."""

    config: RunConfig
    folder: Path
    settings: Mapping[str, Any]
    """What tells its configuration from the others': dotted key -> value, without the seed."""

    @property
    def label(self) -> str:
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


def plan(space: Space, options: Options, folder: Path) -> list[Trial]:
    """The trials of the grid in a fixed order, whether finished or not."""
    configs = list(map(identified, space.trials(options.config, options.smoke, options.seeds)))
    flat = [flatten(to_dict(config)) for config in configs]
    keys = varying(flat)
    trials = [
        Trial(config, folder / folder_name(config), {key: values[key] for key in keys})
        for config, values in zip(configs, flat, strict=True)
    ]
    return trials[: options.max_trials or None]


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
        return "max" if BEST[self.rank] > 0 else "min"

    @property
    def missing(self) -> list[Trial]:
        """The trials that are to run, or to run on; what asha has stopped is not, while asha is asked for."""
        asha = self.options.scheduler == "asha"
        return [trial for trial in self.trials if not (trial.finished or (asha and trial.stopped))]

    @property
    def examples(self) -> list[Trial]:
        """What can be said of its trials before there are any: the grid, or the one that proposals differ from."""
        return [self.base] if self.base else self.trials

    @property
    def most(self) -> int:
        """Trials that there will be at most."""
        return (self.options.max_trials or PROPOSED) if self.base else len(self.trials)

    def trial(self, name: str) -> Trial:
        """The trial of a folder's name; of proposals made in another process the journal knows."""
        known = {trial.folder.name: trial for trial in self.trials}
        return known.get(name) or {trial.folder.name: trial for trial in proposed(self.folder)}[name]

    @property
    def grace(self) -> int:
        return self.options.grace or max(1, self.options.config.federation.rounds // 9)

    @property
    def reports(self) -> Reports | None:
        """When validation is read between rounds; None: never."""
        every = self.options.report_every or (self.grace if self.options.scheduler == "asha" else 0)
        return Reports(every, self.options.report_clients) if every else None


def proposed(folder: Path, base: Trial | None = None) -> list[Trial]:
    """The trials that Optuna has proposed in this folder, in their order. base: those that differ from it alone."""
    lines = checkpoint.read_lines(folder / PROPOSALS)
    trials = [Trial(from_dict(line["config"]), folder / line["trial"], line["values"]) for line in lines]
    return [trial for trial in trials if not base or override(base.config, trial.settings) == trial.config]


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


def prepared(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Inputs]]:
    """Every trial with its inputs, trials of the same data together, so that each data set is read once and let go."""

    def data(trial: Trial) -> str:
        # Synthetic and dealt data depend on the seed; other data are then read once a seed, which costs little.
        return repr((trial.config.data, trial.config.model.base, trial.config.seed))

    for _, group in groupby(sorted(trials, key=data), data):
        first, *others = group
        inputs = experiment.prepare(first.config)
        yield first, inputs
        for trial in others:
            yield trial, experiment.prepare_like(inputs, trial.config)


def in_one_process(config: RunConfig, places: int) -> bool:
    """Whether a trial's process does its server's and its client actor's work as well; places: of both kinds together.

    A process takes seconds to read its libraries, and the trial's own goes from trial to trial. With one client actor
    the three only wait for one another. A GPU's memory is better left to a process that ends.
    """
    return places == 2 and not config.clients.gpus_per_actor
