"""FedProx: a pull by hand, and FedAvg without it."""

import pytest
import torch

from raypref.algorithms.fedprox import FedProxHalf, proximal
from raypref.clients.pool import InProcess
from raypref.config import override
from raypref.experiment import loop as experiment
from raypref.tools import checkpoint
from tests.clients.local import training


def test_the_pull_by_hand():
    """1/2 · 0.5 · (1² + 2²) = 1.25, and its gradient 0.5 · (1, 2); a client at its anchor has neither."""
    rows = torch.tensor([[4.0, 5.0], [3.0, 3.0]], requires_grad=True)
    value = proximal(rows, torch.tensor([[3.0, 3.0], [3.0, 3.0]]), 0.5)
    value.sum().backward()
    assert value.tolist() == [1.25, 0.0] and rows.grad.tolist() == [[0.5, 1.0], [0.0, 0.0]]


def test_it_is_a_part_of_the_loss_of_each_client(tiny):
    """In the first step a row is at its anchor, afterwards it is held nearer to it than without."""
    pool = InProcess(experiment.prepare(override(tiny, {"algorithm": "fedprox", "fedprox.mu": 100.0})))
    rows = pool.start().repeat(2, 1).numpy()
    held, free = (training(pool.worker, [1, 4], rows, 3, half=half) for half in (FedProxHalf, None))
    held.advance(1)
    assert set(held.parts()) == {"choice", "proximal"} and held.parts()["proximal"].tolist() == [0, 0]
    held.advance(2)
    free.advance(3)
    far, near = (float((local.rows - torch.tensor(rows)).detach().norm()) for local in (free, held))
    assert near < far and (held.parts()["proximal"] > 0).all()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_without_the_pull_a_run_is_fedavgs_to_the_bit(tiny, tmp_path, dropout):
    small = {"federation.rounds": 2, "model.lora_dropout": dropout, "fedprox.mu": 0.0}
    results = {}
    for name in ("fedavg", "fedprox"):
        results[name] = experiment.run(override(tiny, small | {"algorithm": name}), tmp_path / name, adapters=False)
    states = [checkpoint.load(tmp_path / name / "state.safetensors")[0]["theta"] for name in results]
    assert torch.equal(*states)
    for what in ("test", "validation", "margins", "bytes_up", "bytes_down", "client_steps"):
        assert results["fedavg"][what] == results["fedprox"][what]
