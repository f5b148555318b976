"""The sweep: what it plans, refuses and ranks; and with real processes, kills and failures, what it leaves."""

import csv
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raypref.clients import actors
from raypref.config import UserError, override, read_config, to_dict
from raypref.config.spaces import load_space
from raypref.experiment import loop as experiment
from raypref.experiment.sweeping.options import Options
from raypref.experiment.sweeping.running import reason
from raypref.experiment.sweeping.tracked import check_tracker
from raypref.experiment.sweeping.trials import plan
from raypref.experiment.tracked import Tracker
from raypref.sweep import command, narrowed
from raypref.tools import checkpoint


@pytest.fixture
def words(tiny_base, tmp_path, monkeypatch) -> list[str]:
    """A command line of seconds a trial, in an empty folder; more words may follow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return ["fedgd", "--smoke", "--model.base", str(tiny_base)]


def planned(tiny_base: Path, out: Path, *, seeds: tuple[int, ...] = ()):
    """The trials of `words`."""
    space = load_space("fedgd")
    base = override(space.configured(smoke=True), {"model.base": str(tiny_base), "clients.backend": "ray"})
    return plan(space, Options(base, smoke=True, seeds=seeds), out / "fedgd-smoke")


def finish(trial) -> dict:
    """Run a trial here, without Ray."""
    config = override(trial.config, {"clients.backend": "local"})
    return experiment.run(config, trial.folder, adapters=False)


# --- what is planned ------------------------------------------------------------------------------------------------


def test_every_trial_has_a_folder_of_its_own_for_good(tiny_base, tmp_path):
    """2 values of K x 2 seeds; a sweep of more seeds has the same folders for those that it shares."""
    trials = planned(tiny_base, tmp_path)
    assert [t.label for t in trials] == [f"experts.K={k} seed={s}" for k in (2, 4) for s in (0, 1)]
    folders = {t.folder for t in trials}
    assert len(folders) == 4
    more = {t.folder for t in planned(tiny_base, tmp_path, seeds=(0, 1, 2))}
    assert len(more) == 6 and folders < more


def test_a_field_that_is_given_is_not_searched():
    space = load_space("fedgd")
    argv = ["--experts.K", "3", "--data.group-sizes", "4", "4", "--seed=5", "--no-track"]
    narrow = narrowed(space, argv, space.base)
    assert set(narrow.grid) == {"experts.T", "fedgd.w"}
    assert set(narrow.smoke_grid) == set()
    assert narrowed(space, ["--smoke"], space.base) == space


def test_a_preset_that_needs_data_is_refused_and_smoke_needs_none(words, capsys):
    with pytest.raises(UserError, match=r"^--preset paper needs another --data\.source than 'synthetic'"):
        command(["fedgd", "--preset", "paper", "--dry-run"])
    assert command([*words, "--preset", "paper", "--dry-run", "--model.dtype", "float32"]) == 0
    assert "trials: 4, of 2 configurations" in capsys.readouterr().out


def test_how_many_run_side_by_side():
    """Servers of 0.1 CPU and actors of 0.9: a core each. A share of a GPU lies on one device."""
    one = [{"CPU": 0.1}, {"CPU": 0.9}]
    assert actors.at_once(one, [{"CPU": 2.0}], 9) == 2
    assert actors.at_once(one, [{"CPU": 2.0}, {"CPU": 4.0}], 9) == 6
    assert actors.at_once(one, [{"CPU": 2.0}], 1) == 1
    card = [{"CPU": 0.1}, {"CPU": 0.1, "GPU": 0.6}]
    assert actors.at_once(card, [{"CPU": 8.0, "GPU": 2.0}], 9) == 2
    assert actors.at_once(card, [{"CPU": 8.0}], 9) == 0


def test_a_database_in_a_file_serves_one_machine():
    file, server = (Tracker(uri, "fedgd", "1") for uri in ("sqlite:////a/mlflow.db", "http://mlflow:5000"))
    check_tracker(file, {"10.0.0.1"})
    check_tracker(server, {"10.0.0.1", "10.0.0.2"})
    check_tracker(None, {"10.0.0.1", "10.0.0.2"})
    with pytest.raises(UserError, match=r"2 machines.*MLFLOW_TRACKING_URI"):
        check_tracker(file, {"10.0.0.1", "10.0.0.2"})


def test_a_failure_is_told_in_a_line():
    assert reason(ValueError("first\nsecond")) == "ValueError: first"
    wrapped = RuntimeError("a remote traceback")
    wrapped.cause = UserError("data are gone; bring them back")
    assert reason(wrapped) == "data are gone; bring them back"


# --- what is refused, before Ray is started -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--clients.backend", "local"], "clients.backend must be 'ray'"),
        (["--clients.server-cpus", "0"], "clients.server_cpus must be above 0"),
        (["--experts.T", "3"], r"experts\.T to divide federation\.rounds / 2"),
        (["--experts.K", "13"], "experts.K is 13 but there are 12 clients"),
        (["--algorithm", "fedgb"], "unknown algorithm 'fedgb'; did you mean 'fedgd'"),
        (["--experts.k", "3"], "unknown flag '--experts.k'; did you mean"),
        (["--model.base", "nowhere/at-all"], "model.base"),
    ],
)
def test_what_could_not_run_is_refused_at_once(words, monkeypatch, more, message):
    monkeypatch.setattr(actors, "start_ray", lambda: pytest.fail("Ray was started"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=message):
        command([*words, *more])


def test_an_unfinished_trial_is_neither_overwritten_nor_silently_continued(words, tiny_base, tmp_path):
    trial = planned(tiny_base, tmp_path / "out")[2]
    checkpoint.write_json(trial.folder / "config.json", to_dict(trial.config))
    with pytest.raises(UserError, match=r"1 trials .* not finished \(the first: experts.K=4 seed=0\); add --resume"):
        command([*words, "--out", "out"])


def test_two_sweeps_do_not_share_a_folder(words, tmp_path):
    folder = tmp_path / "runs" / "fedgd-smoke"
    folder.mkdir(parents=True)
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"another command is at work in .*; wait for it, or choose another --out"):
            command(words)


# --- what is told ---------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_trials_needs_bytes_and_hours_and_starts_nothing(words, tiny_base, tmp_path, capsys):
    trials = planned(tiny_base, tmp_path / "runs")
    results = [finish(trials[0])]
    assert command([*words, "--dry-run", "--seeds", "0", "--experts.K", "2"]) == 0
    assert "trials: 1, of 1 configurations; finished already: 1; to run: 0" in capsys.readouterr().out
    assert command([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "trials: 4, of 2 configurations; finished already: 1; to run: 3" in told
    assert "0.1 CPU for its server and 0.9 CPU for each client actor (1)" in told
    assert "1,536 trainable (D)" in told  # one block of width 16, r = 8: see the fixture
    assert "GB a client actor" in told and "hours for all" in told
    # Bytes of the three trials to run: as the finished one, whose seed sends as much, and K = 4, run here now.
    results += [finish(trial) for trial in trials[2:]]
    up, down = (sum(r[name] for r in [results[0], *results[1:]]) / 1e6 for name in ("bytes_up", "bytes_down"))
    assert f"together {up:,.1f} and {down:,.1f}" in told
    assert not actors.ray.is_initialized()
    assert not (tmp_path / "mlflow.db").exists()


def test_a_finished_sweep_is_ranked_again_without_ray_and_test_numbers_move_nothing(words, tiny_base, tmp_path, capsys):
    """K = 4 is given the better validation and the worse test numbers, then test numbers are exchanged."""
    trials = planned(tiny_base, tmp_path / "runs")
    for trial in trials:
        finish(trial)

    def tamper(good_on_test: int) -> list[dict[str, str]]:
        for trial in trials:
            path, k = trial.folder / "result.json", trial.config.experts.K
            result = json.loads(path.read_text())
            for fold, good in (("validation", 4), ("test", good_on_test)):
                value = (0.75 if k == good else 0.5) + 0.125 * trial.config.seed
                result[fold]["accuracy"] = [[0.0, 0.0, value] for _ in result[fold]["accuracy"]]
            path.write_text(json.dumps(result))
        assert command([*words, "--no-track"]) == 0
        said = capsys.readouterr().out
        assert "trials: 4, finished already: 4" in said and "81.2 ± 8.8" in said
        return list(csv.DictReader((tmp_path / "runs" / "fedgd-smoke" / "sweep.csv").open()))

    for good_on_test, tested in ((2, [0.5625, 0.8125]), (4, [0.8125, 0.5625])):
        lines = tamper(good_on_test)
        assert [line["experts.K"] for line in lines] == ["4", "2"]
        assert [float(line["validation_accuracy"]) for line in lines] == [0.8125, 0.5625]
        assert [float(line["test_accuracy"]) for line in lines] == tested
    # One more seed was swept by another command: it counts.
    extra = planned(tiny_base, tmp_path / "runs", seeds=(2,))[0]
    finish(extra)
    assert command([*words, "--no-track"]) == 0
    seeds = {
        line["experts.K"]: line["seeds"] for line in csv.DictReader((trials[0].folder.parent / "sweep.csv").open())
    }
    assert seeds == {"2": "0 1 2", "4": "0 1"}


# --- for real -------------------------------------------------------------------------------------------------------


class Sweep:
    """`python -m raypref.sweep …` in a process of its own."""

    def __init__(self, cwd: Path, *words: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "raypref.sweep", *words],
            cwd=cwd, env=environment | {"OMP_NUM_THREADS": "1"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err

    def interrupt(self, number: int, when) -> tuple[int, str, str]:
        """Send a signal as soon as `when()`."""
        deadline = time.monotonic() + 300
        while not when():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.process.send_signal(number)
        return self.end()


def in_mlflow(folder: Path, experiment: str = "fedgd") -> tuple[dict, list]:
    """The sweep's own run and its children."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == len(runs) - 1
    return parent, children


