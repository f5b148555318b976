"""A method and an objective of somebody else's (`tests/tenants/nudge.py`) go through everything that ours go through.

RAYPREF_PLUGINS names their module, as a person would do without touching this package. Every command is a process.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from raypref.config import registry
from raypref.tools import checkpoint

ROOT = Path(__file__).parents[1]
WORDS = ("--objective", "hinge", "--hinge.width", "2", "--nudge.mu", "0.05", "--federation.rounds", "6")
SMALL = ("--smoke", "--no-adapters", *WORDS)
ALONE = ("--against", "none")


@pytest.fixture
def typed(tmp_path, tiny_base):
    """Types a command in an empty folder and returns what it printed; exit status 0 unless told otherwise."""
    environment = os.environ | {
        "RAYPREF_PLUGINS": "tests.tenants.nudge",
        "PYTHONPATH": str(ROOT),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    environment.pop("RAY_ADDRESS", None)

    def start(module, *words):
        return subprocess.Popen(
            [sys.executable, "-m", f"raypref.{module}", *words],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(module, *words, status=0):
        process = start(module, *words)
        printed, _ = process.communicate(timeout=400)
        assert process.returncode == status, printed
        return printed

    run.environment, run.start, run.base = environment, start, ("--model.base", str(tiny_base), "--model.lora-r", "2")
    return run


def only(folder: Path) -> Path:
    """The one run's folder in it."""
    (result,) = folder.glob("*/result.json")
    return result.parent


def measured(folder: Path) -> dict:
    """A result without what depends on the clock or on where it ran."""
    result = json.loads((folder / "result.json").read_text())
    config = {name: value for name, value in result.pop("config").items() if name != "clients"}
    return {name: value for name, value in result.items() if name != "seconds"} | {"config": config}


