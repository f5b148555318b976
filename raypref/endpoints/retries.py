"""Many requests to an OpenAI-compatible endpoint: what its errors mean, when to try again, and when to give up.

A request is made by `raypref.endpoints.client`, an answer kept by `raypref.endpoints.store`.
"""

from __future__ import annotations

import concurrent.futures
import email.utils
import http.client
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from raypref.config import UserError
from raypref.tools import console
from raypref.tools.secrets import hidden

T = TypeVar("T")

OPENAI = "https://api.openai.com/v1"

LONGEST_WAIT = 600.0
"""Seconds; a server that asks for more, such as until its daily quota is back, ends the command instead."""


class Again(Exception):
    """A request failed that is worth another try. `wait`: seconds that the server asked for."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(hidden(why))
        self.wait = wait


class Refused(Exception):
    """A request failed that is not worth another try; others may still succeed."""

    def __init__(self, why: str) -> None:
        super().__init__(hidden(why))


def address(keyless: bool = False) -> tuple[str, str]:
    """The endpoint's base URL, without a slash at its end, and its key or '', from OPENAI_BASE_URL and OPENAI_API_KEY.

    keyless: nothing will be sent. Raises `UserError` for what is no URL, or where OpenAI's own is meant without a key.
    """
    base = os.environ.get("OPENAI_BASE_URL", "").strip() or OPENAI
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not base.startswith(("http://", "https://")):
        raise UserError(f"OPENAI_BASE_URL is {base!r}; give a URL such as http://localhost:8000/v1")
    if base == OPENAI and not key and not keyless:
        raise UserError("OPENAI_API_KEY is not set; set it, or OPENAI_BASE_URL for a server that needs none")
    if not (key.isascii() and key.isprintable()):
        raise UserError("OPENAI_API_KEY holds characters that no key has; copy it once more")
    return base.rstrip("/"), key


def fault(response: Any, url: str, purpose: str = "") -> Exception:
    """The exception for a response without an answer: `Again`, `Refused`, or a `UserError` in the server's words.

    response: of httpx. One of status 200 holds an error in the place of an answer, as proxies send it, and its code is
    the status where it is one. purpose: what the request was for, for the message.
    """
    status = response.status_code
    message, code = _message(response)
    if status == 200 and re.fullmatch("[45][0-9][0-9]", code):
        status = int(code)
    if status in (400, 413, 422):  # such as a content policy, or a prompt that is too long
        return Refused(f"{status} {message}")
    if status in (200, 408, 429) or status >= 500:
        wait = retry_after(response.headers)
        if code != "insufficient_quota" and wait <= LONGEST_WAIT:
            return Again(f"{status} {message}", wait)
        message += f"; it asks to wait {console.clock(wait)}" if wait else ""
    return UserError(
        f"{url} answers {status}: {message}{purpose and f' (asked for {purpose})'}; what is there is kept, and the "
        "same command goes on from there"
    )


def _message(response: Any) -> tuple[str, str]:
    """What a server says of its error, in one line, and the error's code, if any."""
    try:
        error = response.json()["error"]
        message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, "")
    except (ValueError, KeyError, TypeError):
        message, code = response.text, ""
    line = " ".join(str(message or http.client.responses.get(response.status_code, "")).split())
    line = hidden(line)  # servers repeat the key that they refuse
    return line if len(line) <= 300 else line[:299] + "…", str(code or "")


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float:
    """Seconds that a `Retry-After` header asks for, as a number or a date; 0 without one."""
    value = headers.get("Retry-After", "").strip()
    try:
        wait = float(value)
    except ValueError:
        try:
            wait = email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
        except ValueError:
            return 0.0
    return max(0.0, wait) if math.isfinite(wait) else 0.0


@dataclass
class Retries(Generic[T]):
    """Tries requests again, from any number of threads; a server that asks one of them to wait makes all wait."""

    ask: Callable[[T], None]
    """Sends one request and stores the answer. Raises `Again`, `Refused`, or a `UserError`, which ends everything."""
    attempts: int
    """Tries of a task before it counts as failed."""
    backoff: float
    """Seconds before the second try; they double each time, with jitter, up to a minute."""
    per_minute: float = 0.0
    """Most requests a minute; 0: any number."""
    stop: threading.Event = field(default_factory=threading.Event)
    _until: float = 0.0  # on the monotonic clock
    _next: float = 0.0  # the same: when the next request may leave
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, task: T) -> str:
        """Try until there is an answer; returns '', or why there is none."""
        why = "stopped"
        for attempt in range(self.attempts):
            self._await_turn()
            if self.stop.is_set():
                break
            try:
                self.ask(task)
                return ""
            except UserError:
                self.stop.set()
                raise
            except Refused as refused:
                return str(refused)
            except Again as again:
                why = str(again)
                if again.wait:
                    self._until = max(self._until, time.monotonic() + again.wait)
                if attempt + 1 < self.attempts:
                    self.stop.wait(random.uniform(0.5, 1.0) * min(60.0, self.backoff * 2**attempt))
        return why + (f", {self.attempts} times" if self.attempts > 1 else "")

    def _await_turn(self) -> None:
        if self.per_minute:
            with self._lock:
                mine = max(self._next, self._until, time.monotonic())
                self._next = mine + 60.0 / self.per_minute
            self.stop.wait(max(0.0, mine - time.monotonic()))
        while (wait := self._until - time.monotonic()) > 0 and not self.stop.is_set():
            self.stop.wait(wait + random.uniform(0.0, self.backoff))  # not all at the same moment


def ask_all(tasks: Sequence[T], retries: Retries[T], threads: int, url: str, label: str, done: int = 0) -> dict[T, str]:
    """Send the requests of all tasks, at most `threads` at a time; returns why some failed, by task.

    label: what is counted, such as `responses`; done: how many were done before. Raises `UserError` where the endpoint
    refuses, or where nothing comes through any more.
    """
    failed: dict[T, str] = {}
    in_a_row, most = 0, max(20, 3 * threads)
    with (
        console.Progress(done + len(tasks), label, done) as progress,
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
    ):
        futures = {pool.submit(retries, task): task for task in tasks}
        try:
            for future in concurrent.futures.as_completed(futures):
                why, task = future.result(), futures.pop(future)
                if retries.stop.is_set():
                    continue  # to the one that raises
                if why:
                    failed[task] = why
                in_a_row = in_a_row + 1 if why else 0
                if in_a_row == most:
                    raise UserError(
                        f"{url}: the last {most} {label} failed ({why}); see to the endpoint, then type the same words "
                        "again: what is there is kept"
                    )
                progress.advance(1, f"{len(failed)} failed" if failed else "")
        except BaseException as error:
            retries.stop.set()  # those in flight are paid for: they end and are kept
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                console.warn("stopping once those in flight are there; type the same words again to go on from there")
            raise
    return failed
