"""Wordings of the comparison prompt.

`hh` is S1, D.1.1 (line breaks ours: the paper's text does not show them); `tldr` puts the same question about two
summaries, as FedBiscuit does; `short` is for tiny bases with few tokens to spare.
"""

from __future__ import annotations

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
