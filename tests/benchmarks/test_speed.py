"""The benchmarks of speed work, and compare equal work; nothing is asserted of what they measure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import measuring, plain, prepare, rounds, speed, sweeps
from benchmarks.measuring import Lines, Ratio
from raypref.clients.pool import InProcess
from raypref.config import UserError, override, registry
from raypref.experiment.loop import prepare as inputs_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lines(tmp_path) -> Lines:
    return Lines(tmp_path / "lines.jsonl")


@pytest.fixture
def options(tmp_path) -> speed.Options:
    return speed.Options(runs=1, out=tmp_path, cache=tmp_path)


def steps(base, **values) -> speed.Steps:
    given = {"pairs": 2, "length": 12, "least": 1, "peers": 1} | values
    return speed.Steps(str(base), changes={"model.lora_r": 2}, **given)


def test_ratios_are_of_one_turn_each(lines):
    """2/1, 9/3, 8/2: the median is 3, where medians of all turns would give 8/2."""
    for run, (a, b) in enumerate([(2.0, 1.0), (9.0, 3.0), (8.0, 2.0)]):
        lines.add(row="x", run=run, what="a", cpu=a)
        lines.add(row="x", run=run, what="b", cpu=b)
    assert measuring.ratios(lines, "x", Ratio("a", "b")) == [2.0, 3.0, 4.0]
    assert measuring.spread([4.0, 2.0, 3.0]) == "3 (2 to 4)"
    assert [json.loads(line) for line in lines.path.read_text().splitlines()] == lines.all


def test_what_is_compared_takes_turns(lines):
    seen = []
    measuring.alternate("x", {name: lambda name=name: seen.append(name) or 1 for name in "ab"}, 2, lines)
    assert seen == list("ab") * 3  # the first turn is not counted
    assert [(line["run"], line["what"]) for line in lines.all] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_steps_are_measured_where_the_work_is_equal(tiny_base, options, lines):
    row = steps(tiny_base, dropouts=(0.05, 0.0), stacks=(1, 2))
    speed.measure_steps(row, "row", options, lines)
    measured = [line["what"] for line in lines.all if "what" in line]
    stacks = [f"{name}, dropout {p}" for p in ("0.05", "0") for name in ("1 stacked", "2 stacked", "PEFT")]
    assert measured == [*stacks, "base", "base, last block whole"]
    assert lines.all[0]["difference"] < speed.CLOSE


def test_unequal_work_is_no_measurement(tiny_base, options, lines, monkeypatch):
    monkeypatch.setattr(plain.Plain, "step", lambda self, batch: None)
    with pytest.raises(UserError, match="not the same work"):
        speed.measure_steps(steps(tiny_base), "row", options, lines)


def test_the_pruned_base_reads_the_same(tiny_base):
    pruned, whole = (speed.Base(str(tiny_base), p) for p in (True, False))
    ids, lengths = torch.randint(7, 1000, (3, 9)), torch.tensor([9, 4, 7])
    a, b = (base.last(base.body.embed_tokens(ids), lengths) for base in (pruned, whole))
    assert torch.allclose(a, b, atol=1e-5)


def test_judging_is_measured(tiny_base, options, lines):
    judging = speed.Judging(str(tiny_base), clients=2, pairs=2, rows=2, lengths=(5, 9), changes={"model.lora_r": 2})
    speed.measure_judging(judging, "row", options, lines)
    assert [line["what"] for line in lines.all] == ["1 row", "2 rows", "base"]


def test_flowers_clients_are_given_what_ours_train_on(tiny_base, tmp_path):
    """The plain loop on the batches that are written for Flower, averaged by pairs, is our round."""
    small = {"model.base": str(tiny_base), "model.lora_r": 2, "clients.backend": "local"}
    cohort = speed.Cohort(clients=8, rounds=2, changes=small)
    cohort.write(tmp_path)
    what, given = json.loads((tmp_path / "what.json").read_text()), np.load(tmp_path / "batches.npz")
    loop, row = plain.Plain(**what["plain"]), torch.from_numpy(np.load(tmp_path / "start.npy"))
    for r in range(what["rounds"]):
        trained = []
        for c in range(what["clients"]):
            parts = zip(*(torch.from_numpy(given[name][r, c]) for name in ("ids", "lengths", "slots")), strict=True)
            trained.append(loop.trained(row, list(parts)))
        weights = torch.from_numpy(given["sizes"] / given["sizes"].sum()).float()
        row = weights @ torch.stack(trained)
    config = cohort.config()
    algorithm = registry.algorithm("fedavg")(config, InProcess(inputs_of(config)))
    state = algorithm.init()
    for _ in range(cohort.rounds):
        state, _ = algorithm.round(state)
    assert (state.theta - row).abs().max() < speed.CLOSE


def test_the_table_has_every_row(lines, capsys):
    known = speed.rows()
    for name, row in known.items():
        for ratio in row.ratios:
            for what in (ratio.over, ratio.under):
                lines.add(row=name, run=0, what=what, cpu=1.0, wall=1.0)
    text = speed.report(lines, known)
    assert all(text.count(f"`{name}`") == 1 + len(row.ratios) for name, row in known.items())


@pytest.mark.parametrize(
    ("words", "line"),
    [(["--rows", "plane"], "did you mean 'plain'"), (["--runs", "0"], "--runs is 0; give 1 or more")],
)
def test_wrong_words_are_one_line(words, line):
    with pytest.raises(UserError, match=line):
        speed.command(words)


def test_registered_clients_share_pairs(tiny):
    small = inputs_of(override(tiny, {"federation.cohort": 3}))
    many = rounds.registered(small, 25)
    assert len(many.data.clients) == len(set(many.data.ids)) == len(many.data.group_of) == 25
    assert many.data.clients[10] is small.data.clients[0]


def test_preparing_is_measured(tiny_base):
    took = prepare.measured(8, 20, str(tiny_base))
    assert took["clients"] <= 8 and took["pairs"] <= 160 and took["bytes a pair"] > 0


@pytest.mark.slow
def test_commands_end_with_a_table(tiny_base, tmp_path):
    """Rounds of a method that keeps something at its clients, and without a GPU a line."""
    words = ["--clients", "10", "12", "--algorithms", "ditto", "--steps", "1", "--runs", "1", "--cohort", "2"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY_"))}
    done = subprocess.run(
        [sys.executable, "benchmarks/rounds.py", *words, "--base", str(tiny_base), "--out", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "| ditto | 12 |" in done.stdout, done.stdout + done.stderr
    skipped = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", "--out", str(tmp_path)],
        cwd=ROOT, env=environment | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert skipped.returncode == 0 and skipped.stdout.startswith("skipped: there is no GPU"), skipped.stderr


def test_trials_that_differ_in_a_bit_are_not_the_same_work():
    of = {name: [[0.5, 0.25]] for name in ("validation", "test", "client_steps", "bytes_up", "bytes_down")}
    assert sweeps.same({0: of, 1: of}, {1: dict(of), 0: dict(of)})
    assert not sweeps.same({0: of}, {0: of | {"test": [[0.5, 0.25000000000000006]]}})
    assert not sweeps.same({0: of, 1: of}, {0: of})


@pytest.mark.slow
def test_a_sweep_is_measured_against_the_same_runs(tiny_base, tmp_path):
    words = ["--trials", "2", "--rounds", "2", "--runs", "1", "--base", str(tiny_base), "--out", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY_"))}
    done = subprocess.run(
        [sys.executable, "benchmarks/sweeps.py", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "| 2 | one after another |" in done.stdout, done.stdout + done.stderr
    by_sweep, by_runs = (json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines())
    assert by_sweep["cpu, trials"] > 0 and "cpu, client actors" not in by_sweep  # trials are their own clients
    assert by_runs["cpu"] == pytest.approx(by_runs["cpu, command"])


@pytest.mark.cluster
def test_every_line_of_the_gpu_benchmark_runs_on_a_cpu(tmp_path):
    words = [sys.executable, "benchmarks/gpu.py", "--cpu", "--out", str(tmp_path / "out"), "--cache", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY_"))}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0 and "not measured" not in done.stdout, done.stdout + done.stderr
    measured = [json.loads(line) for line in (tmp_path / "out" / "lines.jsonl").read_text().splitlines()]
    assert {line["row"] for line in measured} == {"correct", "speed", "memory", "sharing", "stage2"}
    of_stage2 = [line for line in measured if line["row"] == "stage2"]
    assert [(line["processes"], line["engine"]) for line in of_stage2] == [
        *((1, engine) for engine in ("torch", "zero 1", "zero 2", "zero 3")),
        (2, "zero 2"),
    ]
    assert max(line["difference"] for line in of_stage2 if line["processes"] == 1) < 1e-6
