"""DP-FedAvg: what a client can move, whom a round draws, and an ε that is counted as it is done."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from raypref.algorithms.dp_fedavg import DPFedAvg
from raypref.algorithms.fedavg import FedAvg
from raypref.clients.pool import InProcess
from raypref.config import RunConfig, by_another, override, validate
from raypref.experiment import loop
from raypref.rounds import privacy
from raypref.rounds.sampling import poisson_sample
from raypref.tools.errors import UserError
from raypref.tools.rng import stream
from tests.algorithms.rule import Rule, config

PUBLIC = {"algorithm": "dp_fedavg", "dp.noise": 0.0, "dp.clip": None}


def test_without_noise_and_bound_it_is_fedavg_to_the_bit(tiny):
    """All ten clients, of equally many pairs each, so that FedAvg's weights are even, too; real training."""
    equal = {"data.source": "graded", "data.graded.train": (12, 12), "data.graded.validation": 4, "data.graded.test": 4}
    base = override(tiny, equal | {"federation.cohort": 10, "federation.rounds": 2, "algorithm": "fedavg"})
    inputs = loop.prepare(base)
    assert len(set(inputs.sizes.tolist())) == 1
    ends = []
    for chosen in (base, override(base, PUBLIC)):
        algorithm = (FedAvg if chosen is base else DPFedAvg)(chosen, InProcess(loop.prepare_like(inputs, chosen)))
        state = algorithm.init()
        for _ in range(2):
            state, metrics = algorithm.round(state)
        ends.append(state.theta)
    assert torch.equal(*ends) and not torch.equal(ends[0], algorithm.init().theta)
    assert "privacy/epsilon" not in metrics and metrics["privacy/clients"] == 10


class Clipping(Rule):
    """Clients by rule that clip what they send, as the half does."""

    def __init__(self, clip):
        super().__init__()
        self.clip = clip

    def train(self, cohort, rows, round, message=None, kept=None):
        returned = super().train(cohort, rows, round, message, kept)
        return replace(returned, rows=privacy.clipped(returned.rows, rows.expand_as(returned.rows), self.clip))


def test_a_round_by_hand():
    """Six clients, all drawn, four of whom move by +1 in each of D parameters and two by -1. Their norms are √D, so
    that a bound of √D / 2 halves each: (4 - 2) / 2 / 6 = 1/6 in each parameter."""
    dp, D = config("dp_fedavg", federation__cohort=6, dp__noise=0.0), Rule.layout.width
    for clip, moved in ((math.sqrt(D) / 2, 1 / 6), (2 * math.sqrt(D), 1 / 3)):
        algorithm = DPFedAvg(dp, Clipping(clip))
        state, _ = algorithm.round(algorithm.init())
        assert torch.allclose(state.theta, Rule().start() + moved, atol=1e-5)
    # Whoever expects nine clients divides by nine, however many came: (4 - 2) / 9.
    few = DPFedAvg(override(dp, {"federation.cohort": 6}), Clipping(None))
    few.config = override(dp, {"federation.cohort": 9})
    state, _ = few.round(few.init())
    assert torch.allclose(state.theta, Rule().start() + 2 / 9, atol=1e-6)


def test_clients_clip_what_they_send(tiny):
    chosen = override(tiny, {"algorithm": "dp_fedavg", "dp.noise": 0.0, "dp.clip": 0.01, "federation.local_steps": 2})
    pool = InProcess(loop.prepare(chosen))
    start = pool.start()
    rows = pool.train([0, 3, 5], start, 0).rows
    free = (
        InProcess(loop.prepare_like(pool.inputs, override(chosen, {"dp.clip": None}))).train([0, 3, 5], start, 0).rows
    )
    assert torch.linalg.vector_norm((rows - start).double(), dim=1).tolist() == pytest.approx([0.01] * 3, rel=1e-4)
    assert torch.nn.functional.cosine_similarity(rows - start, free - start).min() > 0.999


def test_what_one_client_can_move_is_bounded_whatever_it_sends():
    start = torch.randn(7, generator=torch.Generator().manual_seed(0))
    rows = start + torch.tensor([[1e-3], [1.0], [1e30], [math.inf], [math.nan], [0.0]])
    sent = privacy.clipped(rows, start.expand_as(rows), 0.5)
    norms = torch.linalg.vector_norm(sent.double() - start.double(), dim=1)
    assert norms.max() <= 0.5 and norms[1] > 0.4999
    assert torch.equal(sent[[0, 5]], rows[[0, 5]])  # short ones as they are, to the bit
    assert torch.equal(sent[[3, 4]], start.expand(2, -1))  # what is no number moves nothing
    assert privacy.clipped(rows, start, None) is rows


def test_noise_is_added_once_and_is_as_large_as_is_said():
    """z S / m of each parameter, over many rounds that nobody moves."""

    class Still(Rule):
        def pull(self, c):
            return 0.0

    pytest.importorskip("opacus", reason="ε is counted by Opacus: pip install raypref[privacy]")
    dp = config("dp_fedavg", federation__cohort=6, federation__rounds=400, dp__noise=2.0, dp__clip=3.0)
    algorithm, steps = DPFedAvg(dp, Still()), []
    state = algorithm.init()
    for _ in range(400):
        after, _ = algorithm.round(state)
        steps.append(after.theta - state.theta)
        state = after
    moved = torch.stack(steps).double().numpy().ravel()
    assert moved.std() == pytest.approx(2.0 * 3.0 / 6, rel=0.05) and abs(moved.mean()) < 4 / math.sqrt(len(moved))


