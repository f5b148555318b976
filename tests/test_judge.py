"""`python -m raypref.judge` on folders as a policy run leaves them: by style, by a real HTTP server, by classifiers."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from raypref.config import RunConfig, UserError, override, to_dict
from raypref.data.synthetic import groups, members, pairs
from raypref.judge import command
from raypref.judges import responses
from raypref.judges.judgement import file_name, judged, keep
from raypref.judges.prompts import PROMPTS
from raypref.judges.responses import Response
from raypref.judges.style import Style
from raypref.tools import checkpoint
from raypref.tools.console import main
from tests.judges.server import refusal, serving
from tests.judges.test_reward import make

AXES = ("education", "humor")


@pytest.fixture
def server(monkeypatch):
    with serving(monkeypatch) as server:
        yield server


def write(folder: Path, lines: list[Response], **fields) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "responses.jsonl").write_text("".join(json.dumps(line._asdict()) + "\n" for line in lines))
    checkpoint.write_json(folder / "config.json", to_dict(override(RunConfig(), fields)))
    return folder


@pytest.fixture
def styled(tmp_path) -> Path:
    """Four groups, two clients each: a policy that always answers as the client wishes, a base that never does; but of
    G2 it is the other way round, and of G3 both say the same."""
    lines = []
    for c, (client, group, poles) in enumerate(members((2, 2, 2, 2), AXES)):
        for axis, pole in poles.items():
            for _, (prompt, *answers) in zip(range(5), pairs(axis, c, 0), strict=False):
                wished, other = answers[pole], answers[1 - pole]
                ours, theirs = {"G2": (other, wished), "G3": (wished, wished)}.get(group.split()[0], (wished, other))
                lines.append(Response(prompt, client, group, client == "c07", ours, theirs))
    return write(tmp_path / "run", lines, **{"data.axes": AXES})


@pytest.fixture
def hh(tmp_path) -> Path:
    """Two axes, three clients each, one of them unseen: our answers to prompts 0 to 3 are better, those after worse."""
    lines = [
        Response(f"{axis} {c} {i}", f"{axis}{c}", axis, c == 2, *(("good", "bad") if i < 4 else ("bad", "good")))
        for axis in ("helpful", "harmless")
        for c in range(3)
        for i in range(10)
    ]
    return write(tmp_path / "run", lines, **{"data.source": "hh.jsonl"})


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / "judgements" / f"{name}.json").read_text())


def words(folder: Path, *flags: str) -> list[str]:
    return [str(folder), "--cache", str(folder.parent / "cache"), "--backoff", "0.01", *flags]


def better(prompt: str, a: str, b: str) -> str:
    return "A" if a == "good" else "B"


# --- by style -------------------------------------------------------------------------------------------------------


def test_styles_are_judged_without_a_network(styled, capsys):
    assert main(command, [str(styled)]) == 0
    told = read(styled, "style")
    names = groups(AXES)
    sections = {(s["axis"], s["unseen"]): s for s in told["sections"]}
    assert list(sections) == [(name, False) for name in names] + [(names[3], True)]
    assert [s["win_rate"] for s in sections.values()] == [1.0, 0.0, 0.5, 1.0, 1.0]
    assert {s["interval"] for s in sections.values()} == {None}  # all alike: no spread to redraw
    first, third = sections[names[0], False], sections[names[2], False]
    assert (first["wins"], first["prompts"], first["clients"], first["ours"], first["theirs"]) == (20, 20, 2, 1.0, -1.0)
    assert (third["ties"], third["unparseable"], third["agreement"], third["ours"]) == (20, 0, None, 1.0)
    assert Counter(first["client_of"]) == {"c00": 10, "c01": 10} and first["scores"] == [1.0] * 20
    assert (told["judge"], told["calls"], told["cost"]) == ("style", 0, 0.0)
    assert told["settings"] == {"axes": list(AXES), "samples": 0, "seed": 0}
    said, err = capsys.readouterr()
    assert "100.0" in said and f"{names[3]}, unseen" in said and "orders agree" not in said
    assert "5 of 5 sections have no interval: with fewer than two clients, or scores that are all equal" in err
    assert said.rstrip().endswith(f"style: {styled / 'judgements' / 'style.json'}")


def test_other_code_calls_the_judge_and_gets_what_is_written(styled, capsys):
    told = judged(styled, Style(), samples=3, seed=5)
    assert (
        keep(styled, told)
        and told == {k: v for k, v in read(styled, "style").items() if k != "step"}
        and capsys.readouterr().out == ""
    )
    assert {section["prompts"] for section in told["sections"]} == {3}


def test_groups_that_are_no_styles_are_told_of(hh, capsys):
    assert main(command, [str(hh), "--by", "style"]) == 2
    assert "group 'harmless' is none of the embedded benchmark's (G1, G2, G3, G4)" in capsys.readouterr().err


# --- by an endpoint -------------------------------------------------------------------------------------------------


def test_an_endpoint_is_asked_in_both_orders_with_the_axis_in_the_prompt(server, hh, capsys):
    server.judge = better
    assert main(command, words(hh)) == 0
    told = read(hh, "gpt-4o-mini")
    sections = {(s["axis"], s["unseen"]): s for s in told["sections"]}
    assert list(sections) == [("harmless", False), ("helpful", False), ("harmless", True), ("helpful", True)]
    # Of 30 comparisons at most: 20 by two seen clients, 10 by the unseen one, 4 of 10 won.
    assert [(s["prompts"], s["clients"], s["wins"], s["losses"], s["ties"]) for s in sections.values()] == [
        (20, 2, 8, 12, 0),
        (20, 2, 8, 12, 0),
        (10, 1, 4, 6, 0),
        (10, 1, 4, 6, 0),
    ]
    assert {s["win_rate"] for s in sections.values()} == {0.4} and {s["agreement"] for s in sections.values()} == {1.0}
    assert len(server.asked) == told["calls"] == 2 * 60 and len(set(server.asked)) == 120
    for question in server.asked:
        axis = "helpful" if "### CONVERSATION: helpful" in question else "harmless"
        assert question.startswith(PROMPTS[axis].split("{prompt}")[0])
    assert (told["tokens"], told["cached"], told["failed"]) == ({"in": 12000, "out": 120}, 0, 0)
    assert told["cost"] == pytest.approx((12000 * 0.15 + 120 * 0.60) / 1e6)
    assert told["settings"] == {
        "model": "gpt-4o-mini",
        "url": server.url,
        "temperature": 0.0,
        "max_tokens": 8,
        "samples": 30,
        "seed": 0,
    }
    assert "40.0 [" in capsys.readouterr().out
    assert main(command, words(hh)) == 0  # once more: the same, and nothing to pay for
    again = read(hh, "gpt-4o-mini")
    assert len(server.asked) == 120 and again["sections"] == told["sections"] and again["tokens"] == told["tokens"]
    assert (again["calls"], again["cached"], again["cost"]) == (0, 120, told["cost"])


@pytest.mark.parametrize("always", ["A", "B", "tie"])
def test_a_judge_that_prefers_a_position_ends_at_one_half(server, hh, capsys, always):
    server.judge = lambda prompt, a, b: always
    assert main(command, words(hh, "--samples", "4")) == 0
    for section in read(hh, "gpt-4o-mini")["sections"]:
        assert (section["win_rate"], section["ties"], section["interval"]) == (0.5, 4, None)
        assert section["agreement"] == (1.0 if always == "tie" else 0.0)
        assert (section["always_A"], section["always_B"]) == (4 * (always == "A"), 4 * (always == "B"))
    said, err = capsys.readouterr()
    assert "orders agree %" in said
    assert (f"in 16 of 16 comparisons the judge prefers response {always} in both orders" in err) == (always != "tie")


def test_what_cannot_be_read_is_counted(server, hh, capsys):
    """Of each client's last prompt one order has no verdict: the other alone does not decide. 4 of 9 are won."""
    server.judge = lambda prompt, a, b: (
        "Both are fine." if prompt.endswith("9") and a == "bad" else better(prompt, a, b)
    )
    assert main(command, words(hh, "--samples", "0")) == 0
    for section in read(hh, "gpt-4o-mini")["sections"]:
        assert section["unparseable"] == section["left_out"] == section["clients"] == section["prompts"] // 10
        assert section["agreement"] == 1.0 and section["win_rate"] == pytest.approx(4 / 9)
    said, err = capsys.readouterr()
    assert "6 answers say neither A, B nor tie, such as 'Both are fine.'" in err
    heads, _, first, *_ = said[said.index("axis") :].splitlines()
    assert re.split("  +", heads.strip())[2:] == [
        *("wins", "losses", "ties", "left out", "prompts", "clients", "unread answers", "orders agree %")
    ]
    assert first.split()[-8:] == ["8", "10", "0", "2", "20", "2", "2", "100.0"]


