"""What is an answer and what is none, from a real HTTP server; and connections that cannot be set up."""

from __future__ import annotations

import json

import pytest

from raypref.config import UserError
from raypref.endpoints.client import Answer, Client, Service, text_of
from raypref.endpoints.retries import Again, Refused, address
from raypref.judges.prompts import fill
from tests.judges.server import refusal, serving

THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}


@pytest.fixture
def server(monkeypatch):
    with serving(monkeypatch) as server:
        yield server


def ask(server, body, status=200, **headers) -> Answer:
    """What a client makes of a response with this body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    server.fault = lambda question, n: (status, headers, content)
    return Client(*address(), Service(), 8, 0.0).ask([{"role": "user", "content": "q"}])


def says(content, finish="stop", **message) -> dict:
    choice = {"finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (" A\n", "A"),
        (None, ""),
        ([THOUGHT, {"type": "text", "text": "A"}], "A"),
        ([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}], "one two"),
        ([], ""),
        ("<think>\n\n</think>\n\nA", "A"),
        ("<think>\nA is curt.\nB is kind.</think> B", "B"),
        ("A is curt, B is kind.</think>B", "B"),  # the template has begun the block
        ("<think>one</think>A<think>two</think>, I think", "A, I think"),
        ("<think>\nOkay, let's see. The", ""),
        ("A <think>but perhaps", "A"),
        ([{"type": "text", "text": "<think>x</think>A"}], "A"),
        ("I think: 1 < 2", "I think: 1 < 2"),
        ("<thinking>A?</thinking>B", "B"),
        ("<thought>\nA?\n</thought>\n\nB", "B"),
        ("<seed:think>A?<seed:cot_budget_reflect>x</seed:cot_budget_reflect></seed:think>B", "B"),
        ("[THINK]A?[/THINK]B", "B"),
        ("◁think▷A?◁/think▷B", "B"),
        ("<|START_THINKING|>A?<|END_THINKING|><|START_RESPONSE|>B<|END_RESPONSE|>", "B"),
        ("<|begin_of_thought|>A?<|end_of_thought|>\n<|begin_of_solution|>B<|end_of_solution|>", "B"),
        ("<|channel|>analysis<|message|>A?<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>", "B"),
        ("<|channel|>analysis<|message|>A is better", ""),
        ("analysisA is kind.assistantfinalB", "B"),
        ("<think>A?</think><answer> B </answer>", "B"),
        ("<reasoning>one</reasoning>[THINK]two", ""),
        ("Write <answer> around it.", "Write <answer> around it."),
        ("analysis of both: A", "analysis of both: A"),
    ],
)
def test_what_a_message_says(content, text):
    assert text_of(content) == text


@pytest.mark.parametrize("content", [7, {"text": "A"}, [{"text": "A"}], ["A"], [{"type": "text", "text": 7}]])
def test_content_of_another_kind_is_no_answer(server, content):
    with pytest.raises(Again, match=r"^no chat completion, but '"):
        ask(server, says(content))


def test_an_answer_and_what_it_took(server):
    assert ask(server, says([THOUGHT, {"type": "text", "text": "A"}])) == Answer("A", "stop", 10, 2)
    assert ask(server, {**says("half a", "length"), "usage": None}) == Answer("half a", "length", 0, 0)
    assert ask(server, {**says("A"), "error": None}).text == "A"


@pytest.mark.parametrize("content", ["<think>\nOkay, let's see. The", None, ""])
def test_a_model_that_thinks_until_it_is_cut_has_said_nothing(server, content):
    with pytest.raises(Refused, match=r"^it was cut at --max-tokens 8, before a word of an answer; "):
        ask(server, says(content, "length", reasoning_content="Okay, let's see. The"))


@pytest.mark.parametrize(
    ("content", "apart", "text"),
    [
        ("<think>B is</think>A: it is sh", {}, "A: it is sh"),  # cut behind its thoughts
        ("A: it is sh", {"reasoning_content": "B is"}, "A: it is sh"),
        ("A: it is sh", {"reasoning": "B is"}, "A: it is sh"),
        ("A", {}, None),  # no mark at all: the template has opened the block
        ("Okay. The better one is A", {}, None),
        ("<think>one</think>A<think>no: B", {}, None),
        ("", {"thinking": "A"}, None),
    ],
)
def test_what_is_cut_inside_a_thought_is_never_an_answer(server, content, apart, text):
    """The room for thoughts comes on top of the answer's, and a model known to reason has said nothing before it shows
    that its thoughts have ended."""
    body = json.dumps(says(content, "length", **apart)).encode()
    server.fault = lambda question, n: (200, {}, body)
    client = Client(*address(), Service(thinking=500), 8, 0.0)
    if text is None:
        with pytest.raises(
            Refused, match=r"^it was cut at --max-tokens 8 and --thinking 500, before .*; raise --thinking$"
        ):
            client.ask([{"role": "user", "content": "q"}])
    else:
        assert client.ask([{"role": "user", "content": "q"}]).text == text
    assert [body["max_tokens"] for body in server.bodies] == [508]


def test_a_model_that_refuses_a_field_is_asked_without_it_from_then_on(server, capsys):
    """As OpenAI's reasoning models do with `max_tokens` and `temperature`."""

    def refuses(question, n):
        for field in ("max_tokens", "temperature"):
            if field in server.bodies[-1]:
                error = {"message": f"Unsupported: {field}", "code": "unsupported_parameter", "param": field}
                return 400, {}, json.dumps({"error": error}).encode()

    server.fault = refuses
    server.judge = lambda *parts: "A"
    client = Client(*address(), Service(model="o", thinking=500), 8, 0.0)
    question = [{"role": "user", "content": fill("both", "p", "yes", "no")}]
    assert [client.ask(question).text for _ in range(2)] == ["A", "A"]
    sent = [{k: body[k] for k in body if k not in ("model", "messages")} for body in server.bodies]
    assert sent == [
        {"max_tokens": 508, "temperature": 0.0},
        {"max_completion_tokens": 508, "temperature": 0.0},
        {"max_completion_tokens": 508},
        {"max_completion_tokens": 508},
    ]
    assert capsys.readouterr().err.count("o takes no temperature 0; it is asked at its own") == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<!DOCTYPE html><html><body>login</body></html>", "answers with HTML; OPENAI_BASE_URL should end in /v1"),
        (b'data: {"id": "x"}\n\ndata: [DONE]\n\n', "^an answer that is not JSON$"),
        ({**says("A"), "choices": None}, "^no chat completion, but '"),
        ([], r"^no chat completion, but '\[\]'$"),
        ({"error": {"message": "Provider returned\nerror", "code": 502}}, "^502 Provider returned error$"),
        ({"error": {"message": "slow down", "code": "429"}}, "^429 slow down$"),
        ({"error": "the model is not loaded"}, "^200 the model is not loaded$"),
    ],
)
def test_status_200_without_an_answer_may_pass(server, body, said):
    with pytest.raises(Again, match=said):
        ask(server, body)


