"""`ray start`, `ray job submit`, several nodes: for real, on this machine, each with its own ports and folders."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from raypref.config import from_dict, override
from raypref.experiment import loop as experiment
from raypref.tools import checkpoint
from tests.nodes import COMMON, RAY, free_port, process, wait_until

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.cluster


@dataclass
class Cluster:
    """A head, and what talks to it."""

    folder: Path
    """Where `ray start` was typed."""
    environment: dict[str, str]
    gcs: int
    dashboard: int

    @contextlib.contextmanager
    def node(self, cpus: int, *before: str) -> Iterator[subprocess.Popen]:
        """One node more, started by `before` (such as `unshare`), with nothing else in it."""
        known = self.nodes()
        words = [*before, str(RAY), "start", f"--address=127.0.0.1:{self.gcs}", f"--num-cpus={cpus}", *COMMON]
        with process([*words, "--node-ip-address=127.0.0.1"], cwd=self.folder, env=self.environment) as started:
            wait_until(lambda: self.nodes() > known)
            yield started
        wait_until(lambda: self.nodes() == known)

    def nodes(self) -> int:
        """How many are alive."""
        told = self.ask("/api/v0/nodes?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE")
        return len(set(re.findall(r'"node_id": ?"(\w+)"', told)))

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.dashboard}{path}", timeout=10) as answer:
            return answer.read().decode()

    def submit(self, cwd: Path, *words: str) -> tuple[int, str]:
        """`ray job submit …` -> exit status, output."""
        command = [str(RAY), "job", "submit", f"--address=http://127.0.0.1:{self.dashboard}", *words]
        done = subprocess.run(command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A head of two cores, started in a folder of its own with a home of its own."""
    folder = tmp_path_factory.mktemp("typed_here")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))} | {
        "RAY_AUTH_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PATH": f"{RAY.parent}{os.pathsep}{os.environ['PATH']}",  # the job says `python`
    }
    gcs, dashboard, client = free_port(), free_port(), free_port()
    ports = [f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
    # Sockets lie in there, and their paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        words = [str(RAY), "start", "--head", "--num-cpus=2", f"--temp-dir={temporary}", *ports, *COMMON]
        with process([*words, "--node-ip-address=127.0.0.1"], cwd=folder, env=environment):
            made = Cluster(folder, environment, gcs, dashboard)
            wait_until(lambda: made.nodes() == 1)
            yield made


def sweep(name: str, tiny_base: Path, *more: str) -> list[str]:
    """One trial of seconds."""
    words = ["--smoke", "--seeds", "0", "--experts.K", "2", "--model.base", str(tiny_base), *more]
    return ["--", "python", "-m", "raypref.sweep", name, *words]


def test_a_job_from_the_repository_root(cluster, tiny_base, tmp_path):
    status, told = cluster.submit(ROOT, *sweep("fedgd", tiny_base, "--out", str(tmp_path)))
    assert status == 0 and "succeeded" in told, told
    assert len(list(tmp_path.glob("fedgd-smoke/*/result.json"))) == 1
    assert (tmp_path / "fedgd-smoke" / "sweep.md").read_text() in told
    assert (cluster.folder / "mlflow.db").exists()  # jobs start where `ray start` was typed


def test_a_job_from_elsewhere_runs_the_code_that_it_brings(cluster, tiny_base, tmp_path):
    """A copy of the repository with a space and a module of its own, from an empty folder. Outputs go to the home, for
    the job's folder is a copy that Ray deletes."""
    copy = tmp_path / "copy"
    for package in ("raypref", "tune_spaces"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "raypref" / "only_in_the_copy.py").write_text("from tune_spaces.fedgd import SPACE\n")
    (copy / "tune_spaces" / "mine.py").write_text("from raypref.only_in_the_copy import SPACE as SPACE\n")
    (tmp_path / "empty").mkdir()
    status, told = cluster.submit(tmp_path / "empty", "--working-dir", str(copy), *sweep("mine", tiny_base))
    assert status == 0 and "succeeded" in told, told
    home = Path(cluster.environment["HOME"])
    assert len(list(home.glob("raypref/runs/mine-smoke/*/result.json"))) == 1
    assert (home / "raypref" / "mlflow.db").exists()


def test_a_job_that_cannot_run_fails(cluster, tiny_base, tmp_path):
    status, told = cluster.submit(ROOT, *sweep("fedgd", tiny_base, "--out", str(tmp_path), "--experts.Q", "3"))
    assert status != 0 and "failed" in told
    assert "raypref: unknown flag '--experts.Q'; did you mean '--experts." in told
    assert "Traceback" not in told


def test_two_nodes_share_a_trial(cluster, tiny_base, tmp_path):
    """Server and three client actors ask for 2.8 cores of 2 + 1: one actor must be on the second node. The numbers are
    those of the same stacks in this process."""
    more = ["--clients.clients-per-actor", "4", "--out", str(tmp_path)]
    with cluster.node(1):
        status, told = cluster.submit(ROOT, *sweep("fedgd", tiny_base, *more))
    assert status == 0, told
    assert "1 to run on 2 nodes, 1 at a time" in told
    (folder,) = (path.parent for path in tmp_path.glob("fedgd-smoke/*/result.json"))
    result = checkpoint.read_json(folder / "result.json")
    local = override(from_dict(result["config"]), {"clients.backend": "local"})
    assert experiment.run(local, tmp_path / "local", adapters=False)["test"] == result["test"]

    from mlflow import MlflowClient

    run = MlflowClient(f"sqlite:///{cluster.folder}/mlflow.db").get_run(
        checkpoint.read_json(folder / "mlflow.json")["run_id"]
    )
    server, *clients = run.data.tags["raypref.nodes"].split()
    assert len(clients) == 3 and len({server, *clients}) == 2 and len(set(clients)) == 2


def test_a_node_without_the_shared_folder_is_found_before_the_start(cluster, tiny_base, tmp_path):
    """The second node sees another, empty folder in the place of --out."""
    apart = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{tmp_path}" && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("needs leave to make a mount namespace")
    with cluster.node(1, *apart):
        status, told = cluster.submit(ROOT, *sweep("fedgd", tiny_base, "--out", str(tmp_path)))
    assert status != 0
    assert re.search(rf"raypref: \S+ cannot write to {tmp_path}/fedgd-smoke; give a folder that all nodes share", told)


def test_a_run_waits_for_a_node_that_joins(cluster, tiny_base, tmp_path):
    """One client actor of 2.5 cores, a head of 2, and a node of 3 that joins once it is waited for."""
    said = tmp_path / "said"
    more = ["--smoke", "--experts.K", "2", "--model.base", str(tiny_base), "--out", str(tmp_path), "--no-track"]
    asks = ["--against", "none", "--clients.backend", "ray", "--clients.cpus-per-actor", "2.5", "--clients.wait", "5"]
    words = [sys.executable, "-m", "raypref.run", "fedgd", *more, *asks]
    where = cluster.environment | {"RAY_ADDRESS": f"127.0.0.1:{cluster.gcs}", "PYTHONPATH": str(ROOT)}
    with said.open("w") as log, subprocess.Popen(words, cwd=tmp_path, env=where, stdout=log, stderr=log) as run:
        try:
            wait_until(lambda: "grow" in said.read_text() or run.poll() is not None)
            assert (
                "waiting for the cluster to grow: the run asks for 2.6 CPU in shares of up to 2.5, " in said.read_text()
            )
            with cluster.node(3):
                assert run.wait(timeout=200) == 0, said.read_text()
        finally:
            run.kill()
    assert len(list(tmp_path.rglob("result.json"))) == 1


LOOK = """
import ray
from ray.util import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from raypref.clients import actors

ray.init(log_to_driver=False)
assert actors.group_is_whole()  # outside of a group
group = placement_group([{"CPU": 2}, {"CPU": 1}], strategy="STRICT_SPREAD")
ray.get(group.ready())

@ray.remote(num_cpus=2, scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0, True))
def look():
    return actors.group_is_whole()

print(ray.get(look.remote()), flush=True)
input()
print(ray.get(look.remote()), flush=True)
"""


def test_a_group_that_has_lost_a_node_is_not_whole(cluster):
    """The node's processes are killed, and Ray has not noticed yet when it is asked."""
    where = cluster.environment | {"RAY_ADDRESS": f"127.0.0.1:{cluster.gcs}", "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with cluster.node(1) as node, subprocess.Popen([sys.executable, "-c", LOOK], env=where, **pipes) as looking:
        try:
            assert looking.stdout.readline() == "True\n"
            for one in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
                one.kill()
            assert looking.communicate("\n", timeout=120)[0].endswith("False\n")  # after what Ray says of the node
        finally:
            looking.kill()
