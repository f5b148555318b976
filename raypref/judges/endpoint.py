"""A judge behind any OpenAI-compatible endpoint (S1 D.2, C.3.1), whose answers are kept, so that none is paid twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from raypref.config import UserError
from raypref.endpoints.client import CUT, MODEL, PRICES, Answer, Client, Service, check, cost, estimate
from raypref.endpoints.retries import Retries, address, ask_all
from raypref.endpoints.store import Store
from raypref.judges import win_rate
from raypref.judges.judgement import Judgement, file_name, spent
from raypref.judges.prompts import Variant, fill, parse, variant
from raypref.judges.responses import Response, Sections
from raypref.judges.win_rate import Verdict
from raypref.tools import console
from raypref.tools.secrets import hidden

TEMPERATURE = 0.0


@dataclass(frozen=True)
class Endpoint(Service):
    """The judge and its options: OPENAI_API_KEY holds the key, OPENAI_BASE_URL another address than OpenAI's, such as a
    local server's (http://localhost:8000/v1), which may need no key."""

    SAMPLES: ClassVar = 30

    prompt: Variant | None = None
    """What an endpoint is asked about: both is S1 D.2; left out: the section's axis where it is helpful or harmless."""
    max_tokens: int = 8
    """Most tokens of an answer, which should be one letter; of a model that reasons, after its --thinking."""
    threads: int = 8
    """Most requests in flight."""
    per_minute: float = 0.0
    """Most requests a minute; 0: any number."""
    max_cost: float = 1.0
    """USD; where the estimate is above it, nothing is asked."""
    cache: Path = Path("~/.cache/raypref/judge")
    """Folder of the answers that are there already."""

    def judge(self, folder: Path, lines: Sections, seed: int) -> Judgement:
        """In both orders; a question that failed counts as an answer that cannot be read. Equal responses are a tie
        that nobody is asked for: both orders would be one question."""
        wording = {key: self.prompt or variant(key[0]) for key in lines}
        questions = {key: [_orders(wording[key], line) for line in section] for key, section in lines.items()}
        asked = ask(
            [question for pairs in questions.values() for both in pairs if len(set(both)) == 2 for question in both],
            self,
            readable=lambda text: parse(text) != "unparseable",
        )
        said = {question: parse(answer.text) for question, answer in asked.answers.items()}

        def verdict(question: str, a: Verdict, b: Verdict) -> Verdict:
            which: dict[str, Verdict] = {"A": a, "B": b, "tie": "tie"}
            return which.get(said.get(question, ""), "unparseable")

        sections = []
        for (group, unseen), section in lines.items() if not self.dry_run else ():
            verdicts: list[tuple[Verdict, ...]] = [
                ("tie",) if first == second else (verdict(first, "ours", "theirs"), verdict(second, "theirs", "ours"))
                for first, second in questions[group, unseen]
            ]
            numbers = win_rate.summary(verdicts, [line.client for line in section], seed, f"{group} {unseen}")
            sections.append({"axis": group, "unseen": unseen, "prompt": wording[group, unseen], **numbers})
        settings = {"model": self.model, "url": asked.url, "temperature": TEMPERATURE, "max_tokens": self.max_tokens}
        settings |= {"thinking": self.thinking} if self.thinking else {}
        unread = [answer.text for question, answer in asked.answers.items() if said[question] == "unparseable"]
        return {
            "judge": file_name(f"{self.model}-{self.prompt}" if self.prompt else self.model),
            "settings": settings,
            "sections": sections,
            "failed": len(asked.failed),
            "why": next(iter(asked.failed.values()), ""),
            **({"cut": cut} if (cut := sum(CUT in why for why in asked.failed.values())) else {}),
            "unreadable": len(unread),
            "unread": next(iter(unread), ""),
            **spent(asked.calls, asked.cached, *asked.tokens, cost(*asked.tokens, self)),
        }


