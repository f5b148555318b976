"""The benchmark that kills: what it compares and finds, and for real, a Ray node killed in the middle of a run.

Of the other kinds one each is killed for real elsewhere: client and server actor in tests/clients/test_actors.py, a
trial in tests/test_sweep.py, the driver in tests/test_run.py and tests/test_sweep.py, the MLflow server in
tests/test_deliver.py.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import kill
from raypref.config import UserError
from raypref.tools import checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    """The folder of a run, and of the same one that took longer elsewhere."""
    folders = tmp_path / "whole", tmp_path / "killed"
    for seconds, folder in enumerate(folders):
        config = {"clients": {"backend": ("local", "ray")[seconds]}}
        checkpoint.write_json(folder / "config.json", config)
        result = {"test": {"loss": [[0.5, float("nan")]]}, "seconds": seconds, "restarts": seconds, "config": config}
        checkpoint.write_json(folder / "result.json", result)
        checkpoint.write_lines(folder / "records.jsonl", [{"round": 1, "seconds": seconds, "metrics": {"loss": 0.25}}])
        checkpoint.save(folder / "clients" / "00000.safetensors", {"rows": torch.ones(2)}, {"seconds": seconds})
        np.savez(folder / "latent.npz", mu=np.array([1.0, np.nan]))
    return folders


def test_runs_that_differ_in_time_and_place_alone_are_the_same(pair):
    assert kill.differences(*pair) == []
    assert kill.damages(pair[1]) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("result.json", lambda path: checkpoint.write_json(path, json.loads(path.read_text()) | {"rounds": 2})),
        ("records.jsonl", lambda path: path.write_text(path.read_text().replace("0.25", "0.250000001"))),
        ("records.jsonl", lambda path: path.write_text(path.read_text() * 2)),
        ("clients/00000.safetensors", lambda path: checkpoint.save(path, {"rows": torch.tensor([1, 1 + 2e-7])}, {})),
        ("clients/00000.safetensors", lambda path: checkpoint.save(path, {"rows": torch.ones(2).double()}, {})),
        ("latent.npz", lambda path: np.savez(path, mu=np.array([1.0, -np.nan]))),
        ("latent.npz", lambda path: path.unlink()),
    ],
)
def test_a_bit_that_differs_is_found(pair, name, change):
    change(pair[1] / name)
    (line,) = kill.differences(*pair)
    assert name in line and ("differs" in line or "is missing" in line)


@pytest.mark.parametrize("name", ["result.json", "records.jsonl", "latent.npz", "clients/00000.safetensors"])
def test_half_a_file_is_found(pair, name):
    path = pair[1] / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (line,) = kill.damages(pair[1])
    assert name in line and "does not read" in line


def test_a_temporary_file_is_found(pair):
    (pair[1] / "clients" / ".00006.safetensors.4711").write_bytes(b"half")
    (line,) = kill.damages(pair[1])
    assert line.endswith("is left over")


def test_moments_are_seeded_and_spread_over_the_run(tmp_path):
    """Five strata of 17 points of progress: 0 to 2, 3 to 5, 6 to 9, 10 to 12, 13 to 16 rounds."""
    cases = [kill.ClientCase(tmp_path, None, moment, 5, seed=0) for moment in range(5)]
    again = [kill.ClientCase(tmp_path, None, moment, 5, seed=0) for moment in range(5)]
    assert [(c.point, c.delay) for c in cases] == [(c.point, c.delay) for c in again]
    strata = [range(0, 3), range(3, 6), range(6, 10), range(10, 13), range(13, 17)]
    assert all(case.point in stratum for case, stratum in zip(cases, strata, strict=True))


def test_the_table_counts_what_passed():
    cases = [{"kind": "client", "seconds": s, "problems": p} for s, p in ((3.0, []), (5.0, ["lost"]), (20.0, []))]
    assert kill.table(cases).splitlines()[2:] == ["| client | 2 of 3 | 5 | 20 |"]


@pytest.mark.parametrize(
    ("words", "line"),
    [(["--kinds", "clients"], "did you mean 'client'?"), (["--moments", "0"], "--moments is 0; give 1 or more")],
)
def test_wrong_words_are_one_line(words, line):
    with pytest.raises(UserError, match=line.replace("?", r"\?")):
        kill.command(words)


@pytest.mark.cluster
def test_a_node_that_is_lost_with_all_actors_of_a_run_costs_it_nothing(tmp_path):
    """One of two nodes is killed with the server and the clients on it; they move to the other one. The same words
    again find the case passed."""
    words = [sys.executable, "benchmarks/kill.py", "--kinds", "node", "--moments", "1", "--out", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY_"))}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and "1 of 1 passed" in done.stdout, done.stdout + done.stderr
    assert "ClientActor" in done.stdout and "Server" in done.stdout
    shutil.rmtree(tmp_path / "of-1-seed0")
    again = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert again.returncode == 0 and "passed before" in again.stdout, again.stdout + again.stderr
