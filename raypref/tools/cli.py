"""Command lines from dataclasses (tyro), with one line for every mistake."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro

from raypref.tools.errors import UserError, nearest

T = TypeVar("T")


def parse(kind: type[T], argv: Sequence[str], prog: str, default: T | None = None) -> T:
    """Parse `argv` into a value of the dataclass `kind`, starting from `default`.

    Raises `UserError` with one line on an unknown flag (naming the nearest) or a bad value; `--help` prints and exits.
    """
    words, printed = list(argv), io.StringIO()
    named = [word.split("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    for name, hint in _fields(kind):  # of one value the last counts, as everywhere; of several none should be lost
        if named.count(f"--{name}") > 1 and typing.get_origin(hint) is tuple:
            raise UserError(f"--{name} is given twice, and only the last would count; put all values behind one")
    start = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(printed):
            value, unknown = tyro.cli(kind, args=words, prog=prog, return_unknown_args=True, **start)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UserError(f"{_sentence(printed.getvalue())}; {prog} --help lists all") from None
    if unknown:
        word = next((w for w in unknown if w.startswith("-")), unknown[0]).split("=")[0]
        hint = nearest(word.replace("_", "-"), [f"--{name}" for name in flags(kind)]) if word.startswith("-") else ""
        raise UserError(f"unknown {'flag' if hint else 'argument'} {word!r}{hint}")
    return value


def flags(kind: Any, prefix: str = "") -> Iterator[str]:
    """The dotted flag names of a dataclass, as tyro spells them."""
    return (name for name, _ in _fields(kind, prefix))


def _fields(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The same with each one's type."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        bare = typing.get_args(hint)[0] if marks else hint
        shown = next((m.name for m in marks if getattr(m, "name", None) is not None), name)
        if dataclasses.is_dataclass(bare):
            yield from _fields(bare, f"{prefix}{shown}." if shown else prefix)
        elif "Positional" not in map(str, marks):
            yield f"{prefix}{shown}".replace("_", "-"), bare


def _sentence(box: str) -> str:
    """The message inside tyro's drawn box."""
    lines = []
    for line in box.splitlines():
        inside = line.strip("│╭╮╰╯ ").strip()
        if line.startswith(("╭", "╰")):
            continue
        if inside.startswith("─"):
            break
        lines.append(inside)
    text = re.sub(r"\s+", " ", " ".join(lines)).strip().rstrip(".")
    return text.removeprefix("Error parsing ") or "the command line could not be read"


def peek(argv: Sequence[str], flag: str) -> str:
    """The value of a flag that decides the defaults of all others."""
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return ""


def given(argv: Sequence[str]) -> set[str]:
    """The dotted names of the fields that a command line gives."""
    return {word[2:].split("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
