"""What a judge says of a policy's responses beside the frozen base's: the value, its file, its table, what it lacks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from raypref.config import UserError
from raypref.evaluation.tables import Cell, Column, Table
from raypref.judges import responses
from raypref.judges.responses import Sections
from raypref.tools import checkpoint, console

FOLDER = "judgements"
"""Of a policy's folder, with a file a judge."""

Judgement = dict[str, Any]
"""What one judge says, as its file holds it: its name as `judge`, the `settings` that it depends on, and `sections`,
those of `raypref.judges.win_rate.summary` (or `raypref.judges.reward.summary`), each with the `axis`, the clients' true
group, and `unseen`; in a dry run there are none. `step` counts what it replaced: 0 for a judge's first. `calls` are
questions that were asked now, `cached` those answered before; `tokens` and `cost` (USD) are of both, whenever they were
paid. An endpoint's has also `failed`, questions without an answer (`why` one of them has none, `cut` so many of them
inside the model's thoughts), and `unreadable`, answers that say nothing (`unread` is one)."""


class Judge(Protocol):
    """A way to tell which of two responses is better, and its options (the fields)."""

    SAMPLES: ClassVar[int]
    """Comparisons a section where nobody says otherwise (S1 C.3.1, C.3.2); 0: all."""

    def judge(self, folder: Path, lines: Sections, seed: int) -> Judgement:
        """Its judgement of the comparisons of the policy in `folder`; seed: of the intervals."""


def judged(folder: Path, judge: Judge, samples: int | None = None, seed: int = 0) -> Judgement:
    """What a judge says of a policy's comparisons, of which `seed` draws at most `samples` a section (0: all; None: as
    many as the judge takes). Raises `UserError` for what a person can mend."""
    samples = judge.SAMPLES if samples is None else samples
    if samples < 0 or seed < 0:
        raise UserError(f"--samples is {samples} and --seed {seed}; neither may be negative")
    judgement = judge.judge(folder, responses.sections(responses.read(folder), samples, seed), seed)
    judgement["settings"] |= {"samples": samples, "seed": seed}
    return judgement


def spent(calls: int = 0, cached: int = 0, read: int = 0, written: int = 0, dollars: float = 0.0) -> dict[str, Any]:
    """What a judgement took."""
    return {"calls": calls, "cached": cached, "tokens": {"in": read, "out": written}, "cost": dollars}


def keep(folder: Path, judgement: Judgement) -> bool:
    """Write a judgement in place of the judge's earlier one, and say so where that was another; whether it was written.

    One that leaves comparisons out never takes the place of one that decided more, and one that leaves out all is none:
    `UserError`.
    """
    path = path_of(folder, judgement["judge"])
    old: Judgement | None = checkpoint.read_json(path) if path.exists() else None
    there = "" if old is None else f"the earlier judgement of {comparisons(old):,} comparisons"
    if not decided(judgement):
        why = f"no comparison has two answers that can be read, such as {judgement['unread']!r}"
        if judgement.get("failed"):
            why = f"{judgement['failed']:,} questions were not answered ({judgement['why']})"
        raise UserError(f"{judgement['judge']}: {why}; nothing was written{there and f', {there} stands'}")
    step = 0
    if old is not None:
        step = old.get("step", 0)
        step += {**old, "step": step} != {**judgement, "step": step}
        if decided(judgement) < min(decided(old), comparisons(judgement)):
            console.warn(f"{judgement['judge']}: {there} stands: it left out fewer (delete {path} to drop it)")
            return False
        new, was = judgement["settings"], old["settings"]
        if new != was or comparisons(old) != comparisons(judgement):
            other = ", ".join(f"{name} {was[name]}" for name in was if was[name] != new.get(name))
            console.note(f"{judgement['judge']}: replaces {there}{other and f' ({other})'}")
    checkpoint.write_json(path, judgement | {"step": step})
    return True


def comparisons(judgement: Judgement) -> int:
    """How many a judgement was asked for."""
    return sum(section["prompts"] for section in judgement["sections"])


def decided(judgement: Judgement) -> int:
    """How many of them were not left out."""
    return sum(len(section["scores"]) for section in judgement["sections"])


def path_of(folder: Path, judge: str) -> Path:
    """The file of a judgement."""
    return folder / FOLDER / f"{judge}.json"


def file_name(name: str) -> str:
    """`meta-llama/Llama-3:8b` -> `meta-llama-Llama-3-8b`."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "judge"


def remarks(judgement: Judgement) -> Iterable[str]:
    """A sentence for whatever makes the numbers less than they look."""
    sections = judgement["sections"]
    if failed := judgement.get("failed", 0):
        yield (
            f"{failed:,} questions were not answered ({judgement['why']}) and count as unread; type the same words "
            "again to ask for them alone"
        )
    if cut := judgement.get("cut", 0):
        yield f"{cut:,} answers were cut inside the model's thoughts; a larger --thinking asks for them alone"
    if unread := judgement.get("unreadable", 0):
        yield (
            f"{unread:,} answers say neither A, B nor tie, such as {judgement['unread']!r}; the same words ask for "
            "them again"
        )
    both = sum(section.get("both_read", 0) for section in sections)
    for position in "AB":
        always = sum(section.get(f"always_{position}", 0) for section in sections)
        if 2 * always > both:
            yield (
                f"in {always:,} of {both:,} comparisons the judge prefers response {position} in both orders, whosever "
                "it is: they count as ties and say nothing of the responses"
            )
    if without := sum(section["interval"] is None for section in sections):
        yield (
            f"{without} of {len(sections)} sections have no interval: with fewer than two clients, or scores that are "
            "all equal, redrawing them shows no spread"
        )


def table(judgement: Judgement) -> Table:
    """A row a section: win rate, or difference of reward scores, with its 95 % interval, and what it came from.

    Wins, losses, ties and what is left out add up to the prompts. Of a judge that is asked in two orders, also how many
    of its answers could not be read (or did not come), and on which share of the others its orders agree."""
    from raypref.evaluation.runs import ALL

    win = "win_rate" in judgement["sections"][0]
    shown = {
        "win_rate": Column("win rate %", "win rate \\%", scale=100, digits=1),
        "difference": Column("ours - theirs", "", digits=3),
        "ours": Column("ours", "ours", digits=3),
        "theirs": Column("theirs", "theirs", digits=3),
    }
    counts = (*(("wins", "losses", "ties", "left_out") if win else ()), "prompts", "clients")
    shown |= {name: Column(name.replace("_", " "), name.replace("_", " "), digits=0) for name in counts}
    if "failed" in judgement:
        shown["unparseable"] = Column("unread answers", "unread answers", digits=0)
        shown["agreement"] = Column("orders agree %", "orders agree \\%", scale=100, digits=1)
    shown = {name: column for name, column in shown.items() if name in judgement["sections"][0]}
    rows = []
    for section in judgement["sections"]:
        cells = [None if section[name] is None else Cell((float(section[name]),)) for name in shown]
        if cells[0] is not None and section["interval"] is not None:
            cells[0] = dataclasses.replace(cells[0], interval=tuple(section["interval"]))
        rows.append(tuple(cells))
    return Table(
        name=judgement["judge"],
        title=f"Fine-tuned against frozen, by {judgement['judge']}",
        corner="axis",
        columns=tuple(shown.values()),
        rows=tuple((s["axis"] or ALL) + ", unseen" * s["unseen"] for s in judgement["sections"]),
        cells=tuple(rows),
    )
