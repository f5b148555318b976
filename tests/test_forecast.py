"""What is foretold of a run is what the run then takes."""

import dataclasses

import pytest

from raypref.algorithms import ALGORITHMS
from raypref.config import UserError, override, registry
from raypref.experiment import loop as experiment
from raypref.experiment.forecast import Costs, check, measure, predict
from raypref.tools import checkpoint


@pytest.mark.parametrize(
    ("algorithm", "objective"),
    [(a, registry.algorithm(a).objective) for a in ALGORITHMS],
)
@pytest.mark.parametrize("per_actor", [0, 4])
def test_bytes_steps_and_state_are_those_of_the_run(tiny, tmp_path, algorithm, objective, per_actor):
    config = override(tiny, {"algorithm": algorithm, "objective": objective, "clients.clients_per_actor": per_actor})
    told = predict(experiment.prepare(config), Costs())
    result = experiment.run(config, tmp_path, adapters=False)
    assert (told.rounds, told.used.client_steps) == (result["rounds"], result["client_steps"])
    assert (told.used.bytes_up, told.used.bytes_down) == (result["bytes_up"], result["bytes_down"])
    if told.rounds:
        tensors, _ = checkpoint.load(tmp_path / "state.safetensors")
        assert told.state == sum(t.nbytes for t in tensors.values())


def test_time_adds_up_over_stacks_and_runs_side_by_side_over_actors(tiny):
    """FedAvg, 4 rounds of 5 clients x 3 steps, then 10 clients x 4 steps; comparisons at three marks.

    A step of 1 s on one actor: 60 s and 40 s. On ten actors the cohort trains side by side, 4 x 3 s, then 4 s.
    """
    config = override(tiny, {"algorithm": "fedavg"})
    inputs = experiment.prepare(config)
    comparisons = 2 * (inputs.data.sizes("validation") + inputs.data.sizes("test"))
    assert predict(inputs, Costs(step=1.0)).seconds == pytest.approx(60 + 40)
    assert predict(inputs, Costs(comparison=1.0)).seconds == pytest.approx(3 * comparisons.sum())
    alone = experiment.prepare(override(config, {"clients.clients_per_actor": 1}))
    assert predict(alone, Costs(step=1.0)).seconds == pytest.approx(4 * 3 + 4)
    assert predict(alone, Costs(comparison=1.0)).seconds == pytest.approx(3 * comparisons.max())


def test_what_could_not_run_is_refused(tiny):
    fits = experiment.prepare(tiny)
    inputs = dataclasses.replace(fits, config=override(tiny, {"experts.T": 3}))
    with pytest.raises(UserError, match=r"experts\.T to divide"):
        experiment.prepare(inputs.config)
    for refuse in (check, lambda given: predict(given, Costs())):
        with pytest.raises(UserError, match=r"experts\.T to divide"):
            refuse(inputs)


def test_measuring_trains_for_real(tiny):
    costs = measure(experiment.prepare(tiny))
    assert costs.step > 0 and costs.comparison > 0
    assert costs.actor >= costs.process > 50e6  # libraries alone are more