def test_clients_are_drawn_one_by_one():
    """Poisson sampling, which is what the accountant assumes: the number of clients is binomial, and two clients are
    together as often as chance has it."""
    drawn = np.zeros((4000, 20))
    for r in range(len(drawn)):
        drawn[r, poisson_sample(0.25, 20, stream(0, "cohort", r))] = 1
    assert drawn.mean() == pytest.approx(0.25, abs=0.01)
    assert drawn.sum(1).var() == pytest.approx(20 * 0.25 * 0.75, rel=0.1)
    assert (drawn[:, 0] * drawn[:, 1]).mean() == pytest.approx(1 / 16, abs=0.015)
    assert poisson_sample(1.0, 5, stream(0, "cohort", 0)).tolist() == [0, 1, 2, 3, 4]


def test_a_round_of_nobody_is_a_round():
    """Its noise is published as any other's, or else it would tell that nobody was there."""
    pytest.importorskip("opacus", reason="ε is counted by Opacus: pip install raypref[privacy]")

    class Nobody(Rule):
        def train(self, *how):
            raise AssertionError("nobody was drawn")

    dp = config("dp_fedavg", federation__cohort=1)
    algorithm, state = DPFedAvg(dp, Nobody()), None
    algorithm.rate = 0.0
    state, metrics = algorithm.round(algorithm.init())
    assert not torch.equal(state.theta, algorithm.init().theta) and math.isnan(metrics["train/loss"])
    assert metrics["privacy/clients"] == 0 and metrics["privacy/epsilon"] > 0


def test_epsilon_of_full_participation_is_the_gaussian_mechanisms():
    """r rounds at noise z are one Gaussian mechanism at z / √r. Its Rényi divergence is α r / 2z², of which ε is the
    least over all α of Balle et al.'s conversion; the exact ε (Balle and Wang, 2018, Theorem 8) is a little less."""
    pytest.importorskip("opacus", reason="ε is counted by Opacus: pip install raypref[privacy]")
    z, rounds, delta = 4.0, 30, 1e-4

    def converted(a):
        return a * rounds / (2 * z**2) - (math.log(delta) + math.log(a)) / (a - 1) + math.log((a - 1) / a)

    least = minimize_scalar(converted, bounds=(1.01, 200), method="bounded").fun
    s = z / math.sqrt(rounds)

    def excess(e):
        return norm.cdf(1 / (2 * s) - e * s) - math.exp(e) * norm.cdf(-1 / (2 * s) - e * s) - delta

    exact, counted = brentq(excess, 0, 50), privacy.epsilon(rounds * privacy.rdp(z, 1.0), delta)
    assert counted == pytest.approx(least, rel=0.01) and exact <= counted <= 1.15 * exact


def test_epsilon_of_a_sample_is_that_of_poisson_sampling():
    """At whole orders the divergence is a binomial sum (Mironov et al., 2019, section 3.3)."""
    pytest.importorskip("opacus", reason="ε is counted by Opacus: pip install raypref[privacy]")
    z, q = 1.1, 0.05
    ours = dict(zip(privacy.ORDERS, privacy.rdp(z, q), strict=True))
    for a in (2, 5, 12):
        terms = [
            math.comb(a, k) * (1 - q) ** (a - k) * q**k * math.exp((k * k - k) / (2 * z * z)) for k in range(a + 1)
        ]
        assert ours[a] == pytest.approx(math.log(sum(terms)) / (a - 1), rel=1e-6)
    assert privacy.epsilon(100 * privacy.rdp(z, q), 1e-3) < privacy.epsilon(100 * privacy.rdp(z, 1.0), 1e-3) / 5


def test_epsilon_and_delta_are_told_each_round_and_in_the_result(tiny, tmp_path):
    pytest.importorskip("opacus", reason="ε is counted by Opacus: pip install raypref[privacy]")
    chosen = override(tiny, {"algorithm": "dp_fedavg", "federation.rounds": 2, "dp.noise": 2.0})
    result = loop.run(chosen, tmp_path, adapters=False)
    delta = 10**-1.1
    assert result["privacy"]["epsilon"] == pytest.approx(privacy.epsilon(2 * privacy.rdp(2.0, 0.5), delta))
    assert result["privacy"]["delta"] == pytest.approx(delta)


def test_what_is_not_accounted_for_is_refused(monkeypatch):
    plain = RunConfig()
    with pytest.raises(UserError, match=r"fedgd does nothing with dp\.\*, and its server reads update, readings/val"):
        validate(override(plain, {"algorithm": "fedgd", "dp.noise": 2.0}))
    with pytest.raises(UserError, match="its server reads statistics/mu, statistics/variance of each client; take dp_"):
        validate(override(plain, {"algorithm": "fedvpa_gp", "objective": "variational", "dp.clip": 0.5}))
    dp = override(plain, {"algorithm": "dp_fedavg", "dp.noise": 2.0})
    validate(dp)
    assert by_another(dp, "fedavg") == override(plain, {"algorithm": "fedavg"})
    with pytest.raises(UserError, match=r"give --dp\.clip, or --dp\.noise 0"):
        validate(override(dp, {"dp.clip": None}))
    with pytest.raises(UserError, match=r"set --federation\.dropout 0"):
        validate(override(dp, {"federation.dropout": 0.1}))
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis.rdp", None)
    with pytest.raises(UserError, match=r"pip install 'raypref\[privacy\]'"):
        DPFedAvg(config("dp_fedavg"), Rule())
    DPFedAvg(config("dp_fedavg", dp__noise=0.0), Rule())  # which needs no ε, and no Opacus
