"""`python -m raypref.score RUN --client ID PAIRS`: which of two responses a client prefers, by its selector."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from raypref.config import UserError
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse


@dataclass(frozen=True)
class Options:
    """Score the pairs of a file as a client of a finished run would: a margin each, above 0 where it prefers the first
    response, averaged over both orders."""

    run: tyro.conf.Positional[str] = ""
    """A stage-1 run: its folder, or its MLflow run id."""
    pairs: tyro.conf.Positional[str] = ""
    """A JSONL, JSON, CSV or Parquet file, or a folder of them."""
    client: str = ""
    """Whose selector: a client of the run, or a person that `python -m raypref.onboard` made known to it."""
    at: Literal["personalized", "initialization"] = "personalized"
    """After the client's local steps, or before any; of a person there is only one."""
    prompt_column: str = "prompt"
    first_column: Annotated[str, tyro.conf.arg(aliases=("--chosen-column",))] = "chosen"
    second_column: Annotated[str, tyro.conf.arg(aliases=("--rejected-column",))] = "rejected"
    out: Path | None = None
    """Write a line a pair here, as JSONL: row (counted in its file from 1), prompt, first, second, margin; of several
    files also file. Left out: to standard output."""
    base: str = ""
    """The base, where it does not lie where the run had it: a folder or a hub id."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv or ["--help"], "python -m raypref.score")
    if not options.run or not options.pairs:
        raise UserError("RUN and PAIRS come first: python -m raypref.score RUN PAIRS --client ID")
    out = destination(options.out)

    from raypref.data.places import by_reason, pairs_of
    from raypref.storage import locate
    from raypref.storage.selectors import Selectors

    selectors = Selectors(locate.stage1(options.run), options.base)
    selectors.check(options.client)
    pairs, left = pairs_of(
        options.pairs,
        {
            "--prompt-column": options.prompt_column,
            "--first-column": options.first_column,
            "--second-column": options.second_column,
        },
    )
    scores = selectors.margins(options.client, [pair for _, pair in pairs], options.at) if pairs else []
    lines, cut = [], []
    for (place, pair), (margin, why) in zip(pairs, scores, strict=True):
        if margin is None:
            left.append((place, why))
            continue
        texts = {"prompt": pair.prompt, "first": pair.chosen, "second": pair.rejected}
        lines.append(place.line | texts | {"margin": margin})
        if why:
            cut.append((place, why))
    if not lines:
        raise UserError(f"{options.pairs} holds no usable pair: {by_reason(left)}")
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if out is None:
        console.say(text.rstrip("\n"))
    else:
        checkpoint.write_bytes(out, text.encode())
    first = sum(line["margin"] > 0 for line in lines)
    console.note(f"{options.client} prefers the first response in {first} of {len(lines)} pairs")
    if left:
        console.note(f"left out: {by_reason(left)}")
    if cut:
        console.note(f"note: {by_reason(cut)}")
    return 0


def destination(out: Path | None) -> Path | None:
    """The absolute path of --out. Raises `UserError` where it cannot be written, before anything is scored."""
    if out is None:
        return None
    path = out.expanduser().absolute()
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give a file")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--out {path}: the folder is not writable; choose another")
    return path


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
