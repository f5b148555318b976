"""A judge behind any OpenAI-compatible endpoint (S1 D.2, C.3.1), with a cache on disk, so that no answer is paid twice.

What its errors mean, retries and waits are `raypref.endpoints.asking`'s; the `openai` client, whose own retries are
off, is imported late.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypref.config import UserError
from raypref.endpoints.asking import Again, Asking, address, ask_all, fault
from raypref.tools import console

MODEL = "gpt-4o-mini"
TEMPERATURE = 0.0
PRICES = (0.15, 0.60)
"""Public prices of `MODEL`, USD per million tokens read and written."""


@dataclass(frozen=True)
class EndpointOptions:
    """Of a judge by an endpoint: OPENAI_API_KEY holds the key, OPENAI_BASE_URL another address than OpenAI's, such as a
    local server's (http://localhost:8000/v1), which may need no key."""

    model: str = MODEL
    """Who judges (S1 D.2)."""
    max_tokens: int = 8
    """Most tokens of an answer, which should be one letter."""
    threads: int = 8
    """Most requests in flight."""
    per_minute: float = 0.0
    """Most requests a minute; 0: any number."""
    timeout: float = 60.0
    """Seconds without a sign of the server after which a request is given up."""
    attempts: int = 6
    """Tries of a question before it counts as failed."""
    backoff: float = 1.0
    """Seconds before the second try; they double each time, with jitter, up to a minute."""
    price_in: float = PRICES[0]
    """USD per million tokens read (gpt-4o-mini's public price)."""
    price_out: float = PRICES[1]
    """USD per million tokens written."""
    max_cost: float = 1.0
    """USD; where the estimate is above it, nothing is asked."""
    cache: Path = Path("~/.cache/raypref/judge")
    """Folder of the answers that are there already."""
    dry_run: bool = False
    """Count and estimate only."""


@dataclass(frozen=True)
class Answer:
    """What came back, and what it took."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(frozen=True)
class Asked:
    """What asking came to."""

    answers: dict[str, Answer]
    """Question -> its answer, wherever it came from."""
    failed: dict[str, str]
    """Question -> why there is none."""
    calls: int
    """Questions without a readable answer in the cache."""
    cached: int
    """Those that were."""
    url: str

    @property
    def tokens(self) -> tuple[int, int]:
        """Read and written for all answers, as the server counts, whenever they were asked for; of those asked for
        again, the last."""
        return sum(a.tokens_in for a in self.answers.values()), sum(a.tokens_out for a in self.answers.values())


class Cache:
    """Answers on disk, a line each, by key; written as they come. Several processes may share it."""

    def __init__(self, folder: Path, write: bool = True) -> None:
        """Raises `UserError` where it cannot be written."""
        self.path = folder.expanduser() / "answers.jsonl"
        self.held: dict[str, Answer] = {}
        self._lock = threading.Lock()
        content = b""
        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.open("ab").close()
            if self.path.exists():
                content = self.path.read_bytes()
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; give another --cache") from error
        self._cut = not content.endswith(b"\n") and bool(content)
        for line in content.splitlines():
            try:  # a line that a kill has cut is dropped
                key, *answer = json.loads(line)
                self.held[key] = Answer(*answer)
            except (ValueError, TypeError):
                continue

    def add(self, key: str, answer: Answer) -> None:
        """On the disk when it returns. For any thread."""
        line = json.dumps([key, answer.text, answer.tokens_in, answer.tokens_out]).encode() + b"\n"
        with self._lock, self.path.open("ab", buffering=0) as file:
            file.write(b"\n" * self._cut + line)  # one write, so that lines of two processes never mix
            os.fsync(file.fileno())
            self._cut = False
            self.held[key] = answer


def key(url: str, model: str, max_tokens: int, question: str) -> str:
    """What an answer depends on, as 32 hex digits."""
    told = json.dumps([url, model, TEMPERATURE, max_tokens, question])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def cost(tokens_in: float, tokens_out: float, options: EndpointOptions) -> float:
    """USD."""
    return (tokens_in * options.price_in + tokens_out * options.price_out) / 1e6


def estimate(questions: Sequence[str], options: EndpointOptions) -> tuple[float, float, float]:
    """(tokens read, most tokens written, most USD): characters / 4 plus 12 for a request's frame."""
    read, written = sum(12 + len(q) / 4 for q in questions), float(len(questions) * options.max_tokens)
    return read, written, cost(read, written, options)


