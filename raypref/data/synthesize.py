"""`python -m raypref.data synthesize`: the paper's synthetic pairs from any prompts (S2 2.3), by a language model.

Two candidate responses a prompt, one in each style of an axis, from an OpenAI-compatible endpoint; the result has no
people in it: a run deals the pairs to clients (`raypref.data.forms.styles`). Every response is written to a journal,
and to the disk, as it comes, so that whatever ends a run costs at most what was in flight.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from raypref.config import DataConfig, UserError, nearest
from raypref.data import sources
from raypref.data.readers import READERS, explained, lines, suffix
from raypref.data.rows import Losses, Unusable, columns_of, shortened
from raypref.endpoints.client import CUT, Client, Estimate, Service, check, cost, estimate
from raypref.endpoints.retries import Again, Retries, address, ask_all
from raypref.endpoints.store import Store
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
class Synthesize(Service):
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
    limit: int = 0
    """Take the first prompts only; 0: all."""
    max_tokens: int = 256
    """Most tokens of a response; of a model that reasons, after its --thinking."""
    temperature: float = 1.0
    concurrency: int = 8
    """Most requests in flight."""
    yes: bool = False
    """Go on without asking."""


def synthesize(args: Synthesize) -> int:
    """Make pairs in opposed styles from prompts. Exit status 0, or 1 where prompts failed or the person said no."""
    check(args, limit=0, max_tokens=1, temperature=0, concurrency=1)
    if not args.axis or len(set(args.axis)) < len(args.axis):
        raise UserError(f"--axis is {' '.join(args.axis)!r}; name one or more of {', '.join(INSTRUCTIONS)}, each once")
    if not args.out.endswith(".jsonl"):
        raise UserError(f"--out is {args.out!r}; it must end in .jsonl, by which it is read later")
    prompts, left_out = read_prompts(args.prompts)
    prompts = prompts[: args.limit or None]
    out = Path(args.out).expanduser()
    base, key = address(keyless=args.dry_run)
    with journal(out, settings(args), write=not args.dry_run) as store:
        axis_of = deal_axes(prompts, args.axis, {prompt: axis for prompt, axis, _ in store.answers})
        tasks = [(prompt, axis_of[prompt], pole) for prompt in prompts for pole in (0, 1)]
        missing = [task for task in tasks if not text(store, task)]

        for reason, number in left_out.items():
            console.say(f"{args.prompts}: {number:,} left out, {reason}")
        shares = collections.Counter(axis_of.values())
        on_axes = ", ".join(f"{shares[axis]:,} on {axis}" for axis in args.axis)
        console.say(f"{len(prompts):,} prompts, two responses each: {on_axes}")
        if store.dropped:
            console.say(f"{store.path}: {store.dropped:,} half-written lines dropped")
        console.say(f"{len(tasks) - len(missing):,} responses are there, {len(missing):,} to ask of {args.model}")
        if missing:
            console.say(f"at {base}/chat/completions\nestimate: {estimated(missing, args).sentence(args)}")
        if args.dry_run:
            return 0
        if missing and not args.yes and not _agreed():
            console.say("nothing was asked")
            return 1
        failed = ask_for(missing, Client(base, key, args, args.max_tokens, args.temperature), store, args)
        write(list(_pairs(axis_of, store, args.model)), store, out, args)
    if failed:
        failures = [f"{_quoted(prompt)}: {why}" for prompt, why in failed.items()]
        listed = "; ".join(failures[:5]) + "; …" * (len(failures) > 5)
        console.warn(
            f"{len(failed):,} prompt{'s' * (len(failed) > 1)} failed ({listed}); type the same words again to retry"
        )
        if cut := sum(CUT in why for why in failed.values()):
            console.warn(
                f"{cut:,} of them were cut inside the model's thoughts; a larger --thinking asks for them alone"
            )
    return int(bool(failed))


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UserError("nobody is there to be asked whether to go on; give --yes (or --dry-run, to estimate only)")
    print("Go on? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def read_prompts(name: str) -> tuple[list[str], dict[str, int]]:
    """The distinct prompts of a file or of a hub's data set, in its order, and how many were left out, by reason.

    Raises `UserError` for what cannot be read, has no such column, or holds no prompt.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name one file of prompts")
    if not path.exists() and (path.suffix == ".txt" or not HUB_ID.fullmatch(name)):
        raise UserError(f"{path}: there is no such file")
    values: list[Any]
    if path.is_file() and suffix(path) not in READERS:
        with explained(path):
            values = [line for line in lines(path) if line.strip()]
    else:
        tables = sources.tables(name)
        columns = columns_of(tables)
        if "prompt" not in columns:
            hint = nearest("prompt", columns) if columns else ""
            raise UserError(f"{name} has no column 'prompt'{hint}; rename the one that holds the prompts")
        values = [row if isinstance(row, Unusable) else row.get("prompt") for row in sources.rows_of(tables)]
    losses = Losses()
    prompts: dict[str, None] = {}
    for value in values:
        prompt = value.strip() if isinstance(value, str) else ""
        if isinstance(value, Unusable):
            losses.add(value)
        elif not prompt:
            losses.add(Unusable("no text"))
        elif prompt in prompts:
            losses.add(Unusable("the same as another"))
        else:
            prompts[prompt] = None
    if not prompts:
        raise UserError(f"{name}: it holds no prompts")
    return list(prompts), losses.reasons()