def test_what_cannot_be_read_is_asked_for_again(server, hh, capsys):
    server.judge = lambda prompt, a, b: better(prompt, a, b) if prompt.endswith("1") else "Hm."
    flags = words(hh, "--samples", "0")
    assert main(command, flags) == 0 and len(server.asked) == 120
    read_before = sum(section["prompts"] - section["left_out"] for section in read(hh, "gpt-4o-mini")["sections"])
    assert read_before == 6  # one prompt of six clients
    server.judge = better
    capsys.readouterr()
    assert main(command, flags) == 0 and len(server.asked) == 120 + 108
    assert "120 questions, 12 of them answered before" in (said := capsys.readouterr().out)
    assert "; 108 answers that could not be read are asked for again\n" in said
    told = read(hh, "gpt-4o-mini")
    assert (told["calls"], told["cached"], told["unreadable"]) == (108, 12, 0)
    assert main(command, flags) == 0 and len(server.asked) == 120 + 108  # all can be read now


# --- which judgement is kept ----------------------------------------------------------------------------------------


def test_without_any_answer_nothing_is_written_and_the_earlier_one_stands(server, hh, capsys):
    server.judge = better
    server.fault = lambda question, n: refusal(500, "down")
    flags = words(hh, "--attempts", "1", "--samples", "2")
    assert main(command, flags) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("raypref: gpt"))
    assert line == "raypref: gpt-4o-mini: 16 questions were not answered (500 down); nothing was written"
    assert not (hh / "judgements").exists()
    server.fault = lambda question, n: None
    assert main(command, flags) == 0
    before = (hh / "judgements" / "gpt-4o-mini.json").read_bytes()
    capsys.readouterr()
    server.fault = lambda question, n: refusal(500, "down")
    assert main(command, [*flags, "--max-tokens", "9"]) == 2
    assert (
        capsys.readouterr()
        .err.rstrip()
        .endswith("(500 down); nothing was written, the earlier judgement of 8 comparisons stands")
    )
    server.fault = lambda question, n: None
    server.judge = lambda prompt, a, b: "no idea"
    assert main(command, [*flags, "--max-tokens", "9"]) == 2
    assert (
        "no comparison has two answers that can be read, such as 'no idea'; nothing was written, the earlier"
        in capsys.readouterr().err
    )
    assert (hh / "judgements" / "gpt-4o-mini.json").read_bytes() == before


