"""Pairs by a language model: what a real HTTP server is asked, what survives its faults and a kill, who gets what."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from raypref.config import DataConfig, UserError
from raypref.data.__main__ import main
from raypref.data.federation import FOLDS
from raypref.data.load import load, read
from raypref.data.synthesize import (
    INSTRUCTIONS,
    Synthesize,
    advice,
    deal_axes,
    estimated,
    instruction,
    journal,
    settings,
)
from raypref.data.synthetic import AXES, groups
from raypref.endpoints.client import Answer
from raypref.endpoints.retries import retry_after

ROOT = Path(__file__).parents[2]
STYLE = {instruction(axis, pole): (axis, pole) for axis in INSTRUCTIONS for pole in (0, 1)}


class Server(ThreadingHTTPServer):
    """Answers as the endpoint does. `fault(task, n)`: what to do at the n-th request (from 0) for a task instead."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: list[tuple[str, str, int]] = []
        self.arrived: list[float] = []
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.flying = self.most = 0
        self.fault = lambda task, n: None
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        server, arrived = self.server, time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        system, user = (message["content"] for message in body["messages"])
        axis, pole = STYLE[system]
        task = (user, axis, pole)
        with server.lock:
            n = server.asked.count(task)
            server.asked.append(task)
            server.arrived.append(arrived)
            server.bodies.append(body)
            server.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            server.flying += 1
            server.most = max(server.most, server.flying)
        try:
            status, headers, content = server.fault(task, n) or (200, {}, completion(f"{AXES[axis][pole]}: {user}"))
        finally:
            with server.lock:
                server.flying -= 1
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


def completion(text: str | None, finish: str = "stop") -> bytes:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 20}}).encode()


def refusal(status: int, message: str, code: str = "", **headers: str) -> tuple[int, dict, bytes]:
    return status, headers, json.dumps({"error": {"message": message, "code": code}}).encode()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("raypref.tools.console.quiet", lambda: None)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def prompts(tmp_path) -> list[str]:
    texts = [f"What is number {i}?" for i in range(10)]
    (tmp_path / "prompts.txt").write_text("\n".join(texts) + "\n")
    return texts


def words(tmp_path: Path, *flags: str) -> list[str]:
    source, out = str(tmp_path / "prompts.txt"), str(tmp_path / "pairs.jsonl")
    return ["synthesize", source, "--out", out, "--yes", "--backoff", "0.01", *flags]


def pairs(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]


