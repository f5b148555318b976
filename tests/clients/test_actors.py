"""Real Ray: the same bits as in process, and faults that a person can act on."""

import socket
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import ray
import torch

from raypref.clients import actors
from raypref.clients.autoscaler import Answer
from raypref.config import UserError, override
from raypref.evaluation.latent import Latent
from raypref.experiment import loop as experiment
from raypref.tools import checkpoint
from tests.bars import acting


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


pytestmark = pytest.mark.slow

FEW = {"data.group_sizes": (1, 1, 1, 1), "federation.cohort": 3, "experts.K": 2}


@pytest.mark.parametrize(("few", "per_actor", "stack"), [({}, 0, 3), ({}, 5, 3), (FEW, 1, 1)])
def test_ray_is_in_process_bit_for_bit(tiny, tmp_path, cluster, few, per_actor, stack):
    """One actor, two actors and one client an actor, each against the same stacks in this process."""
    config = override(tiny, few | {"clients.clients_per_actor": per_actor, "clients.stack": stack})
    here = experiment.run(config, tmp_path / "here", adapters=False)
    there = experiment.run(override(config, {"clients.backend": "ray"}), tmp_path / "there", adapters=False)
    for fold in ("validation", "test"):
        assert here[fold] == there[fold]
    assert here["assignment"] == there["assignment"]
    assert here["bytes_up"] == there["bytes_up"] and here["ledger"] == there["ledger"]


def test_the_variational_objective_is_the_same_over_actors(tiny, tmp_path, cluster):
    """With everything that it sends beside rows: contexts, statistics, posteriors, probes."""
    config = override(
        tiny,
        {"algorithm": "fedvpa_gp", "objective": "variational", "variational.every": 2}
        | {"clients.clients_per_actor": 5, "clients.stack": 3, "variational.lora": True},
    )
    here = experiment.run(config, tmp_path / "here", adapters=False)
    there = experiment.run(override(config, {"clients.backend": "ray"}), tmp_path / "there", adapters=False)
    for name in ("test", "probes", "assignment", "bytes_up", "bytes_down", "ledger"):
        assert here[name] == there[name]
    one, other = (Latent.load(tmp_path / where / "latent.npz") for where in ("here", "there"))
    assert one.rounds.tolist() == [1, 2, 4]
    assert np.array_equal(one.mu, other.mu) and np.array_equal(one.prototypes, other.prototypes)