def test_one_that_lacks_answers_takes_no_fuller_ones_place(server, hh, capsys, monkeypatch):
    tracked: list[Path] = []
    monkeypatch.setattr("raypref.judge.track", lambda folder, run: tracked.append(folder))
    server.judge = better
    path = hh / "judgements" / "gpt-4o-mini.json"
    assert main(command, words(hh, "--samples", "2")) == 0 and tracked == [hh]
    before = path.read_bytes()
    server.fault = lambda question, n: refusal(400, "policy") if "helpful 0" in question else None
    assert main(command, words(hh, "--samples", "2", "--max-tokens", "9")) == 1
    err = capsys.readouterr().err
    assert f"the earlier judgement of 8 comparisons stands: it left out fewer (delete {path} to drop it)" in err
    assert path.read_bytes() == before and len(tracked) == 1
    # Of 120 questions 18 are refused (two were answered at first), of ten comparisons nine: 51 decided are more than 8.
    assert main(command, words(hh, "--samples", "0")) == 1
    assert "replaces the earlier judgement of 8 comparisons (samples 2)" in capsys.readouterr().err
    assert read(hh, "gpt-4o-mini")["failed"] == 18 and len(tracked) == 2


def test_a_whole_one_says_what_it_replaces(server, hh, capsys):
    server.judge = better
    for flags, said in (
        (("--samples", "3"), ""),
        (("--samples", "3"), ""),  # the same
        (("--samples", "2"), "gpt-4o-mini: replaces the earlier judgement of 12 comparisons (samples 3)"),
        (("--samples", "2", "--max-tokens", "9"), "replaces the earlier judgement of 8 comparisons (max_tokens 8)"),
    ):
        assert main(command, words(hh, *flags)) == 0
        assert said in (err := capsys.readouterr().err) and ("replaces" in err) == bool(said)


