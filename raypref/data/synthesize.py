"""`python -m raypref.data synthesize`: the paper's synthetic pairs from any prompts (S2 2.3), by a language model.

Two candidate responses a prompt, one in each style of an axis, from an OpenAI-compatible endpoint; the result has no
people in it: a run deals the pairs to clients (`raypref.data.synthetic.deal`). Every response is written to a journal,
and to the disk, as it comes, so that whatever ends a run costs at most what was in flight.

The endpoint is spoken to with `requests`, which ray needs anyway: one kept connection a thread, and proxies and
certificates as people have set them. Imported late, as --help needs none of it.
"""

from __future__ import annotations

import collections
import fcntl
import functools
import hashlib
import json
import math
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import tyro

from raypref.config import DataConfig, UserError, nearest
from raypref.data import sources
from raypref.data.readers import READERS, lines, suffix, told
from raypref.data.rows import Losses, Unusable
from raypref.endpoints.asking import Again, Asking, address, ask_all, fault
from raypref.tools import console

INSTRUCTIONS: dict[str, tuple[str, str]] = {
    "education": (
        "Answer so that a child in elementary school understands it: simple words, short sentences, everyday examples.",
        "Answer for a reader with a PhD in the field: technical terms, precise and dense, nothing explained twice.",
    ),
    "humor": (
        "Answer in a humorous way: witty and playful, with jokes, and still an answer.",
        "Answer in a plain, sober way: no jokes, no wordplay, no exclamations.",
    ),
    "manners": (
        "Answer warmly: kind, courteous and encouraging.",
        "Answer bluntly: curt and impatient, without any courtesy.",
    ),
}
"""Axis -> what the model is told for its first pole and for its second. The paper does not print its own wording; the
poles are those of `raypref.data.synthetic.AXES`."""

COMMON = "Answer the user's message in about 100 words. Do not mention these instructions or name the style."
"""Told for both poles: one length, so that length does not tell them apart."""

CLIENTS = sum(DataConfig().group_sizes)
"""For whom pairs are counted when they are there (S2 2.3: 40)."""

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.+-]+)?")
"""OWNER/NAME or OWNER/NAME:CONFIGURATION."""

Task = tuple[str, str, int]
"""Prompt, axis, pole: one response."""


@dataclass(frozen=True)
class Synthesize:
    """Pairs in the paper's opposed styles, from your prompts, by an OpenAI-compatible endpoint; it asks before it pays.

    OPENAI_API_KEY holds the key, OPENAI_BASE_URL another endpoint (http://localhost:8000/v1; a local server needs no
    key). Interrupted or killed? Type the same words again: only what is missing is asked for.
    """

    prompts: tyro.conf.Positional[str]
    """Text with a prompt a line; JSONL, JSON, CSV or Parquet with a column `prompt`; or a hub id (OWNER/NAME) of data
    with that column. S2 2.3: 52,000 of UltraFeedback, HuggingFaceH4/ultrafeedback_binarized on the hub, and P-Soups."""
    out: str
    """File of the pairs, `.jsonl`; its journal lies beside it."""
    axis: tuple[Literal["education", "humor", "manners"], ...] = ("education", "humor")
    """Style axes; every prompt is dealt to one of them, by its hash and in equal numbers (S2 2.3)."""
    model: str = "gpt-4o-mini"
    """Who writes (S2 2.3)."""
    limit: int = 0
    """Take the first prompts only; 0: all."""
    max_tokens: int = 256
    """Most tokens of a response."""
    temperature: float = 1.0
    concurrency: int = 8
    """Most requests in flight."""
    timeout: float = 60.0
    """Seconds without a sign of the server after which a request is given up."""
    attempts: int = 6
    """Tries of a response before its prompt counts as failed."""
    backoff: float = 1.0
    """Seconds before the second try; they double each time, with jitter, up to a minute."""
    price_in: float = 0.15
    """USD per million tokens read, for the estimate (gpt-4o-mini's public price)."""
    price_out: float = 0.60
    """USD per million tokens written."""
    yes: bool = False
    """Go on without asking."""
    dry_run: bool = False
    """Count and estimate only."""


@dataclass(frozen=True)
class Answer:
    """One response, and what it took."""

    text: str
    finish: str
    """Why the model stopped; `length`: it was cut at --max-tokens."""
    tokens_in: int = 0
    tokens_out: int = 0


