"""The algorithms against cases worked out by hand, with clients that answer by rule instead of by training."""

import numpy as np
import pytest
import torch

from raypref.algorithms import ALGORITHMS
from raypref.algorithms.fedavg import FedAvg, FedAvgState, FLTarget
from raypref.algorithms.fedgd import FedGD, FedGDLatent, FedGDTarget
from raypref.clients.half import Message
from raypref.clients.pool import InProcess
from raypref.clients.work import Train
from raypref.config import UserError, override, registry
from raypref.data.federation import members
from raypref.experiment import loop as experiment
from raypref.models.layout import initial_row
from raypref.rounds.sampling import group_debiased_sample
from raypref.storage.results import Store
from raypref.tools.rng import stream
from tests.algorithms.rule import Rule, config


def test_fedavg_round_by_hand():
    clients = Rule()
    algorithm = FedAvg(config("fedavg"), clients)
    before = algorithm.init()
    after, _ = algorithm.round(before)
    cohort = clients.asked[0]
    n = clients.sizes[cohort]
    expected = before.theta + sum(clients.pull(c) * w for c, w in zip(cohort, n / n.sum(), strict=True))
    assert torch.allclose(after.theta, expected.float(), atol=1e-6)
    assert after.round == 1


def test_fl_target_changes_the_sampling_alone():
    clients = Rule()
    algorithm = FLTarget(config("fl_target"), clients)
    state = algorithm.init()
    for r in range(4):
        state, _ = algorithm.round(state)
        draw = stream(0, "cohort", r)
        assert clients.asked[r].tolist() == group_debiased_sample(3, members(Rule.group_of, 2), draw).tolist()
        assert {0, 1} <= set(Rule.group_of[clients.asked[r]])


def test_fedgd_phase_1_in_numpy():
    """Algorithm 1, lines 3-22, written again with dictionaries: experts, reference and groups agree at every round."""
    clients = Rule()
    algorithm = FedGD(config("fedgd", fedgd__w=0.5), clients)
    state = algorithm.init()
    start = initial_row(clients.layout, 0).double()
    theta, reference = {k: start.clone() for k in range(2)}, start.clone()
    returned, pi = {0: [], 1: []}, list(state.assignment)
    for r in range(4):
        if r in (2,):
            losses = clients.evaluate(torch.stack([theta[0], theta[1]]), "validation")["loss"]
            pi = [int(losses[1, c] < losses[0, c]) for c in range(6)]
            theta, returned = {k: reference.clone() for k in range(2)}, {0: [], 1: []}
        state, _ = algorithm.round(state)
        cohort = clients.asked[-1]
        models = {c: theta[pi[c]] + clients.pull(c) for c in cohort}
        for k in range(2):
            mine = [models[c] for c in cohort if pi[c] == k]
            if mine:
                returned[k] += mine
                theta[k] = 0.5 * theta[k] + 0.5 * sum(returned[k]) / len(returned[k])
        reference = sum(models.values()) / len(models)
        assert torch.allclose(state.theta.double(), torch.stack([theta[0], theta[1]]), atol=1e-5)
        assert torch.allclose(state.theta_g.double(), reference, atol=1e-5)
        assert state.n.tolist() == [len(returned[0]), len(returned[1])]
    losses = clients.evaluate(torch.stack([theta[0], theta[1]]), "validation")["loss"]
    assert state.assignment == [int(losses[1, c] < losses[0, c]) for c in range(6)]


def test_fedgd_finds_opposed_groups_and_debiases():
    clients = Rule()
    algorithm = FedGD(config("fedgd", federation__rounds=16), clients)
    state = algorithm.init()
    for _ in range(8):
        state, _ = algorithm.round(state)
    found = np.array(state.assignment)
    assert len(set(found[:4])) == 1 and len(set(found[4:])) == 1 and found[0] != found[5]
    assert torch.equal(state.phi, initial_row(clients.layout, 0))
    for _ in range(8):
        state, _ = algorithm.round(state)
        assert {0, 1} <= set(Rule.group_of[clients.asked[-1]])
    # Every round each group moves φ by its own ±1 with weight 1/2: it stays where it was.
    assert torch.allclose(state.phi, initial_row(clients.layout, 0), atol=1e-5)


def test_fedgd_by_z_clusters_what_clients_send_of_their_latents():
    """Two heaps of means, of four clients and of two, at every reassignment by T rounds; nobody's losses are asked."""
    clients = Rule()
    clients.evaluate = None
    algorithm = FedGDLatent(config("fedgd_z", objective="bayes"), clients)
    state = algorithm.init()
    for _ in range(4):
        state, metrics = algorithm.round(state)
    found = np.array(state.assignment)
    assert len(set(found[:4])) == 1 == len(set(found[4:])) and found[0] != found[5]
    assert metrics["groups/found"] == 2 and metrics["groups/moved"] == 0  # it keeps its names
    with pytest.raises(UserError, match="fedgd_z clusters clients' latents; add --objective bayes"):
        FedGDLatent.check(config("fedgd_z"))


def test_continue_starts_phase_2_from_the_reference():
    clients = Rule()
    algorithm = FedGD(config("fedgd", fedgd__phase2_start="continue"), clients)
    state = algorithm.init()
    for _ in range(4):
        state, _ = algorithm.round(state)
    assert torch.equal(state.phi, state.theta_g)