def states_are_equal(one: Path, other: Path) -> bool:
    """The last state's tensors, those of the clients among them, bit for bit."""
    (a, _), (b, _) = (checkpoint.load(folder / "state.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_run_kill_resume_and_ray_give_the_same_bits(typed, tmp_path):
    typed("run", "nudged", *SMALL, *ALONE, *typed.base, "--out", "whole", "--no-track")
    whole = only(tmp_path / "whole")
    result = measured(whole)
    assert result["algorithm"] == "nudged" and result["config"]["nudge"] == {"mu": 0.05}
    lines = [json.loads(line) for line in (whole / "records.jsonl").read_text().splitlines()]
    assert {"train/loss", "train/hinge", "train/nudge", "nudge/moved"} <= set(lines[-1]["metrics"])
    state, _ = checkpoint.load(whole / "state.safetensors")
    taken, visits = state["kept/visits/clients"], state["kept/visits/values"]
    assert visits.sum() == 6 * 4 and len(taken) == len(visits) <= 12  # six rounds of four clients
    D = state["theta"].numel()
    assert result["bytes_up"] == 6 * 4 * 4 * (D + 1) and result["bytes_down"] == 6 * 4 * 4 * 2 * D

    process = typed.start("run", "nudged", *SMALL, *ALONE, *typed.base, "--out", "cut", "--no-track")
    deadline = time.monotonic() + 300
    while process.poll() is None and not list((tmp_path / "cut").glob("*/state.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    typed("run", "nudged", *SMALL, *ALONE, *typed.base, "--out", "cut", "--no-track", "--resume")
    assert measured(only(tmp_path / "cut")) == result and states_are_equal(only(tmp_path / "cut"), whole)

    ray = ("--clients.backend", "ray", "--clients.cpus-per-actor", "0.5")
    typed("run", "nudged", *SMALL, *ALONE, *typed.base, *ray, "--out", "ray", "--no-track")
    assert measured(only(tmp_path / "ray")) == result and states_are_equal(only(tmp_path / "ray"), whole)


@pytest.mark.slow
def test_a_sweep_compare_score_and_help(typed, tmp_path):
    small = (*SMALL, *typed.base, "--clients.cpus-per-actor", "0.5")
    printed = typed("sweep", "nudged", *small, "--seeds", "0", "--out", "swept")
    assert "trials: 1" in printed and "validation accuracy" in printed
    folder = only(tmp_path / "swept" / "nudged-smoke")
    typed(
        "run", "fedgd", *small, "--algorithm", "fedavg", "--objective", "choice", "--against", "none", "--out", "runs"
    )
    printed = typed("compare", "nudged", "fedgd", "--table", "mix", "--out", "drawn")
    table = (tmp_path / "drawn" / "mix.md").read_text()
    assert "| Nudged " in table and "| FL " in table, printed
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        json.dumps({"prompt": "What is rain?", "chosen": "Water.", "rejected": "A liquid, falling."}) + "\n"
    )
    client = json.loads((folder / "result.json").read_text())["clients"][0]
    scored = typed("score", str(folder), str(pairs), "--client", client)
    assert np.isfinite(json.loads(scored.splitlines()[0])["margin"])
    help_text = typed("run", "nudged", "--help")
    assert "--hinge.width" in help_text and "--nudge.mu" in help_text
    assert "nudged" in typed("run") and "a method that only tests have" in typed("run")
    refused = typed("run", "nudged", "--objective", "hinge", "--hinge.width", "11", status=2)
    assert "no margin is that wide" in refused


def test_without_its_module_it_is_unknown():
    assert "nudged" not in registry.algorithms() and "hinge" not in registry.objectives()


def test_a_module_that_cannot_be_imported_is_one_line(tmp_path):
    environment = os.environ | {"RAYPREF_PLUGINS": "no_such_module"}
    done = subprocess.run(
        [sys.executable, "-m", "raypref.run", "fedgd", "--smoke"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "RAYPREF_PLUGINS names 'no_such_module'" in done.stderr
    assert "Traceback" not in done.stderr


FILES = {
    "raises": ("raise RuntimeError('no luck')", "which cannot be imported: RuntimeError, no luck"),
    "at_its_top": ("from raypref.config import RunConfig", "imports RunConfig under `if TYPE_CHECKING:`"),
    "ghost": ("ALGORITHMS['ghost'] = 'ghost:Nope'", "ghost:Nope cannot be loaded: AttributeError"),
    "taken": ("ALGORITHMS['fedgd'] = 'taken:Mine'", "taken gives the name 'fedgd' to something else"),
    "general": (
        "ALGORITHMS['mine'] = 'general:Mine'\nclass Mine:\n    parameters = {'data': object}",
        "the section data of a method or an objective is there for every run",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_module_that_is_wrong_is_one_line(tmp_path, name):
    code, why = FILES[name]
    (tmp_path / f"{name}.py").write_text(f"from raypref.algorithms import ALGORITHMS\n{code}\n")
    environment = os.environ | {"RAYPREF_PLUGINS": name, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-m", "raypref.run"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1, done.stderr


PAGE = (ROOT / "docs" / "extending.md").read_text()
WALKS = dict(re.findall(r'^```python title="(\w+)\.py"\n(.*?)^```$', PAGE, re.M | re.S))
"""Module -> its code, of every file that the page shows."""
TRIED = """
import json, sys
import torch
from raypref import compare, run
from raypref.config import registry
from raypref.data.__main__ import main as data
from tests.algorithms.rule import Rule, config

# By hand: all take part, those of sizes 1 to 4 move by 1, those of 5 and 6 by -1, on average by (10 - 11) / 21; with
# beta 1/2 the second move is one and a half of that.
method = registry.algorithm("fedavgm")(config("fedavgm", federation__cohort=6, fedavgm__beta=0.5), Rule())
state = start = method.init()
for expected in (-1 / 21, -2.5 / 21):
    state, metrics = method.round(state)
    assert torch.allclose(state.theta - start.theta, torch.tensor(expected), atol=1e-6)
    assert abs(metrics["train/move"] - float(state.move.norm())) < 1e-6
assert method.needed() == {}

page, small = json.loads(sys.argv[1]), json.loads(sys.argv[2])
modules = {"data": data, "run": run.command, "compare": compare.command}
assert [module for module, *words in page] == list(modules)
for module, *words in page:
    assert modules[module]([*words, *(small if module == "run" else [])]) == 0
plain = ["fedavg", "--data.source", "thumbs.jsonl", "--smoke"]
for words in (plain, [*page[1][1:], "--fedavgm.beta", "0", "--smoothed.epsilon", "0"]):
    assert run.command([*words, *small, "--no-track"]) == 0
"""


@pytest.mark.slow
def test_the_files_of_the_page(typed, tmp_path):
    """Those of docs/extending.md as they stand there, by the commands that it shows, and that they do what it says."""
    for name, code in WALKS.items():
        (tmp_path / f"{name}.py").write_text(code)
    made = re.search(r"<<'END'\n(.*?)END", PAGE, re.S)[1]
    rows = subprocess.run([sys.executable, "-c", made], stdout=subprocess.PIPE, check=True)
    none = {"who": "p0", "about": "question 99", "up": "the same", "down": "the same"}
    (tmp_path / "thumbs.jsonl").write_bytes(rows.stdout + json.dumps(none).encode())
    named = re.search(r"RAYPREF_PLUGINS=([\w,]+)\n", PAGE)[1]
    assert named.split(",") == list(WALKS)
    typed.environment["RAYPREF_PLUGINS"] = named
    commands = [shlex.split(line) for line in re.findall(r"^python -m raypref\.(.*)$", PAGE, re.M)]
    small = [
        *typed.base,
        "--no-adapters",
        "--against",
        "none",
        "--federation.cohort",
        "3",
        "--clients.backend",
        "local",
    ]
    done = subprocess.run(
        [sys.executable, "-c", TRIED, json.dumps(commands), json.dumps(small)],
        cwd=tmp_path, env=typed.environment, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "read as thumbs: an answer with thumbs up and one with down" in done.stdout
    assert "one answer got both thumbs" in done.stdout
    assert "Clients that local steps help" in done.stdout  # at the end of a run
    table = (tmp_path / "runs" / "compare" / "gains.md").read_text()
    assert "FedAvgM (smoothed)" in table and "worse" in table
    help_text = typed("compare", "--help")
    assert "gains: How many clients judge better" in " ".join(help_text.replace("│", " ").split())
    results = [
        json.loads(file.read_text()) for file in sorted((tmp_path / "runs").glob("*/result.json"))
    ]  # fedavg, then fedavgm with and without its parts
    (plain,) = (r for r in results if r["algorithm"] == "fedavg")
    with_parts, without = sorted(
        (r for r in results if r["algorithm"] == "fedavgm"), key=lambda r: -r["config"]["fedavgm"]["beta"]
    )
    for metric, values in plain["test"].items():  # θ + (average - θ) is the average up to rounding
        assert np.allclose(without["test"][metric], values, atol=1e-4), metric
    assert with_parts["test"] != plain["test"]