def _orders(name: Variant, line: Response) -> tuple[str, str]:
    """The question with our response first, and with theirs."""
    return fill(name, line.prompt, line.ours, line.theirs), fill(name, line.prompt, line.theirs, line.ours)


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


def cache(folder: Path, write: bool = True) -> Store:
    """The answers in a folder, by `key`. Several processes may share it."""
    return Store(folder.expanduser() / "answers.jsonl", ("key",), "--cache", write=write)


def key(url: str, model: str, max_tokens: int, question: str) -> tuple[str]:
    """What an answer depends on, as 32 hex digits. Not on the room for thoughts: one that had enough is the same with
    more, and one that was cut is not kept."""
    depends = json.dumps([url, model, TEMPERATURE, max_tokens, question])
    return (hashlib.blake2b(depends.encode(), digest_size=16).hexdigest(),)


def ask(questions: Sequence[str], options: Endpoint, readable: Callable[[str], bool] = lambda text: True) -> Asked:
    """Answers to all of them: what the cache holds, then what the endpoint says; nothing is asked in a dry run.

    readable: whether an answer of the cache says anything. One that does not is asked for again: temperature 0 makes
    answers alike, not equal (batches differ, servers change), and each repeat pays for those that still say nothing.

    Raises `UserError` before any call where the estimate is above `options.max_cost` or a key is missing, and where the
    endpoint refuses for good; what has come by then is in the cache.
    """
    check(options, max_tokens=1, threads=1, per_minute=0)
    if not options.max_cost >= 0:
        raise UserError(f"--max-cost is {options.max_cost}; it must be at least 0")
    url, secret = address(keyless=True)
    key_of = {question: key(url, options.model, options.max_tokens, question) for question in questions}
    with cache(options.cache, write=not options.dry_run) as store:
        missing = _missing(key_of, store, url, options, readable)
        failed: dict[str, str] = {}
        if missing and not options.dry_run:
            address()  # where a key is needed
            client = Client(url, secret, options, options.max_tokens, TEMPERATURE)
            retries = Retries[str](
                lambda question: store.add(key_of[question], client.ask([{"role": "user", "content": question}])),
                options.attempts,
                options.backoff,
                options.per_minute,
            )
            failed = ask_all(missing, retries, options.threads, client.url, "answers", len(key_of) - len(missing))
    answers = {q: store.answers[k] for q, k in key_of.items() if k in store.answers and q not in failed}
    return Asked(answers, failed, len(missing), len(key_of) - len(missing), hidden(url))


def _missing(
    key_of: dict[str, tuple[str]], store: Store, url: str, options: Endpoint, readable: Callable[[str], bool]
) -> list[str]:
    """The questions to ask, and what that may cost, which is said; `UserError` where it is above `options.max_cost`."""
    answered = {question: store.answers[k] for question, k in key_of.items() if k in store.answers}
    missing = [question for question in key_of if question not in answered or not readable(answered[question].text)]
    again = sum(question in answered for question in missing)
    unread = f"; {again:,} answers that could not be read are asked for again" * bool(again)
    if store.dropped:
        console.say(f"{store.path}: {store.dropped:,} lines hold no answer and are left out")
    console.say(f"{len(key_of):,} questions, {len(answered) - again:,} of them answered before ({store.path}){unread}")
    if not missing:
        return missing
    most = estimate(map(len, missing), options.max_tokens, options)
    console.say(f"{len(missing):,} calls of {options.model} at {url}: {most.sentence(options, digits=4)}")
    if options.model != MODEL and (options.price_in, options.price_out) == PRICES:
        console.warn(f"these are the prices of {MODEL}; give those of {options.model} by --price-in and --price-out")
    if most.dollars > options.max_cost and not options.dry_run:
        raise UserError(
            f"{len(missing):,} calls may cost ${most.dollars:,.4f}, which is above --max-cost {options.max_cost:g}; "
            "raise it or lower --samples; nothing was asked"
        )
    return missing
