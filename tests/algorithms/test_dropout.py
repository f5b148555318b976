"""Clients that do not answer (`federation.dropout`): who leaves is in no sum and no weight, and that is counted."""

import numpy as np
import pytest
import torch

from raypref.algorithms import ALGORITHMS
from raypref.algorithms.fedavg import FedAvg
from raypref.clients.pool import InProcess
from raypref.config import override, registry
from raypref.experiment import loop as experiment
from raypref.experiment.forecast import Costs, predict
from tests.test_experiment import Stop, measured, stopping

HALF = {"federation.dropout": 0.5, "federation.rounds": 2}


def test_a_round_is_that_of_those_who_answered(tiny):
    """FedAvg over a cohort, half of which drops out, is FedAvg over the others alone: same rows, same weights."""
    config = override(tiny, {"federation.cohort": 10, "federation.dropout": 0.5})
    clients, whole = (InProcess(experiment.prepare(c)) for c in (config, override(config, {"federation.dropout": 0.0})))
    algorithm = FedAvg(config, clients)
    state, _ = algorithm.round(algorithm.init())
    stayed = np.flatnonzero(clients.answering(np.arange(10), 0))
    assert 0 < len(stayed) < 10
    alone = whole.train(stayed, whole.start(), 0)
    weights = torch.tensor(alone.sizes / alone.sizes.sum(), dtype=torch.float32)
    assert torch.allclose(state.theta, weights @ alone.rows, atol=1e-7)
    n, row = len(stayed), 4 * whole.layout.width
    assert clients.used.dropped == 10 - n and clients.used.client_steps == n * config.federation.local_steps
    assert (clients.used.bytes_down, clients.used.bytes_up) == (10 * row, n * row)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"dp_fedavg"}))  # which refuses it, by its own test
def test_every_method_goes_on_with_those_who_answer(tiny, tmp_path, algorithm):
    """To the same bits after a stop; and the forecast counts what will be sent."""
    usual = registry.algorithm(algorithm).objective
    config = override(tiny, HALF | {"algorithm": algorithm, "objective": usual})
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    pooled = registry.algorithm(algorithm).pooled
    assert (whole["dropped"] > 0) == (whole["rounds"] > 0 and not pooled)
    predicted = predict(experiment.prepare(config), Costs()).used
    assert (predicted.bytes_up, predicted.bytes_down) == (whole["bytes_up"], whole["bytes_down"])
    if algorithm in ("fedgd", "ditto", "fedvpa_gp"):
        with pytest.raises(Stop):
            experiment.run(config, tmp_path / "cut", bar=stopping("round", 1), adapters=False)
        assert measured(experiment.run(config, tmp_path / "cut", adapters=False)) == measured(whole)


def test_the_server_waits_for_as_many_as_it_is_told_to(tiny, tmp_path):
    config = override(tiny, HALF | {"federation.least_answers": 10})
    assert experiment.run(config, tmp_path, adapters=False)["dropped"] == 0
