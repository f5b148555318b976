"""No secret is printed or written: one is planted in every variable that is read, and looked for in all that comes out.
And what a command starts listens on this machine alone."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from raypref import run
from raypref.endpoints.client import Client, Service
from raypref.endpoints.retries import Again, Refused, address
from raypref.experiment.sweeping.running import reason
from raypref.experiment.tracked import Tracker, mlflow_record, mlflow_run
from raypref.storage import tracking
from raypref.tools import console
from raypref.tools.errors import UserError
from raypref.tools.secrets import hidden
from tests.judges.server import refusal, serving
from tests.test_packaging import ROOT

PLANTED = {
    "OPENAI_API_KEY": "sk-planted-0123456789",
    "OPENAI_BASE_URL": "http://me:planted-in-endpoint@127.0.0.1:9/v1",
    "MLFLOW_TRACKING_URI": "",  # where runs go: a test's own
    "MLFLOW_TRACKING_USERNAME": "me",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-password",
    "MLFLOW_TRACKING_TOKEN": "planted-mlflow-token",
    "HF_TOKEN": "hf_planted0123456789",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+secret",
    "RAY_AUTH_TOKEN": "planted-ray-token",
    "HTTPS_PROXY": "http://me:planted%2Fproxy@proxy.invalid:3128",
}
"""What this package reads that may hold a secret, and what its libraries read."""
PLAIN = {
    *("RAY_ADDRESS", "RAY_TMPDIR", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_CHDIR_TO_TRIAL_DIR"),
    *("RAYPREF_PLUGINS", "RAYPREF_FEATURES", "MPLBACKEND", "LOCAL_RANK", "PYTHONWARNINGS", "TERM"),
}
"""Variables that hold none."""


@pytest.fixture
def planted(monkeypatch):
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


def leaks(folder: Path, *texts: str) -> list[str]:
    """Where a planted secret stands: in files, whatever their kind, and in texts."""
    words = {value.partition("me:")[2].partition("@")[0] or value for value in PLANTED.values()} - {"", "me"}
    words |= {"planted/proxy"}
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files |= {f"text {i}": text.encode() for i, text in enumerate(texts)}
    return [f"{word} in {name}" for name, content in files.items() for word in words if word.encode() in content]


def test_the_variables_that_are_read_are_known():
    """Whoever reads another one says here whether it may hold a secret."""
    read = set()
    for file in (ROOT / "raypref").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            name = None
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                name = node.slice
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
                name = node.args[0]
            if isinstance(name, ast.Constant):
                read.add(name.value)
    assert read <= PLAIN | set(PLANTED), read - PLAIN - set(PLANTED)
    assert {"OPENAI_API_KEY", "OPENAI_BASE_URL", "MLFLOW_TRACKING_URI"} <= read


def test_secrets_are_known_by_the_names_of_variables_and_in_urls(planted, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/root/.ray/auth_token")
    monkeypatch.setenv("MY_KEY", "short")
    assert hidden("false /root/.ray/auth_token short") == "false /root/.ray/auth_token short"
    assert hidden(f"key {PLANTED['OPENAI_API_KEY']}!") == "key ***!"
    assert hidden("at planted/proxy, that is planted%2Fproxy") == "at ***, that is ***"
    assert hidden("postgresql://ann:p4ss:w@rd@db.example/x, http://t0ken@host") == (
        "postgresql://ann:***@db.example/x, http://***@host"
    )
    assert (
        hidden("http://host:5000/a@b and http://127.0.0.1:8000/v1")
        == "http://host:5000/a@b and http://127.0.0.1:8000/v1"
    )
    for error in (UserError, Again, Refused):
        assert "planted" not in str(error(f"it said {PLANTED['HF_TOKEN']}"))
    assert reason(ValueError(f"no {PLANTED['HF_TOKEN']}")) == "ValueError: no ***"


def test_a_run_writes_and_prints_no_secret(planted, tmp_path, monkeypatch, capfd, tiny_base):
    """Folder, adapters, MLflow's database and artifacts, standard output and error."""
    monkeypatch.chdir(tmp_path)
    words = "fedavg --smoke --against none --clients.backend local --federation.rounds 2 --personalization.marks 0 1"
    assert console.main(run.command, [*words.split(), "--model.base", str(tiny_base)]) == 0
    assert leaks(tmp_path, *capfd.readouterr()) == []
    assert (tmp_path / "mlflow.db").exists() and list(tmp_path.rglob("adapter_model.safetensors"))