def test_every_prompt_gets_a_response_in_each_pole_of_one_axis(server, tmp_path, prompts, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert main(words(tmp_path, "--temperature", "0.5", "--max-tokens", "99")) == 0
    rows = pairs(tmp_path)
    assert [pair["prompt"] for pair in rows] == prompts
    assert Counter(pair["axis"] for pair in rows) == {"education": 5, "humor": 5}
    for pair in rows:
        assert pair["poles"] == list(AXES[pair["axis"]]) and pair["model"] == "gpt-4o-mini"
        assert [pair["first"], pair["second"]] == [f"{pole}: {pair['prompt']}" for pole in pair["poles"]]
    assert len(server.asked) == len(set(server.asked)) == 20
    assert {(b["model"], b["temperature"], b["max_tokens"]) for b in server.bodies} == {("gpt-4o-mini", 0.5, 99)}
    assert {(h["authorization"], h["path"]) for h in server.headers} == {("Bearer sk-1", "/v1/chat/completions")}
    said = capsys.readouterr().out
    assert "10 prompts, two responses each: 5 on education, 5 on humor" in said
    usage = "1,000 tokens in and 400 out for the answers kept"  # 20 of 50 and of 20
    assert f"{tmp_path}/pairs.jsonl: 10 pairs; {usage}" in said
    assert main(words(tmp_path, "--temperature", "0.5", "--max-tokens", "99")) == 0  # once more: nothing to pay for
    assert len(server.asked) == 20 and "20 responses are there, 0 to ask" in capsys.readouterr().out


def test_a_local_server_needs_no_key(server, tmp_path, prompts):
    assert main(words(tmp_path, "--limit", "1")) == 0
    assert "authorization" not in server.headers[0]


def hang() -> tuple[int, dict, bytes]:
    time.sleep(1.0)  # beyond the timeout of the test
    return 200, {}, completion("too late")


@pytest.mark.parametrize(
    "fault",
    [
        lambda: refusal(429, "slow down", **{"Retry-After": "0"}),
        lambda: refusal(500, "oops"),
        lambda: (503, {}, b"<html>overloaded</html>"),
        lambda: refusal(408, "late"),
        hang,
        lambda: (200, {}, b'{"choices": [{"mess'),
        lambda: (200, {}, b"[]"),
        lambda: (200, {}, completion(None)),
        lambda: (200, {}, completion("  \n")),
        lambda: (200, {"Content-Length": "999", "Connection": "close"}, completion("cut short")),
    ],
    ids=["429", "500", "503", "408", "hang", "bad JSON", "no choices", "no text", "empty text", "connection lost"],
)
def test_what_may_pass_is_tried_again(server, tmp_path, prompts, fault):
    server.fault = lambda task, n: fault() if n == 0 and task[0] == prompts[1] else None
    assert main(words(tmp_path, "--limit", "3", "--timeout", "0.3" if fault is hang else "30")) == 0
    assert [pair["prompt"] for pair in pairs(tmp_path)] == prompts[:3]
    assert all(pair["prompt"] in pair[answer] for pair in pairs(tmp_path) for answer in ("first", "second"))
    assert Counter(task[0] for task in server.asked) == {prompts[0]: 2, prompts[1]: 4, prompts[2]: 2}


def test_nobody_asks_before_the_time_that_the_server_named(server, tmp_path, prompts):
    server.fault = lambda task, n: refusal(429, "wait", **{"Retry-After": "1"}) if len(server.asked) == 1 else None
    assert main(words(tmp_path, "--limit", "2", "--concurrency", "1")) == 0
    assert len(server.asked) == 5
    assert server.arrived[1] - server.arrived[0] >= 1.0  # never sooner, however slow the machine


def test_retry_after_is_seconds_or_a_date():
    assert retry_after({"Retry-After": "7"}) == 7.0
    assert retry_after({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, now=40.0) == 60.0
    assert retry_after({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, now=140.0) == 0.0
    assert [retry_after(headers) for headers in ({}, {"Retry-After": "soon"}, {"Retry-After": "nan"})] == [0.0] * 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(401, "Incorrect API key\nprovided"), "answers 401: Incorrect API key provided (asked for 'What is "),
        (refusal(404, "no such model"), "answers 404: no such model"),
        ((403, {}, b"nonsense"), "answers 403: nonsense"),
        ((307, {"Location": "/v2"}, b""), "answers 307: Temporary Redirect"),
        (refusal(429, "You exceeded your quota", "insufficient_quota"), "answers 429: You exceeded your quota"),
        (refusal(429, "daily limit", **{"Retry-After": "7200"}), "daily limit; it asks to wait 2:00:00"),
    ],
)
def test_what_will_not_pass_stops_at_once_with_the_servers_words(server, tmp_path, prompts, capsys, answer, said):
    server.fault = lambda task, n: answer if len(server.asked) > 4 else None
    assert main(words(tmp_path, "--concurrency", "2")) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("raypref: http://127.0.0.1") and said in err[-1]
    assert len(server.asked) <= 6  # nobody asked again
    server.fault = lambda task, n: None
    assert main(words(tmp_path, "--concurrency", "2")) == 0  # what was there is kept
    assert set(Counter(server.asked).values()) <= {1, 2} and len(server.asked) <= 22
    assert len(pairs(tmp_path)) == 10


