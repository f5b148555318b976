"""Files of ours that are missing or damaged: one line that names the file and what to do, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from raypref.algorithms.fedavg import FedAvg
from raypref.clients.protocol import Usage
from raypref.config import RunConfig, UserError, override, read_config, to_dict
from raypref.evaluation.latent import Latent
from raypref.experiment.tracked import tracked
from raypref.storage.results import Store
from raypref.tools import checkpoint


def refused(function, *words, **more) -> str:
    with pytest.raises(UserError) as caught:
        function(*words, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("damage", [b"", b'{"rounds": 4, "cli', b"[1]", b"\xff\xfe", None])
def test_json(tmp_path, damage):
    path = tmp_path / "run" / "result.json"
    checkpoint.write_json(path, {"rounds": 4})
    assert checkpoint.read_json(path) == {"rounds": 4}
    path.unlink() if damage is None else path.write_bytes(damage)
    said = refused(checkpoint.read_json, path)
    assert said.startswith(f"{path} is missing; " if damage is None else f"{path} cannot be read (")
    assert said.endswith(f"; put a copy of it back, or remove {tmp_path / 'run'} and make it again")


def test_tensors_at_every_length(tmp_path):
    """However much of the file is there, it is whole or refused."""
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, {"theta": torch.arange(5.0)}, {"round": 2})
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert refused(checkpoint.load, path).startswith(f"{path} cannot be read (")
    path.write_bytes(whole)
    tensors, values = checkpoint.load(path)
    assert tensors["theta"].tolist() == [0, 1, 2, 3, 4] and values == {"round": 2}
    save_file(tensors, path)
    assert "cannot be read (raypref did not write it); " in refused(checkpoint.load, path)
    path.unlink()
    assert f"{path} is missing; " in refused(checkpoint.load, path)


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    """The old file stands, and no half of the new one lies beside it."""
    path = tmp_path / "state"
    checkpoint.write_bytes(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.write_bytes(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["state"] and path.read_bytes() == b"old"


def test_what_killed_processes_were_writing_is_cleared_away(tmp_path):
    """By whoever locks the folder next; files of living processes, and those of others, stay."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "clients").mkdir()
    dead = [f".result.json.{gone.pid}", f"clients/.00000.safetensors.{gone.pid}", f".own.{os.getpid()}"]
    stay = [f".result.json.{os.getppid()}", ".lock", ".hidden.txt", f"result.json.{gone.pid}"]
    for name in dead + stay:
        (tmp_path / name).touch()
    with checkpoint.locked(tmp_path):
        assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(stay)


def test_of_lines_only_the_last_may_be_cut_short(tmp_path):
    path = tmp_path / "records.jsonl"
    assert checkpoint.read_lines(path) == []
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert checkpoint.read_lines(path) == [{"round": 1}, {"round": 2}]
    path.write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
    assert f"{path} cannot be read (line 2 is no JSON" in refused(checkpoint.read_lines, path)
    path.write_text('{"round": 1}\n{"rou\n')  # with its end it was not cut short
    assert f"{path} cannot be read (line 2 is no JSON" in refused(checkpoint.read_lines, path)
    path.write_text('{"round": 1}\n{"round": ' + "[" * 100_000 + "\n")
    assert f"{path} cannot be read (" in refused(checkpoint.read_lines, path)


def test_a_line_ends_where_it_was_ended(tmp_path):
    """Characters that are line ends elsewhere stand within a text; a kill may cut within one of several bytes."""
    path = tmp_path / "records.jsonl"
    written = [{"text": "one\u2028two\x85three"}, {"text": "é"}]
    whole = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in written).encode()
    path.write_bytes(whole)
    assert checkpoint.read_lines(path) == written
    path.write_bytes(whole[: whole.index("é".encode()) + 1])
    assert checkpoint.read_lines(path) == written[:1]


def test_a_latent_file(tmp_path):
    path = tmp_path / "latent.npz"
    Latent.of(1, np.zeros((2, 3)), np.zeros((2, 3))).save(path)
    whole = path.read_bytes()
    for length in (0, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:length])
        assert f"{path} cannot be read (" in refused(Latent.load, path)


@pytest.mark.parametrize("name", ["state.safetensors", "config.json", "data.json", "mlflow.json"])
def test_a_run_is_not_resumed_from_what_is_damaged(tiny, tmp_path, name):
    """Nor is it begun anew as if the file were not there."""
    state, tiny = FedAvg.state(1, torch.arange(3.0)), override(tiny, {"algorithm": "fedavg"})
    store = Store(tmp_path, tiny)
    store.resume("digest")
    store.round(state, {"train/loss": 1.0}, Usage(), 1.0, {})
    checkpoint.write_json(tmp_path / "mlflow.json", {"run_id": "x"})
    found, used, _ = Store(tmp_path, tiny).resume("digest")
    assert torch.equal(found.theta, state.theta) and used == Usage()
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-9])
    if name == "mlflow.json":
        said = refused(tracked, tiny, tmp_path, None, adapters=False)
        assert said.endswith("; remove it, and MLflow gets a new run")
    else:
        said = refused(lambda: Store(tmp_path, tiny).resume("digest"))
        assert said.endswith(f"; put a copy of it back, or remove {tmp_path} and make it again")
    assert said.startswith(f"{file} cannot be read (")


def test_a_configuration_of_another_version(tmp_path):
    """Fields that came later have their defaults; one that is gone, or has other values, is named with its file."""
    tree = to_dict(RunConfig())
    del tree["federation"]["dropout"], tree["lore"]
    checkpoint.write_json(tmp_path / "config.json", tree)
    assert read_config(tmp_path) == RunConfig() and read_config(tmp_path).key == RunConfig().key
    for section, name, value in (("federation", "gone", 1), ("gone", "field", 1), ("data", "template", "gone")):
        checkpoint.write_json(tmp_path / "config.json", tree | {section: {**tree.get(section, {}), name: value}})
        said = refused(read_config, tmp_path)
        assert said.startswith(f"{tmp_path / 'config.json'}: ") and f"{section}.{name}" in said
        assert said.endswith("; it may be of another version of raypref")


def test_what_a_reader_needs_must_be_there(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"config.json cannot be read \(it lacks algorithm, data\); put a copy of it back"
    ):
        read_config(tmp_path)
    checkpoint.write_json(tmp_path / "config.json", {"algorithm": "fedavg", "data": {}})
    assert read_config(tmp_path).algorithm == "fedavg"  # what is younger than the file takes its default
