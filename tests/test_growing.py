"""A cluster with a real autoscaler, whose nodes are further Ray nodes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes import COMMON, RAY, free_port, process, wait_until

ROOT = Path(__file__).resolve().parents[1]
HEAD = "f" * 51 + "00000"
"""The head's id, which Ray's fake provider of nodes counts on from."""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def growing(tmp_path_factory) -> Iterator[dict[str, str]]:
    """The environment in which a head of one core is reached that can have two more nodes, of two cores each."""
    folder, gcs = tmp_path_factory.mktemp("growing"), free_port()
    types = {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "worker": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    }
    provider = {  # by its class: the defaults of its own type are a file that Ray's packages leave out
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "launch_multiple": True,
        "head_node_id": HEAD,
        "gcs_address": f"127.0.0.1:{gcs}",
    }
    empty = ["cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands"]
    empty += [f"{who}_{what}" for who in ("head", "worker") for what in ("setup_commands", "start_ray_commands")]
    config = {key: [] for key in empty} | {"file_mounts": {}, "file_mounts_sync_continuously": False}
    config |= {"cluster_name": "growing", "max_workers": 2, "auth": {"ssh_user": "nobody"}}
    config |= {"provider": provider, "available_node_types": types, "head_node_type": "ray.head.default"}
    (folder / "cluster.json").write_text(json.dumps(config))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))} | {
        "RAY_AUTH_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "RAY_ADDRESS": f"127.0.0.1:{gcs}",
    }
    head = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    ports = [f"--port={gcs}", f"--dashboard-port={free_port()}", f"--ray-client-server-port={free_port()}"]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        words = [str(RAY), "start", "--head", "--num-cpus=1", f"--temp-dir={temporary}", *ports, *COMMON]
        words += ["--node-ip-address=127.0.0.1", f"--autoscaling-config={folder / 'cluster.json'}"]
        with process(words, cwd=folder, env={k: v for k, v in environment.items() if k != "RAY_ADDRESS"} | head):
            status = [str(RAY), "status", "--address", environment["RAY_ADDRESS"]]
            wait_until(lambda: not subprocess.run(status, env=environment, capture_output=True).returncode)
            yield environment


def test_a_sweep_waits_for_the_nodes_of_an_autoscaler_and_refuses_what_none_could_hold(growing, tiny_base, tmp_path):
    """Of an actor of 1.5 cores the head of one cannot hold any, a new node of two one; of 2.5 neither."""

    def sweep(cores: float) -> subprocess.CompletedProcess:
        words = ["--smoke", "--seeds", "0", "--experts.K", "2", "--model.base", str(tiny_base), "--no-track"]
        words += ["--clients.cpus-per-actor", str(cores), "--out", str(tmp_path)]
        command = [sys.executable, "-m", "raypref.sweep", "fedgd", *words]
        return subprocess.run(command, cwd=tmp_path, env=growing, capture_output=True, text=True, timeout=250)

    refused = sweep(2.5)
    assert refused.returncode != 0
    (line,) = refused.stderr.splitlines()
    assert line.startswith(
        "raypref: the run asks for 2.6 CPU in shares of up to 2.5, the cluster has 1, and no node types"
    )
    done = sweep(1.5)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "waiting for the cluster to grow: the run asks for 1.6 CPU in shares of up to 1.5, the cluster has 1"
        in done.stdout
    )
    assert "1 to run on 2 nodes" in done.stdout
    assert len(list(tmp_path.glob("fedgd-smoke/*/result.json"))) == 1
