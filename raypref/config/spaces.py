"""`tune_spaces/NAME.py`: a base configuration, its presets and a search space, as data."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raypref.config import RunConfig, UserError, flatten, nearest, override, registry, to_dict, validate
from raypref.config.identity import own_sections
from raypref.tools import console
from raypref.tools.cli import peek
from raypref.tools.rng import stream

Keys = str | tuple[str, ...]
"""A dotted key, or several whose values go together."""
Grid = Mapping[Keys, Sequence[Any]]
KINDS = ("uniform", "loguniform", "int", "about")
"""How `--search optuna` goes through a range."""


@dataclass(frozen=True)
class Needed:
    """In a preset, the value of a field that cannot be the same for everybody: who takes the preset gives it."""

    unlike: Any
    """What the field is where nobody gave it, and what will not do."""
    how: str
    """Why that will not do and how to come by another, as the end of a sentence."""


@dataclass(frozen=True)
class Space:
    """What a file in `tune_spaces/` holds, as `SPACE`."""

    about: str
    """One line for the list of spaces."""
    base: RunConfig
    """What `python -m raypref.run NAME` runs."""
    grid: Grid = field(default_factory=dict)
    """Dotted key -> the values to try; all combinations are trials. Several keys as one, a tuple, vary together, and
    their values are tuples, too: {("algorithm", "objective"): [("fedavg", "choice"), ("fedvpl", "variational")]}."""
    draws: Mapping[str, tuple[str, float, float]] = field(default_factory=dict)
    """Dotted key -> ("uniform" or "loguniform", low, high), drawn `samples` times for each point of the grid."""
    ranges: Mapping[str, tuple[str, float, float]] = field(default_factory=dict)
    """Further ranges that `--search optuna` searches beside `draws`, in the place of the grid; the same kinds, `int`
    (both ends included), and `about`: between these multiples of the base's own value, on a logarithmic scale."""
    samples: int = 1
    """Points drawn from `draws` at each point of the grid."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name -> dotted overrides of the base; `paper` is the paper's setting. A `Needed` value is left to be given."""
    preset_grid: Mapping[str, Grid] = field(default_factory=dict)
    """Name of a preset -> values that it tries in the place of the grid's, by the grid's own keys."""
    smoke: Mapping[str, Any] = field(default_factory=dict)
    """Dotted overrides that make a run last seconds (`--smoke`); empty: those of our spaces."""
    smoke_grid: Grid = field(default_factory=dict)
    """The grid under `--smoke`."""
    against: tuple[str, ...] = ()
    """Algorithms that `raypref.run NAME` runs first, on the same configuration, to compare with."""
    rank: str = "accuracy"
    """Metric on the validation fold, at the last mark, that ranks trials; test numbers never do."""

    def configured(self, preset: str = "", smoke: bool = False, card: str = "", model: str = "") -> RunConfig:
        """The base under a preset, fitted to a card. model: in the place of the preset's `model.base`, where it is
        given. Raises `UserError` for an unknown one."""
        if preset and preset not in self.presets:
            raise UserError(f"unknown preset {preset!r}{nearest(preset, self.presets)}")
        values = self.presets[preset] if preset else {}
        config = override(self.base, {key: value for key, value in values.items() if not isinstance(value, Needed)})
        config = override(config, card_settings(card, model or config.model.base)) if card else config
        return override(config, self.smoke or _bases().SMOKE) if smoke else config

    def typed(self, words: Sequence[str]) -> RunConfig:
        """`configured` as a command's words have it: what all its other flags come on top of."""
        card, model = peek(words, "--card"), peek(words, "--model.base")
        return self.configured(peek(words, "--preset"), "--smoke" in words, card, model)

    def check(self, config: RunConfig, preset: str = "", smoke: bool = False) -> None:
        """Raises `UserError` where `config` lacks what the preset left to be given. `--smoke` needs nothing."""
        flat = flatten(dataclasses.asdict(config))
        for key, value in ({} if smoke or not preset else self.presets[preset]).items():
            if isinstance(value, Needed) and flat[key] == value.unlike:
                flag = f"--{key.replace('_', '-')}"
                raise UserError(f"--preset {preset} needs another {flag} than {value.unlike!r}: {value.how}")

    def under(self, preset: str) -> Space:
        """The space with the grid that it has under a preset."""
        return dataclasses.replace(self, grid={**self.grid, **self.preset_grid.get(preset, {})})

    def without(self, given: Mapping[str, Any]) -> Space:
        """The space with nothing left to search of the keys given. Of keys that vary together, the others keep the
        values that go with those given; where none does, they are the base's."""

        def narrowed(grid: Grid) -> dict[Keys, Sequence[Any]]:
            left: dict[Keys, Sequence[Any]] = {}
            for keys, values in grid.items():
                others = tuple(key for key in _together(keys) if key not in given)
                points = [_point(keys, value) for value in values]
                fitting = [p for p in points if all(p[key] == given[key] for key in p if key in given)]
                if others == _together(keys):
                    left[keys] = values
                elif others and fitting:
                    left[others] = list(dict.fromkeys(tuple(point[key] for key in others) for point in fitting))
            return left

        draws, ranges = ({k: spec for k, spec in of.items() if k not in given} for of in (self.draws, self.ranges))
        return dataclasses.replace(
            self, grid=narrowed(self.grid), smoke_grid=narrowed(self.smoke_grid), draws=draws, ranges=ranges
        )

    def searched(self, base: RunConfig) -> dict[str, tuple[str, float, float]]:
        """What `--search optuna` searches under this base: dotted key -> ("uniform", "loguniform" or "int", low, high).
        Of a method's sections those of the base's own method and objective alone. Raises `UserError` for an unknown
        kind, and where nothing is left to search."""
        flat, found = flatten(dataclasses.asdict(base)), {}
        sections = own_sections(flatten(to_dict(base)))
        for key, (kind, low, high) in {**self.draws, **self.ranges}.items():
            if kind not in KINDS:
                raise UserError(f"{key} is searched by {kind!r}{nearest(kind, KINDS)}")
            if key.partition(".")[0] in sections:
                about = kind == "about"
                found[key] = ("loguniform", low * flat[key], high * flat[key]) if about else (kind, low, high)
        if not found:
            raise UserError("nothing is left to search: the space has neither draws nor ranges, or all are given")
        return found

    def trials(self, base: RunConfig, smoke: bool = False, seeds: Sequence[int] = ()) -> Iterator[RunConfig]:
        """Every trial's configuration, in a fixed order, each once; `seeds` replaces the grid's seeds."""
        small = smoke and (self.smoke or self.smoke_grid)  # a space that says nothing of it has its whole grid
        grid = dict(self.smoke_grid if small else self.grid)
        if seeds:
            grid["seed"] = list(seeds)
        draws = {} if smoke else self.draws
        seen = set()
        for point in itertools.product(*grid.values()):
            values = {k: v for keys, value in zip(grid, point, strict=True) for k, v in _point(keys, value).items()}
            for sample in range(self.samples if draws else 1):
                drawn = {key: _draw(key, spec, sample) for key, spec in draws.items()}
                config = override(base, values | drawn)
                if config.key not in seen:
                    validate(config)
                    seen.add(config.key)
                    yield config