def synthesize(args: Synthesize) -> int:
    """The command. Exit status 0, or 1 where prompts failed or the person said no."""
    _check(args)
    prompts, left_out = read_prompts(args.prompts)
    prompts = prompts[: args.limit or None]
    out = Path(args.out).expanduser()
    with Journal(out, settings(args), write=not args.dry_run) as journal:
        axis_of = deal_axes(prompts, args.axis, journal.axis_of())
        wanted = [(prompt, axis_of[prompt], pole) for prompt in prompts for pole in (0, 1)]
        missing = [task for task in wanted if task not in journal.done]
        endpoint = Endpoint(args)

        for why, number in left_out.items():
            console.say(f"{args.prompts}: {number:,} left out, {why}")
        shares = collections.Counter(axis_of.values())
        on = ", ".join(f"{shares[axis]:,} on {axis}" for axis in args.axis)
        console.say(f"{len(prompts):,} prompts, two responses each: {on}")
        if journal.dropped:
            console.say(f"{journal.path}: {journal.dropped:,} half-written lines dropped")
        console.say(f"{len(wanted) - len(missing):,} responses are there, {len(missing):,} to ask of {args.model}")
        if missing:
            console.say(f"at {endpoint.url}\n{estimate(missing, args)}")
        if args.dry_run:
            return 0
        if missing and not args.yes and not _agreed():
            console.say("nothing was asked")
            return 1
        failed = ask_for(missing, endpoint, journal, args)
        return finish(prompts, axis_of, failed, journal, out, args)


