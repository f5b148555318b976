"""Errors that a person can mend, each of one line."""

from __future__ import annotations

import difflib
import typing

from raypref.tools.secrets import hidden


class UserError(Exception):
    """An error that a person can mend. The message is one line: what was wrong, what to do. Exit status 2.

    Secrets in it are hidden, for it is printed, logged and tracked."""

    def __init__(self, message: str = "") -> None:
        super().__init__(hidden(message))


class Lost(UserError):
    """A process or a machine that took part has ended; what was saved stands, and the work can go on from there.

    why: what ended, in words. displaced: the places that it had, reserved together, are not whole any more.
    """

    def __init__(self, why: str, displaced: bool = False) -> None:
        super().__init__(f"{why}; nothing finished is lost: run the same command again with --resume")
        self.why, self.displaced = why, displaced


class Stopped(Exception):
    """A run was ended on purpose before its last round, by whoever compares it with others or watches the clock. What
    was saved stands; nothing has failed."""


CLOSE = 0.6
"""Least share of letters that a word and what it was meant to be have in common, in order (`difflib`)."""


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """The end of a message about an unknown word: '; did you mean 'x'?', or else the list of known words."""
    options = sorted(known)
    tails = {option.lstrip("-").rsplit(".", 1)[-1]: option for option in options}
    last = word.lstrip("-").rsplit(".", 1)[-1]
    close = [tails[last]] if last in tails else difflib.get_close_matches(word, options, n=1, cutoff=CLOSE)
    close = close or [tails[m] for m in difflib.get_close_matches(last, tails, n=1, cutoff=CLOSE)]
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(options)}"