@pytest.mark.slow
def test_interrupted_thrice_resumed_and_given_seeds(words, tiny_base, tmp_path):
    """Ctrl-C, SIGTERM (as `ray job stop` sends it) and kill -9, each in the middle; --resume finishes what is missing,
    with the numbers of an undisturbed run, and what is finished is not touched when seeds are added."""
    words = [*words, "--experts.K", "2", "--federation.rounds", "60"]
    folder = tmp_path / "runs" / "fedgd-smoke"

    def at_work(since: int):
        return lambda: any(file.stat().st_mtime_ns > since for file in folder.glob("*/state.safetensors"))

    for number, expected, more in ((signal.SIGINT, 130, []), (signal.SIGTERM, 143, ["--resume"])):
        with Sweep(tmp_path, *words, "--seeds", "0", *more) as sweep:
            status, out, err = sweep.interrupt(number, at_work(time.time_ns()))
        assert status == expected and "Traceback" not in out + err, out + err
        parent, children = in_mlflow(tmp_path)
        assert [run.info.status for run in (parent, *children)] == ["KILLED", "KILLED"]

    with Sweep(tmp_path, *words, "--seeds", "0", "1", "--resume") as sweep:
        status, *_ = sweep.interrupt(signal.SIGKILL, lambda: any(folder.glob("*/result.json")))
    assert status == -signal.SIGKILL
    done = {file: file.stat().st_mtime_ns for file in folder.glob("*/result.json")}

    with Sweep(tmp_path, *words, "--seeds", "0", "1", "2", "--resume") as sweep:
        status, out, err = sweep.end()
    assert status == 0, out + err
    assert {file: file.stat().st_mtime_ns for file in done} == done
    assert len(list(folder.glob("*/result.json"))) == 3
    again, children = in_mlflow(tmp_path)
    assert again.info.run_id == parent.info.run_id and again.info.status == "FINISHED"
    assert [run.info.status for run in children] == ["FINISHED"] * 3
    # One core a trial: its server and its client actor in one placement group, on the one node.
    assert all(len(set(run.data.tags["raypref.nodes"].split())) == 1 for run in children)
    assert all(len(run.data.tags["raypref.nodes"].split()) == 2 for run in children)
    (line,) = csv.DictReader((folder / "sweep.csv").open())
    assert line["seeds"] == "0 1 2"
    # Whatever happened to it, a trial gives the bits of the same run in this process.
    trial = planned(tiny_base, tmp_path)[0]
    config = override(trial.config, {"federation.rounds": 60, "clients.backend": "local"})
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    found = json.loads((folder / f"fedgd-seed0-{config.key}" / "result.json").read_text())
    assert found["test"] == whole["test"] and found["assignment"] == whole["assignment"]
    assert found["config"]["clients"]["backend"] == "local"  # within the trial's own process