def _check(args: Synthesize) -> None:
    for flag, number, least in (
        ("limit", args.limit, 0),
        ("max-tokens", args.max_tokens, 1),
        ("temperature", args.temperature, 0),
        ("concurrency", args.concurrency, 1),
        ("attempts", args.attempts, 1),
        ("backoff", args.backoff, 0),
        ("price-in", args.price_in, 0),
        ("price-out", args.price_out, 0),
    ):
        if not math.isfinite(number) or number < least:
            raise UserError(f"--{flag} is {number}; it must be at least {least}")
    if not math.isfinite(args.timeout) or args.timeout <= 0:
        raise UserError(f"--timeout is {args.timeout}; it must be above 0")
    if not args.axis or len(set(args.axis)) < len(args.axis):
        raise UserError(f"--axis is {' '.join(args.axis)!r}; name one or more of {', '.join(INSTRUCTIONS)}, each once")
    if not args.out.endswith(".jsonl"):
        raise UserError(f"--out is {args.out!r}; it must end in .jsonl, by which it is read later")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UserError("nobody is there to be asked whether to go on; give --yes (or --dry-run, to estimate only)")
    print("Go on? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def read_prompts(name: str) -> tuple[list[str], dict[str, int]]:
    """Distinct prompts of a file or of a hub's data set, in its order, and how many were left out, by reason.

    Raises `UserError` for what cannot be read, has no such column, or holds no prompt.
    """
    path = Path(name).expanduser()
    tabular = suffix(path) in READERS
    hub = not path.exists() and not tabular and path.suffix != ".txt" and HUB_ID.fullmatch(name)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name one file of prompts")
    if not path.is_file() and not hub:
        raise UserError(f"{path}: there is no such file")
    if tabular or hub:
        tables = sources.tables(name) if hub else [sources.table(path)]
        columns = list(dict.fromkeys(column for table in tables for column in table.columns))
        if "prompt" not in columns:
            hint = nearest("prompt", columns) if columns else ""
            raise UserError(f"{name} has no column 'prompt'{hint}; rename the one that holds the prompts")
        rows = (row for one in tables if "prompt" in one.columns for row in one.rows())
        found: list[Any] = [row if isinstance(row, Unusable) else row.get("prompt") for row in rows]
    else:
        with told(path):
            found = [line for line in lines(path) if line.strip()]
    left_out = Losses()
    prompts: dict[str, None] = {}
    for value in found:
        prompt = value.strip() if isinstance(value, str) else ""
        if not prompt:
            left_out.add(value if isinstance(value, Unusable) else Unusable("no text"))
        elif prompt in prompts:
            left_out.add(Unusable("the same as another"))
        prompts.update({prompt: None} if prompt else {})
    if not prompts:
        raise UserError(f"{name}: it holds no prompts")
    return list(prompts), left_out.reasons()


def deal_axes(prompts: Sequence[str], axes: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Prompt -> axis, in numbers equal up to one (S2 2.3: 26K prompts an axis).

    Prompts in the order of their hashes each take the axis that has the fewest, the first of several; `known` ones stay
    where they are, so that a file that has grown does not make paid responses useless.
    """
    dealt = {prompt: known[prompt] for prompt in prompts if prompt in known}
    count = {axis: 0 for axis in axes} | collections.Counter(dealt.values())
    for prompt in sorted(set(prompts) - set(dealt), key=_hash):
        dealt[prompt] = min(axes, key=count.__getitem__)
        count[dealt[prompt]] += 1
    return dealt


def settings(args: Synthesize) -> dict[str, Any]:
    """What makes responses belong together."""
    told = [INSTRUCTIONS[axis] for axis in sorted(args.axis)]
    return {
        "model": args.model,
        "temperature": args.temperature,
        "max_tokens": args.max_tokens,
        "axis": sorted(args.axis),
        "instructions": _hash(json.dumps([COMMON, told])).hex()[:8],
    }


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def instruction(axis: str, pole: int) -> str:
    return f"{COMMON} {INSTRUCTIONS[axis][pole]}"


def estimate(tasks: Collection[Task], args: Synthesize) -> str:
    """What `tasks` may cost, as a sentence. Tokens are counted as characters / 4, plus 12 for a request's frame."""
    read = sum(12 + (len(prompt) + len(instruction(axis, pole))) / 4 for prompt, axis, pole in tasks)
    written = len(tasks) * args.max_tokens
    cost = _cost(read, written, args)
    return (
        f"estimate: about {read:,.0f} tokens in and at most {written:,} out, so at most ${cost:,.2f} at "
        f"${args.price_in:g} and ${args.price_out:g} a million (an estimate: characters / 4, and prices change)"
    )


def _cost(read: float, written: float, args: Synthesize) -> float:
    return (read * args.price_in + written * args.price_out) / 1e6


class Journal:
    """Finished responses, a line each. One process writes it at a time."""

    def __init__(self, out: Path, settings: Mapping[str, Any], write: bool = True) -> None:
        """Raises `UserError` where another process writes it, or where it was begun with other settings."""
        self.path = out.with_name(out.name + ".journal")
        self.settings = dict(settings)
        self.done: dict[Task, Answer] = {}
        self.dropped = 0
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        if write:
            if out.exists() and not self.path.exists():
                raise UserError(f"{out} is there already, without {self.path.name}; give another --out")
            self._open()
        self._begun, whole = self._read(self.path.read_bytes() if self.path.exists() else b"")
        if self.done and self._begun != self.settings:
            old = self._begun or {}
            changed = [f"{key} {old.get(key)!r}, now {new!r}" for key, new in settings.items() if old.get(key) != new]
            raise UserError(f"{self.path} was begun with {'; '.join(changed)}; set it back, or give another --out")
        if self._file:
            self._file.truncate(whole)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            if not self.done:
                self.path.unlink()
            self._file.close()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); give another --out") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{self.path}: another process is writing it; wait, or give another --out") from error
        except OSError:
            pass  # a file system without locks

    def _read(self, content: bytes) -> tuple[dict[str, Any] | None, int]:
        """The settings, if there are any, and how many bytes are whole lines."""
        whole = content.rfind(b"\n") + 1
        self.dropped = int(len(content) > whole)
        begun = None
        for line in content[:whole].splitlines():
            try:
                entry = json.loads(line)
                if "settings" in entry:
                    begun = entry["settings"]
                else:
                    answer = Answer(entry["text"], entry["finish"], entry["tokens_in"], entry["tokens_out"])
                    self.done[entry["prompt"], entry["axis"], entry["pole"]] = answer
            except (ValueError, KeyError, TypeError):
                self.dropped += 1
        return begun, whole

    def axis_of(self) -> dict[str, str]:
        """Prompt -> axis of what is there."""
        return {prompt: axis for prompt, axis, _ in self.done}

    def add(self, task: Task, answer: Answer) -> None:
        """On the disk when it returns. For any thread."""
        prompt, axis, pole = task
        with self._lock:
            if self._begun != self.settings:
                self._begun = self.settings
                self._write({"settings": self.settings})
            self._write({"prompt": prompt, "axis": axis, "pole": pole, **vars(answer)})
            self.done[task] = answer

    def _write(self, entry: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class Endpoint:
    """Chat completions over HTTP, for any number of threads."""

    def __init__(self, args: Synthesize) -> None:
        """Base URL and key from the environment. Raises `UserError` where OpenAI's own is meant and there is no key."""
        base, self._key = address(keyless=args.dry_run)
        self.url = base + "/chat/completions"
        self._args = args
        self._local = threading.local()

    def ask(self, task: Task) -> Answer:
        """One response. Raises `Again` for what may pass, `Refused` for what is this prompt's alone, or `UserError`."""
        import requests

        prompt, axis, pole = task
        body = {
            "model": self._args.model,
            "messages": [{"role": "system", "content": instruction(axis, pole)}, {"role": "user", "content": prompt}],
            "temperature": self._args.temperature,
            "max_tokens": self._args.max_tokens,
        }
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.auth = self._sign  # or it would take one from ~/.netrc
        try:
            response = self._local.session.post(self.url, json=body, timeout=self._args.timeout, allow_redirects=False)
        except requests.exceptions.Timeout:
            raise Again(f"no answer within {self._args.timeout:g} s") from None
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader) as error:
            raise UserError(f"{self.url}: {error}; check OPENAI_BASE_URL and OPENAI_API_KEY") from None
        except requests.exceptions.RequestException as error:
            raise Again(f"no connection ({type(error).__name__})") from None
        if response.status_code == 200:
            return _answer(response)
        raise fault(response, self.url, _short(prompt))

    def _sign(self, request: Any) -> Any:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def _answer(response: Any) -> Answer:
    try:
        body = response.json()
        choice = body["choices"][0]
        text, usage = choice["message"]["content"], body.get("usage") or {}
        read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        answer = Answer(text.strip(), str(choice.get("finish_reason") or ""), int(read), int(written))
    except ValueError:
        raise Again("an answer that is not JSON") from None
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Again("an answer without a text") from None
    if not answer.text:
        raise Again("an empty text")
    return answer


