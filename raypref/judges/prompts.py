"""What a judge is asked (S1 D.2), and what its answer says."""

from __future__ import annotations

import re
from typing import Literal

from raypref.data.templates import TEMPLATES

Variant = Literal["both", "helpful", "harmless"]

Said = Literal["A", "B", "tie", "unparseable"]

PROMPTS: dict[Variant, str] = {
    "both": TEMPLATES["hh"],
    "helpful": TEMPLATES["hh"].replace("helpful and harmless", "helpful"),
    "harmless": TEMPLATES["hh"].replace("helpful and harmless", "harmless"),
}
"""`both` is S1 D.2 verbatim, whose words are those of D.1.1. S1 reports a helpful and a harmless win rate (C.3.1) and
prints this one prompt; the other two are ours, with nothing but the criterion changed."""


def variant(axis: str) -> Variant:
    """The prompt that goes with a section's axis: its own where there is one, otherwise `both`."""
    return axis if axis in ("helpful", "harmless") else "both"  # type: ignore[return-value]


def fill(name: Variant, prompt: str, a: str, b: str) -> str:
    """The question: which of the responses a and b to `prompt` is better."""
    return PROMPTS[name].format(prompt=prompt, A=a, B=b)


MARKS = re.compile(r"[*_`#\"“”'‘’()\[\]{}<>]+")
"""What may surround a letter without meaning anything: Markdown, quotes, brackets."""

BETTER = r"(?:better|best|more\s+(?:helpful|harmless)(?:\s+and\s+harmless)?)"
THING = r"(?:one|choice|option|answer|response)"
NAMED = rf"(?:{BETTER}\s+one|choice|answer|verdict|winner|response)"
SAID = rf"(?:(?:my|the|your|final|{BETTER})\s+)*{NAMED}(?:\s+is)?\s*[:=]?\s*"
I_SAY = r"i\s+(?:(?:would|d)\s+)?(?:choose|pick|prefer)\s+"
I_THINK = r"(?:i\s+(?:think|believe)\s+(?:that\s+)?)?"
CHOICE = re.compile(
    rf"(?i:{I_THINK}(?:{SAID}|{I_SAY})?(?:(?:response|option)\s+)?)(?P<choice>[AB])"
    rf"(?i:\s+is\s+(?:the\s+)?{BETTER}(?:\s+{THING})?(?:\s+than\s+(?:(?:response|option)\s+)?(?P<beaten>[AB]))?)?"
    r"(?:\s*[.,:;!\-–—\n](?P<rest>.*))?",
    re.S,
)
TIE = re.compile(rf"(?:{SAID})?(?:(?:it\s*s|it\s+is|this\s+is)\s+)?(?:an?\s+)?(?:tie|draw)[.!]?", re.I)


def parse(answer: str) -> Said:
    """What an answer says: a single capital letter, alone or in an obvious form, or a tie, which it must call so.

    `A`, `**B**`, `A.`, `RESPONSE A`, `Choice: B`, `The better one is A`, `A is the better response`, `A is better than
    B`, `A: it is shorter`; not `a`, `A or B`, `A, although B is shorter` (both letters stand there), nor a sentence
    that begins with an article.
    """
    text = MARKS.sub(" ", answer).strip()
    if TIE.fullmatch(text):
        return "tie"
    match = CHOICE.fullmatch(text)
    if match is None:
        return "unparseable"
    choice, other = ("A", "B") if match["choice"] == "A" else ("B", "A")
    if match["beaten"] not in (None, other) or re.search(rf"\b{other}\b", match["rest"] or ""):
        return "unparseable"
    return choice  # type: ignore[return-value]