@pytest.mark.slow
def test_a_failed_trial_does_not_stop_the_others_and_makes_the_status_1(words, tiny_base, tmp_path):
    """The folder of one of two trials holds another configuration's run, which is found out within the trial."""
    good, bad = (t for t in planned(tiny_base, tmp_path / "runs") if t.config.experts.K == 2)
    other = dataclasses.replace(bad.config, seed=99)
    checkpoint.write_json(bad.folder / "config.json", to_dict(other))
    with Sweep(tmp_path, *words, "--experts.K", "2", "--resume") as sweep:
        status, out, err = sweep.end()
    assert status == 1, out + err
    told = f"holds a run of another configuration ({other.key})"
    (line,) = (line for line in out.splitlines() if line.startswith("FAILED"))
    assert line.startswith("FAILED seed=1: ") and told in line and str(bad.folder) in line
    assert told in (bad.folder / "error.txt").read_text()
    assert "Traceback" not in out + err
    assert (good.folder / "result.json").exists()
    parent, children = in_mlflow(tmp_path)
    assert parent.info.status == "FAILED" and parent.data.tags["error"].endswith("1 of 2 trials failed")
    assert sorted(run.info.status for run in children) == ["FAILED", "FINISHED"]


@pytest.mark.slow
def test_a_trial_whose_process_is_killed_goes_on_by_itself(words, tiny_base, tmp_path):
    """With the bits of a run that nothing disturbed, in the same MLflow run."""
    words = [*words, "--experts.K", "2", "--federation.rounds", "60", "--seeds", "0"]
    folder = tmp_path / "runs" / "fedgd-smoke"
    with Sweep(tmp_path, *words) as sweep:
        while not list(folder.glob("*/state.safetensors")):
            assert sweep.process.poll() is None, sweep.process.communicate()
            time.sleep(0.02)
        (trial,) = (p for p in psutil.Process(sweep.process.pid).children(recursive=True) if is_trial(p))
        trial.kill()
        status, out, err = sweep.end()
    assert status == 0 and "seed=0: its process or node was lost; it goes on" in out, out + err
    parent, (child,) = in_mlflow(tmp_path)
    assert parent.info.status == child.info.status == "FINISHED"
    config = override(planned(tiny_base, tmp_path)[0].config, {"federation.rounds": 60, "clients.backend": "local"})
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    result = json.loads((folder / f"fedgd-seed0-{config.key}" / "result.json").read_text())
    assert result["test"] == whole["test"] and result["client_steps"] == whole["client_steps"]


