"""What MLflow holds after a run has ended, in whatever way: real processes and a real database."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raypref.config import UserError
from raypref.storage import tracking
from raypref.storage.tracking import Run, close_stale, prepare, tracking_uri

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def environment():
    """As a person has it: nothing set; put back afterwards what `tracking` sets."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", *tracking.ENVIRONMENT):
            patch.setenv(name, "")  # remembers what was
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("a folder") / "of experiments"  # a blank in the path, as people have


@pytest.fixture(scope="module")
def uri(base) -> str:
    return tracking_uri(base)


@pytest.fixture(scope="module")
def experiment(uri) -> str:
    return prepare(uri, "fedgd")


@pytest.fixture(scope="module")
def client(uri, experiment):
    from mlflow import MlflowClient

    return MlflowClient(uri)


RUN = """
import sys, time
from raypref.storage.tracking import Run

uri, experiment, run_id = sys.argv[1:]
with Run(uri, experiment, "fedgd-0", {"experts.K": 4}, {"key": "abc"}, run_id=run_id or None) as run:
    print(run.id, flush=True)
    for step in range(5):
        run.metrics({"train/loss": 1 / (step + 1)}, step)
    BODY
"""


def start(uri: str, experiment: str, body: str, run_id: str = "") -> tuple[subprocess.Popen, str]:
    """A process with an open run that has logged five steps and then does `body`; and the run's id."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.replace("BODY", body), uri, experiment, run_id],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    run_id = process.stdout.readline().strip()
    assert run_id, process.stderr.read()
    return process, run_id


WAIT = "print('waiting', flush=True); time.sleep(60)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "kill", "status", "code"),
    [
        ("pass", None, "FINISHED", 0),
        ("sys.exit(0)", None, "FINISHED", 0),
        ("raise ValueError('no good: ' + 'x' * 9000)", None, "FAILED", 1),
        (WAIT, signal.SIGINT, "KILLED", -signal.SIGINT),
        (WAIT, signal.SIGTERM, "KILLED", 143),
    ],
    ids=["success", "exit 0", "error", "Ctrl-C", "SIGTERM"],
)
def test_the_status_says_how_the_run_ended_and_no_metric_is_lost(uri, experiment, client, body, kill, status, code):
    process, run_id = start(uri, experiment, body)
    if kill:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(kill)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    run = client.get_run(run_id)
    assert run.info.status == status and run.info.end_time >= run.info.start_time
    assert run.info.run_name == "fedgd-0" and run.data.params == {"experts.K": "4"} and run.data.tags["key"] == "abc"
    history = client.get_metric_history(run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(s, 1 / (s + 1)) for s in range(5)]
    if status == "FAILED":
        error = run.data.tags["error"]
        assert error.startswith("ValueError: no good: xxx") and error.endswith("…")
    else:
        assert "error" not in run.data.tags
    if code in (0, 143):
        assert err == ""  # and no chatter of the libraries


@pytest.mark.slow
def test_kill_9_then_resumed_is_one_run_that_finishes(uri, experiment, client):
    process, run_id = start(uri, experiment, WAIT)
    assert process.stdout.readline() == "waiting\n"
    process.kill()
    process.communicate(timeout=60)
    assert client.get_run(run_id).info.status == "RUNNING"
    before = len(client.search_runs([experiment]))
    process, resumed = start(uri, experiment, "pass", run_id)
    assert process.communicate(timeout=60)[1] == "" and process.returncode == 0
    assert resumed == run_id and len(client.search_runs([experiment])) == before
    assert client.get_run(run_id).info.status == "FINISHED"


def test_close_stale_marks_only_running_runs_that_are_named(uri, experiment, client):
    ids = [client.create_run(experiment).info.run_id for _ in range(3)]
    client.set_terminated(ids[1], "FINISHED")
    other = prepare(uri, "another")
    ids.append(client.create_run(other).info.run_id)
    close_stale(uri, experiment, [ids[0], ids[1], ids[3]])
    assert [client.get_run(i).info.status for i in ids] == ["KILLED", "FINISHED", "RUNNING", "RUNNING"]
    client.set_terminated(ids[2])
    client.set_terminated(ids[3])


def test_a_run_that_its_folder_never_knew_does_not_stay_running(uri, experiment, client):
    """The process was killed between the making of the run in MLflow and the writing of its id."""
    ids = [client.create_run(experiment, tags={"raypref.folder": name}).info.run_id for name in ("/runs/a", "/runs/b")]
    with Run(uri, experiment, "a", {}, {"raypref.folder": "/runs/a"}) as run:
        assert [client.get_run(i).info.status for i in (*ids, run.id)] == ["KILLED", "RUNNING", "RUNNING"]
    client.set_terminated(ids[1])


def test_a_failed_run_resumed_loses_its_error_and_tells_what_was_changed(uri, experiment, client):
    with pytest.raises(ZeroDivisionError), Run(uri, experiment, "r", {"threads": 1, "K": 4}) as run:
        _ = 1 / 0
    assert client.get_run(run.id).data.tags["error"] == "ZeroDivisionError: division by zero"
    with Run(uri, experiment, "r", {"threads": 2, "K": 4, "T": 5}, run_id=run.id) as again:
        assert client.get_run(run.id).info.status == "RUNNING"
    assert again.id == run.id
    data = client.get_run(run.id).data
    assert data.params == {"threads": "1", "K": "4", "T": "5"}
    assert data.tags["resumed.threads"] == "2" and not {"error", "resumed.K", "resumed.T"} & set(data.tags)


@pytest.mark.parametrize("how", ["unknown", "deleted"])
def test_a_run_that_is_gone_is_continued_by_a_new_one_with_a_warning(uri, experiment, client, capsys, how):
    gone = "f" * 32
    if how == "deleted":
        gone = client.create_run(experiment).info.run_id
        client.delete_run(gone)
    with Run(uri, experiment, "r", {}, run_id=gone) as run:
        assert run.id != gone
    assert client.get_run(run.id).info.status == "FINISHED"
    assert "is gone" in capsys.readouterr().err


def test_a_child_knows_its_parent_and_long_and_many_values_are_taken(uri, experiment, client):
    params = {f"p{i}": i for i in range(150)} | {"long": "x" * 7000}
    with Run(uri, experiment, "parent", {}) as parent, Run(uri, experiment, "c", params, {}, parent.id) as child:
        for step in range(1100):
            child.metrics({"loss": step if step else float("nan")}, step)
    data = client.get_run(child.id).data
    assert data.tags["mlflow.parentRunId"] == parent.id and "mlflow.user" in data.tags
    assert len(data.params) == 151 and data.params["p149"] == "149"
    assert len(data.params["long"]) == 6000 and data.params["long"].endswith("x…")
    assert len(client.get_metric_history(child.id, "loss")) == 1100


def test_artifacts_lie_beside_the_database(uri, base, experiment, client, tmp_path):
    (tmp_path / "table.md").write_text("| a |")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "curve.png").write_bytes(b"png")
    with Run(uri, experiment, "r", {}) as run:
        run.artifact(tmp_path / "table.md")
        run.artifacts(tmp_path / "figures", "figures")
    root = base / "mlartifacts" / run.id / "artifacts"
    files = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    assert files == ["figures/curve.png", "table.md"]


def test_a_folder_that_moved_with_its_database_is_read_where_it_is_now(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "config.json").write_text("{}")
    uri = tracking_uri(tmp_path / "old")
    with Run(uri, prepare(uri, "x"), "r", {}) as run:
        run.artifact(tmp_path / "config.json")
    (tmp_path / "old").rename(tmp_path / "new")
    uri = tracking_uri(tmp_path / "new")
    assert tracking.read_artifacts(uri, run.id, ["config.json", "none.json"]) == {"config.json": b"{}"}
    folder = tracking.fetch(uri, run.id, tmp_path / "fetched")
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_what_is_logged_outlives_a_server_that_is_away(uri, experiment, client, capsys, monkeypatch, tmp_path):
    from mlflow.exceptions import MlflowException

    (tmp_path / "table.md").write_text("| a |")
    with Run(uri, experiment, "r", {}) as run:
        with monkeypatch.context() as away:
            away.setattr(run._client, "log_batch", _raise(MlflowException("connection refused\nmore")))
            for step in (0, 1):
                run._due = run._away = 0.0
                run.metrics({"loss": 3.0 - step}, step)
        run.artifact(tmp_path / "table.md")
        run.metrics({"loss": 1.0}, 2)
        assert client.get_metric_history(run.id, "loss") == []  # patience: the next attempt is a while off
    assert run.delivered and [a.path for a in client.list_artifacts(run.id)] == ["table.md"]
    assert [m.value for m in client.get_metric_history(run.id, "loss")] == [3.0, 2.0, 1.0]
    err = capsys.readouterr().err
    assert err.count("warning") == 1 and "connection refused" in err and "more" not in err


@pytest.mark.parametrize("error", [ConnectionError("refused"), TypeError("a bug of the library's"), OSError("disk")])
def test_a_server_that_stays_away_ends_no_run(uri, experiment, client, capsys, monkeypatch, error):
    """Whatever kind of error it is; the run knows that not everything was delivered, and may be logged again."""
    monkeypatch.setattr("mlflow.MlflowClient.create_run", _raise(error))
    with Run(uri, experiment, "r", {}) as run:
        run.metrics({"loss": 3.0}, 0)
    assert not run.delivered and run.id == ""
    assert capsys.readouterr().err.count("warning") == 1


def test_what_is_logged_again_is_there_once(uri, experiment, client):
    with Run(uri, experiment, "r", {}) as run:
        for step in (1, 2, 2, 1):
            run.metrics({"loss": float(step)}, step)
    with Run(uri, experiment, "r", {}, run_id=run.id) as run:
        for step in (1, 2, 3):
            run.metrics({"loss": float(step), "other": 0.0}, step)
    for name, steps in (("loss", [1, 2, 3]), ("other", [1, 2, 3])):
        assert [m.step for m in client.get_metric_history(run.id, name)] == steps


def _raise(error):
    def function(*args, **kwargs):
        raise error

    return function


def test_the_handler_for_sigterm_is_put_back_and_threads_do_without(uri, experiment, client):
    before = signal.getsignal(signal.SIGTERM)
    with Run(uri, experiment, "outer", {}):
        outer = signal.getsignal(signal.SIGTERM)
        assert outer is not before
        ids = []

        def other() -> None:
            with Run(uri, experiment, "thread", {}) as run:
                assert signal.getsignal(signal.SIGTERM) is outer
                ids.append(run.id)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is outer
    assert signal.getsignal(signal.SIGTERM) is before
    assert client.get_run(ids[0]).info.status == "FINISHED"


def test_tracking_uri(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert tracking_uri(Path("runs")) == "http://host:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mine.db")
    assert tracking_uri(Path("runs")) == f"sqlite:///{tmp_path}/mine.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////data/mine.db")
    assert tracking_uri(Path("runs")) == "sqlite:////data/mine.db"


def test_prepare_finds_what_it_made_and_explains_what_it_cannot_use(uri, experiment, client, tmp_path, monkeypatch):
    assert prepare(uri, "fedgd") == experiment
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    client.delete_experiment(prepare(uri, "deleted"))
    with pytest.raises(UserError, match="was deleted"):
        prepare(uri, "deleted")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be in .*File exists"):
        prepare(tracking_uri(tmp_path / "file"), "x")
    with pytest.raises(UserError, match="unset MLFLOW_TRACKING_URI") as error:
        prepare("http://127.0.0.1:9", "x")  # nothing listens on the discard port
    assert "\n" not in str(error.value)


PREPARE = "import sys; from raypref.storage.tracking import prepare; print(prepare(sys.argv[1], 'same'))"


@pytest.mark.slow
def test_drivers_that_start_together_make_one_experiment(tmp_path):
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE, tracking_uri(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]  # fmt: skip
    answers = {driver.communicate(timeout=120) for driver in drivers}
    assert answers == {("1\n", "")}


def test_an_address_shows_runs_first():
    """At a server, and where `mlflow ui` will serve a database."""
    runs = "#/experiments/7/runs?workflowType=machine_learning"
    assert tracking.address("sqlite:////a/mlflow.db", "7") == f"http://127.0.0.1:5000/{runs}"
    assert tracking.address("https://mlflow.example/", "7") == f"https://mlflow.example/{runs}"
    run = tracking.address("http://a:1", "7", run="ab")
    assert run == "http://a:1/#/experiments/7/runs/ab?workflowType=machine_learning"
    trials = "&compareRunsMode=CHART&searchFilter=tags.%60mlflow.parentRunId%60%20%3D%20%27ab%27"
    assert tracking.address("http://a:1", "7", sweep="ab") == f"http://a:1/{runs}{trials}"


@pytest.mark.slow
def test_experiments_and_runs_say_what_they_are(uri, experiment, client):
    """An experiment of an earlier version gets its kind and description; what a person wrote stands. In a run's, files
    are addresses of its artifacts."""
    plain = client.create_experiment("plain")
    assert prepare(uri, "plain", "**about**") == plain
    tags = client.get_experiment(plain).tags
    assert (tags[tracking.DESCRIPTION], tags["mlflow.experimentKind"]) == ("**about**", "custom_model_development")
    client.set_experiment_tag(plain, tracking.DESCRIPTION, "mine")
    prepare(uri, "plain", "**about**")
    assert client.get_experiment(plain).tags[tracking.DESCRIPTION] == "mine"
    source = {"mlflow.source.name": "python -m raypref.run x", "mlflow.source.type": "LOCAL"}
    with Run(uri, experiment, "described", {}, source) as run:
        run.describe("![curve]({curve.png})")
    said = client.get_run(run.id).data.tags
    assert said[tracking.DESCRIPTION] == f"![curve](get-artifact?path=curve.png&run_uuid={run.id})"
    assert said["mlflow.source.name"] == "python -m raypref.run x"