def test_fedgd_over_the_true_groups_is_fl_target_where_both_weigh_alike():
    """Equal sizes and cohorts of one client a group: hierarchical weights are size weights. On real training, bit for
    bit (S2 B.1)."""

    class Twice(Rule):
        pass

    clients = Twice(sizes=(7,) * 6)
    ours = config("fedgd_target", federation__cohort=2)
    phase2, oracle = FedGDTarget(ours, clients), FLTarget(ours, clients)
    a = phase2.init()
    b = FedAvgState(round=a.round, theta=a.phi)
    for _ in range(4):
        (a, _), (b, _) = phase2.round(a), oracle.round(b)
        assert torch.equal(a.phi, b.theta)


def test_the_same_on_real_clients(tiny):
    """As above with trained adapters: four groups, cohorts of four, equal sizes by exact counts."""
    chosen = override(tiny, {"federation.cohort": 4, "data.exact_counts": (4, 4), "algorithm": "fedgd_target"})
    pool = InProcess(experiment.prepare(chosen))
    assert len(set(pool.sizes.tolist())) == 1
    phase2, oracle = FedGDTarget(chosen, pool), FLTarget(chosen, pool)
    a = phase2.init()
    b = FedAvgState(round=a.round, theta=a.phi)
    for _ in range(2):
        (a, _), (b, _) = phase2.round(a), oracle.round(b)
        assert torch.allclose(a.phi, b.theta, atol=1e-7)


def test_one_client_fedavg_is_plain_training(tiny):
    """With one client in the cohort, two rounds of FedAvg are two stretches of that client's own training."""
    chosen = override(tiny, {"federation.cohort": 1, "algorithm": "fedavg"})
    pool = InProcess(experiment.prepare(chosen))
    algorithm = FedAvg(chosen, pool)
    state = algorithm.init()
    row = state.theta
    for r in range(2):
        cohort = algorithm.sample(r)
        state, _ = algorithm.round(state)
        row = torch.from_numpy(pool.worker.train(Train(cohort, row[None].numpy(), r, Message(), [{}])).rows)[0]
        assert torch.equal(state.theta, row)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_and_tells_its_budget(name, tiny, tmp_path):
    """R = 4 rounds of 5 clients x τ = 3 steps, but: FedBiscuit warms K = 2 experts up for T = 1 round each and goes on
    for R - T = 3; CL takes R · τ = 12 steps, Multi-CL as many for each of four groups, without a round; Ditto's clients
    take τ steps of two models each. DP-FedAvg draws clients one by one, 5 of 10 a round on average."""
    small = {"algorithm": name, "experts.K": 2, "model.lora_r": 4}
    objective = registry.algorithm(name).objective
    small |= {"objective": objective} | ({"diagnostics.marks": (0, 4)} if objective == "choice" else {})
    result = experiment.run(override(tiny, small), tmp_path, adapters=False)
    rounds = {"local": 0, "fedgd_target": 2, "fedbiscuit": 5, "cl": 0, "multi_cl": 0}.get(name, 4)
    steps = {"cl": 12, "multi_cl": 48, "ditto": rounds * 5 * 6}.get(name, rounds * 5 * 3)
    if name == "dp_fedavg":
        lines = Store(tmp_path, override(tiny, small)).lines()
        cohorts = sum(line.get("metrics", {}).get("privacy/clients", 0) for line in lines)
        steps = cohorts * 3
    assert result["rounds"] == rounds and result["client_steps"] == steps
    assert result["weights"]
    assert [d["mark"] for d in result["diagnostics"]] == ([0, 4] if objective == "choice" else [])
    for d in result["diagnostics"]:
        assert [len(h) for h in d["headroom"]] == [len(m[0]) for m in result["margins"]["test"]]
    # The margins are those whose signs are the accuracy.
    for client, accuracy in zip(result["margins"]["test"], result["test"]["accuracy"], strict=True):
        assert np.allclose([np.mean(np.array(m) > 0) for m in client], accuracy)


@pytest.mark.parametrize("name", sorted(n for n in ALGORITHMS if n != "soft_fl" and not n.startswith("fedvp")))
def test_the_objective_is_independent_of_the_algorithm(name, tiny, tmp_path):
    """S1's selector under S2's algorithms; what only the objective knows is told for each of ten clients."""
    small = {"algorithm": name, "objective": "variational", "experts.K": 2, "variational.context_marks": (1, 4)}
    result = experiment.run(override(tiny, small), tmp_path, adapters=False)
    assert np.array(result["probes"]["context_accuracy"]).shape == (10, 2)
    assert np.array(result["probes"]["linear_accuracy"]).shape == (10, 3)
    assert result["parameters"]["adapter"] == 0 < result["parameters"]["latent"]


def test_soft_fl_has_no_latent_modules(tiny, tmp_path):
    with pytest.raises(UserError, match="take objective choice"):
        experiment.run(override(tiny, {"algorithm": "soft_fl", "objective": "variational"}), tmp_path)


def test_oracles_refuse_unknown_groups():
    clients = Rule()
    clients.groups = ()
    for oracle in (FLTarget, FedGDTarget):
        with pytest.raises(UserError, match="needs the true groups"):
            oracle(config("fl_target"), clients)
