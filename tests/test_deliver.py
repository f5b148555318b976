"""A tracker that goes away holds nothing up, and what it missed reaches it later: a real server, really killed."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from raypref.storage import tracking
from raypref.tools import checkpoint

ROOT = Path(__file__).resolve().parent.parent
RUN = ["fedavg", "--smoke", "--clients.backend", "local", "--against", "none"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`mlflow server` in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [
            "--port",
            str(self.port),
            "--workers",
            "1",
            "--backend-store-uri",
            f"sqlite:///{self.folder}/server.db",
        ]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1)
                return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError((self.folder / "server.log").read_text())

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def words(command: str, *rest: str, uri: str) -> dict:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": uri}
    return {"args": [sys.executable, "-m", f"raypref.{command}", *rest], "env": environment, "text": True}


@pytest.mark.slow
def test_a_server_that_is_killed_holds_up_nothing_and_gets_everything_later(server, tmp_path):
    process = subprocess.Popen(
        **words("run", *RUN, "--federation.rounds", "60", uri=server.uri),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not any(len(file.read_bytes().splitlines()) > 5 for file in tmp_path.glob("runs/*/records.jsonl")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    server.kill()
    out, err = process.communicate(timeout=240)
    # 1. The result is there and was shown; then a line says what MLflow lacks and how it gets it.
    (folder,) = tmp_path.glob("runs/*/")
    assert process.returncode == 0 and (folder / "result.json").exists() and "acc^0" in out
    assert err.strip().splitlines()[-1].endswith(f"python -m raypref.deliver {folder}")
    assert not checkpoint.read_json(folder / "mlflow.json").get("done")
    # 2. Without the server nothing is delivered, and that is one line.
    left = subprocess.run(**words("deliver", str(folder), uri=server.uri), cwd=tmp_path, capture_output=True)
    assert left.returncode == 2 and left.stderr.count("\n") == 1 and "cannot be used" in left.stderr
    # 3. With it everything is there, once.
    server.start()
    for said in ("delivered to", "has all of it"):
        done = subprocess.run(**words("deliver", str(folder), uri=server.uri), cwd=tmp_path, capture_output=True)
        assert done.returncode == 0 and said in done.stdout, done.stderr
    (run,) = tracking.search(server.uri, ["fedavg"])[0]
    assert run.status == "FINISHED"
    history = tracking._mlflow().MlflowClient(server.uri).get_metric_history(run.id, "train/loss")
    assert sorted(metric.step for metric in history) == list(range(1, 61))
    assert "result.json" in tracking.read_artifacts(server.uri, run.id, ["result.json"])


@pytest.mark.slow
def test_a_run_without_a_tracker_is_delivered_later(server, tmp_path):
    made = subprocess.run(**words("run", *RUN, "--no-track", uri=""), cwd=tmp_path, capture_output=True)
    assert made.returncode == 0, made.stderr
    for _ in range(2):
        done = subprocess.run(
            **words("deliver", "runs", "--experiment", "later", uri=server.uri), cwd=tmp_path, capture_output=True
        )
        assert done.returncode == 0, done.stderr
    (run,) = tracking.search(server.uri, ["later"])[0]
    assert run.status == "FINISHED" and run.params["algorithm"] == "fedavg"


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_a_tracker_that_refuses_at_the_start_is_one_line(status, tmp_path):
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(status)

        do_POST = do_GET

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{refusing.server_port}"
        with pytest.raises(tracking.UserError, match="cannot be used") as error:
            tracking.prepare(uri, "x")
        refusing.shutdown()
    assert "\n" not in str(error.value)