def test_equal_responses_are_a_tie_that_nobody_is_asked_for(server, tmp_path):
    lines = [Response("p", c, "", False, "good", "good" if i else "bad") for i in range(2) for c in "ab"]
    server.judge = better
    folder = write(tmp_path / "run", lines, **{"data.source": "hh.jsonl"})
    assert main(command, words(folder)) == 0 and len(server.asked) == 2
    (section,) = read(folder, "gpt-4o-mini")["sections"]
    assert (section["wins"], section["ties"], section["both_read"], section["agreement"]) == (2, 2, 2, 1.0)


def test_clients_of_no_known_group_are_called_all(server, tmp_path, capsys):
    lines = [
        Response("p", c, "", away, "good", "bad") for away, clients in ((False, "ab"), (True, "c")) for c in clients
    ]
    server.judge = better
    assert main(command, words(write(tmp_path / "run", lines, **{"data.source": "hh.jsonl"}))) == 0
    shown = [line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert "all" in shown and "all, unseen" in shown


def test_questions_that_fail_are_told_of_and_asked_again_alone(server, hh, capsys):
    server.judge = better
    server.fault = lambda question, n: refusal(400, "content policy") if "harmless 2" in question else None
    flags = words(hh, "--samples", "3", "--threads", "1")
    assert main(command, flags) == 1
    told = read(hh, "gpt-4o-mini")
    assert told["failed"] == 6 and [s["left_out"] for s in told["sections"]] == [0, 0, 3, 0]
    err = capsys.readouterr().err
    assert "6 questions were not answered (400 content policy) and count as unread; type the same words" in err
    assert "neither A, B nor tie" not in err
    server.fault = lambda question, n: None
    assert main(command, flags) == 0
    assert (read(hh, "gpt-4o-mini")["calls"], read(hh, "gpt-4o-mini")["cached"]) == (6, 18)


def test_a_prompt_that_is_asked_for_has_its_own_judgement(server, hh):
    server.judge = better
    for prompt in ("both", "harmless"):
        assert main(command, words(hh, "--samples", "1", "--prompt", prompt, "--model", "me/judge:7b")) == 0
        told = read(hh, f"me-judge-7b-{prompt}")
        assert {section["prompt"] for section in told["sections"]} == {prompt}
    assert len(server.asked) == len(set(server.asked)) == 2 * 2 * 4  # wordings, orders, sections of one comparison
    assert file_name("../..") == "judge"


def test_the_cap_and_a_dry_run_ask_nothing_and_write_nothing(server, hh, capsys):
    assert main(command, words(hh, "--max-cost", "0.0001")) == 2
    assert "120 calls may cost $" in capsys.readouterr().err
    assert main(command, words(hh, "--max-cost", "0.0001", "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "120 questions, 0 of them answered before" in said and "120 calls of gpt-4o-mini" in said
    assert not server.asked and not (hh / "judgements").exists()


def test_an_endpoint_that_refuses_ends_it_in_one_line(server, hh, capsys):
    server.fault = lambda question, n: refusal(401, "Incorrect API key")
    assert main(command, words(hh)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"raypref: {server.url}/chat/completions answers 401: Incorrect API key; what is there is kept, and the same "
        "command goes on from there"
    )
    assert not (hh / "judgements").exists()


# --- by reward models -----------------------------------------------------------------------------------------------


def test_reward_models_each_score_every_section(hh, tmp_path, capsys):
    one, two = make(tmp_path / "one", 1), make(tmp_path / "two", 2)
    assert main(command, [str(hh), "--reward-model", f"helpful={one}", str(two)]) == 0
    for name, model in (("reward-helpful", one), ("reward-two", two)):
        told = read(hh, name)
        assert told["judge"] == name and told["settings"]["model"] == str(model) and told["settings"]["samples"] == 100
        assert [(s["axis"], s["unseen"], s["prompts"]) for s in told["sections"]] == [
            ("harmless", False, 20),
            ("helpful", False, 20),
            ("harmless", True, 10),
            ("helpful", True, 10),
        ]
        for section in told["sections"]:
            assert section["difference"] == pytest.approx(section["ours"] - section["theirs"])
            if section["unseen"]:  # one client
                assert section["interval"] is None
                continue
            low, high = section["interval"]
            assert low <= section["difference"] <= high and low < high
    assert "ours - theirs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--by", "reward"], "--by reward needs --reward-model"),
        (["--reward-model", "a/x", "b/x"], "--reward-model: several are called x; name them"),
        (["--samples", "-1"], "--samples is -1"),
    ],
)
def test_options_that_make_no_sense(hh, capsys, flags, said):
    assert main(command, [str(hh), *flags]) == 2
    assert said in capsys.readouterr().err


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no finished policy (no policy.json); python -m raypref.rlhf makes one"),
        (
            "",
            "responses.jsonl is empty; remove it, and raypref.rlhf with the same words writes it again",
        ),
        ('{"prompt": "x"}\n', "responses.jsonl, line 1 lacks 'client', 'group', 'unseen', 'ours', 'theirs'; remove"),
        ('{"prompt": "x', "responses.jsonl, line 1 is no JSON; remove"),
        ("7\n", "responses.jsonl, line 1 is no JSON object; remove"),
    ],
)
def test_a_folder_without_comparisons_is_told_of_in_one_line(tmp_path, capsys, content, said):
    folder = write(tmp_path / "run", [])
    (folder / "responses.jsonl").unlink()
    if content is not None:
        (folder / "responses.jsonl").write_text(content)
    assert main(command, [str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("raypref: ") and said in line


def test_where_there_is_no_run(tmp_path, capsys):
    for argv, said in (
        ([str(tmp_path / "none")], "there is no such folder"),
        ([str(tmp_path)], "holds no finished policy (no policy.json)"),
        (["--by", "style"], "RUN comes first"),
    ):
        assert main(command, argv) == 2
        assert said in capsys.readouterr().err


def test_types_of_a_line(tmp_path):
    line = Response("p", "c", "g", False, "x", "y")
    write(tmp_path / "run", [line, line._replace(unseen="no")])
    with pytest.raises(UserError, match="line 2: unseen must be true or false, the rest text"):
        responses.read(tmp_path / "run")
    odd = line._replace(prompt="one\u2028two\x0bthree\n")  # what some take for an end of line
    (tmp_path / "run" / "responses.jsonl").write_text(json.dumps(odd._asdict(), ensure_ascii=False) + "\n")
    assert responses.read(tmp_path / "run") == [odd]


def test_samples_are_drawn_evenly_over_clients_and_larger_ones_hold_smaller_ones():
    sizes = {"a": 2, "b": 10, "c": 10}
    lines = [Response(f"{c}{i}", c, "g", False, "x", "y") for c, n in sizes.items() for i in range(n)]
    held: set[Response] = set()
    for samples, expected in (
        (3, {1}),
        (6, {2}),
        (10, {2, 4}),  # a has no more: the others give four each
        (0, {2, 10}),
    ):
        ((key, drawn),) = responses.sections(lines, samples, 0).items()
        assert key == ("g", False) and len(drawn) == len(set(drawn)) == (samples or 22)
        assert set(Counter(line.client for line in drawn).values()) == expected
        assert held <= set(drawn)
        held = set(drawn)
    assert responses.sections(lines, 10, 0) == responses.sections(lines, 10, 0) != responses.sections(lines, 10, 1)


def test_a_dry_run_of_a_judge_that_costs_nothing_changes_nothing(styled, capsys):
    assert main(command, [str(styled), "--samples", "2", "--dry-run"]) == 0
    assert "judging by style asks nobody and costs nothing" in capsys.readouterr().out
    assert not (styled / "judgements").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--by", "style", "--prompt", "helpful"), "--prompt is for --by endpoint, and this judges by style"),
        (("--by", "style", "--reward-model", "x"), "--reward-model is for --by reward, and this judges by style"),
        (("--reward-model", "x", "--max-tokens", "9"), "--max-tokens is for --by endpoint, and this judges by reward"),
    ],
)
def test_options_of_another_judge_are_refused(styled, capsys, words, said):
    assert main(command, [str(styled), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_judgement_costs_no_other(styled, capsys):
    (styled / "judgements").mkdir()
    (styled / "judgements" / "style.json").write_text("{")
    assert main(command, [str(styled)]) == 2
    assert "style.json cannot be read" in (err := capsys.readouterr().err) and "; remove it and judge again" in err