RATES = """
from raypref.config import RunConfig
from raypref.config.spaces import Space

SPACE = Space(
    about="A learning rate that learns, and one that can but ruin what it trains.",
    base=RunConfig(algorithm="fedavg"),
    grid={"optim.learning_rate": [1e-3, 1e30]},
    ranges={"optim.learning_rate": ("loguniform", 1e-3, 1e-2), "federation.local_steps": ("int", 2, 4)},
    rank="loss",
)
"""


@pytest.fixture
def rates(tiny_base, tmp_path) -> list[str]:
    """A command line for the space RATES in an empty folder."""
    (tmp_path / "tune_spaces").mkdir()
    (tmp_path / "tune_spaces" / "rates.py").write_text(RATES)
    return ["rates", "--smoke", "--model.base", str(tiny_base), "--concurrency", "1"]


@pytest.mark.slow
def test_asha_stops_the_bad_trial_and_a_kill_at_any_time_changes_neither(rates, tmp_path):
    """Killed while the good trial runs, then as soon as the bad one's stop is decided; what is left is to say so."""
    words = [*rates, "--federation.rounds", "30", "--scheduler", "asha", "--grace", "3"]
    folder = tmp_path / "runs" / "rates-smoke"

    def read(lines: int):
        return lambda: any(file.read_text().count("\n") >= lines for file in folder.glob("*/reports.jsonl"))

    with Sweep(tmp_path, *words) as sweep:
        sweep.interrupt(signal.SIGKILL, read(2))
    with Sweep(tmp_path, *words, "--resume") as sweep:
        sweep.interrupt(signal.SIGKILL, lambda: any(folder.glob("*/stopped.json")))
    with Sweep(tmp_path, *words, "--resume") as sweep:
        status, out, err = sweep.end()
    assert status == 0, out + err
    assert "trials: 2, finished already: 1, stopped early: 1" in out and "started" not in out
    assert "stopped early and in no table: 1 of 2 trials" in out
    good, bad = csv.DictReader((folder / "trials.csv").open())
    assert (good["fate"], good["round"], bad["fate"], bad["round"]) == ("finished", "30", "stopped", "3")
    assert bad["validation"] == "nan" and bad["client_steps"] == str(3 * 4 * 3)  # of which nothing is worse
    (line,) = csv.DictReader((folder / "sweep.csv").open())
    assert line["optim.learning_rate"] == "0.001"
    parent, children = in_mlflow(tmp_path, "rates")
    assert parent.info.status == "FINISHED"
    assert sorted((run.info.status, run.data.tags.get("raypref.stopped")) for run in children) == [
        ("FINISHED", None),
        ("KILLED", "3"),
    ]
    config = override(read_config(folder / good["trial"]), {"clients.backend": "local"})
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    found = json.loads((folder / good["trial"] / "result.json").read_text())
    assert all(found[what] == whole[what] for what in ("validation", "test", "client_steps", "bytes_down"))