def test_prompts_that_fail_are_named_and_the_next_run_asks_for_them_alone(server, tmp_path, prompts, capsys):
    server.fault = lambda task, n: refusal(500, "cannot") if task[0] in prompts[3:5] else None
    assert main(words(tmp_path, "--attempts", "2")) == 1
    err = capsys.readouterr().err
    assert "warning: 2 prompts failed (" in err
    assert all(f"{prompt!r}: 500 cannot, 2 times" in err for prompt in prompts[3:5])
    assert [pair["prompt"] for pair in pairs(tmp_path)] == prompts[:3] + prompts[5:]
    assert set(Counter(t for t in server.asked if t[0] in prompts[3:5]).values()) == {2}
    server.asked.clear()
    server.fault = lambda task, n: None
    assert main(words(tmp_path, "--attempts", "2")) == 0
    assert sorted({task[0] for task in server.asked}) == prompts[3:5] and len(server.asked) == 4
    assert [pair["prompt"] for pair in pairs(tmp_path)] == prompts


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_prompt_that_is_refused_fails_alone_and_at_once(server, tmp_path, prompts, capsys, status):
    server.fault = lambda task, n: refusal(status, "content policy") if task[0] == prompts[3] else None
    for run in (1, 2):
        assert main(words(tmp_path)) == 1
        assert f"warning: 1 prompt failed ({prompts[3]!r}: {status} content policy); " in capsys.readouterr().err
        assert [pair["prompt"] for pair in pairs(tmp_path)] == prompts[:3] + prompts[4:]
        assert Counter(task[0] for task in server.asked) == {p: 2 * run if p == prompts[3] else 2 for p in prompts}
    server.fault = lambda task, n: None
    assert main(words(tmp_path)) == 0
    assert [pair["prompt"] for pair in pairs(tmp_path)] == prompts


def test_a_run_without_a_response_leaves_nothing_in_the_next_ones_way(server, tmp_path, prompts):
    server.fault = lambda task, n: refusal(400, "content policy")
    assert main(words(tmp_path, "--limit", "3")) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "prompts.txt"]
    server.fault = lambda task, n: None
    assert main(words(tmp_path, "--limit", "3")) == 0


def test_no_pair_holds_what_a_model_thought(server, tmp_path, prompts, capsys):
    def thinking(task, n):
        thought = f"<think>\nThe user wants {task[1]}."
        if task[0] == prompts[0]:
            return 200, {}, completion(thought, "length")
        return 200, {}, completion(f"{thought}</think>\n{AXES[task[1]][task[2]]}: {task[0]}")

    server.fault = thinking
    assert main(words(tmp_path, "--limit", "3")) == 1
    assert "cut at --max-tokens 256, before a word of an answer" in capsys.readouterr().err
    assert Counter(task[0] for task in server.asked) == dict.fromkeys(prompts[:3], 2)  # more tries would be no better
    rows = pairs(tmp_path)
    assert [pair["prompt"] for pair in rows] == prompts[1:3]
    assert all([pair["first"], pair["second"]] == [f"{p}: {pair['prompt']}" for p in pair["poles"]] for pair in rows)


def test_who_was_cut_in_a_thought_is_asked_again_with_more_room(server, tmp_path, prompts, capsys):
    """The room for thoughts is no setting of the journal: what came with less is as good."""

    def thinking(task, n):
        if task[0] == prompts[0] and server.bodies[-1]["max_tokens"] < 256 + 900:
            return 200, {}, completion("Okay, the user wants", "length")  # no mark: the template has opened the block
        return 200, {}, completion(f"hm</think>{AXES[task[1]][task[2]]}: {task[0]}")

    server.fault = thinking
    assert main(words(tmp_path, "--limit", "3", "--thinking", "100")) == 1
    assert "1 of them were cut inside the model's thoughts; a larger --thinking" in capsys.readouterr().err
    assert [pair["prompt"] for pair in pairs(tmp_path)] == prompts[1:3]
    server.asked.clear()
    assert main(words(tmp_path, "--limit", "3", "--thinking", "900")) == 0
    assert {task[0] for task in server.asked} == {prompts[0]} and len(pairs(tmp_path)) == 3


def test_a_journal_of_an_earlier_version_goes_on_and_loses_its_thoughts(server, tmp_path, prompts, capsys):
    assert main(words(tmp_path, "--limit", "3")) == 0
    path = tmp_path / "pairs.jsonl.journal"
    head, *entries = [json.loads(line) for line in path.read_text().splitlines()]
    first, second, *rest = entries
    first["text"] = f"<think>hm</think>{first['text']}"
    second["text"] = "<think>\nOkay, let's see. The"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (head, first, second, *rest)))
    before = (tmp_path / "pairs.jsonl").read_bytes()
    server.asked.clear()
    assert main(words(tmp_path, "--limit", "3")) == 0
    assert server.asked == [(second["prompt"], second["axis"], second["pole"])]
    assert "5 responses are there, 1 to ask" in capsys.readouterr().out
    assert (tmp_path / "pairs.jsonl").read_bytes() == before


