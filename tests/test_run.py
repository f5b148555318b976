"""The run command as a person types it: real processes, real files, a real MLflow database."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

WORDS = ["--smoke", "--no-adapters"]


@pytest.fixture
def command(tmp_path, tiny_base):
    """Start `python -m raypref.run …` in an empty folder, with the small base."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY"))} | {
        "OMP_NUM_THREADS": "1"
    }

    def start(*words, base=True):
        extra = ["--model.base", str(tiny_base)] if base and len(words) > 1 else []
        return subprocess.Popen(
            [sys.executable, "-m", "raypref.run", *words, *extra],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(*words, base=True):
        process = start(*words, base=base)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    run.start = start
    return run


def runs(folder):
    """(name, status) of the MLflow runs in the database that the command made."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    found = client.search_runs([e.experiment_id for e in client.search_experiments() if e.name == "fedgd"])
    return client, sorted(found, key=lambda r: r.info.start_time)


def test_without_a_name_it_lists_what_there_is(command):
    status, out, err = command()
    assert (status, err) == (0, "")
    for name in ("fedavg", "fl_target", "fedgd", "local"):
        assert name in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fedgdd"], "there is no tune_spaces/fedgdd.py; did you mean 'fedgd'?"),
        (["fedgd", "--expert.K", "3"], "unknown flag '--expert.K'; did you mean '--experts.K'?"),
        (["fedgd", "--experts.K", "three"], "--experts.K: invalid literal"),
        (["fedgd", "--preset", "papper"], "unknown preset 'papper'; did you mean 'paper'?"),
        (["fedgd", "--preset", "paper", "--model.lora-r", "4"], "then add --data.source pairs.jsonl"),
        (["fedgd", *WORDS, "--federation.cohort", "99"], "federation.cohort is 99 but there are 12 clients"),
        (["fedgd", *WORDS, "--data.source", "nowhere.jsonl"], "nowhere.jsonl"),
        (["fedgd", *WORDS, "--clients.backend", "ray", "--clients.gpus-per-actor", "1"], "1 GPU"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(command, words, line):
    status, _, err = command(*words)
    lines = [x for x in err.splitlines() if x.startswith("raypref: ")]
    assert status == 2 and len(lines) == 1 and line in lines[0]
    assert "Traceback" not in err


def test_a_command_at_work_keeps_another_out_of_its_folder(command, tmp_path):
    words = ["fedavg", *WORDS, "--federation.rounds", "400", "--against", "none", "--no-track"]
    first = command.start(*words)
    try:
        while not list(tmp_path.glob("runs/*/.lock")):
            assert first.poll() is None, first.stderr.read()
            time.sleep(0.05)
        status, _, err = command(*words, "--resume")
    finally:
        first.kill()
        first.communicate()
    assert status == 2 and "another command is at work" in err and "Traceback" not in err


def test_debug_shows_where_a_mistake_came_from(command):
    status, _, err = command("fedgd", "--experts.K", "three", "--debug")
    assert status == 2 and "Traceback" in err


@pytest.mark.slow
def test_a_run_end_to_end(command, tmp_path):
    """FedAvg beside FedGD: table, figure, files, two finished MLflow runs; a repeat gets its own folder."""
    status, out, err = command("fedgd", *WORDS, "--adapters")
    assert status == 0, err
    assert "acc^0" in out.replace("\n", "") or "acc" in out
    assert "comparison.png" in out and "mlflow ui --backend-store-uri sqlite:///" in out
    assert "Traceback" not in err and "Warning" not in err
    folders = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert [f.split("-seed")[0] for f in folders] == ["fedavg", "fedgd"]
    client, found = runs(tmp_path)
    assert [r.info.status for r in found] == ["FINISHED", "FINISHED"]
    assert found[1].data.params["experts.K"] == "4"
    history = client.get_metric_history(found[1].info.run_id, "train/loss")
    assert [m.step for m in history] == [1, 2, 3, 4]
    for metric in ("accuracy", "NLL", "ECE"):
        marks = client.get_metric_history(found[1].info.run_id, f"after local steps/test {metric}")
        assert [m.step for m in marks] == [0, 2, 5]
    assert "Calibration on test pairs" in out and "NLL^5" in out
    names = {a.path for a in client.list_artifacts(found[1].info.run_id)}
    assert {"config.json", "result.json", "table.md", "curve.png", "groups.json", "groups.png", "adapters"} <= names
    assert (tmp_path / "runs" / folders[1] / "adapters" / "personalized" / "c00" / "adapter_config.json").exists()
    assert command("local", *WORDS, "--no-track", "--against", "none")[0] == 0
    assert command("local", *WORDS, "--no-track", "--against", "none")[0] == 0
    assert sum(p.name.startswith("local") for p in (tmp_path / "runs").iterdir()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_then_resumed(command, tmp_path, number, status):
    """The status in MLflow is right, and a resume continues the same MLflow run to the end."""
    words = ["fedgd", *WORDS, "--against", "none", "--federation.rounds", "40"]
    process = command.start(*words)
    records = tmp_path / "runs"
    while not any(len(p.read_text().splitlines()) > 3 for p in records.glob("*/records.jsonl")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == status
    assert ("interrupted; the same words with --resume go on from here" in err) is (number != signal.SIGKILL)
    expected = {signal.SIGKILL: "RUNNING"}.get(number, "KILLED")
    assert [r.info.status for r in runs(tmp_path)[1]] == [expected]
    code, _, err = command(*words, "--resume")
    assert code == 0, err
    client, found = runs(tmp_path)
    assert [r.info.status for r in found] == ["FINISHED"]
    history = client.get_metric_history(found[0].info.run_id, "train/loss")
    assert sorted({m.step for m in history}) == list(range(1, 41))  # nothing lost, also not by kill -9
    (result,) = records.glob("*/result.json")
    assert json.loads(result.read_text())["rounds"] == 40


@pytest.mark.slow
def test_what_the_last_method_would_refuse_is_said_before_the_first_starts(command, tmp_path):
    """FedAvg, which FedBiscuit is compared with, could run; 13 experts for 12 clients could not."""
    status, out, err = command("fedbiscuit", *WORDS, "--experts.K", "13")
    assert (status, out) == (2, "") and "is 13 but there are 12 clients" in err
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_diagnostics_are_shown_and_an_unfinished_run_is_pointed_at(command, tmp_path):
    words = ["local", *WORDS, "--no-track", "--clients.backend", "local", "--diagnostics.marks", "0", "5"]
    words += ["--against", "none"]
    status, out, err = command(*words)
    assert status == 0, err
    assert "GQ(l)" in out and "P^5_W" in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert "GQ(l)" in (folder / "comparison.md").read_text()
    (folder / "result.json").unlink()
    status, out, err = command(*words)
    assert status == 0 and f"{folder} was begun and not finished" in out