@pytest.mark.parametrize("words", [[], ["--debug"]])
def test_a_tracker_with_a_password_that_does_not_answer(planted, tmp_path, monkeypatch, capfd, tiny_base, words):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            "MLFLOW_TRACKING_URI", f"http://me:planted-mlflow-password@127.0.0.1:{unused.getsockname()[1]}"
        )
        monkeypatch.chdir(tmp_path)
        assert console.main(run.command, ["fedavg", "--smoke", "--model.base", str(tiny_base), *words]) == 2
    printed = capfd.readouterr()
    assert "MLflow at http://me:***@127.0.0.1" in printed.err and leaks(tmp_path, *printed) == []


def test_a_folder_names_its_tracker_without_the_password(planted, tmp_path, monkeypatch, tiny):
    """MLflow is away by the time that the run begins; who delivers it later has the password in the environment."""
    uri = "http://me:planted-mlflow-password@127.0.0.1:9"
    with mlflow_run(tiny, tmp_path, Tracker(uri, "x", "1"), "a run", {}):
        pass
    record = mlflow_record(tmp_path)
    assert record["uri"] == "http://me:***@127.0.0.1:9" and leaks(tmp_path) == []
    with pytest.raises(UserError, match="had a password, which is kept nowhere; set MLFLOW_TRACKING_URI"):
        tracking.revealed(record["uri"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert tracking.revealed(record["uri"]) == uri
    assert tracking.revealed("sqlite:////a/mlflow.db") == "sqlite:////a/mlflow.db"


def test_an_endpoint_that_repeats_the_key_which_it_refuses(planted, monkeypatch):
    """And one whose address has a password in it."""
    with serving(monkeypatch) as server:
        server.fault = lambda question, n: refusal(401, f"Incorrect API key provided: {PLANTED['OPENAI_API_KEY']}")
        monkeypatch.setenv("OPENAI_API_KEY", PLANTED["OPENAI_API_KEY"])
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("http://", "http://me:planted-in-endpoint@"))
        with pytest.raises(UserError) as refused:
            Client(*address(), Service(), 10, 0.0).ask([{"role": "user", "content": "What is a prime?"}])
    assert "http://me:***@127.0.0.1" in str(refused.value)
    assert "answers 401: Incorrect API key provided: ***" in str(refused.value)


LISTENING = """
import psutil
from raypref.clients import actors
actors.start_ray()
me = psutil.Process()
for process in [me, *me.children(recursive=True)]:
    for connection in process.net_connections(kind="inet"):
        if connection.status == psutil.CONN_LISTEN:
            print(process.name(), connection.laddr.ip)
"""


@pytest.mark.slow
def test_the_ray_that_a_run_starts_listens_on_this_machine_alone(tmp_path):
    """Whatever it starts, for Ray by itself opens ports on all of a machine's addresses."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], env=kept, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    assert {"gcs_server", "raylet"} <= {name for name, _ in lines}, done.stderr
    assert {address.removeprefix("::ffff:") for _, address in lines} <= {"127.0.0.1", "::1"}, lines


def test_what_listens_on_all_addresses_asks_for_a_password():
    """In docs and cluster files: nothing but MLflow's server, with its basic authentication; Ray has its token."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "cluster").glob("*.md")]:
        for line in page.read_text().splitlines():
            assert "--host 0.0.0.0" not in line or "--app-name basic-auth" in line, f"{page.name}: {line}"
    for document in yaml.safe_load_all((ROOT / "cluster" / "kuberay-base.yaml").read_text()):
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            if "--host=0.0.0.0" in container["command"]:
                assert "--app-name=basic-auth" in container["command"]
                assert {"secretRef": {"name": "mlflow"}} in container["envFrom"]
    job = yaml.safe_load((ROOT / "cluster" / "kuberay-rayjob.yaml").read_text())
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert "--env RAY_AUTH_MODE=token" in (ROOT / "cluster" / "ray-cluster.yaml").read_text()
