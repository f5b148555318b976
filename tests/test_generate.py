"""What a policy's answers look like to a person and to a pipe, and what is said of prompts; no policy is trained."""

from __future__ import annotations

import io
import re

import pytest
import torch

from raypref import generate
from raypref.config import UserError, from_dict, override, to_dict
from raypref.models.identity import base_identity
from raypref.models.policy import Policy, layout_of
from raypref.models.selector import load_selector, load_tokenizer, pad_id
from raypref.tools import checkpoint


@pytest.fixture(scope="module")
def policy(tiny, tmp_path_factory):
    """The folder of a policy that is the frozen base."""
    folder = tmp_path_factory.mktemp("policy")
    config = override(tiny, {"data.max_length": 48, "rlhf.max_new_tokens": 6, "objective": "variational"})
    config = override(config, {"algorithm": "fedvpa_gp", "variational.d": 4})
    checkpoint.write_json(folder / "config.json", to_dict(config))
    checkpoint.write_json(folder / "policy.json", {})
    held = {"row": torch.zeros(layout_of(config).width), "z": torch.zeros(2, 4)}
    values = {"ids": ["c00", "c01"], "base": base_identity(config.model.base)}
    checkpoint.save(folder / "row.safetensors", held, values)
    return folder


def answered(policy, capsys, *words):
    """(standard output, lines of ours on standard error)"""
    assert generate.command([str(policy), "--client", "c01", *words]) == 0
    out, err = capsys.readouterr()
    return out, [line for line in err.splitlines() if line and "Loading weights" not in line]


def test_of_one_prompt_the_response_alone(policy, capsys):
    out, err = answered(policy, capsys, "--prompt", "What is tea?")
    assert err == [] and not out.startswith(("prompt: ", "response: "))
    several, _ = answered(policy, capsys, "--prompt", "What is tea?", "Why?")
    assert several.startswith(f"prompt: What is tea?\nresponse: {out}prompt: Why?\nresponse: ")


def test_each_prompt_is_told_before_its_responses(policy, capsys):
    out, _ = answered(policy, capsys, "--prompt", "What is tea?", "--n", "2", "--frozen")
    marks = [line.split(": ")[0] for line in out.splitlines() if line.startswith(("prompt: ", "response:", "frozen:"))]
    assert [mark.rstrip(":") for mark in marks] == ["prompt", "response", "response", "frozen", "frozen"]


def test_further_lines_are_set_in():
    assert generate.labelled("prompt", "a\nprompt: b") == "prompt: a\n  prompt: b"


def test_prompts_from_standard_input(policy, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\nWhat is tea?\n  \nWhy?\n"))
    out, err = answered(policy, capsys)
    asked = [line for line in out.splitlines() if line.startswith("prompt: ")]
    assert asked == ["prompt: What is tea?", "prompt: Why?"]
    assert err == []
    for text in (io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"), io.StringIO("\udcff")):
        monkeypatch.setattr("sys.stdin", text)
        with pytest.raises(UserError, match="standard input is not UTF-8"):
            answered(policy, capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    with pytest.raises(UserError, match="there is no --prompt, and no line on standard input"):
        answered(policy, capsys)


def test_at_a_terminal_it_says_what_it_waits_for(policy, capsys, monkeypatch):
    terminal = io.StringIO("Why?\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert "a prompt a line; Ctrl-D ends" in answered(policy, capsys)[1]


def test_what_a_long_prompt_loses(policy, capsys):
    """48 tokens less 6 for the response leave 42 for the prompt and what is around it."""
    _, err = answered(policy, capsys, "--prompt", "Why?", "tea " * 60)
    (line,) = err
    found = re.fullmatch(
        r"note: prompt 2: the first (\d+) of its (\d+) tokens are left out: data.max_length is 48, 6 of them for the "
        "response",
        line,
    )
    assert int(found[2]) - int(found[1]) == 48 - 6


def test_beyond_the_bases_positions(policy):
    config = from_dict(checkpoint.read_json(policy / "config.json"))
    tokenizer = load_tokenizer(config.model.base)
    found = Policy(load_selector(config.model, (), pad_id(tokenizer)), tokenizer, config, 4)
    positions = found.selector.model.config.max_position_embeddings
    room = positions - len(tokenizer("Question: Why?\nAnswer:")["input_ids"])
    found.max_length = 2 * positions
    assert list(generate.remarks(found, "Why?", room)) == []
    (line,) = generate.remarks(found, "Why?", room + 1)
    assert line == f"with {room + 1} tokens of response it takes {positions + 1} of the base's {positions} positions"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--n", "0"], "--n is 0; give at least 1"),
        (["--seed", "-1"], "--seed is -1; give at least 0"),
        (["--temperature", "0"], "--temperature is 0; give one above 0"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0; give at least 1"),
        ([" "], "--prompt is empty; say what is asked"),
        (["--prompt", "How?"], "--prompt is given twice, and only the last would count"),
        (["--client", ""], "--client is missing: this policy answers by its z; there are 2, such as c00, c01"),
        (["--base", "/nonexist"], "model.base='/nonexist': there is no such folder; give a local folder or a hub id"),
        (["--base", "~/none"], "model.base='~/none': there is no such folder"),
        (["--base", "models/of/mine"], "model.base='models/of/mine': there is no such folder"),
    ],
)
def test_mistakes_are_told_in_one_line(policy, capsys, words, said):
    with pytest.raises(UserError) as caught:
        answered(policy, capsys, "--prompt", "Why?", *words)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_damaged_policy(policy, tmp_path, capsys):
    for name in ("config.json", "policy.json", "row.safetensors"):
        (tmp_path / name).write_bytes((policy / name).read_bytes())
    for name, cut in (("row.safetensors", -40), ("config.json", 20)):
        (tmp_path / name).write_bytes((policy / name).read_bytes()[:cut])
        with pytest.raises(UserError, match=f"{name} cannot be read .*; put a copy of it back, or remove {tmp_path}"):
            answered(tmp_path, capsys, "--prompt", "Why?")
