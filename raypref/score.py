"""`python -m raypref.score RUN --client ID PAIRS`: which of two responses a client prefers, by its selector."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from raypref import checkpoint, console
from raypref.cli import parse
from raypref.config import RunConfig, UserError, from_dict

if TYPE_CHECKING:
    import torch

    from raypref.data.federation import Pair


@dataclass(frozen=True)
class Options:
    """Judge the pairs of a file as a client of a finished run would: a margin each, above 0 where it prefers the first
    response, averaged over both orders."""

    run: tyro.conf.Positional[str] = ""
    """A stage-1 run: its folder, or its MLflow run id."""
    pairs: tyro.conf.Positional[str] = ""
    """A JSONL, JSON, CSV or Parquet file, or a folder of them."""
    client: str = ""
    """Whose selector."""
    at: Literal["personalized", "initialization"] = "personalized"
    """After the client's local steps, or before any."""
    prompt_column: str = "prompt"
    first_column: str = "chosen"
    second_column: str = "rejected"
    out: Path | None = None
    """Write a line a pair here, as JSONL: prompt, first, second, margin. Left out: to standard output."""
    base: str = ""
    """The base, where it does not lie where the run had it: a folder or a hub id."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv or ["--help"], "python -m raypref.score")
    if not options.run or not options.pairs:
        raise UserError("RUN and PAIRS come first: python -m raypref.score RUN PAIRS --client ID")

    from raypref import locate
    from raypref.data.load import Unusable, extract
    from raypref.generate import position
    from raypref.models.identity import check_base

    folder = locate.stage1(options.run)
    result, config = (
        checkpoint.read_json(folder / "result.json"),
        from_dict(checkpoint.read_json(folder / "config.json")),
    )
    if options.base:
        config = replace(config, model=replace(config.model, base=options.base))
    c = position(options.client, result["clients"])
    check_base(config.model.base, result.get("base", ""), options.run)
    pairs: list[Pair] = []
    left: dict[str, int] = {}
    for row in rows(options):
        try:
            pairs.append(extract(*row))
        except Unusable as error:
            left[str(error)] = left.get(str(error), 0) + 1
    if not pairs:
        raise UserError(f"{options.pairs} holds no usable pair ({told(left) or 'it is empty'})")
    margins, fit = judged(folder, config, result, c, options, pairs)
    if not all(fit):
        left["longer than data.max_length, or alike in tokens"] = fit.count(False)
    lines = [
        {"prompt": pair.prompt, "first": pair.chosen, "second": pair.rejected, "margin": margin}
        for pair, margin, usable in zip(pairs, margins, fit, strict=True)
        if usable
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if options.out is None:
        console.say(text.rstrip("\n"))
    else:
        checkpoint.write_bytes(options.out.expanduser().absolute(), text.encode())
    first = sum(line["margin"] > 0 for line in lines)
    summary = f"{options.client} prefers the first response in {first} of {len(lines)} pairs"
    console.note(summary + (f"; left out: {told(left)}" if left else ""))
    return 0


def rows(options: Options) -> Any:
    """(prompt, first, second) of every row. Raises `UserError` on a missing column."""
    from raypref.data import sources

    names = (options.prompt_column, options.first_column, options.second_column)
    for table in sources.tables(options.pairs):
        missing = [name for name in names if name not in table.columns]
        if missing:
            flag = ("--prompt-column", "--first-column", "--second-column")[names.index(missing[0])]
            raise UserError(f"{table.name} has no column {missing[0]!r} but {', '.join(table.columns)}; set {flag}")
        yield from ([row.get(name) for name in names] for row in table.rows())


def told(left: dict[str, int]) -> str:
    """`2 chosen equals rejected, 1 no response`."""
    return ", ".join(f"{count} {why}" for why, count in sorted(left.items()))


def judged(
    folder: Path, config: RunConfig, result: dict[str, Any], c: int, options: Options, pairs: list[Pair]
) -> tuple[list[float], list[bool]]:
    """Margins of the pairs by client c's row (and z), and which of them could be judged."""
    import torch

    from raypref.clients.worker import Worker
    from raypref.data.encode import Counts, choice_tokens, concatenate, wording
    from raypref.models.selector import load_tokenizer, pad_id

    tokenizer = load_tokenizer(config.model.base)
    choice_ids = () if config.objective == "dpo" else choice_tokens(tokenizer, config.data.template)
    worker = Worker(config, {}, choice_ids, pad_id(tokenizer))
    z = None
    if config.objective == "variational":
        name = "personalized_mu" if options.at == "personalized" else "mu"
        if name not in result["probes"]:
            raise UserError(f"{options.run} is of an earlier version, which did not keep its clients' z; run it again")
        z = torch.tensor(result["probes"][name][c])
    row = client_row(folder, config, worker.layout, result["clients"], c, options.at)
    encode, template = wording(config)
    folds = [encode([pair], tokenizer, template, config.data.max_length, Counts()) for pair in pairs]
    fit = [fold.pairs == 1 for fold in folds]
    if not any(fit):
        return [0.0] * len(pairs), fit
    found = iter(worker.loss.judge(row, concatenate([f for f in folds if f.pairs]), z).mean(-1).tolist())
    return [next(found) if usable else 0.0 for usable in fit], fit


def client_row(folder: Path, config: RunConfig, layout: Any, ids: list[str], c: int, at: str) -> torch.Tensor:
    """[D] what client c had, from the run's folder or from its adapters."""
    from raypref.models.peft_io import import_peft
    from raypref.results import safe_name

    if at == "initialization" and (folder / "initialization.safetensors").exists():
        rows = checkpoint.load(folder / "initialization.safetensors")[0]["rows"]
        return rows if rows.dim() == 1 else rows[c]
    for file in sorted((folder / "clients").glob("*.safetensors")) if at == "personalized" else ():
        part = checkpoint.load(file)[0]
        where = (part["clients"] == c).nonzero()
        if len(where):
            return part["rows"][int(where[0, 0])]
    place = folder / "adapters" / at / safe_name(ids[c])
    if at == "initialization" and not place.is_dir():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"{folder} holds no adapters; run it again without --no-adapters, or name its own folder")
    return import_peft(place, layout, config.model)


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