@pytest.mark.slow
def test_optuna_goes_on_after_a_kill(rates, tmp_path):
    """What was begun is finished first, and of two trials asked for there are two."""
    words, folder = [*rates, "--search", "optuna", "--max-trials", "2"], tmp_path / "runs" / "rates-smoke"
    with Sweep(tmp_path, *words) as sweep:
        sweep.interrupt(signal.SIGKILL, lambda: any(folder.glob("*/state.safetensors")))
    first = json.loads((folder / "proposals.jsonl").read_text().splitlines()[0])
    with Sweep(tmp_path, *words, "--resume") as sweep:
        status, out, err = sweep.end()
    assert status == 0, out + err
    lines = list(csv.DictReader((folder / "trials.csv").open()))
    assert [line["fate"] for line in lines] == ["finished", "finished"] and lines[0]["trial"] == first["trial"]
    assert all(1e-3 <= float(line["optim.learning_rate"]) <= 1e-2 for line in lines)
    assert all(line["federation.local_steps"] in "234" for line in lines)
    parent, _ = in_mlflow(tmp_path, "rates")
    assert parent.data.params["search.federation.local_steps"] == "int 2 to 4"


@pytest.mark.slow
def test_a_sweep_ends_in_order_when_its_time_is_up(rates, tmp_path):
    """A dozen seconds for trials that would take a day."""
    with Sweep(tmp_path, *rates, "--federation.rounds", "90000", "--max-hours", "0.003") as sweep:
        status, out, err = sweep.end()
    assert status == 0 and "the 0.003 hours are over" in out and "not finished: " in out, out + err
    _, children = in_mlflow(tmp_path, "rates")
    assert "RUNNING" not in {run.info.status for run in children}


def is_trial(process: psutil.Process) -> bool:
    """Whether a Ray worker runs Tune's function."""
    try:
        return "ImplicitFunc.train" in " ".join(process.cmdline())
    except psutil.Error:
        return False
