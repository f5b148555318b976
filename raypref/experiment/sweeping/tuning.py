"""What Ray Tune is given to spend a sweep where it matters: ASHA among trials that can be compared, and Optuna's TPE.

Both begin where an earlier, interrupted command of the same sweep has stopped: with what trials' folders hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from raypref.config import UserError, override, to_dict
from raypref.evaluation.ranking import last
from raypref.experiment import loop as experiment
from raypref.experiment.sweeping.trials import PROPOSALS, Search, Trial
from raypref.storage.results import folder_name
from raypref.tools import checkpoint
from raypref.tools.rng import stream

ROUND = "round"
"""What a reading reports beside the metric; a trial's last report, its result, has none."""


class Asha(FIFOScheduler):  # type: ignore[misc]
    """Asynchronous successive halving (Li et al. 2020, Tune's own), among comparable trials alone.

    At rounds G, η G, η² G, … a trial goes on if it is among the best 1/η of those of its kind that came so far. A trial
    that is the first of its kind always goes on.
    """

    def __init__(
        self,
        kind: Callable[[str], str],
        metric: str,
        mode: str,
        grace: int,
        reduction: float,
        rounds: int,
        stop: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """kind: of a trial's name, equal for trials that can be compared. grace: G. reduction: η. rounds: of the
        longest trial. stop: is told the name of a trial that is about to be stopped, and its reading."""
        super().__init__()
        self._metric, self.mode = metric, mode
        self.kind, self.stop, self.halving = kind, stop, dict[str, ASHAScheduler]()
        self.how = {
            "time_attr": ROUND, "metric": metric, "mode": mode, "max_t": max(rounds, grace),
            "grace_period": grace, "reduction_factor": reduction,
        }  # fmt: skip

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True

    def of(self, trial: Any) -> ASHAScheduler:
        """The halving that a trial takes part in."""
        kind = self.kind(trial.config["trial"])
        if kind not in self.halving:
            self.halving[kind] = ASHAScheduler(**self.how)
        return self.halving[kind]

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        self.of(trial).on_trial_add(controller, trial)

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if ROUND not in result:
            return str(TrialScheduler.CONTINUE)
        value = result[self._metric]
        worst = -math.inf if self.mode == "max" else math.inf
        read = {**result, self._metric: value if math.isfinite(value) else worst}
        action = str(self.of(trial).on_trial_result(controller, trial, read))
        if action == TrialScheduler.STOP:
            self.stop(trial.config["trial"], result)
        return action

    def remember(self, name: str, readings: Iterable[Mapping[str, Any]]) -> None:
        """Compare those to come with a trial that has ended in an earlier command."""
        trial = SimpleNamespace(trial_id=name, config={"trial": name})
        self.on_trial_add(None, trial)
        for reading in readings:
            self.of(trial).on_trial_result(None, trial, dict(reading))


class Proposals(Searcher):  # type: ignore[misc]
    """Optuna's proposals, as Ray's integration makes them, as trials of a sweep.

    Whatever has been proposed is not proposed again: where all values are whole numbers they run out.
    """

    ATTEMPTS = 50
    """Proposals of what is there already, one after another, before nothing new is looked for."""

    def __init__(
        self,
        ranges: Mapping[str, tuple[str, float, float]],
        metric: str,
        mode: str,
        seed: int,
        make: Callable[[dict[str, Any]], str | None],
        done: Iterable[tuple[Mapping[str, Any], float]],
        begun: Iterable[Mapping[str, Any]],
    ) -> None:
        """ranges: dotted key -> ("uniform", "loguniform" or "int", low, high). make: the name of the trial with these
        values; None where there is one already, or cannot be. done: values and number of earlier trials. begun: values
        of trials to finish, which come first. Raises `UserError` where Optuna is not installed."""
        super().__init__(metric=metric, mode=mode)
        try:
            import optuna
        except ImportError as error:
            raise UserError("--search optuna needs Optuna; pip install 'raypref[optuna]'") from error
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        done, begun = list(done), list(begun)
        sampler = optuna.samplers.TPESampler(seed=int(stream(seed, "optuna", len(done)).integers(2**31)))
        space = {key: _distribution(optuna.distributions, *range) for key, range in ranges.items()}
        points = [dict(values) for values in begun]
        self.optuna = OptunaSearch(space, metric=metric, mode=mode, sampler=sampler, points_to_evaluate=points)
        for values, number in done:
            self.optuna.add_evaluated_point(dict(values), number)
        self.make, self.asked = make, dict[str, str]()

    def set_search_properties(self, metric: str | None, mode: str | None, config: Any, **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        for attempt in range(self.ATTEMPTS):
            asked = f"{trial_id} {attempt}"
            if name := self.make(self.optuna.suggest(asked)):
                self.asked[trial_id] = asked
                return {"trial": name}
            self.optuna.on_trial_complete(asked)
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Readings between rounds are not of the same clients and steps as results, so that Optuna is not told them."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell Optuna the last number of a trial: of one that was stopped, its last reading."""
        number = (result or {}).get(self.metric, math.nan)
        told = {self.metric: number} if math.isfinite(number) else None
        self.optuna.on_trial_complete(self.asked[trial_id], told, error or told is None)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the sweep's own folder has it all."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""


def _distribution(distributions: Any, kind: str, low: float, high: float) -> Any:
    if kind == "int":
        return distributions.IntDistribution(int(low), int(high))
    return distributions.FloatDistribution(low, high, log=kind == "loguniform")


def asha(search: Search, missing: Sequence[Trial]) -> Asha:
    """Tune's scheduler, which knows the readings of all trials that have ended: the others than those missing."""

    def kind(name: str) -> str:
        config = search.trial(name).config
        return repr((config.data, config.seed, config.federation.rounds))

    def stop(name: str, read: Mapping[str, Any]) -> None:
        """Written before the trial hears of it: whatever is killed from here on, it has been stopped."""
        values = {"round": read["round"], "validation": read[search.metric], "client_steps": read["client_steps"]}
        checkpoint.write_json(search.folder / name / "stopped.json", values)

    rounds = max(trial.config.federation.rounds for trial in (search.base, *search.trials) if trial)
    scheduler = Asha(kind, search.metric, search.mode, search.grace, search.options.reduction, rounds, stop)
    to_run = {trial.folder for trial in missing}
    for trial in search.trials:
        if trial.folder not in to_run:
            readings = checkpoint.read_lines(trial.folder / "reports.jsonl")
            told = [{"round": r["round"], search.metric: r["metrics"][search.rank]} for r in readings]
            scheduler.remember(trial.folder.name, told)
    return scheduler


def proposals(search: Search, missing: Sequence[Trial]) -> Proposals:
    """Optuna as Tune is given it: it knows what earlier trials came to, and first has those finished that were begun.

    missing: those; one that a killed sweep leaves behind and that ends meanwhile still counts as one to run.
    New trials join the sweep's own list, and its journal before they start.
    """
    assert search.base is not None
    base, folder = search.base.config, search.folder
    begun = {trial.folder.name: trial for trial in missing}
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
        if any(trial.folder.name == name for trial in search.trials):
            return None
        search.trials.append(Trial(config, folder / name, values))
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