@pytest.mark.parametrize("name", ["scaffold", "ditto", "fedrep", "lore"])
def test_what_clients_keep_is_the_same_over_actors(tiny, tmp_path, cluster, name):
    """With unseen clients, who fit what they have not; the state and all that is read out."""
    small = {"algorithm": name, "federation.rounds": 2, "federation.unseen": 1, "federation.cohort": 4}
    small |= {"fit.context_marks": (1, 4), "fedrep.fit_steps": 2, "personalization.marks": (0, 1)}
    config = override(tiny, small | {"clients.clients_per_actor": 5, "clients.stack": 3})
    here = experiment.run(config, tmp_path / "here", adapters=False)
    there = experiment.run(override(config, {"clients.backend": "ray"}), tmp_path / "there", adapters=False)
    for what in ("test", "probes", "bytes_up", "bytes_down"):
        assert here[what] == there[what]
    one, other = (checkpoint.load(tmp_path / where / "state.safetensors")[0] for where in ("here", "there"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_any_number_of_actors_gives_the_same_bits_at_width_one(tiny, tmp_path, cluster):
    config = override(tiny, {"clients.stack": 1})
    one = experiment.run(config, tmp_path / "one", adapters=False)
    two = experiment.run(
        override(config, {"clients.backend": "ray", "clients.clients_per_actor": 5}), tmp_path / "two", adapters=False
    )
    assert one["test"] == two["test"]
    stacked = experiment.run(override(config, {"clients.stack": 3}), tmp_path / "stacked", adapters=False)
    assert np.allclose(one["test"]["loss"], stacked["test"]["loss"], atol=1e-3)


def test_more_than_the_cluster_has_is_refused_at_once(tiny, tmp_path, cluster):
    for values, kind in (({"clients.gpus_per_actor": 0.5}, "GPU"), ({"clients.cpus_per_actor": 64.0}, "CPU")):
        config = override(tiny, {"clients.backend": "ray"} | values)
        with pytest.raises(UserError, match=f"asks for .* {kind} .* the cluster has"):
            experiment.run(config, tmp_path / kind, adapters=False)


def test_what_an_autoscaler_cannot_add_now_is_refused_once_nobody_else_uses_the_cluster(cluster, monkeypatch, capsys):
    """It counts what is free only: what it refuses while others work may fit when they are done."""
    answers = [Answer(False, "nodes on their way: 1"), Answer(True, ""), Answer(True, ""), Answer(True, "")]
    busy = [True, True, False]
    monkeypatch.setattr(actors, "answer", lambda group: answers.pop(0))
    monkeypatch.setattr(actors, "in_use", lambda: busy.pop(0))
    monkeypatch.setattr(actors, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))
    with pytest.raises(
        UserError, match=r"asks for 3 CPU .* has 2, and no node types of its autoscaler .*clients\.wait"
    ):
        actors.check_fits([{"CPU": 3.0}])
    assert answers == busy == []
    assert capsys.readouterr().out.splitlines() == [
        "waiting for the cluster to grow: the run asks for 3 CPU in shares of up to 3, the cluster has 2; "
        "nodes on their way: 1"
    ]
    assert {group["state"] for group in ray.util.placement_group_table().values()} <= {"REMOVED"}


def test_nodes_that_people_add_are_waited_for_as_long_as_they_say(cluster, monkeypatch):
    """A clock that has gone on by a minute at each look: refused at the first, or at the second of two minutes."""
    looks = []
    monkeypatch.setattr(actors, "answer", lambda group: looks.append(group))
    for wait, expected in ((0.0, 1), (2.0, 2)):
        clock = iter(range(0, 600, 60))
        monkeypatch.setattr(actors, "time", SimpleNamespace(monotonic=clock.__next__, sleep=lambda seconds: None))
        looks.clear()
        with pytest.raises(UserError, match=r"the cluster has 2; lower clients\.cpus-per-actor"):
            actors.check_fits([{"CPU": 3.0}], wait)
        assert len(looks) == expected


def test_shares_of_a_gpu_lie_on_one_device():
    """0.6 twice waits for ever on one GPU: 1.2 is not the point, a device is."""
    actors.place([0.5, 0.5], [1.0], "GPU")
    with pytest.raises(UserError):
        actors.place([0.6, 0.6], [1.0], "GPU")
    with pytest.raises(UserError):
        actors.place([0.6] * 3, [2.0], "GPU")
    actors.place([1.5, 0.5], [2.0], "CPU")


def test_a_user_error_crosses_the_server_actor(tiny, tmp_path, cluster):
    config = override(tiny, {"clients.backend": "ray", "experts.K": 11})
    with pytest.raises(UserError, match=r"experts\.K is 11 but there are 10 clients"):
        experiment.run(config, tmp_path, adapters=False)


@pytest.mark.parametrize("victims", ["ClientActor", "Server"])
def test_a_run_goes_on_by_itself_where_an_actor_is_killed_and_a_resume_where_it_may_not(
    tiny, tmp_path, cluster, capsys, victims
):
    """An actor is killed in the middle of round 2, then another one after each round: what was saved stands, the run
    goes on once by itself, is ended by the second death, and gives the numbers of one that was never interrupted."""
    config = override(tiny, {"clients.backend": "ray", "clients.restarts": 1})
    killed = []

    def kill(seen):
        if len(killed) < 2:
            ours = psutil.Process().children(recursive=True)
            for victim in (p for p in ours if any(f"ray::{victims}" in word for word in p.cmdline())):
                victim.kill()
                killed.append(victim.pid)

    with pytest.raises(UserError, match=r"an actor died .* --resume"):
        experiment.run(config, tmp_path / "broken", bar=acting("rounds", kill), adapters=False)
    assert "(restart 1 of at most 1)" in capsys.readouterr().err
    assert len(killed) == 2
    resumed = experiment.run(config, tmp_path / "broken", adapters=False)
    assert resumed["restarts"] == 1  # by itself; the second time by a person
    killed.clear()
    mended = experiment.run(
        override(config, {"clients.restarts": 2}), tmp_path / "mended", bar=acting("rounds", kill), adapters=False
    )
    assert mended["restarts"] == 2 and mended["test"] == resumed["test"]
    whole = experiment.run(override(config, {"clients.backend": "local"}), tmp_path / "whole", adapters=False)
    assert resumed["test"] == whole["test"] and resumed["rounds"] == whole["rounds"]
    assert resumed["client_steps"] == whole["client_steps"]


def test_a_pool_trained_by_two_processes_is_one_trained_alone(tiny, tmp_path, cluster):
    """Ray Train's `TorchTrainer` shares every batch of Multi-CL's four models out to two processes; without dropout
    the sums of their gradients are the gradients of one."""
    config = override(tiny, {"algorithm": "multi_cl", "federation.rounds": 1, "model.lora_dropout": 0.0})
    here = experiment.run(config, tmp_path / "here", adapters=False)
    two = override(config, {"clients.backend": "ray", "clients.pooled_workers": 2})
    there = experiment.run(two, tmp_path / "there", adapters=False)
    models = [checkpoint.load(tmp_path / name / "state.safetensors")[0]["theta"] for name in ("here", "there")]
    assert torch.allclose(*models, atol=1e-5)
    assert here["client_steps"] == there["client_steps"] == 4 * 3
    assert np.allclose(here["test"]["loss"], there["test"]["loss"], atol=1e-4)


def test_what_cannot_be_shared_out_is_refused(tiny):
    two = override(tiny, {"algorithm": "cl", "clients.pooled_workers": 2})
    with pytest.raises(UserError, match="needs Ray"):
        experiment.check(two)
    with pytest.raises(UserError, match="has only 1 pairs"):
        experiment.check(override(two, {"clients.backend": "ray", "optim.batch_size": 1}))


@pytest.mark.parametrize("how", ["named", "left behind"])
def test_a_dead_address_of_ray_is_one_line_at_once(tmp_path, monkeypatch, how):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail("Ray would wait for many minutes"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    if how == "named":
        monkeypatch.setenv("RAY_ADDRESS", dead)
    else:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(dead)
    with pytest.raises(UserError, match=f"no Ray cluster answers at {dead} .*; start it there, or") as error:
        actors.start_ray()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "error",
    [ConnectionError("Could not find\nany running Ray instance."), OSError("AF_UNIX path length cannot exceed 107")],
)
def test_a_ray_that_cannot_be_had_is_one_line(tmp_path, monkeypatch, error):
    """As with RAY_ADDRESS=auto where none runs, or a RAY_TMPDIR that is too long for a socket."""

    def refuses(**options):
        raise error

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", refuses)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match=r"neither joined nor started .*; see to RAY_ADDRESS and RAY_TMPDIR") as one:
        actors.start_ray()
    assert "\n" not in str(one.value)
