"""Real Ray Train: the bits of processes without Ray, also where one is killed, and errors that a person can act on."""

import dataclasses

import psutil
import pytest
import ray
import torch

from raypref.config import UserError, override
from raypref.policy import job
from raypref.tools import checkpoint

pytestmark = pytest.mark.slow

ROUNDS = {"rlhf.rounds": 3, "rlhf.local_steps": 1}


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def by_ray(workers, engine="torch", stage=2):
    asked = {"rlhf.backend": "ray", "rlhf.workers": workers, "rlhf.cpus_per_worker": 0.5}
    return ROUNDS | asked | {"rlhf.engine": engine, "rlhf.zero_stage": stage}


def training():
    """The processes of a job that this one has started."""
    return [p for p in psutil.Process().children(recursive=True) if "RayTrainWorker" in title(p)]


def title(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


def left(folder):
    row = checkpoint.load(folder / "row.safetensors")[0]["row"]
    return row, (folder / "responses.jsonl").read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_process_changes_no_bit(make_task, together, cluster, tmp_path, workers):
    """kill -9 of one, once a round is saved: all start again and go on from there."""
    rounds, killed = [], []

    def told(round, metrics):
        rounds.append(round)
        if round == 2 and not killed:
            victim = training()[-1]
            victim.kill()
            killed.append(victim.pid)

    job.run(make_task(by_ray(workers)), tmp_path, told)
    row, responses = left(tmp_path)
    whole, same = left(together(make_task(ROUNDS), workers))
    assert torch.equal(row, whole) and responses == same
    assert killed and rounds.count(1) == 1 and sorted(set(rounds)) == [1, 2, 3]
    assert not list(tmp_path.glob(".ray-train-*"))


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_in_a_ray_train_job(make_task, together, cluster, tmp_path, stage):
    told = {}
    job.run(make_task(by_ray(2, "deepspeed", stage)), tmp_path, told.__setitem__)
    row, responses = left(tmp_path)
    whole, same = left(together(make_task(ROUNDS)))
    assert torch.allclose(row, whole, rtol=0, atol=1e-6) and responses == same
    assert list(told) == [1, 2, 3]
    assert all(metrics["rlhf/usable"] > 0 for metrics in told.values())


def test_what_a_process_refuses_ends_the_job_at_once(make_task, cluster, tmp_path):
    """It is no fault that another try would mend."""
    task = make_task(by_ray(2))
    task = dataclasses.replace(task, config=override(task.config, {"model.base": "./nowhere"}))
    with pytest.raises(UserError, match=r"model\.base='\./nowhere': there is no such folder"):
        job.run(task, tmp_path, lambda round, metrics: None)
    _, alive = psutil.wait_procs(training(), timeout=60)
    assert not alive


def test_more_than_the_cluster_has_is_refused_at_once(make_task, cluster, tmp_path):
    with pytest.raises(UserError, match=r"asks for 1 GPU .* lower rlhf\.workers or rlhf\.gpus-per-worker"):
        job.run(make_task(by_ray(2) | {"rlhf.gpus_per_worker": 0.5}), tmp_path, lambda round, metrics: None)