def ask(
    questions: Sequence[str], options: EndpointOptions, readable: Callable[[str], bool] = lambda text: True
) -> Asked:
    """Answers to all of them: what the cache holds, then what the endpoint says; nothing is asked in a dry run.

    readable: whether an answer of the cache says anything. One that does not is asked for again: temperature 0 makes
    answers alike, not equal (batches differ, servers change), and each repeat pays for those that still say nothing.

    Raises `UserError` before any call where the estimate is above `options.max_cost` or a key is missing, and where the
    endpoint refuses for good; what has come by then is in the cache.
    """
    _check(options)
    cache = Cache(options.cache, write=not options.dry_run)
    url, secret = address(keyless=True)
    key_of = {question: key(url, options.model, options.max_tokens, question) for question in questions}
    held = {question: cache.held[k] for question, k in key_of.items() if k in cache.held}
    missing = [question for question in key_of if question not in held or not readable(held[question].text)]
    again = sum(question in held for question in missing)
    read, written, most = estimate(missing, options)
    unread = f"; {again:,} answers that could not be read are asked for again" * bool(again)
    console.say(f"{len(key_of):,} questions, {len(held) - again:,} of them answered before ({cache.path}){unread}")
    if missing:
        console.say(
            f"{len(missing):,} calls of {options.model} at {url}: about {read:,.0f} tokens in and at most "
            f"{written:,.0f} out, so at most ${most:,.4f} at ${options.price_in:g} and ${options.price_out:g} a "
            "million (an estimate: characters / 4, and prices change)"
        )
        if options.model != MODEL and (options.price_in, options.price_out) == PRICES:
            console.warn(
                f"these are the prices of {MODEL}; give those of {options.model} by --price-in and --price-out"
            )
        if most > options.max_cost and not options.dry_run:
            raise UserError(
                f"{len(missing):,} calls may cost ${most:,.4f}, which is above --max-cost {options.max_cost:g}; raise "
                "it or lower --samples; nothing was asked"
            )
    failed = {}
    if missing and not options.dry_run:
        address()  # where a key is needed
        client = Client(url, secret, options)
        asking = Asking[str](
            lambda question: cache.add(key_of[question], client.ask(question)),
            options.attempts,
            options.backoff,
            options.per_minute,
        )
        failed = ask_all(missing, asking, options.threads, client.url, "answers", len(key_of) - len(missing))
    answers = {q: cache.held[k] for q, k in key_of.items() if k in cache.held and q not in failed}
    return Asked(answers, failed, len(missing), len(key_of) - len(missing), url)


def _check(options: EndpointOptions) -> None:
    for name, least in (
        ("max_tokens", 1),
        ("threads", 1),
        ("per_minute", 0),
        ("attempts", 1),
        ("backoff", 0),
        ("price_in", 0),
        ("price_out", 0),
        ("max_cost", 0),
    ):
        number = getattr(options, name)
        if not number >= least:
            raise UserError(f"--{name.replace('_', '-')} is {number}; it must be at least {least}")
    if not options.timeout > 0:
        raise UserError(f"--timeout is {options.timeout}; it must be above 0")


class Client:
    """One question at a time, from any number of threads."""

    def __init__(self, base: str, secret: str, options: EndpointOptions) -> None:
        import openai

        self.url = base + "/chat/completions"
        self._options = options
        self._client = openai.OpenAI(api_key=secret or "none", base_url=base, max_retries=0, timeout=options.timeout)
        # Whoever has no key sends none, not even a made-up one.
        self._headers: Any = {} if secret else {"Authorization": openai.Omit()}

    def ask(self, question: str) -> Answer:
        """Raises `Again` for what may pass, `Refused` for what is this question's alone, or `UserError`."""
        import openai

        try:
            completion = self._client.chat.completions.create(
                model=self._options.model,
                messages=[{"role": "user", "content": question}],
                temperature=TEMPERATURE,
                max_tokens=self._options.max_tokens,
                extra_headers=self._headers,
            )
        except openai.APITimeoutError:
            raise Again(f"no answer within {self._options.timeout:g} s") from None
        except openai.APIConnectionError as error:
            raise Again(f"no connection ({type(error.__cause__ or error).__name__})") from None
        except openai.APIStatusError as error:
            raise fault(error.response, self.url) from None
        except ValueError:
            raise Again("an answer that is not JSON") from None
        try:
            text, usage = completion.choices[0].message.content, completion.usage
            read, written = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
            return Answer(text or "", int(read or 0), int(written or 0))  # no text is an answer, too
        except (AttributeError, IndexError, TypeError, ValueError):
            raise Again("an answer without a choice") from None
