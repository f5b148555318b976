"""What is said of each pair of a file, and of those that could not be judged; no selector is trained."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from raypref import score
from raypref.config import UserError, override, to_dict
from raypref.models.identity import base_identity
from raypref.models.layout import initial_row
from raypref.objectives.base import row_layout
from raypref.tools import checkpoint


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """The folder of a finished stage-1 run of two clients."""
    folder = tmp_path_factory.mktemp("run")
    config = override(tiny, {"algorithm": "fedavg", "data.max_length": 60})
    checkpoint.write_json(folder / "config.json", to_dict(config))
    known = {"clients": ["c00", "c01"], "base": base_identity(config.model.base), "probes": {}}
    checkpoint.write_json(folder / "result.json", known)
    start = initial_row(row_layout(config), 0)
    rows = torch.stack([start, start + 0.1])
    checkpoint.save(folder / "clients" / "00000.safetensors", {"clients": torch.arange(2), "rows": rows}, {})
    return folder


def row(prompt="Why?", chosen="a first answer", rejected="another") -> str:
    return json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n"


LONG = "a long answer " * 30
GOOD = row()


def scored(run, capsys, *words):
    """(lines of output, lines of ours on standard error)"""
    assert score.command([str(run), *map(str, words), "--client", "c01"]) == 0
    out, err = capsys.readouterr()
    told = [line for line in err.splitlines() if line and "Loading weights" not in line]
    return [json.loads(line) for line in out.splitlines()], told


def test_lines_and_left_out_rows_are_told_by_number(run, tmp_path, capsys):
    file = tmp_path / "pairs.jsonl"
    alike = row(chosen="caf\u00e9", rejected="cafe\u0301")  # the tokenizer's normal form is the same
    lost = [row(chosen=""), row(chosen=LONG), row(chosen="another"), row(chosen=""), alike]
    file.write_text("".join([lost[0], GOOD, lost[1], "\n", row(prompt="tea " * 80), *lost[2:]]))
    lines, err = scored(run, capsys, file)
    assert [line["row"] for line in lines] == [2, 4] and "file" not in lines[0]
    summary, left, note = err
    assert summary.endswith("of 2 pairs")
    assert left == (
        "left out: 2 a response is missing or empty (rows 1, 6), 1 chosen equals rejected (row 5), "
        "1 whose responses alone exceed data.max_length=60 (row 3), 1 whose responses are the same tokens (row 7)"
    )
    assert note == "note: 1 lost prompt text from the left to fit data.max_length=60 (row 4)"


def test_only_a_few_of_many_are_named(run, tmp_path, capsys):
    (tmp_path / "pairs.jsonl").write_text(GOOD + row(rejected="") * 40)
    _, err = scored(run, capsys, tmp_path / "pairs.jsonl")
    assert "left out: 40 a response is missing or empty (rows 2, 3, 4, 5, 6, …)" in err[1]


def test_rows_that_cannot_be_read_are_told_by_number(run, tmp_path, capsys):
    (tmp_path / "pairs.jsonl").write_text(GOOD + row().replace('"Why?"', "9" * 5000) + GOOD)
    lines, err = scored(run, capsys, tmp_path / "pairs.jsonl")
    assert [line["row"] for line in lines] == [1, 3]
    assert err[1].startswith("left out: 1 a number of more digits than Python reads") and err[1].endswith("(row 2)")


def test_of_several_files_each_row_has_its_own(run, tmp_path, capsys):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(row(rejected="") + GOOD)
    lines, err = scored(run, capsys, tmp_path)
    assert [(line["file"], line["row"]) for line in lines] == [(str(tmp_path / f"{name}.jsonl"), 2) for name in "ab"]
    assert f"(rows 1 of {tmp_path / 'a.jsonl'}, 1 of {tmp_path / 'b.jsonl'})" in err[1]


def test_a_file_without_a_usable_pair_leaves_nothing(run, tmp_path, capsys):
    (tmp_path / "pairs.jsonl").write_text(row(chosen=LONG, rejected=LONG + "x"))
    with pytest.raises(UserError, match=r"holds no usable pair: 1 whose responses alone exceed .* \(row 1\)"):
        scored(run, capsys, tmp_path / "pairs.jsonl", "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_where_the_lines_go(run, tmp_path, capsys):
    file, out = tmp_path / "pairs.jsonl", tmp_path / "out.jsonl"
    file.write_text(GOOD)
    printed, _ = scored(run, capsys, file)
    assert scored(run, capsys, file, "--out", out)[0] == [] and json.loads(out.read_text()) == printed[0]
    for wrong, said in ((tmp_path, "is a folder; give a file"), (tmp_path / "no" / "x", "there is no folder .*/no; ")):
        with pytest.raises(UserError, match=said):
            scored(run, capsys, file, "--out", wrong)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda rows: rows[:, 1:], r"has \d+ parameters for c01, its config\.json asks for \d+: one of the two was"),
        (lambda rows: rows * torch.tensor([[1.0], [float("nan")]]), "what c01 had in .* is not finite, its training"),
    ],
)
def test_a_row_that_cannot_judge_is_refused(run, tmp_path, capsys, change, line):
    (tmp_path / "pairs.jsonl").write_text(GOOD)
    copy = shutil.copytree(run, tmp_path / "copy")
    file = copy / "clients" / "00000.safetensors"
    tensors, values = checkpoint.load(file)
    checkpoint.save(file, tensors | {"rows": change(tensors["rows"])}, values)
    with pytest.raises(UserError, match=line) as error:
        scored(copy, capsys, tmp_path / "pairs.jsonl")
    assert "\n" not in str(error.value)


def test_a_client_is_needed(run, tmp_path):
    with pytest.raises(UserError, match="--client is missing: a pair is scored by its selector; there are 2"):
        score.command([str(run), str(tmp_path)])


@pytest.mark.parametrize("name", ["result.json", "config.json", "clients/00000.safetensors"])
def test_a_damaged_run(run, tmp_path, capsys, name):
    (tmp_path / "pairs.jsonl").write_text(GOOD)
    copy = tmp_path / "run"
    for file in ("result.json", "config.json", "clients/00000.safetensors"):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        data = (run / file).read_bytes()
        (copy / file).write_bytes(data[: len(data) // 2] if file == name else data)
    with pytest.raises(UserError, match=f"{name} cannot be read .*; put a copy of it back, or remove .* and make it"):
        scored(copy, capsys, tmp_path / "pairs.jsonl")
