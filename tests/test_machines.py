"""A sweep over three machines, in network namespaces, of which one goes in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raypref.config import from_dict, override
from raypref.experiment import loop as experiment
from raypref.tools import checkpoint
from tests.namespaces import Machine, machines
from tests.nodes import COMMON, RAY, process, wait_until

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.cluster


def ask(machine: Machine, url: str) -> str:
    """What a URL says to that machine."""
    code = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=10).read().decode())"
    done = subprocess.run(machine.words(sys.executable, "-c", code), capture_output=True, text=True, timeout=30)
    return done.stdout


def test_a_sweep_outlives_one_of_its_machines(tiny_base, tmp_path):
    """Two trials, of two client actors each, ask for 3.8 cores of 1 + 1 + 2: clients are on all machines when the
    largest is unplugged. What it had ends on the others, one trial at a time, with the numbers of a run in this
    process, all of them in MLflow."""
    out, tracking = tmp_path / "out", tmp_path / "mlflow.db"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))} | {
        "RAY_AUTH_MODE": "disabled",
        "RAY_health_check_timeout_ms": "4000",  # a machine is gone after three silences of four seconds
        "RAY_health_check_failure_threshold": "3",
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path),
        "PATH": f"{RAY.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with (
        machines(3) as (head, other, lost),
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as temporary,
        contextlib.ExitStack() as started,
    ):
        environment["MLFLOW_TRACKING_URI"] = f"http://{other.ip}:5000"

        def start(machine: Machine, *words: str) -> None:
            started.enter_context(process(machine.words(*words), cwd=tmp_path, env=environment))

        start(
            *(other, sys.executable, "-m", "mlflow", "server", f"--host={other.ip}", "--port=5000", "--workers=1"),
            *(f"--backend-store-uri=sqlite:///{tracking}", f"--allowed-hosts={other.ip}:5000"),
        )
        first = ["--head", "--port=6379", f"--dashboard-host={head.ip}", "--dashboard-port=8265"]
        start(
            *(head, str(RAY), "start", *first, f"--temp-dir={temporary}", f"--node-ip-address={head.ip}"),
            *("--num-cpus=1", *COMMON),
        )
        dashboard = f"http://{head.ip}:8265"

        def state(what: str, which: str) -> list[dict]:
            """What Ray has of a kind of thing in this state."""
            of = f"detail=true&filter_keys=state&filter_predicates=%3D&filter_values={which}"
            said = ask(head, f"{dashboard}/api/v0/{what}?{of}")
            return json.loads(said)["data"]["result"]["result"] if said else []

        wait_until(lambda: len(state("nodes", "ALIVE")) == 1)
        for cores, machine in enumerate((other, lost), 1):
            join = [str(RAY), "start", f"--address={head.ip}:6379", f"--node-ip-address={machine.ip}"]
            start(machine, *join, f"--num-cpus={cores}", *COMMON)
            wait_until(lambda nodes=cores + 1: len(state("nodes", "ALIVE")) == nodes)
        wait_until(lambda: ask(other, f"http://{other.ip}:5000/health"))

        words = ["--smoke", "--seeds", "0", "1", "--experts.K", "2", "--federation.rounds", "60", "--out", str(out)]
        words += ["--model.base", str(tiny_base), "--clients.clients-per-actor", "6"]
        submit = [str(RAY), "job", "submit", f"--address={dashboard}", "--", "python", "-m", "raypref.sweep", "fedgd"]
        said = tmp_path / "said"
        with (
            said.open("w") as log,
            subprocess.Popen(head.words(*submit, *words), cwd=ROOT, env=environment, stdout=log, stderr=log) as job,
        ):
            try:

                def spread() -> bool:
                    """A place of a client on every machine, and a round that is saved."""
                    places = [bundle for group in state("placement_groups", "CREATED") for bundle in group["bundles"]]
                    nodes = {place["node_id"] for place in places if place["unit_resources"].get("CPU", 0) > 0.5}
                    saved = list(out.glob("fedgd-smoke/*/state.safetensors"))
                    return job.poll() is not None or (len(nodes) == 3 and saved)

                wait_until(spread, 300)
                assert job.poll() is None and not list(out.glob("fedgd-smoke/*/result.json")), said.read_text()
                lost.unplug()
                assert job.wait(timeout=300) == 0, said.read_text()
            finally:
                job.kill()
        print(said.read_text())

    results = [checkpoint.read_json(path) for path in out.glob("fedgd-smoke/*/result.json")]
    assert len(results) == 2
    for i, result in enumerate(results):
        local = override(from_dict(result["config"]), {"clients.backend": "local"})
        assert experiment.run(local, tmp_path / f"local-{i}", adapters=False)["test"] == result["test"]

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tracking}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert [run.info.status for run in runs] == ["FINISHED"] * 3  # the trials' and the sweep's
