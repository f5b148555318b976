"""`python -m raypref.data`: look at a data set before a run does."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import tyro

from raypref.config import DataConfig, ModelConfig, RunConfig, UserError, nearest, validate

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """What both commands take."""

    source: tyro.conf.Positional[str] = ""
    """A path, a hub id or `synthetic`; left out: --data.source."""
    data: DataConfig = field(default_factory=DataConfig)
    seed: int = 0
    """Of the synthetic data."""
    debug: bool = False
    """Show the traceback of an error that is usually told in one line."""

    def config(self) -> DataConfig:
        """What to read; raises `UserError` where it cannot make sense."""
        data = dataclasses.replace(self.data, source=self.source or self.data.source)
        validate(RunConfig(data=data))
        return data


@dataclass(frozen=True)
class Check(Look):
    """What a data set would do to a run: clients and folds, rows lost and why, truncation, repeats, disagreement."""

    base: Annotated[str, tyro.conf.arg(name="model.base")] = ModelConfig().base
    """Whose tokenizer counts the tokens: `embedded`, a local folder or a hub id."""
    strict: bool = False
    """Exit with status 1 where any row is unusable."""


@dataclass(frozen=True)
class Show(Look):
    """A few pairs, readably, with client and group."""

    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 5
    """How many."""


def check(args: Check) -> int:
    config = args.config()

    from raypref.data import check as checking
    from raypref.data.load import read

    federation, counts = read(config, args.seed)

    from raypref.models.selector import load_tokenizer  # after the data's own errors: it takes seconds

    report = checking.check(config, federation, counts, load_tokenizer(args.base))
    print(*report.lines(), sep="\n")
    if not report.federation.clients:
        raise UserError(f"{config.source}: no client is left, so nothing could be trained")
    return int(args.strict and report.unusable > 0)


def show(args: Show) -> int:
    config = args.config()
    if args.n < 1:
        raise UserError(f"n is {args.n}; it must be at least 1")

    from raypref.data import check as checking
    from raypref.data.load import load

    print(*checking.show(load(config, args.seed), args.n), sep="\n")
    return 0


COMMANDS: dict[str, tuple[type[Look], Callable[..., int]]] = {"check": (Check, check), "show": (Show, show)}


def parse(kind: type[T], argv: Sequence[str], prog: str) -> T:
    """`argv` as a value of `kind`; an unknown flag raises `UserError` that names the nearest known one."""
    args, unknown = tyro.cli(kind, args=list(argv), prog=prog, return_unknown_args=True)
    if unknown:
        word = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
        flags = [f"--{name}" for name in _flags(kind)]
        hint = nearest(word.replace("_", "-"), flags) if word.startswith("-") else ""
        raise UserError(f"unknown {'flag' if hint else 'argument'} {word!r}{hint}")
    return args


def _flags(kind: type) -> list[str]:
    ours = [f.name for f in dataclasses.fields(kind) if f.name not in ("source", "data", "base")]
    inner = [f"data.{f.name}" for f in dataclasses.fields(DataConfig)]
    return [name.replace("_", "-") for name in (*ours, *inner, *(["model.base"] if kind is Check else []))]


def main(argv: Sequence[str]) -> int:
    """Exit status: 0, 1 for unusable rows under --strict, 2 for what the user can mend (one line on stderr)."""
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        print("usage: python -m raypref.data COMMAND SOURCE [--help] [--data.field value …]\n\ncommands:")
        for command, (kind, _) in COMMANDS.items():
            print(f"  {command:7} {kind.__doc__}")
        print("\nSOURCE is a path (JSONL, JSONL.gz, JSON, CSV, Parquet), a hub data set id, or `synthetic`.")
        return 0
    try:
        if name not in COMMANDS:
            raise UserError(f"unknown command {name!r}{nearest(name, COMMANDS)}")
        kind, run = COMMANDS[name]
        return run(parse(kind, rest, f"python -m raypref.data {name}"))
    except UserError as error:
        if "--debug" in argv:
            raise
        print(f"raypref: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