def test_an_error_with_status_200_is_taken_at_its_word(server):
    with pytest.raises(Refused, match=r"^400 content policy$"):
        ask(server, {"error": {"message": "content policy", "code": 400}})
    with pytest.raises(UserError, match="answers 401: no such key; what is there is kept"):
        ask(server, {"error": {"message": "no such key", "code": 401}})
    with pytest.raises(UserError, match="answers 200: you have spent it all"):
        ask(server, {"error": {"message": "you have spent it all", "code": "insufficient_quota"}})


def test_a_key_goes_nowhere_but_where_the_person_said(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with pytest.raises(UserError, match="answers 307: Temporary Redirect"):
        ask(server, b"", 307, Location=f"{server.url}/elsewhere")
    assert [headers["path"] for headers in server.headers] == ["/v1/chat/completions"]


def test_who_hangs_up_and_who_is_not_there(server, monkeypatch):
    client = Client(*address(), Service(), 8, 0.0)
    server.fault = lambda question, n: refusal(500, "oops")
    with pytest.raises(Again, match=r"^500 oops$"):
        client.ask([{"role": "user", "content": "q"}])
    with pytest.raises(Refused, match=r"^it holds half a character, which cannot be sent$"):
        client.ask([{"role": "user", "content": "\ud83d"}])
    assert len(server.asked) == 1
    nobody = Client("http://127.0.0.1:1/v1", "", Service(), 8, 0.0)
    with pytest.raises(Again, match=r"^no connection \(ConnectError: .*refused\)$"):
        nobody.ask([{"role": "user", "content": "q"}])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_BASE_URL", "http://host:port/v1"),
        ("ALL_PROXY", "socks://127.0.0.1:1080"),
        ("SSL_CERT_FILE", "/there/is/no/such.pem"),
    ],
)
def test_what_stands_in_the_way_of_any_connection_is_told_in_one_line(monkeypatch, name, value):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv(name, value)
    with pytest.raises(
        UserError, match=r"no connection can be set up .*; check OPENAI_BASE_URL, .*SSL_CERT_FILE$"
    ) as e:
        Client(*address(), Service(), 8, 0.0)
    assert "\n" not in str(e.value)


def test_a_key_that_no_header_can_hold(monkeypatch):
    for key in ("sk-1\nsk-2", "sk-”1”"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(UserError, match="OPENAI_API_KEY holds characters that no key has"):
            address()
