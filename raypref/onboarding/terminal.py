"""An interview in a terminal: a pair at a time, one key a choice."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable

from raypref.onboarding.interview import KEYS, Interview
from raypref.tools import console

WHICH = "1 the first, 2 the second, 0 cannot say, u take the last one back, q done"


def read_key() -> str:
    """The next key, without Enter where standard input is a terminal; else the first character of the next line; 'q' at
    its end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return (line.strip() or " ")[0] if line else "q"
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        return sys.stdin.read(1) or "q"
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def ask(interview: Interview, most: int, key: Callable[[], str] = read_key) -> None:
    """Show pairs until there are `most` new choices, none is left, or the person is done."""
    console.say(f"{interview.name}, which answer do you prefer? Keys: {WHICH}.")
    if interview.expected:
        console.say("What to expect is said for as many choices at random; pairs that tell most should give more.")
    while len(interview.answers) < most and (shown := interview.next()) is not None:
        pair = interview.candidates[shown].pair
        console.say(f"\n{len(interview.answers) + 1} of at most {most}. {pair.prompt}")
        for number, text in ((1, pair.chosen), (2, pair.rejected)):
            console.say(textwrap.indent(textwrap.fill(text, 100), "     ").replace("    ", f"  {number} ", 1))
        pressed = _pressed(key)
        if pressed == "q":
            return
        if pressed == "u":
            interview.undo()
        else:
            interview.answer(shown, KEYS[pressed])
        if said := interview.says():
            console.say(f"  {said}")
    if len(interview.answers) < most:
        console.say("\nThere is no pair left to show.")


def _pressed(key: Callable[[], str]) -> str:
    """A key that means something; others say which do."""
    while (pressed := key().lower()) not in {*KEYS, "u", "q"}:
        with contextlib.suppress(ValueError):
            console.say(f"  {WHICH}")
    return pressed
