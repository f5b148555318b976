"""What Ray Tune is given to spend a sweep where it matters: ASHA among trials that can be compared, and Optuna's TPE.

Both begin where an earlier, interrupted command of the same sweep has stopped: with what trials' folders hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from raypref.config import UserError
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
            raise UserError("--search optuna needs Optuna; pip install raypref[optuna]") from error
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