def test_an_endpoint_from_which_nothing_comes_ends_the_run(server, tmp_path, prompts, capsys):
    (tmp_path / "prompts.txt").write_text("\n".join(f"prompt {i}" for i in range(50)))
    for status, attempts, why in ((502, "1", "502 no"), (502, "2", "502 no, 2 times"), (400, "6", "400 no")):
        server.asked.clear()
        server.fault = lambda task, n, status=status: refusal(status, "no")
        assert main(words(tmp_path, "--attempts", attempts, "--concurrency", "2")) == 2
        assert f"the last 20 responses failed ({why})" in capsys.readouterr().err
        assert len(set(server.asked)) < 40


def test_ctrl_c_says_that_the_same_words_go_on(server, tmp_path, prompts, capsys):
    def fault(task, n):
        if len(server.asked) == 4:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # it waits for responses
        if len(server.asked) >= 4:
            time.sleep(0.1)

    server.fault = fault
    assert main(words(tmp_path, "--concurrency", "1")) == 130
    assert "type the same words again to go on from there" in capsys.readouterr().err
    asked = len(server.asked)
    assert 4 <= asked < 20
    server.fault = lambda task, n: None
    assert main(words(tmp_path)) == 0
    assert len(server.asked) == len(set(server.asked)) == 20  # what was in flight was kept, too


def test_never_more_in_flight_than_allowed(server, tmp_path, prompts):
    full = threading.Barrier(3)

    def fault(task, n):
        with contextlib.suppress(threading.BrokenBarrierError):
            full.wait(0.5)  # until three are here, which shows that three do fly at once

    server.fault = fault
    assert main(words(tmp_path, "--concurrency", "3", "--limit", "6")) == 0
    assert server.most == 3 and len(server.asked) == 12


def test_a_kill_loses_only_what_was_in_flight(server, tmp_path, prompts, capsys):
    answered, release = threading.Semaphore(7), threading.Event()

    def fault(task, n):
        if not answered.acquire(blocking=False):
            release.wait(60)

    server.fault = fault
    path = tmp_path / "pairs.jsonl.journal"
    process = subprocess.Popen(
        [sys.executable, "-m", "raypref.data", *words(tmp_path, "--concurrency", "2")],
        cwd=ROOT,
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while not (path.exists() and path.read_bytes().count(b"\n") == 1 + 7 and len(server.asked) == 9):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        process.stderr.close()
        release.set()
    assert not (tmp_path / "pairs.jsonl").exists()
    entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    kept = {(entry["prompt"], entry["axis"], entry["pole"]) for entry in entries}
    with path.open("a") as file:
        file.write('{"prompt": "What is num')  # as a machine that lost its power leaves it
    server.asked.clear()
    assert main(words(tmp_path)) == 0
    assert "1 half-written lines dropped\n7 responses are there, 13 to ask" in capsys.readouterr().out
    assert len(kept) == 7 and len(server.asked) == 13 and kept.isdisjoint(server.asked)
    assert [pair["prompt"] for pair in pairs(tmp_path)] == prompts
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_prompts_from_a_column(server, tmp_path, capsys):
    rows = [
        {"id": 1, "prompt": " a\nb "},
        {"id": 2, "prompt": None},
        {"id": 3, "prompt": "c"},
        {"id": 4, "prompt": "c"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["synthesize", str(path), "--out", str(tmp_path / "pairs.jsonl"), "--yes"]) == 0
    assert [pair["prompt"] for pair in pairs(tmp_path)] == ["a\nb", "c"]
    said = capsys.readouterr().out
    assert "1 left out, no text" in said and "1 left out, the same as another" in said
    path.write_text('{"prompts": "a"}\n')
    assert main(["synthesize", str(path), "--out", str(tmp_path / "other.jsonl"), "--yes"]) == 2
    assert "no column 'prompt'; did you mean 'prompts'?" in capsys.readouterr().err


def test_prompts_of_a_hub_data_set(server, tmp_path, capsys, monkeypatch):
    """As UltraFeedback lies there: the same prompts in several splits, beside a split without any."""
    import datasets

    rows = {"train_prefs": {"prompt": ["a", "b"]}, "train_gen": {"prompt": ["b", "a"]}, "other": {"text": ["c"]}}
    splits = datasets.DatasetDict({name: datasets.Dataset.from_dict(columns) for name, columns in rows.items()})
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda path, name=None: asked.append((path, name)) or splits)
    hub = "HuggingFaceH4/ultrafeedback_binarized"
    assert main(["synthesize", hub, "--out", str(tmp_path / "pairs.jsonl"), "--yes"]) == 0
    assert asked == [(hub, None)] and [pair["prompt"] for pair in pairs(tmp_path)] == ["a", "b"]
    assert f"{hub}: 2 left out, the same as another" in capsys.readouterr().out
    del splits["train_prefs"], splits["train_gen"]
    assert main(["synthesize", hub, "--out", str(tmp_path / "other.jsonl"), "--yes"]) == 2
    assert f"{hub} has no column 'prompt'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gone.txt", "there/gone.txt", "there/gone.jsonl", "./gone", "gone"])
