"""S1 Algorithm 1 on clients that answer by rule: who is told what, and what the server keeps of it."""

import numpy as np
import pytest
import torch

from raypref.algorithms.fedvpa_gp import FedVPAGP, FedVPL, FedVPLOrtho, FedVPLPrior, VariationalHalf
from raypref.clients.half import Start
from raypref.clients.protocol import Trained
from raypref.config import RunConfig, UserError, override
from tests.algorithms.rule import Rule

D = 2


class Latent(Rule):
    """Client c reports μ̄ = ±(1, 0.01 c) by its true group and σ̄² = 1 + c, and adds c + 1 to each of its ℓ."""

    def __init__(self):
        super().__init__()
        self.told = []
        """A round each: the cohort, what it was sent, and each client's ℓ over the peers before it trained."""

    def train(self, cohort, rows, round, message=None, kept=None):
        done = super().train(cohort, rows, round)
        start = Start(np.asarray(cohort), torch.zeros(len(cohort), 1), message, kept.of(cohort), self.layout, 1, None)
        half = VariationalHalf(config(), start)
        self.told.append((np.asarray(cohort), message, half.log_weights.detach().numpy().copy()))
        with torch.no_grad():
            half.log_weights += torch.from_numpy(1.0 + cohort[:, None])
        sign = np.where(self.group_of[cohort] == 0, 1.0, -1.0)[:, None]
        statistics = {
            "mu": (sign * np.stack([np.ones(len(cohort)), 0.01 * cohort], axis=1)).astype(np.float32),
            "variance": np.repeat(1.0 + cohort[:, None], D, axis=1).astype(np.float32),
        }
        kept = kept.updated(cohort, half.keep())
        return Trained(done.cohort, done.rows, done.sizes, done.loss, {}, statistics, kept)


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
    assert clients.told[0][1].about.size == 0
    for (before, *_), (_, message, _) in zip(clients.told, clients.told[1:], strict=False):
        assert message.about.tolist() == before.tolist()
        assert np.allclose(message.shared["variance"][:, 0], 1 + before)
        sign = np.where(clients.group_of[before] == 0, 1, -1)
        assert np.allclose(message.shared["mean"][:, 1], sign * 0.01 * before)


def test_peer_weights_are_each_clients_own_and_stay():
    """What client i learnt of peer j comes back to it alone, the next time j is a peer of it."""
    clients = Latent()
    states = run(FedVPAGP(config(), clients), 8)
    expected = np.zeros((6, 6))
    met = np.zeros((6, 6), dtype=bool)
    for cohort, message, log_weights in clients.told:
        known = expected[np.ix_(cohort, message.about)]
        assert np.allclose(log_weights, known)
        expected[np.ix_(cohort, message.about)] = known + 1 + cohort[:, None]
        met[np.ix_(cohort, message.about)] = True
    for c, arrays in enumerate(states[-1].kept.of(range(6))):
        assert arrays["peers"].tolist() == np.flatnonzero(met[c]).tolist()  # and of no others: it is sparse
        assert np.allclose(arrays["log_weights"], expected[c, met[c]])


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
    for (cohort, message, _), state in zip(clients.told, states, strict=True):
        assert message.each["label"].tolist() == [before[c] for c in cohort]
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
    _, message, _ = clients.told[-1]
    assert bool(message.shared) == prior and ("label" in message.each) == labels


def test_the_choice_objective_is_refused_and_too_many_prototypes():
    with pytest.raises(UserError, match="--objective variational"):
        FedVPAGP.check(config(objective="choice"))
    with pytest.raises(UserError, match=r"variational\.M is 3 but variational\.d is 2"):
        FedVPAGP(config(**{"variational.M": 3}), Latent())