def _together(keys: Keys) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys


def _point(keys: Keys, value: Any) -> dict[str, Any]:
    """One of a grid's values as dotted key -> value."""
    if isinstance(keys, str):
        return {keys: value}
    if not isinstance(value, tuple) or len(value) != len(keys):
        raise UserError(f"the grid varies {', '.join(keys)} together, so {value!r} must be {len(keys)} values, a tuple")
    return dict(zip(keys, value, strict=True))


def _draw(key: str, spec: tuple[str, float, float], sample: int) -> float:
    kind, low, high = spec
    u = float(stream(0, f"draw {key}", sample).random())
    if kind == "loguniform":
        return float(math.exp(math.log(low) + u * (math.log(high) - math.log(low))))
    if kind == "uniform":
        return low + u * (high - low)
    raise UserError(f"{key} is drawn by {kind!r}; use 'uniform' or 'loguniform'")


def folders() -> list[Path]:
    """Where spaces are looked for: here first, so that people can add their own, then the installed ones."""
    places = [Path.cwd() / "tune_spaces"]
    spec = importlib.util.find_spec("tune_spaces")
    if spec is not None:
        places += [Path(p) for p in spec.submodule_search_locations or []]
    return list({path.resolve(): path for path in places if path.is_dir()}.values())


def every_name() -> list[str]:
    """What NAME can be: the spaces in files, and the methods without one."""
    return sorted({*names(), *registry.algorithms()})


