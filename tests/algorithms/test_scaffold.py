"""SCAFFOLD by hand: plain SGD on quadratics through the client's half, and the server's two averages."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raypref.algorithms.scaffold import Scaffold, ScaffoldHalf
from raypref.clients.half import Message, Start
from raypref.clients.kept import Kept
from raypref.config import override
from raypref.experiment import loop as experiment
from raypref.tools import checkpoint
from tests.algorithms.rule import Rule, config


def test_two_steps_of_sgd_by_hand():
    """F_i(y) = (y - b_i)²/2 in one dimension, η = 0.1, x = 1, c = 2; client 0 has b = 3 and no c_i yet, client 1 has
    b = 0 and c_i = 1.

    Client 0: g = 1 - 3 = -2, corrected -2 - 0 + 2 = 0, y stays 1; the second step the same. c_i⁺ = -2, Δc = -2.
    Client 1: g = 1, corrected 1 - 1 + 2 = 2, y = 0.8; g = 0.8, corrected 1.8, y = 0.62. c_i⁺ = 0.9, Δc = -0.1.
    """
    x, b = torch.tensor([[1.0], [1.0]]), torch.tensor([[3.0], [0.0]])
    kept = [{}, {"c": np.array([1.0], np.float32)}]
    message = Message(shared={"c": np.array([2.0], np.float32)})
    half = ScaffoldHalf(config("scaffold"), Start(np.array([0, 1]), x, message, kept, Rule.layout, 2, None))
    y = x
    for _ in range(2):
        y = y - 0.1 * half.gradient(y - b)
    assert y.flatten().tolist() == pytest.approx([1.0, 0.62])
    assert half.report()["delta_c"].flatten().tolist() == pytest.approx([-2.0, -0.1])
    assert [arrays["c"].item() for arrays in half.keep()] == pytest.approx([-2.0, 0.9])


class Told(Rule):
    """Clients that report their position as Δc, and keep a note."""

    def train(self, cohort, rows, round, message=None, kept=None):
        self.sent = message.shared["c"]
        returned = super().train(cohort, rows, round)
        delta = np.repeat(returned.cohort[:, None], rows.shape[-1], axis=1).astype(np.float32)
        notes = [{"c": row} for row in delta]
        return replace(returned, statistics={"delta_c": delta}, kept=kept.updated(returned.cohort, notes))


def test_the_servers_round_by_hand():
    """Three of six clients a round: c moves by 3/6 of the mean of what they report, x by η_g of their mean move."""
    clients = Told()
    algorithm = Scaffold(config("scaffold", scaffold__eta=0.5), clients)
    before = algorithm.init()
    assert not before.c.any() and before.kept == Kept()
    after, _ = algorithm.round(before)
    cohort = clients.asked[0]
    assert torch.allclose(after.theta, before.theta + 0.5 * np.mean([clients.pull(c) for c in cohort]))
    assert torch.allclose(after.c, torch.full_like(after.c, sum(cohort) / 6))
    assert sorted(after.kept.by_client) == cohort.tolist()
    algorithm.round(after)
    assert np.array_equal(clients.sent, after.c.numpy())


def test_on_real_clients_the_servers_variate_is_the_mean_of_theirs(tiny, tmp_path):
    """c = Σ c_i / N after any rounds (c_i = 0 of whoever never took part), and both ways it costs a second row."""
    chosen = override(tiny, {"algorithm": "scaffold", "federation.rounds": 3, "federation.cohort": 4})
    result = experiment.run(chosen, tmp_path, adapters=False)
    tensors, _ = checkpoint.load(tmp_path / "state.safetensors")
    D = tensors["theta"].numel()
    theirs = tensors["kept/c/values"].view(-1, D)
    assert 4 <= len(theirs) <= 10
    assert torch.allclose(tensors["c"], theirs.sum(0) / 10, atol=1e-6) and float(tensors["c"].norm()) > 0
    assert result["bytes_up"] == result["bytes_down"] == 3 * 4 * 4 * 2 * D
