"""A chat-completions server on this machine that answers as OpenAI's does, and misbehaves on demand."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

ASKED = re.compile(
    r"### CONVERSATION: (.*)\n\n### RESPONSE A: (.*)\n\n### RESPONSE B: (.*)\n\n### YOUR CHOICE:\Z", re.S
)


class Server(ThreadingHTTPServer):
    """`judge(prompt, a, b)`: what it answers. `fault(question, n)`: (status, headers, body) that the n-th request (from
    0) with that question gets instead, or None."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: list[str] = []
        self.arrived: list[float] = []
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.judge = lambda prompt, a, b: "A"
        self.fault = lambda question, n: None
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (message,) = body["messages"]
        assert message["role"] == "user"
        with server.lock:
            n = server.asked.count(message["content"])
            server.asked.append(message["content"])
            server.arrived.append(time.monotonic())
            server.bodies.append(body)
            server.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
        status, headers, content = server.fault(message["content"], n) or (
            200,
            {},
            completion(server.judge(*ASKED.search(message["content"]).groups())),
        )
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(content)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


def completion(text: str | None) -> bytes:
    """An answer that took 100 tokens in and 1 out."""
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "judge",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101},
        }
    ).encode()


def refusal(status: int, message: str, code: str = "", **headers: str) -> tuple[int, dict, bytes]:
    return status, headers, json.dumps({"error": {"message": message, "type": "error", "code": code}}).encode()


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, up, and named in the environment; no key is set."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr("raypref.tools.console.quiet", lambda: None)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