def names() -> dict[str, Path]:
    """Every space there is, by name; a file here hides an installed one of the same name."""
    files = [f for folder in reversed(folders()) for f in sorted(folder.glob("*.py")) if not f.name.startswith("_")]
    return dict(sorted({f.stem: f for f in files}.items()))


def default_space(algorithm: str) -> Space:
    """The space of a method that has no file of its own: its paper's setting, by what its usual objective makes."""
    method = registry.algorithm(algorithm)
    objective = registry.objective(method.objective)
    paper: Space = _bases().S1_METHOD if objective.has_latent or objective.is_policy else _bases().S2_METHOD
    base = dataclasses.replace(paper.base, algorithm=algorithm, objective=method.objective)
    against = tuple(name for name in paper.against if name != algorithm)
    about = (method.__doc__ or method.title or algorithm).splitlines()[0]
    return dataclasses.replace(paper, about=about, base=base, against=against)


def card_settings(card: str, model: str) -> dict[str, Any]:
    """What makes a run with this base fit a card. Raises `UserError` where either is unknown."""
    cards, name = _cards(), model.rstrip("/").rpartition("/")[2].lower()
    usable_gib(card)
    for base, settings in cards.CARDS[card].items():
        if base.rpartition("/")[2].lower() == name:  # also of a copy in a folder of that name
            return {**cards.ONE_ACTOR, **settings}
    raise UserError(
        f"--card {card} knows {', '.join(cards.CARDS[card])} and not model.base {model!r}; name one of them (--preset "
        "paper does), or set clients.gpus-per-actor, stack, eval-batch and recompute yourself: sweep's --dry-run tells "
        "the memory"
    )


def usable_gib(card: str) -> float:
    """GiB that a card of this name has for a run. Raises `UserError` for an unknown one."""
    usable = _cards().USABLE
    if card not in usable:
        raise UserError(f"unknown card {card!r}; there are: {', '.join(usable)}")
    return float(usable[card])


def _cards() -> Any:
    """What fits on cards; late, as `_bases`."""
    return importlib.import_module("tune_spaces._cards")


def _bases() -> Any:
    """What our spaces share; late, for its module holds spaces itself."""
    return importlib.import_module("tune_spaces._bases")


def load_space(name: str) -> Space:
    """The space called `name`: a file's, or else a method's own (`default_space`). Raises `UserError` naming the
    nearest where there is none."""
    known = names()
    if name not in known and name in registry.algorithms():
        return default_space(name)
    if name not in known:
        raise UserError(f"there is no tune_spaces/{name}.py{nearest(name, every_name())}; {registry.ELSEWHERE}")
    spec = importlib.util.spec_from_file_location(f"raypref_space_{name}", known[name])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses defined in it look themselves up
    try:
        spec.loader.exec_module(module)
    except ImportError as error:  # such as the places that names had in an earlier version
        hint = "; Space is in raypref.config.spaces" if error.name == "raypref.spaces" else ""
        raise UserError(f"{known[name]} cannot be read: {error}{hint}") from error
    space = getattr(module, "SPACE", None)
    if not isinstance(space, Space):
        raise UserError(f"{known[name]} does not define SPACE, a raypref.config.spaces.Space")
    return space


def command_words(config: RunConfig) -> list[str]:
    """The words of a command that makes this run: what differs from its method's own space, and has a part in it."""
    base = flatten(to_dict(load_space(config.algorithm).base))
    flat = flatten(to_dict(config))
    words = ["python", "-m", "raypref.run", config.algorithm, "--against", "none"]
    for key, value in flat.items():
        section = key.partition(".")[0] if "." in key else ""
        if value == base[key] or section not in own_sections(flat) or key == "data.digest":
            continue
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            before, _, name = flag[2:].rpartition(".")
            words.append(flag if value else f"--{before}.no-{name}" if before else f"--no-{name}")
        else:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


def listing(what: str, argv: Sequence[str]) -> int:
    """What NAME can be: for a command line without one."""
    if argv and argv[0] not in ("-h", "--help"):
        raise UserError(f"the first word is the NAME of a space, not {argv[0]!r}; there are: {', '.join(every_name())}")
    console.say(f"usage: python -m raypref.{what} NAME [--help] [--field value …]\n\nNAME is one of")
    for name in every_name():
        console.say(f"  {name:14} {load_space(name).about}")
    if what == "run":
        console.say("\nWhat a run makes is the base and --against of a space; python -m raypref.sweep makes all of it")
    return 0
