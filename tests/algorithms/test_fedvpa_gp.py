"""S1 Algorithm 1 on clients that answer by rule: who is told what, and what the server keeps of it."""

import numpy as np
import pytest
import torch

from raypref.algorithms.fedvpa_gp import FedVPAGP, FedVPL, FedVPLOrtho, FedVPLPrior
from raypref.clients.protocol import Trained
from raypref.config import RunConfig, UserError, override
from tests.algorithms.rule import Rule

D = 2


class Latent(Rule):
    """Client c reports μ̄ = ±(1, 0.01 c) by its true group and σ̄² = 1 + c, and adds c + 1 to each of its ℓ."""

    def __init__(self):
        super().__init__()
        self.told = []

    def train(self, cohort, rows, round, context=None):
        self.told.append((np.asarray(cohort), context))
        done = super().train(cohort, rows, round)
        sign = np.where(self.group_of[cohort] == 0, 1.0, -1.0)[:, None]
        statistics = {
            "mu": (sign * np.stack([np.ones(len(cohort)), 0.01 * cohort], axis=1)).astype(np.float32),
            "variance": np.repeat(1.0 + cohort[:, None], D, axis=1).astype(np.float32),
        }
        if len(context.peers):
            statistics["log_weights"] = context.log_weights + (1 + cohort[:, None]).astype(np.float32)
        return Trained(done.cohort, done.rows, done.sizes, done.loss, statistics)


def config(**more):
    return override(
        RunConfig(),
        {
            "algorithm": "fedvpa_gp",
            "objective": "variational",
            "federation.cohort": 3,
            "variational.d": D,
            "variational.M": 2,
            "variational.balanced": False,
        }
        | more,
    )


def run(algorithm, rounds):
    state, states = algorithm.init(), []
    for _ in range(rounds):
        state, _ = algorithm.round(state)
        states.append(state)
    return states


def test_the_prior_is_made_of_the_previous_cohort():
    """Round 0 has none (the standard Gaussian); round t has the statistics that S^(t-1) sent in round t - 1."""
    clients = Latent()
    run(FedVPAGP(config(), clients), 4)
    assert clients.told[0][1].peers.size == 0
    for (before, _), (_, context) in zip(clients.told, clients.told[1:], strict=False):
        assert context.peers.tolist() == before.tolist()
        assert np.allclose(context.variance[:, 0], 1 + before)
        sign = np.where(clients.group_of[before] == 0, 1, -1)
        assert np.allclose(context.mean[:, 1], sign * 0.01 * before)


def test_peer_weights_are_each_clients_own_and_stay():
    """What client i learnt of peer j comes back to it alone, the next time j is a peer of it."""
    clients = Latent()
    states = run(FedVPAGP(config(), clients), 8)
    expected = np.zeros((6, 6))
    for cohort, context in clients.told:
        told = expected[np.ix_(cohort, context.peers)]
        assert np.allclose(context.log_weights, told)
        expected[np.ix_(cohort, context.peers)] = told + 1 + cohort[:, None]
    assert np.allclose(states[-1].log_weights.numpy(), expected)


def test_rows_are_averaged_uniformly_whatever_the_sizes():
    """Rows return with +1 or -1: θ moves by the mean of the cohort's pulls."""
    clients = Latent()
    algorithm = FedVPAGP(config(), clients)
    start = algorithm.init()
    state, _ = algorithm.round(start)
    pulls = [clients.pull(c) for c in clients.asked[0]]
    assert torch.allclose(state.theta, start.theta + np.mean(pulls))


def test_labels_come_from_the_means_and_keep_their_names():
    """Who has never been sampled has none; the cohort is told the labels of the round before; once both signs have
    reported, they are the two clusters, under names that no later round changes."""
    clients = Latent()
    states = run(FedVPAGP(config(), clients), 10)
    before, sampled = [-1] * 6, set()
    for (cohort, context), state in zip(clients.told, states, strict=True):
        assert context.labels.tolist() == [before[c] for c in cohort]
        sampled |= set(cohort.tolist())
        assert {c for c, label in enumerate(state.assignment) if label >= 0} == sampled
        before = state.assignment
    names = np.array(states[-1].assignment)
    assert names.tolist() in ([0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0])
    both = [s for s in states if s.assignment[4] >= 0 or s.assignment[5] >= 0]
    assert len(both) > 5
    for labels in (np.array(s.assignment) for s in both):
        assert (labels == names)[labels >= 0].all()


@pytest.mark.parametrize(
    ("method", "prior", "labels"),
    [(FedVPL, False, False), (FedVPLOrtho, False, True), (FedVPLPrior, True, False), (FedVPAGP, True, True)],
)
def test_ablations_leave_their_part_out(method, prior, labels):
    clients = Latent()
    run(method(config(), clients), 3)
    _, context = clients.told[-1]
    assert bool(context.peers.size) == prior and (context.labels is not None) == labels


def test_the_choice_objective_is_refused_and_too_many_prototypes():
    with pytest.raises(UserError, match="--objective variational"):
        FedVPAGP(config(objective="choice"), Latent())
    with pytest.raises(UserError, match=r"variational\.M is 3 but variational\.d is 2"):
        FedVPAGP(config(**{"variational.M": 3}), Latent())
