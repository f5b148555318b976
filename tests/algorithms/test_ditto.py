"""Ditto: with λ = 0 each client trains alone beside FedAvg; with a large λ it stays at the global model."""

import numpy as np
import pytest
import torch

from raypref.algorithms.ditto import DittoHalf
from raypref.clients.half import Message
from raypref.clients.pool import InProcess
from raypref.clients.work import Train
from raypref.config import override, registry
from raypref.experiment import loop as experiment
from tests.clients.local import training

ALONE = {"clients.stack": 1, "federation.rounds": 2, "model.lora_dropout": 0.1}
"""One client a pass, so that no rounding is shared; masks are drawn."""


@pytest.fixture(scope="module")
def pools(tiny):
    """(Ditto's, FedAvg's) of the same data."""
    inputs = experiment.prepare(override(tiny, ALONE | {"algorithm": "ditto", "federation.cohort": 10}))
    return [InProcess(experiment.prepare_like(inputs, override(inputs.config, {"algorithm": name})))
            for name in ("ditto", "fedavg")]  # fmt: skip


def rounds(pool, **values):
    """The algorithm and its states, the first one included."""
    pool.config = override(pool.config, {k.replace("__", "."): v for k, v in values.items()})
    pool.worker.config = pool.config
    algorithm = registry.algorithm(pool.config.algorithm)(pool.config, pool)
    states = [algorithm.init()]
    for _ in range(2):
        states.append(algorithm.round(states[-1])[0])
    return algorithm, states


def test_without_the_pull_a_client_trains_alone_and_the_global_model_is_fedavgs(pools):
    """To the bit, with the same batches and dropout masks."""
    ditto, fedavg = pools
    algorithm, states = rounds(ditto, ditto__lam=0.0)
    _, theirs = rounds(fedavg)
    assert torch.equal(states[-1].theta, theirs[-1].theta)
    rows = algorithm.initialization(states[-1])
    for c in (0, 7):
        row = ditto.start()
        for r in range(2):
            row = torch.tensor(fedavg.worker.train(Train(np.array([c]), row[None].numpy(), r, Message(), [{}])).rows)[0]
        assert torch.equal(rows[c], row) and not torch.equal(rows[c], states[-1].theta)


def test_who_never_took_part_starts_from_the_global_model(pools):
    algorithm, states = rounds(pools[0], federation__cohort=2, ditto__lam=0.1)
    took, rows = set(states[-1].kept.by_client), algorithm.initialization(states[-1])
    assert 2 <= len(took) <= 4
    for c in range(10):
        v = states[-1].kept.by_client[c]["v"] if c in took else states[-1].theta.numpy()
        assert np.array_equal(rows[c].numpy(), v)
    assert torch.equal(algorithm.newcomers(states[-1], pools[0]), states[-1].theta.expand(10, -1))


def test_the_pull_by_hand(pools):
    """v - w is 0.5 everywhere: the pull is λ/2 · D/4, and v's gradient has λ · 0.5 more than without."""
    worker = pools[0].worker
    rows = pools[0].start()[None].numpy()
    kept = [{"v": rows[0] + np.float32(0.5)}]
    gradients = []
    for lam in (0.0, 2.0):
        worker.config = override(pools[0].config, {"ditto.lam": lam})
        local = training(worker, [3], rows, 1, half=DittoHalf, kept=kept)
        local.advance(1)
        assert float(local.parts()["personal_pull"][0]) == pytest.approx(lam / 2 * rows.size / 4)
        gradients.append((local.trained[1].grad, local.rows.grad))
    assert torch.allclose(gradients[1][0], gradients[0][0] + 1.0, atol=1e-5)
    assert torch.equal(gradients[1][1], gradients[0][1])
