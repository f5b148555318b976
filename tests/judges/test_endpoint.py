"""A judge behind HTTP: what is asked and how often, what its errors come to, and that no answer is paid twice."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from raypref.config import UserError
from raypref.endpoints import retries
from raypref.endpoints.client import Answer, estimate
from raypref.judges import endpoint
from raypref.judges.endpoint import Endpoint, ask, cache
from raypref.judges.judgement import remarks
from raypref.judges.prompts import fill
from raypref.judges.responses import Response
from tests.judges.server import completion, refusal, serving

QUESTIONS = [fill("both", f"prompt {i}", "yes", "no") for i in range(4)]


@pytest.fixture
def server(monkeypatch):
    with serving(monkeypatch) as server:
        yield server


@pytest.fixture
def options(tmp_path) -> Endpoint:
    return Endpoint(cache=tmp_path / "cache", backoff=0.01, threads=2)


def answers(options: Endpoint) -> Path:
    return options.cache / "answers.jsonl"


def test_what_is_asked(server, options, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    asked = ask(QUESTIONS, replace(options, model="judge", max_tokens=5))
    assert asked.answers == dict.fromkeys(QUESTIONS, Answer("A", "stop", 100, 1))
    assert (asked.calls, asked.cached, asked.failed, asked.tokens) == (4, 0, {}, (400, 4))
    assert Counter(server.asked) == dict.fromkeys(QUESTIONS, 1)
    for body in server.bodies:
        assert {name: body[name] for name in ("model", "temperature", "max_tokens")} == {
            "model": "judge",
            "temperature": 0.0,
            "max_tokens": 5,
        }
    assert {(h["authorization"], h["path"]) for h in server.headers} == {("Bearer sk-1", "/v1/chat/completions")}


def test_a_local_server_needs_no_key_and_is_sent_none(server, options):
    ask(QUESTIONS[:1], options)
    assert "authorization" not in server.headers[0]


def test_a_repeat_makes_no_call(server, options, monkeypatch):
    ask(QUESTIONS, options)
    again = ask(QUESTIONS, options)
    assert (again.calls, again.cached, again.tokens) == (0, 4, (400, 4)) and len(server.asked) == 4
    assert ask([*QUESTIONS, QUESTIONS[0]], options).cached == 4  # the same question twice is one
    ask(QUESTIONS[:1], replace(options, max_tokens=9))  # what an answer depends on is in its key
    ask(QUESTIONS[:1], replace(options, model="other"))
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/")
    ask(QUESTIONS[:1], options)  # a slash is no other address
    assert len(server.asked) == 6
    monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("NO_PROXY", "localhost")
    ask(QUESTIONS[:1], options)
    assert len(server.asked) == 7


def test_a_line_that_was_cut_is_dropped_and_spoils_no_other(server, options):
    ask(QUESTIONS, options)
    whole = answers(options).read_bytes()
    answers(options).write_bytes(whole[:-5])
    assert (ask(QUESTIONS, options).calls, ask(QUESTIONS, options).calls) == (1, 0)
    assert len(server.asked) == 5 and len(cache(options.cache, write=False).answers) == 4
    with answers(options).open("ab") as file:
        file.write(b'{"of": "another form"}\n7\n')
    assert ask(QUESTIONS, options).calls == 0


def test_two_processes_share_a_cache(options):
    caches = [cache(options.cache), cache(options.cache)]
    for i in range(20):
        caches[i % 2].add((f"k{i}",), Answer("A", "stop", i, 1))
    there = cache(options.cache, write=False).answers
    assert there == {(f"k{i}",): Answer("A", "stop", i, 1) for i in range(20)}


def test_a_cache_that_cannot_be_written_is_told_before_any_call(server, options, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/answers.jsonl: .*; give another --cache"):
        ask(QUESTIONS, replace(options, cache=tmp_path / "file"))
    assert not server.asked


def hang() -> tuple[int, dict, bytes]:
    time.sleep(1.0)  # beyond the timeout of the test
    return 200, {}, completion("too late")


@pytest.mark.parametrize(
    "fault",
    [
        lambda: refusal(429, "slow down", **{"Retry-After": "0"}),
        lambda: refusal(500, "oops"),
        lambda: (503, {"Content-Type": "text/html"}, b"<html>overloaded</html>"),
        lambda: refusal(408, "late"),
        hang,
        lambda: (200, {}, b'{"choices": [{"mess'),
        lambda: (200, {"Content-Type": "text/html"}, b"<html>hello</html>"),
        lambda: (200, {}, b"[]"),
        lambda: (200, {}, b'{"choices": []}'),
        lambda: (200, {}, b'{"choices": [{}]}'),
        lambda: (200, {"Content-Length": "999", "Connection": "close"}, completion("cut short")),
    ],
    ids=["429", "500", "503", "408", "hang", "bad JSON", "HTML", "a list", "no choices", "no message", "lost"],
)
def test_what_may_pass_is_tried_again(server, options, fault):
    server.fault = lambda question, n: fault() if n == 0 and question == QUESTIONS[1] else None
    asked = ask(QUESTIONS, replace(options, timeout=0.3 if fault is hang else 30.0))
    assert asked.answers == dict.fromkeys(QUESTIONS, Answer("A", "stop", 100, 1)) and not asked.failed
    assert Counter(server.asked) == {question: 1 + (question == QUESTIONS[1]) for question in QUESTIONS}


def test_no_text_is_an_answer_that_nobody_asks_for_again(server, options):
    server.fault = lambda question, n: (200, {}, completion(None))
    assert set(ask(QUESTIONS, options).answers.values()) == {Answer("", "stop", 100, 1)}
    assert ask(QUESTIONS, options).calls == 0 and len(server.asked) == 4


def answering(content, finish: str = "stop") -> tuple[int, dict, bytes]:
    body = json.loads(completion(content))
    body["choices"][0]["finish_reason"] = finish
    return 200, {}, json.dumps(body).encode()


def test_an_answer_in_parts_or_after_a_thought_is_kept_as_what_it_says(server, options):
    contents = [
        [{"type": "thinking", "thinking": []}, {"type": "text", "text": "A"}],
        "<think>\nB is kind.\n</think>\n\nA",
        "A",
        " A ",
    ]
    server.fault = lambda question, n: answering(contents[QUESTIONS.index(question)])
    assert ask(QUESTIONS, options).answers == dict.fromkeys(QUESTIONS, Answer("A", "stop", 100, 1))
    assert {json.loads(line)["text"] for line in answers(options).read_text().splitlines()} == {"A"}
    assert ask(QUESTIONS, options).calls == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (answering("<think>\nOkay, let's see. The", "length"), "it was cut at --max-tokens 8, before a word"),
        (answering(None, "length"), "it was cut at --max-tokens 8, before a word"),
        ((200, {}, b'{"error": {"message": "overloaded", "code": 502}}'), "502 overloaded, 2 times"),
        ((200, {"Content-Type": "text/html"}, b"<!DOCTYPE html><html></html>"), "OPENAI_BASE_URL should end in /v1"),
        (answering({"A": 1}), "no chat completion, but '{"),
    ],
    ids=["a cut thought", "no room", "an error", "a page", "an object"],
)
def test_what_is_no_answer_is_never_kept(server, options, answer, why):
    server.fault = lambda question, n: answer
    asked = ask(QUESTIONS, replace(options, attempts=2))
    assert not asked.answers and all(why in said for said in asked.failed.values())
    assert answers(options).read_bytes() == b""
    server.fault = lambda question, n: None
    assert ask(QUESTIONS, options).answers == dict.fromkeys(QUESTIONS, Answer("A", "stop", 100, 1))


def test_thoughts_have_a_budget_and_what_it_cut_is_counted_and_asked_for_alone(server, options):
    """Two of four comparisons are cut in a thought, of which one looks like a verdict."""
    thinks = replace(options, thinking=100)
    lines = {("", False): [Response(f"p {i}", f"c{i}", "", False, "yes", "no") for i in range(4)]}

    def fault(question, n):
        if "p 0" in question or "p 1" in question:
            return answering("A" if "p 0" in question else "<think>A is better", "length")
        return answering("<think>hm</think>A")

    server.fault = fault
    first = thinks.judge(options.cache, lines, 0)
    assert {body["max_tokens"] for body in server.bodies} == {8 + 100}
    assert (first["calls"], first["failed"], first["cut"]) == (8, 4, 4) and first["settings"]["thinking"] == 100
    assert first["sections"][0]["left_out"] == 2 and first["sections"][0]["ties"] == 2  # A in both orders
    assert "4 answers were cut inside the model's thoughts; a larger --thinking" in " ".join(remarks(first))
    server.fault = lambda question, n: answering("<think>hm, hm</think>A")
    second = replace(thinks, thinking=1000).judge(options.cache, lines, 0)
    assert (second["calls"], second["cached"], second["failed"]) == (4, 4, 0) and "cut" not in second
    assert [body["max_tokens"] for body in server.bodies[-4:]] == [1008] * 4


def test_answers_that_an_earlier_version_kept_are_not_paid_for_again(server, options):
    keys = [endpoint.key(server.url, options.model, options.max_tokens, question)[0] for question in QUESTIONS]
    texts = ["A", "<think>hm</think>A", [{"type": "text", "text": "A"}], "A"]
    options.cache.mkdir()
    old = [[key, text, 100, 1] for key, text in zip(keys, texts, strict=True)]
    answers(options).write_text("".join(json.dumps(line) + "\n" for line in old))
    assert ask(QUESTIONS, options).answers == dict.fromkeys(QUESTIONS, Answer("A", "", 100, 1))
    assert not server.asked


def test_tries_are_bounded_and_what_failed_is_asked_for_alone(server, options):
    server.fault = lambda question, n: refusal(500, "cannot") if question in QUESTIONS[:2] else None
    asked = ask(QUESTIONS, replace(options, attempts=3))
    assert asked.failed == dict.fromkeys(QUESTIONS[:2], "500 cannot, 3 times")
    assert Counter(server.asked) == {q: 3 if q in QUESTIONS[:2] else 1 for q in QUESTIONS}
    server.fault = lambda question, n: None
    assert ask(QUESTIONS, options).calls == 2


@pytest.mark.parametrize("status", [400, 422])
def test_a_question_that_is_refused_fails_alone_and_at_once(server, options, status):
    server.fault = lambda question, n: refusal(status, "content policy") if question == QUESTIONS[0] else None
    asked = ask(QUESTIONS, options)
    assert asked.failed == {QUESTIONS[0]: f"{status} content policy"} and len(server.asked) == 4


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(401, "Incorrect API key\nprovided"), "answers 401: Incorrect API key provided; what is there is kept"),
        (refusal(404, "no such model"), "answers 404: no such model"),
        ((403, {"Content-Type": "text/plain"}, b"nonsense"), "answers 403: nonsense"),
        (refusal(429, "You exceeded your quota", "insufficient_quota"), "answers 429: You exceeded your quota"),
        (refusal(429, "daily limit", **{"Retry-After": "7200"}), "daily limit; it asks to wait 2:00:00"),
    ],
)
def test_what_will_not_pass_stops_at_once_with_the_servers_words(server, options, answer, said):
    server.fault = lambda question, n: answer if len(server.asked) > 2 else None
    with pytest.raises(UserError, match="answers ") as told:
        ask(QUESTIONS, replace(options, threads=1))
    assert said in str(told.value) and "\n" not in str(told.value)
    assert len(server.asked) == 3
    server.fault = lambda question, n: None
    assert ask(QUESTIONS, options).cached == 2


def test_nobody_asks_before_the_time_that_the_server_named(server, options):
    server.fault = lambda question, n: refusal(429, "wait", **{"Retry-After": "1"}) if len(server.asked) == 1 else None
    ask(QUESTIONS[:2], replace(options, threads=1))
    assert len(server.asked) == 3
    assert server.arrived[1] - server.arrived[0] >= 1.0  # never sooner, however slow the machine


def test_no_more_requests_a_minute_than_allowed(server, options):
    began = time.monotonic()
    ask(QUESTIONS, replace(options, threads=4, per_minute=600))
    for i, arrived in enumerate(sorted(server.arrived)):
        assert arrived - began >= 0.1 * i  # never sooner, however slow the machine


def test_the_cap_refuses_before_any_call(server, options, capsys):
    # 10 USD a token: the cap admits what three letters a question cost, and no more.
    dear = replace(options, price_in=0.0, price_out=10e6, max_tokens=3)
    assert estimate(map(len, QUESTIONS), 3, dear).dollars == 4 * 3 * 10
    with pytest.raises(UserError, match=r"4 calls may cost \$120.0000, which is above --max-cost 119"):
        ask(QUESTIONS, replace(dear, max_cost=119.0))
    assert not server.asked
    assert ask(QUESTIONS[:2], replace(dear, max_cost=119.0)).calls == 2
    assert ask(QUESTIONS, replace(dear, max_cost=60.0)).calls == 2  # what is there costs nothing more


def test_the_estimate_in_numbers():
    # (12 + 400 / 4) tokens in and 8 out, twice, at 0.15 and 0.60 USD a million.
    most = estimate([400, 400], 8, Endpoint())
    assert (most.tokens_in, most.tokens_out) == (224.0, 16)
    assert most.dollars == pytest.approx((224 * 0.15 + 16 * 0.60) / 1e6)
    assert estimate([400, 400], 8, Endpoint(thinking=1000)).tokens_out == 2 * 1008


def test_a_dry_run_tells_and_asks_nothing(server, options, capsys, monkeypatch):
    ask(QUESTIONS[:1], options)
    capsys.readouterr()
    asked = ask(QUESTIONS, replace(options, dry_run=True, max_cost=0.0))
    assert (asked.calls, asked.cached, len(asked.answers), len(server.asked)) == (3, 1, 1, 1)
    said = capsys.readouterr().out
    assert "4 questions, 1 of them answered before" in said
    read = round(sum(12 + len(question) / 4 for question in QUESTIONS[1:]))
    assert f"3 calls of gpt-4o-mini at {server.url}: about {read} tokens in and at most 24 out" in said
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert ask(QUESTIONS, replace(options, dry_run=True)).calls == 4  # no key is needed to count
    assert not (options.cache.parent / "elsewhere").exists()
    ask(QUESTIONS, replace(options, dry_run=True, cache=options.cache.parent / "elsewhere"))
    assert not (options.cache.parent / "elsewhere").exists()


def test_prices_of_another_model_are_warned_of(server, options, capsys):
    ask(QUESTIONS[:1], replace(options, model="dear"))
    assert "these are the prices of gpt-4o-mini; give those of dear by" in capsys.readouterr().err
    ask(QUESTIONS[1:2], replace(options, model="dear", price_in=1.0))
    assert not [line for line in capsys.readouterr().err.splitlines() if "prices" in line]


def test_openai_itself_needs_a_key(options, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        ask(QUESTIONS, options)
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(UserError, match="OPENAI_BASE_URL is 'localhost:8000'; give a URL"):
        ask(QUESTIONS, options)


@pytest.mark.parametrize(
    "field", ["max_tokens", "thinking", "threads", "attempts", "timeout", "per_minute", "max_cost", "price_in"]
)
def test_options_that_make_no_sense(options, field):
    for number in (-1, float("nan")):
        with pytest.raises(UserError, match=f"--{field.replace('_', '-')} is {number}; it must be"):
            ask(QUESTIONS, replace(options, **{field: number}))


def test_an_interrupt_loses_no_answer(server, options):
    def fault(question, n):
        if len(server.asked) == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # it waits for answers
            time.sleep(0.1)

    server.fault = fault
    with pytest.raises(KeyboardInterrupt):
        ask(QUESTIONS, replace(options, threads=1))
    there = len(server.asked)
    assert 2 <= there < 4
    lines = [json.loads(line) for line in answers(options).read_text().splitlines()]
    assert [(line["text"], line["tokens_in"], line["tokens_out"]) for line in lines] == [("A", 100, 1)] * there
    server.fault = lambda question, n: None
    assert ask(QUESTIONS, options).calls == 4 - there


def test_waits_in_turn_begin_after_what_the_server_asked_for():
    """With a rate, requests that a server told to wait leave one by one afterwards, not all at once."""
    left: list[float] = []

    def leave(task: int) -> None:
        left.append(time.monotonic())
        if len(left) == 1:
            raise retries.Again("wait", 0.3)

    began = time.monotonic()
    turns = retries.Retries[int](leave, attempts=2, backoff=0.0, per_minute=600)
    assert [turns(0), turns(1)] == ["", ""]
    assert left[1] - began >= 0.3 and left[2] - began >= 0.4
