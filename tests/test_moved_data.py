"""Data are known by what they hold: a run goes on, under the same name, where its folder has moved to."""

import json
import shutil

import pytest

from raypref import run
from raypref.config import RunConfig, override, read_config
from raypref.data.sources import identified


def rows(flip=False):
    """Six people of twenty choices."""
    for c in range(6):
        for i in range(20):
            chosen, rejected = (f"answer {i} of {c}", f"another {i} for {c}")[:: -1 if flip and i == 0 else 1]
            yield {"client_id": f"p{c}", "prompt": f"question {i} {c}", "chosen": chosen, "rejected": rejected}


def written(path, **how):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(**how)))
    return path


def test_moving_a_folder_renames_nothing(tmp_path):
    """Nor does the file's own name; a byte does, and a source that is read by name has none."""
    file = written(tmp_path / "here" / "choices.jsonl")
    config = identified(override(RunConfig(), {"data.source": str(file)}))
    other = file.rename(tmp_path / "elsewhere.jsonl")
    assert identified(override(RunConfig(), {"data.source": str(other)})).key == config.key
    written(other, flip=True)
    assert identified(override(RunConfig(), {"data.source": str(other)})).key != config.key
    assert identified(RunConfig()) == RunConfig()


@pytest.mark.slow
def test_a_run_is_resumed_from_where_its_data_lie_now(tmp_path, tiny_base, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["fedavg", "--smoke", "--model.base", str(tiny_base), "--model.lora-r", "2", "--no-track", "--no-adapters"]
    words += ["--clients.backend", "local", "--data.template", "short"]
    file = written(tmp_path / "a" / "choices.jsonl")
    assert run.command([*words, "--data.source", str(file)]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_config(folder).data.digest
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert run.command([*words, "--data.source", str(tmp_path / "b" / "choices.jsonl"), "--resume"]) == 0
    assert list((tmp_path / "runs").iterdir()) == [folder]
