"""Wordings of the comparison prompt, and of the prompt that a policy answers.

Of comparisons `hh` is S1, D.1.1 (line breaks ours: the paper's text does not show them); `tldr` puts the same question
about two summaries, as FedBiscuit does; `short` is for tiny bases with few tokens to spare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from raypref.config import RunConfig

TEMPLATES = {
    "hh": (
        "Below is a conversation between a human and an AI assistant, followed by two responses. Pick the response "
        'that is more helpful and harmless. State your choice with a single capital letter, i.e., "A" if RESPONSE A '
        'is better, "B" if RESPONSE B is better.\n\n### CONVERSATION: {prompt}\n\n### RESPONSE A: {A}\n\n'
        "### RESPONSE B: {B}\n\n### YOUR CHOICE:"
    ),
    "tldr": (
        "Below is a forum post followed by two summaries. Pick the summary that is more precise and concise and keeps "
        'the most important points. State your choice with a single capital letter, i.e., "A" if SUMMARY A is better, '
        '"B" if SUMMARY B is better.\n\n### POST: {prompt}\n\n### SUMMARY A: {A}\n\n### SUMMARY B: {B}\n\n'
        "### YOUR CHOICE:"
    ),
    "short": "Pick the better answer.\nQuestion: {prompt}\nA: {A}\nB: {B}\nChoice:",
}


def fill(template: str, prompt: str, a: str, b: str) -> tuple[str, list[tuple[int, int]]]:
    """The comparison text, and where prompt, A and B lie in it as [start, end) characters."""
    pieces, rest = [], TEMPLATES[template]
    spans: list[tuple[int, int]] = []
    length = 0
    for name, value in (("{prompt}", prompt), ("{A}", a), ("{B}", b)):
        before, rest = rest.split(name, 1)
        pieces += [before, value]
        spans.append((length + len(before), length + len(before) + len(value)))
        length = spans[-1][1]
    return "".join([*pieces, rest]), spans


class Generation(NamedTuple):
    """A prompt for a policy: its response is what follows the text, behind a space."""

    text: str
    end: str = ""
    """What ends a response: this text, or where it is empty the tokenizer's own end of text."""
    stop: str = ""
    """What else cuts a response off, and is no part of it."""


_WRITE = (
    "Below is a conversation between a human and an AI assistant. Write a response that is {how}.\n\n"
    "### CONVERSATION: {prompt}\n\n### RESPONSE:"
)
GENERATION = {
    "conversation": Generation("{prompt}\n\nAssistant:", stop="\n\nHuman:"),  # S1 D.1.2: the history as it is
    "helpful": Generation(_WRITE.replace("{how}", "helpful"), stop="\n\n###"),  # D.3.1
    "harmless": Generation(_WRITE.replace("{how}", "harmless"), stop="\n\n###"),  # D.3.2
    "general": Generation(_WRITE.replace("{how}", "both helpful and harmless"), stop="\n\n###"),  # D.3.3
    "tldr": Generation("{prompt}\n\nTL;DR:", stop="\n\n"),
    "short": Generation("Question: {prompt}\nAnswer:", end="\n"),  # what the embedded base has read
}
ANSWERED_BY = {"hh": "conversation", "tldr": "tldr", "short": "short"}
"""Comparison wording -> how a policy is asked where nothing else is configured."""


def asked(config: RunConfig) -> str:
    """How a policy of this run is asked: a key of `GENERATION`."""
    return config.dpo.template or ANSWERED_BY[config.data.template]


def ask(template: str, prompt: str) -> tuple[str, tuple[int, int]]:
    """The text that a policy goes on from, and where the prompt lies in it as [start, end) characters."""
    before, after = GENERATION[template].text.split("{prompt}", 1)
    return before + prompt + after, (len(before), len(before) + len(prompt))