def test_prompts_that_are_not_there(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_: pytest.fail("the hub was asked"))
    assert main(["synthesize", name, "--out", str(tmp_path / "pairs.jsonl"), "--yes"]) == 2
    assert f"{name.removeprefix('./')}: there is no such file" in capsys.readouterr().err


def test_a_folder_of_prompts(tmp_path, capsys):
    assert main(["synthesize", str(tmp_path), "--out", str(tmp_path / "pairs.jsonl"), "--yes"]) == 2
    assert f"{tmp_path}: is a folder; name one file of prompts" in capsys.readouterr().err


def test_nothing_is_asked_without_a_yes(server, tmp_path, prompts, capsys, monkeypatch):
    asking = [word for word in words(tmp_path) if word != "--yes"]
    assert main([*asking, "--dry-run"]) == 0
    assert "estimate: about " in capsys.readouterr().out and list(tmp_path.iterdir()) == [tmp_path / "prompts.txt"]
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(asking) == 2
    assert "give --yes" in capsys.readouterr().err

    class Terminal:
        answer = "n\n"
        isatty = staticmethod(lambda: True)
        readline = classmethod(lambda cls: cls.answer)

    monkeypatch.setattr("sys.stdin", Terminal)
    assert main(asking) == 1 and server.asked == []
    Terminal.answer = "y\n"
    assert main(asking) == 0 and len(server.asked) == 20


def test_the_estimate():
    args = Synthesize("p", "o", max_tokens=100, price_in=0.15, price_out=0.6)
    tasks = [("x" * 400, "humor", pole) for pole in (0, 1)] * 500
    read = sum(12 + 100 + len(instruction("humor", pole)) / 4 for pole in (0, 1)) * 500
    cost = (read * 0.15 + 100_000 * 0.6) / 1e6
    assert f"about {read:,.0f} tokens in and at most 100,000 out, so at most ${cost:.2f}" in estimated(
        tasks, args
    ).sentence(args)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--concurrency", "0"], "--concurrency is 0; it must be at least 1"),
        (["--timeout", "0"], "--timeout is 0"),
        (["--axis", "humor", "humor"], "each once"),
        (["--axis", "politics"], "politics"),
        (["--out", "pairs.json"], "must end in .jsonl"),
    ],
)
def test_flags_that_make_no_sense(server, tmp_path, prompts, capsys, flags, said):
    assert main(words(tmp_path, *flags)) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and server.asked == []