def deal_axes(prompts: Sequence[str], axes: Sequence[str], earlier: Mapping[str, str]) -> dict[str, str]:
    """Give each prompt an axis, in numbers equal up to one (S2 2.3: 26K prompts an axis).

    Prompts in the order of their hashes each take the axis that has the fewest, the first of several; `earlier` ones
    stay where they are, so that a file that has grown does not make paid responses useless.
    """
    axis_of = {prompt: earlier[prompt] for prompt in prompts if prompt in earlier}
    count = collections.Counter(axis_of.values())
    for prompt in sorted(set(prompts) - set(axis_of), key=_hash):
        axis_of[prompt] = min(axes, key=count.__getitem__)
        count[axis_of[prompt]] += 1
    return {prompt: axis_of[prompt] for prompt in prompts}


def settings(args: Synthesize) -> dict[str, Any]:
    """The settings that all responses in one journal must share."""
    wording = [INSTRUCTIONS[axis] for axis in sorted(args.axis)]
    return {
        "model": args.model,
        "temperature": args.temperature,
        "max_tokens": args.max_tokens,  # not --thinking: whoever was cut is asked again with more
        "axis": sorted(args.axis),
        "instructions": _hash(json.dumps([COMMON, wording])).hex()[:8],
    }


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def instruction(axis: str, pole: int) -> str:
    """What the model is told before a prompt."""
    return f"{COMMON} {INSTRUCTIONS[axis][pole]}"


def estimated(tasks: Collection[Task], args: Synthesize) -> Estimate:
    """What `tasks` may cost."""
    return estimate((len(p) + len(instruction(axis, pole)) for p, axis, pole in tasks), args.max_tokens, args)


def journal(out: Path, settings: Mapping[str, Any], write: bool = True) -> Store:
    """Where the responses of a file of pairs are kept, by task.

    Raises `UserError` as `Store` does, and where the pairs are there without it.
    """
    path = out.with_name(out.name + ".journal")
    if write and out.exists() and not path.exists():
        raise UserError(f"{out} is there already, without {path.name}; give another --out")
    return Store(path, ("prompt", "axis", "pole"), "--out", settings, write)


def text(store: Store, task: Task) -> str:
    """A response; '' where it is not there, or where earlier versions kept no more than a thought of the model."""
    return store.answers[task].text if task in store.answers else ""


def ask_for(tasks: Sequence[Task], client: Client, store: Store, args: Synthesize) -> dict[str, str]:
    """Ask for all of them and keep what comes; prompt -> why it failed."""

    def ask(task: Task) -> None:
        prompt, axis, pole = task
        system = {"role": "system", "content": instruction(axis, pole)}
        answer = client.ask([system, {"role": "user", "content": prompt}], _quoted(prompt))
        if not answer.text:
            raise Again("an empty text")
        store.add(task, answer)

    retries = Retries[Task](ask, args.attempts, args.backoff)
    failed = ask_all(tasks, retries, args.concurrency, client.url, "responses", len(store.answers))
    return {prompt: why for (prompt, *_), why in failed.items()}


def _pairs(axis_of: Mapping[str, str], store: Store, model: str) -> Iterator[dict[str, Any]]:
    """The rows of the prompts whose two responses are there."""
    from raypref.data.synthetic import AXES

    for prompt, axis in axis_of.items():
        first, second = (text(store, (prompt, axis, pole)) for pole in (0, 1))
        if first and second:
            row = {"prompt": prompt, "axis": axis, "poles": list(AXES[axis]), "first": first, "second": second}
            yield {**row, "model": model}


def write(pairs: list[dict[str, Any]], store: Store, out: Path, args: Synthesize) -> None:
    """Write the pairs, and say what there is and what to do with it."""
    if store.answers:  # or the journal goes, and the file without it would be in the next run's way
        part = out.with_name(out.name + ".part")
        part.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        os.replace(part, out)
    answers = store.answers.values()
    tokens_in, tokens_out = sum(a.tokens_in for a in answers), sum(a.tokens_out for a in answers)
    dollars = cost(tokens_in, tokens_out, args)
    usage = f"; {tokens_in:,} tokens in and {tokens_out:,} out for the answers kept, about ${dollars:,.2f}"
    console.say(f"{out}: {len(pairs):,} pairs{usage if tokens_in else ''}")
    cut = sum(answer.finish == "length" for answer in answers)
    if cut:
        console.say(f"{cut:,} of {len(answers):,} responses were cut at --max-tokens {args.max_tokens}")
    console.say(advice(out, args.axis, min(sum(pair["axis"] == axis for pair in pairs) for axis in args.axis)))


def advice(out: Path, axes: tuple[str, ...], pairs: int) -> str:
    """How a run deals `pairs` on each axis so that no client lacks one in some fold, or how many more it takes."""
    from raypref.data.forms.styles import least_per_axis, most_clients

    config, groups = DataConfig(axes=axes), 2 ** len(axes)
    clients = most_clients(config, pairs, CLIENTS) // groups * groups
    sentences = []
    if clients < CLIENTS:
        lacking = (CLIENTS * least_per_axis(config, CLIENTS) - pairs) * len(axes)
        sentences.append(
            f"for {CLIENTS} clients: about {lacking:,} more prompts are needed, so that each has pairs in all folds"
        )
    if clients:
        flags = f"--data.source {out} --data.pairs-per-axis {pairs // clients}"
        flags += f" --data.axes {' '.join(axes)}" if axes != DataConfig().axes else ""
        if clients != CLIENTS or groups != len(DataConfig().group_sizes):
            flags += " --data.group-sizes" + f" {clients // groups}" * groups
        sentences.append(f"for {clients} clients: {flags}")
    return "\n".join(sentences)


def _quoted(prompt: str) -> str:
    return repr(shortened(" ".join(prompt.split())))
