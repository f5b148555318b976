"""`python -m raypref.data`: look at a data set before a run does, or make one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from raypref.config import DataConfig, ModelConfig, UserError, nearest, registry, validate
from raypref.data.synthesize import Synthesize, synthesize
from raypref.tools import cli, console

if TYPE_CHECKING:
    from raypref.config import RunConfig


@dataclass(frozen=True)
class Look:
    """The options of every command that looks at data."""

    source: tyro.conf.Positional[str] = ""
    """A file, a folder, a hub id, `synthetic` or `graded`; left out: --data.source."""
    data: DataConfig = field(default_factory=DataConfig)
    seed: int = 0
    """Of generated data."""

    def config(self) -> RunConfig:
        """The run whose data are meant; raises `UserError` where it cannot make sense."""
        from raypref.config import RunConfig

        config = RunConfig(data=dataclasses.replace(self.data, source=self.source or self.data.source))
        validate(config)
        return config


@dataclass(frozen=True)
class Check(Look):
    """What a data set would do to a run: clients and folds, rows lost and why, truncation, disagreement, baselines."""

    base: Annotated[str, tyro.conf.arg(name="model.base")] = ModelConfig().base
    """Whose tokenizer counts the tokens: `embedded`, a local folder or a hub id."""
    objective: str = "choice"
    """Whose token sequences are counted: comparisons, or each response behind its prompt."""
    strict: bool = False
    """Exit with status 1 where any row is unusable."""


@dataclass(frozen=True)
class Show(Look):
    """A few pairs, readably, with client and group."""

    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 5
    """How many."""


def check(args: Check) -> int:
    """Say what a data set would do to a run; exit status 1 for unusable rows under --strict."""
    config = dataclasses.replace(args.config(), objective=args.objective)
    registry.objective(args.objective)

    from raypref.data import baselines
    from raypref.data import check as checking
    from raypref.data.load import hidden, read

    federation, counts = read(config.data, args.seed)

    from raypref.models.selector import load_tokenizer  # after the data's own errors: it takes seconds

    report = checking.check(config, federation, counts, load_tokenizer(args.base))
    print(*report.lines(), sep="\n")
    if not federation.clients:
        raise UserError(f"{config.data.source}: no client is left, so nothing could be trained")
    print(*baselines.lines(baselines.measure(federation, hidden(config.data, args.seed))), sep="\n")
    if report.starved:
        raise UserError(
            f"{config.data.source}: a run would stop at {len(report.starved)} clients; raise data.max_length"
        )
    return int(args.strict and report.unusable > 0)


def show(args: Show) -> int:
    """Print a few pairs."""
    config = args.config()
    if args.n < 1:
        raise UserError(f"n is {args.n}; it must be at least 1")

    from raypref.data import check as checking
    from raypref.data.load import hidden, load

    print(*checking.show(load(config.data, args.seed), args.n, hidden(config.data, args.seed)), sep="\n")
    return 0


def features_options() -> type[Any]:
    """Read what the frozen base makes of a data set's texts, ahead of the runs that look it up."""
    from raypref.config import RunConfig  # with the files of all methods, which import numpy

    source = tyro.conf.arg(help="As for the other commands; the fields are those of python -m raypref.run.")
    start = field(default_factory=lambda: RunConfig(algorithm="fedavg", objective="reward"))
    config = ("config", Annotated[RunConfig, tyro.conf.arg(name="")], start)
    return dataclasses.make_dataclass(
        "Features",
        [config, ("source", tyro.conf.Positional[Annotated[str, source]], "")],
        frozen=True,
        namespace={"__doc__": features_options.__doc__},
    )


def features(args: Any) -> int:
    """Fill the store of features, with a bar. args: of `features_options`."""
    given = args.config
    config = dataclasses.replace(given, data=dataclasses.replace(given.data, source=args.source or given.data.source))
    validate(config)

    from raypref.data.encode import encode_federation
    from raypref.data.load import load

    federation, objective = load(config.data, config.seed), registry.objective(config.objective)

    from raypref.models.features import fill_for  # after the data's own errors: it takes seconds
    from raypref.models.selector import load_tokenizer, pad_id

    tokenizer = load_tokenizer(config.model.base)
    data = encode_federation(federation, tokenizer, objective.encoding(config), config.data.max_length)
    filled = fill_for(config, data, pad_id(tokenizer), console.Progress)
    if filled is None:
        raise UserError(
            f"objective {config.objective} with these fields looks up nothing that can be read ahead; reward does with "
            "--reward.features frozen, variational with --variational.responses apart"
        )
    console.say(str(filled))
    return 0


COMMANDS: dict[str, tuple[type[Any] | Callable[[], type[Any]], Callable[..., int]]] = {
    "check": (Check, check),
    "show": (Show, show),
    "features": (features_options, features),
    "synthesize": (Synthesize, synthesize),
}


SOURCE = """\
SOURCE is a JSONL, JSON, CSV or Parquet file, a folder of them, a hub id (OWNER/NAME[:CONFIGURATION]),
or a generator, `synthetic` or `graded`; `synthesize` takes a file of prompts. Its rows are known by their columns:"""


def command(argv: Sequence[str]) -> int:
    """Run one of `COMMANDS`; its exit status. Raises `UserError` for what a person can mend."""
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        print("usage: python -m raypref.data COMMAND SOURCE [--help] [--debug] [--data.field value …]\n\ncommands:")
        for option, (kind, _) in COMMANDS.items():
            print(f"  {option:10} {(kind.__doc__ or '').splitlines()[0]}")
        print(f"\n{SOURCE}")

        from raypref.data import forms

        for form in forms.FORMS:
            print(f"  {form:10} {forms.known_by(form, DataConfig())}: {forms.form(form).about}")
        return 0
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}{nearest(name, COMMANDS)}")
    kind, run = COMMANDS[name]
    kind = kind if isinstance(kind, type) else kind()
    return run(cli.parse(kind, rest, f"python -m raypref.data {name}"))


def main(argv: Sequence[str]) -> int:
    """`command`, with its errors in one line; exit status 2 is what a person can mend."""
    return console.main(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
