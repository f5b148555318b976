"""Takes the thoughts of reasoning models out of their answers, whichever family's marks they stand between."""

from __future__ import annotations

import re

MARKS = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, GLM, Phi-4, Granite 3.3, SmolLM3
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|channel|>analysis", "<|channel|>final<|message|>"),  # gpt-oss, as it is
    ("<unused94>thought", "<unused95>"),  # MedGemma
)
"""What thoughts begin and end with. Servers that know the model hand them over apart (`reasoning_content`), and then
none of it stands in the text."""
WRAPPED = re.compile(
    r"<(?P<tag>answer|response)>(.*)</(?P=tag)>|<\|begin_of_solution\|>(.*?)(?:<\|end_of_solution\|>)?"
    r"|<\|START_RESPONSE\|>(.*?)(?:<\|END_RESPONSE\|>)?|analysis.*assistantfinal(.*)",
    re.S,
)
"""What the rest may stand in: such models' own marks, the last one gpt-oss's where a server has left them out."""
BLOCK = re.compile("|".join(f"{re.escape(begin)}.*?(?:{re.escape(end)}|\\Z)" for begin, end in MARKS), re.S)
END = re.compile("|".join(re.escape(end) for _, end in MARKS))


def without_thoughts(text: str) -> str:
    """The answer alone: without blocks of thought, closed or cut, and without the marks around the rest."""
    rest = END.split(BLOCK.sub("", text))[-1].strip()  # some templates open the block in the prompt
    rest = re.sub(r"<\|(?:return|end)\|>\Z", "", rest)
    found = WRAPPED.fullmatch(rest)
    return next((part.strip() for part in found.groups()[1:] if part is not None), "") if found else rest


def ends_thinking(text: str, reasons: bool) -> bool:
    """Whether a text that was cut ends inside a thought: in an open block, or where the model is known to reason, in a
    text without any mark, whose block the template has opened."""
    blocks = [match[0] for match in BLOCK.finditer(text)]
    ended = bool(END.search(text))
    return not blocks[-1].endswith(tuple(end for _, end in MARKS)) if blocks else reasons and not ended