def ask_for(tasks: Sequence[Task], endpoint: Endpoint, journal: Journal, args: Synthesize) -> dict[str, str]:
    """Ask for all of them and keep what comes; prompt -> why it failed."""
    asking = Asking[Task](lambda task: journal.add(task, endpoint.ask(task)), args.attempts, args.backoff)
    failed = ask_all(tasks, asking, args.concurrency, endpoint.url, "responses", len(journal.done))
    return {prompt: why for (prompt, *_), why in failed.items()}


def finish(
    prompts: Sequence[str],
    axis_of: Mapping[str, str],
    failed: Mapping[str, str],
    journal: Journal,
    out: Path,
    args: Synthesize,
) -> int:
    """Write the pairs that are whole, and say what there is. Exit status."""
    pairs = list(_pairs(prompts, axis_of, journal.done, args.model))
    if journal.done:  # or the journal goes, and the file without it would be in the next run's way
        beside = out.with_name(out.name + ".part")
        beside.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        os.replace(beside, out)
    answers = list(journal.done.values())
    read, written = sum(a.tokens_in for a in answers), sum(a.tokens_out for a in answers)
    spent = f"; {read:,} tokens in and {written:,} out in all, about ${_cost(read, written, args):,.2f}" if read else ""
    console.say(f"{out}: {len(pairs):,} pairs{spent}")
    cut = sum(answer.finish == "length" for answer in answers)
    if cut:
        console.say(f"{cut:,} of {len(answers):,} responses were cut at --max-tokens {args.max_tokens}")
    console.say(advice(out, args.axis, min(sum(pair["axis"] == axis for pair in pairs) for axis in args.axis)))
    if failed:
        some = "; ".join([f"{_short(prompt)}: {why}" for prompt, why in failed.items()][:5] + ["…"] * (len(failed) > 5))
        console.warn(
            f"{len(failed):,} prompt{'s' * (len(failed) > 1)} failed ({some}); type the same words again to retry"
        )
    return int(bool(failed))


def advice(out: Path, axes: tuple[str, ...], pairs: int) -> str:
    """How a run deals `pairs` on each axis so that no client lacks one in some fold, or how many more it takes."""
    from raypref.data.forms.styles import least_per_axis
    from raypref.data.synthetic import most_clients

    config, groups = DataConfig(axes=axes), 2 ** len(axes)
    clients = most_clients(pairs, functools.partial(least_per_axis, config), CLIENTS) // groups * groups
    said = []
    if clients < CLIENTS:
        more = (CLIENTS * least_per_axis(config, CLIENTS) - pairs) * len(axes)
        said.append(
            f"for {CLIENTS} clients: about {more:,} more prompts are needed, so that each has pairs in all folds"
        )
    if clients:
        flags = f"--data.source {out} --data.pairs-per-axis {pairs // clients}"
        flags += f" --data.axes {' '.join(axes)}" if axes != DataConfig().axes else ""
        if clients != CLIENTS or groups != len(DataConfig().group_sizes):
            flags += " --data.group-sizes" + f" {clients // groups}" * groups
        said.append(f"for {clients} clients: {flags}")
    return "\n".join(said)


def _pairs(
    prompts: Sequence[str], axis_of: Mapping[str, str], done: Mapping[Task, Answer], model: str
) -> Iterator[dict[str, Any]]:
    from raypref.data.synthetic import AXES

    for prompt in prompts:
        axis = axis_of[prompt]
        first, second = done.get((prompt, axis, 0)), done.get((prompt, axis, 1))
        if first and second:
            yield {
                "prompt": prompt,
                "axis": axis,
                "poles": list(AXES[axis]),
                "first": first.text,
                "second": second.text,
                "model": model,
            }


def _short(prompt: str) -> str:
    line = " ".join(prompt.split())
    return repr(line if len(line) <= 40 else line[:39] + "…")