def test_the_key_is_asked_for_where_openai_is_meant(server, tmp_path, prompts, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert main(words(tmp_path)) == 2
    assert "OPENAI_API_KEY is not set" in capsys.readouterr().err
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    assert main(words(tmp_path)) == 2
    assert "give a URL such as" in capsys.readouterr().err


def test_a_journal_holds_responses_of_one_kind_and_has_one_writer(server, tmp_path, prompts, capsys):
    assert main(words(tmp_path, "--limit", "2")) == 0
    assert main(words(tmp_path, "--model", "other")) == 2
    assert "was begun with model 'gpt-4o-mini', now 'other'; set it back" in capsys.readouterr().err
    with journal(tmp_path / "pairs.jsonl", settings(Synthesize("p", "o"))):
        assert main(words(tmp_path)) == 2
    assert "another process is writing it" in capsys.readouterr().err
    (tmp_path / "pairs.jsonl.journal").unlink()
    assert main(words(tmp_path)) == 2
    assert "is there already, without pairs.jsonl.journal" in capsys.readouterr().err
    assert len(server.asked) == 4


def test_prompts_are_dealt_to_axes_by_hash_in_equal_numbers():
    prompts = [f"prompt {i}" for i in range(101)]
    axis_of = deal_axes(prompts, ["education", "humor"], {})
    assert Counter(axis_of.values()) == {"education": 51, "humor": 50}
    assert deal_axes(random.Random(0).sample(prompts, 101), ["education", "humor"], {}) == axis_of
    assert [axis_of[prompt] for prompt in prompts[:8]] != ["education", "humor"] * 4  # not by position
    # Who was there keeps its axis when the file grows, and the numbers are made equal by the new ones.
    grown = deal_axes([*prompts, *(f"new {i}" for i in range(99))], ["education", "humor"], axis_of)
    assert grown | axis_of == grown and Counter(grown.values()) == {"education": 100, "humor": 100}


def test_every_axis_has_instructions():
    assert list(INSTRUCTIONS) == list(AXES)
    assert len(STYLE) == 2 * len(AXES)


# --- dealing the pairs to people


def synthesized(path: Path, n: int, axes: tuple[str, ...] = ("education", "humor")) -> str:
    rows = [
        {"prompt": f"{axis} {i}?", "axis": axis, "first": f"{AXES[axis][0]} {i}", "second": f"{AXES[axis][1]} {i}"}
        for axis in axes
        for i in range(n)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def owners(federation) -> dict[str, tuple[str, str, str]]:
    """prompt -> client, group, chosen text; every prompt has one owner or this fails."""
    rows = [(p.prompt, c.id, c.group, p.chosen) for c in federation.clients for f in FOLDS for p in c.fold(f)]
    assert len({prompt for prompt, *_ in rows}) == len(rows)
    return {prompt: (client, group, chosen) for prompt, client, group, chosen in rows}


def test_the_dealt_clients_want_what_their_groups_want(tmp_path):
    config = DataConfig(
        source=synthesized(tmp_path / "pairs.jsonl", 300),
        group_sizes=(3, 2, 1, 1),
        pairs_per_axis=40,
        client_column="x",
    )
    federation, counts = read(config, seed=0)
    assert federation.ids == tuple(f"c0{i}" for i in range(7))
    assert federation.groups == tuple(groups(("education", "humor")))
    assert federation.group_of.tolist() == [0, 0, 0, 1, 1, 2, 3]
    owner_of = owners(federation)
    assert Counter((client, prompt.split()[0]) for prompt, (client, *_) in owner_of.items()) == {
        (client, axis): 40 for client in federation.ids for axis in ("education", "humor")
    }
    for prompt, (_, group, chosen) in owner_of.items():
        name, education, humor = group.replace("/", " ").split()
        assert chosen.rsplit(" ", 1)[0] == (education if prompt.startswith("education") else humor), name
    assert (counts.rows, counts.lost, counts.undealt) == (600, {}, 600 - 7 * 80)
    assert federation.notes == ("pairs dealt to no client, since none needed more: 40",)


def test_dealing_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path):
    config = DataConfig(source=synthesized(tmp_path / "pairs.jsonl", 80), group_sizes=(1, 0, 0, 1), pairs_per_axis=40)
    first, other = load(config, 0), load(config, 1)
    assert owners(first).keys() == owners(other).keys() and owners(first) != owners(other)
    lines = (tmp_path / "pairs.jsonl").read_text().splitlines(keepends=True)
    shuffled = tmp_path / "shuffled.jsonl"
    shuffled.write_text("".join(random.Random(0).sample(lines, len(lines))))
    assert load(replace(config, source=str(shuffled)), 0) == first


def test_too_few_pairs_are_refused_with_the_number_needed(tmp_path):
    source = synthesized(tmp_path / "pairs.jsonl", 100)
    with pytest.raises(
        UserError, match=r"pairs\.jsonl: 40 clients of 50 pairs need 2,000 .*'education', .* are 100; "
    ) as e:
        load(DataConfig(source=source, pairs_per_axis=50), 0)
    # 2 pairs an axis would leave most clients without one in some fold; 25 are enough for 4 clients, 20 not for 5
    assert str(e.value).endswith(
        "synthesize 1,900 more, or set --data.pairs-per-axis 25 and lower --data.group-sizes to 4 clients in all"
    )
    with pytest.raises(UserError, match=r"there are 100; synthesize 100 more, or set --data\.pairs-per-axis 25$"):
        load(DataConfig(source=source, pairs_per_axis=50, group_sizes=(1, 1, 1, 1)), 0)
    with pytest.raises(UserError, match=r"'manners', and there are 0; synthesize 4 more$"):
        load(DataConfig(source=source, pairs_per_axis=1, axes=("humor", "manners"), group_sizes=(1, 1, 1, 1)), 0)


@pytest.mark.parametrize("axes", [("education",), ("education", "humor"), ("humor", "manners", "education")])
@pytest.mark.parametrize("n", [250, 1100, 2200])
def test_what_is_advised_leaves_every_client_in_the_run(tmp_path, axes, n):
    source = synthesized(tmp_path / "pairs.jsonl", n, axes)
    *short, advised = advice(Path(source), axes, n).splitlines()
    clients, _, flags = advised.removeprefix("for ").partition(" clients: ")
    words = shlex.split(flags)
    starts = [i for i, word in enumerate(words) if word.startswith("--")]
    said = {words[i]: words[i + 1 : j] for i, j in zip(starts, [*starts[1:], None], strict=True)}
    config = DataConfig(
        source=said["--data.source"][0],
        pairs_per_axis=int(said["--data.pairs-per-axis"][0]),
        axes=tuple(said.get("--data.axes", DataConfig().axes)),
        group_sizes=tuple(map(int, said.get("--data.group-sizes", DataConfig().group_sizes))),
    )
    assert len(config.group_sizes) == 2 ** len(axes) and config.axes == axes
    for seed in range(3):
        assert len(load(config, seed).clients) == sum(config.group_sizes) == int(clients) <= 40
    if short:
        more = int(short[0].split("about ")[1].split()[0].replace(",", ""))
        assert advice(Path(source), axes, n + more // len(axes)).startswith("for 40 clients: --data.source")
        assert not advice(Path(source), axes, n + more // len(axes) - 1).startswith("for 40 clients: --data.source")
    else:
        assert clients == "40"


def test_no_client_at_all_names_the_sizes(tmp_path):
    for source in ("synthetic", synthesized(tmp_path / "pairs.jsonl", 3)):
        with pytest.raises(UserError, match=r"--data\.group-sizes is 0 0 0 0"):
            load(DataConfig(source=source, group_sizes=(0, 0, 0, 0)), 0)


def test_rows_that_are_no_pair_are_counted_before_dealing(tmp_path):
    path = tmp_path / "pairs.jsonl"
    synthesized(path, 40)
    lines = path.read_text().splitlines()
    bad = {**json.loads(lines[0]), "second": ""}
    path.write_text("\n".join([*lines, lines[3], json.dumps(bad)]))
    federation, counts = read(DataConfig(source=str(path), group_sizes=(1, 0, 0, 0), pairs_per_axis=40), 0)
    assert counts.lost == {"a response is missing or empty": 1, "the same pair as another row": 1}
    assert len(owners(federation)) == 80 and counts.rows == 82


def test_what_is_synthesized_can_be_run(server, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("\n".join(f"prompt {i}" for i in range(160)))
    assert main(words(tmp_path, "--concurrency", "4")) == 0
    source = str(tmp_path / "pairs.jsonl")
    # 40 clients of 27 pairs on each axis (the chance that any lacks a fold: 40 · 3 · 0.84^54 < 1 %) need 2,160
    assert "for 40 clients: about 2,000 more prompts are needed" in capsys.readouterr().out
    config = DataConfig(source=source, group_sizes=(1, 0, 0, 1), pairs_per_axis=40)
    g1, g4 = load(config, 0).clients
    assert {p.chosen.split(":")[0] for f in FOLDS for p in g1.fold(f)} == {"elementary", "humorous"}
    assert {p.chosen.split(":")[0] for f in FOLDS for p in g4.fold(f)} == {"PhD", "non-humorous"}


def test_a_finished_response_is_on_the_disk_when_add_returns(tmp_path):
    task = ("p", "humor", 1)
    with journal(tmp_path / "o.jsonl", {"model": "m"}) as store:
        store.add(task, Answer("x", "stop", 1, 2))
        answers = journal(tmp_path / "o.jsonl", {"model": "m"}, write=False).answers
        assert answers == {task: Answer("x", "stop", 1, 2)}
