"""`python -m raypref.score RUN --client ID PAIRS`: which of two responses a client prefers, by its selector."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from raypref.config import RunConfig, UserError, read_config, registry
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse

if TYPE_CHECKING:
    from raypref.data.federation import Pair


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
    first_column: str = "chosen"
    second_column: str = "rejected"
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
    from raypref.models.identity import check_base
    from raypref.storage import locate, people

    folder = locate.stage1(options.run)
    result, config = checkpoint.read_json(folder / "result.json", "clients"), read_config(folder)
    if options.base:
        config = replace(config, model=replace(config.model, base=options.base))
    if not people.find(folder, options.client):
        known = [*result["clients"], *people.names(folder)]
        locate.position(options.client, known, "a pair is scored by its selector")
    check_base(config.model.base, result.get("base", ""), options.run)
    pairs, left = pairs_of(
        options.pairs,
        {
            "--prompt-column": options.prompt_column,
            "--first-column": options.first_column,
            "--second-column": options.second_column,
        },
    )
    scores = scored(folder, config, result, options, [pair for _, pair in pairs]) if pairs else []
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


def scored(
    folder: Path, config: RunConfig, result: dict[str, Any], options: Options, pairs: list[Pair]
) -> list[tuple[float | None, str]]:
    """The margin of each pair by a client's or a person's row (and z), and what it lost; None and why, where it has no
    margin."""
    from raypref.clients.worker import Worker
    from raypref.data.encode import concatenate, encode_each
    from raypref.models.selector import load_tokenizer, pad_id
    from raypref.storage import locate, people, rows

    whose = people.find(folder, options.client)
    tokenizer = load_tokenizer(config.model.base)
    objective = registry.objective(config.objective)
    worker = Worker(config, {}, objective.choice_ids(tokenizer, config), pad_id(tokenizer))
    if whose:
        row, z = whose.row, whose.z
    else:
        c = locate.position(options.client, result["clients"], "a pair is scored by its selector")
        z = rows.client_z(result, c, options.at, options.run) if objective.latent_width(config) else None
        row = rows.client_row(folder, config, worker.layout, result["clients"], c, options.at)
    rows.check_row(row, worker.layout, folder, options.client)
    fits = encode_each(pairs, tokenizer, objective.encoding(config), config.data.max_length)
    usable = [fit.fold for fit in fits if fit.fold]
    margins = iter(worker.margins(row[None], concatenate(usable), z)[0].mean(-1).tolist() if usable else [])
    return [(next(margins) if fit.fold else None, fit.why) for fit in fits]


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
