"""`python -m raypref.score RUN --client ID PAIRS`: which of two responses a client prefers, by its selector."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import tyro

from raypref.config import RunConfig, UserError, read_config, registry
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse

if TYPE_CHECKING:
    import torch

    from raypref.data.federation import Pair
    from raypref.data.rows import Unusable


NAMED = 5
"""Most row numbers that a note names for each reason."""


@dataclass(frozen=True)
class Options:
    """Score the pairs of a file as a client of a finished run would: a margin each, above 0 where it prefers the first
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

    from raypref.data.forms.pairs import extract
    from raypref.data.rows import Unusable
    from raypref.models.identity import check_base
    from raypref.storage import locate

    folder = locate.stage1(options.run)
    result, config = checkpoint.read_json(folder / "result.json", "clients"), read_config(folder)
    if options.base:
        config = replace(config, model=replace(config.model, base=options.base))
    c = locate.position(options.client, result["clients"], "a pair is scored by its selector")
    check_base(config.model.base, result.get("base", ""), options.run)
    pairs: list[tuple[Place, Pair]] = []
    left: list[tuple[Place, str]] = []
    for place, texts in rows(options):
        try:
            if isinstance(texts, Unusable):
                raise texts
            pairs.append((place, extract(*texts)))
        except Unusable as error:
            left.append((place, str(error)))
    scores = scored(folder, config, result, c, options, [pair for _, pair in pairs]) if pairs else []
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


class Place(NamedTuple):
    """The row of a pair, and its file where there are several."""

    number: int
    """In its file, from 1; a header and empty lines are no rows."""
    file: str = ""
    """Empty where there is only one."""

    @property
    def line(self) -> dict[str, Any]:
        """The fields that its line of output begins with."""
        return ({"file": self.file} if self.file else {}) | {"row": self.number}

    def __str__(self) -> str:
        return f"{self.number} of {self.file}" if self.file else str(self.number)


def rows(options: Options) -> Iterator[tuple[Place, list[Any] | Unusable]]:
    """Every row's [prompt, first, second], or why it could not be read. Raises `UserError` on a missing column."""
    from raypref.data import sources
    from raypref.data.rows import Unusable

    names = (options.prompt_column, options.first_column, options.second_column)
    tables = sources.tables(options.pairs)
    for table in tables:
        missing = [name for name in names if name not in table.columns]
        if missing:
            flag = ("--prompt-column", "--first-column", "--second-column")[names.index(missing[0])]
            raise UserError(f"{table.name} has no column {missing[0]!r} but {', '.join(table.columns)}; set {flag}")
        for number, row in enumerate(table.rows(), 1):
            place = Place(number, table.name if len(tables) > 1 else "")
            yield place, row if isinstance(row, Unusable) else [row.get(name) for name in names]


def by_reason(left: Sequence[tuple[Place, str]]) -> str:
    """Rows by reason: `2 chosen equals rejected (rows 3, 9), 1 a response is missing or empty (row 4)`."""
    places: dict[str, list[str]] = {}
    for place, why in left:
        places.setdefault(why, []).append(str(place))
    return ", ".join(
        f"{len(at)} {why} (row{'s' * (len(at) > 1)} {', '.join(at[:NAMED])}{', …' * (len(at) > NAMED)})"
        for why, at in sorted(places.items())
    )


def scored(
    folder: Path, config: RunConfig, result: dict[str, Any], c: int, options: Options, pairs: list[Pair]
) -> list[tuple[float | None, str]]:
    """The margin of each pair by client c's row (and z), and what it lost; None and why, where it has no margin."""
    import torch

    from raypref.clients.worker import Worker
    from raypref.data.encode import Counts, concatenate
    from raypref.models.selector import load_tokenizer, pad_id

    tokenizer = load_tokenizer(config.model.base)
    objective = registry.objective(config.objective)
    worker = Worker(config, {}, objective.choice_ids(tokenizer, config), pad_id(tokenizer))
    z = None
    if objective.latent_width(config):
        name = "personalized_mu" if options.at == "personalized" else "mu"
        if name not in result["probes"]:
            raise UserError(f"{options.run} is of an earlier version, which did not keep its clients' z; run it again")
        z = torch.tensor(result["probes"][name][c])
    row = client_row(folder, config, worker.layout, result["clients"], c, options.at)
    if len(row) != worker.layout.width:
        raise UserError(
            f"{folder} has {len(row)} parameters for {options.client}, its config.json asks for {worker.layout.width}: "
            "one of the two was changed; put it back, or run it again"
        )
    if not torch.isfinite(row).all():
        raise UserError(
            f"what {options.client} had in {folder} is not finite, its training diverged: run it again with a lower "
            "learning rate"
        )
    encode, template, _ = objective.encoding(config)
    counts = [Counts() for _ in pairs]
    length = config.data.max_length
    folds = encode([[pair] for pair in pairs], tokenizer, template, length, counts)
    usable = [fold for fold in folds if fold.pairs]
    margins = iter(worker.margins(row[None], concatenate(usable), z)[0].mean(-1).tolist() if usable else [])
    scores: list[tuple[float | None, str]] = []
    for count in counts:
        if count.too_long:
            scores.append((None, f"whose responses alone exceed data.max_length={length}"))
        elif count.identical:
            scores.append((None, "whose responses are the same tokens"))
        else:
            cut = f"lost prompt text from the left to fit data.max_length={length}" * count.prompts_truncated
            scores.append((next(margins), cut))
    return scores


def client_row(folder: Path, config: RunConfig, layout: Any, ids: list[str], c: int, at: str) -> torch.Tensor:
    """[D] client c's row, from the run's folder or from its adapters."""
    from raypref.models.peft_io import import_peft
    from raypref.storage.results import safe_name

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
