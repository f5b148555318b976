"""The exact judge of the embedded benchmark: whose wish a response follows, counted by the phrases of its styles.

The benchmark makes a style known by phrases from that style's own pools (`raypref.data.synthetic.STYLES`), so that
counting them is the truth, not an opinion: no network, no randomness, and the order of two responses plays no role.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from raypref.config import UserError
from raypref.data.synthetic import STYLES, groups, members
from raypref.judges import win_rate
from raypref.judges.judgement import Judgement, spent
from raypref.judges.responses import Sections, configuration
from raypref.judges.win_rate import Verdict

Pole = tuple[str, int]
"""Axis, and which of its two poles."""


@dataclass(frozen=True)
class Style:
    """The judge; there is nothing to choose."""

    SAMPLES: ClassVar = 0  # counting costs nothing

    def judge(self, folder: Path, lines: Sections, seed: int) -> Judgement:
        """With the mean scores of both responses as `ours` and `theirs`."""
        data = configuration(folder).data
        wishes = data.graded.wishes if data.source == "graded" else ()
        sections = []
        for (group, unseen), section in lines.items():
            wished = wish(group, data.axes, wishes)
            scores = [(score(line.ours, wished), score(line.theirs, wished)) for line in section]
            verdicts = [(prefer(ours, theirs),) for ours, theirs in scores]
            ours, theirs = np.mean(scores, axis=0)
            numbers = win_rate.summary(verdicts, [line.client for line in section], seed, f"{group} {unseen}")
            sections.append({"axis": group, "unseen": unseen, **numbers, "ours": float(ours), "theirs": float(theirs)})
        return {"judge": "style", "settings": {"axes": list(data.axes)}, "sections": sections, **spent()}


@functools.cache
def _phrases() -> tuple[dict[str, Pole], str]:
    """Phrase -> its pole, and a pattern that finds the longest of them that begins at a place, at word boundaries.

    A phrase that two poles share, and the verbs that belong to none, count for nobody.
    """
    owners: dict[str, set[Pole]] = {}
    for pole, slots in STYLES.items():
        for phrase in (phrase for pool in slots.values() for phrase in pool):
            owners.setdefault(phrase, set()).add(pole)
    longest_first = sorted(owners, key=lambda phrase: (-len(phrase), phrase))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    return {phrase: poles.pop() for phrase, poles in owners.items() if len(poles) == 1}, pattern


def counts(text: str) -> Counter[Pole]:
    """How many phrases of every pole occur in a response; its first letter may be of either case."""
    owner, pattern = _phrases()
    text = text.strip()
    swapped = text[:1].swapcase() + text[1:]
    first = next(filter(None, (re.match(pattern, form) for form in (text, swapped))), None)
    phrases = [first[0]] if first else []
    phrases += re.compile(pattern).findall(text, first.end() if first else 0)
    return Counter(owner[phrase] for phrase in phrases if phrase in owner)


def shares(text: str) -> dict[Pole, float]:
    """Every pole's share of the phrases that occur in a response; they sum to 1, or are all 0 where there is none."""
    number = counts(text)
    return {pole: number[pole] / max(1, number.total()) for pole in STYLES}


def wishes(axes: Sequence[str], words: Sequence[str] = ()) -> dict[str, dict[str, int]]:
    """Group -> axis -> the pole that its members wish, for the names `G1`, … that groups of these axes have.

    words: what the groups wish, where it is not every pole of every axis (`data.graded.wishes`).
    """
    everyone = members([1] * len(groups(axes, words)), axes, words)
    return {group.split()[0]: poles for _, group, poles in everyone}


def wish(group: str, axes: Sequence[str], words: Sequence[str] = ()) -> dict[str, int]:
    """Axis -> wished pole of a group, such as `G2` or `G2 elementary/non-humorous`. Raises `UserError` for another."""
    known = wishes(axes, words)
    name = (group.split() or [""])[0]
    if name not in known:
        raise UserError(
            f"group {group!r} is none of the embedded benchmark's ({', '.join(known)}), whose styles this judge "
            "counts; take --by endpoint or --by reward"
        )
    return known[name]


def score(text: str, wish: Mapping[str, int]) -> float:
    """Share of the phrases in the wished poles minus share in their opposites, in [-1, 1]; 0 where there is none.

    Over all phrases that occur: those of an axis that the group has no wish on count in the denominator alone.
    """
    number = counts(text)
    wished = sum(number[axis, pole] - number[axis, 1 - pole] for axis, pole in wish.items())
    return wished / max(1, number.total())  # of whole numbers: equal shares compare equal


def prefer(ours: float, theirs: float) -> Verdict:
    """By the higher score; a tie where they are equal."""
    return "tie" if ours == theirs else "ours" if ours > theirs else "theirs"
