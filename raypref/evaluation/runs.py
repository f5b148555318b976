"""Finished runs as they were read: what they are called, what tells them apart, and which of them fill one table.

What evaluation knows of methods and objectives it asks their classes (`raypref.config.registry`), in the first half of
this module; the tables that print the rows of a paper's table name these rows besides.

What is compared must differ in what a table varies and in nothing else. So runs come in families that agree in every
other key (`alike`), and of several families a table takes the `fullest`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from raypref.config import GENERATED, RLHFConfig, flatten, identity, registry, to_dict
from raypref.config.fields import of_part
from raypref.evaluation import diagnostics
from raypref.evaluation.curve import seen_and_unseen

if TYPE_CHECKING:
    from raypref.evaluation.latent import Latent

WORK = ("data.", "model.", "federation.", "optim.batch_size")
"""Prefixes of keys that make the work of a round, whatever the method."""
NOT_COST = ("seed", "optim.", "personalization.")
"""Prefixes of keys that change nothing in a round's cost."""
ANSWERS = of_part(RLHFConfig, "answers")
"""Fields of `rlhf` that have a part in every policy; one that stage 1 trained has no others."""
TRAINING = of_part(RLHFConfig, "computed")
"""Fields of `rlhf` that say how stage 2 trains one."""
ALL = "all"
"""What tables call the clients of no known group."""

Config = Mapping[str, Any]
"""A flat configuration, dotted keys."""


def title(algorithm: str) -> str:
    """What tables call an algorithm."""
    known = algorithm in registry.algorithms()
    return str(registry.algorithm(algorithm).title or algorithm) if known else algorithm


def form(config: Config) -> str:
    """Which objective a run has beside S2's choice, which is empty, and in what form."""
    return str(registry.objective(config["objective"]).form(config))


def label(config: Config, more: Sequence[str] = ()) -> str:
    """What a run is called where objectives are mixed: its algorithm, and in brackets its form and `more` words. A form
    that is only the name of the method's usual objective says nothing new."""
    objective = config["objective"]
    usual = config["algorithm"] in registry.algorithms() and registry.algorithm(config["algorithm"]).objective
    kind = form(config)
    inside = ", ".join(filter(None, ["" if kind == objective == usual else kind, *more]))
    name = title(config["algorithm"])
    return f"{name} ({inside})" if inside else name


def method(parameters: Mapping[str, str]) -> str:
    """The same without its form, of a run of which nothing but its parameters is known."""
    return title(parameters["algorithm"])


def run_name(result: Mapping[str, Any]) -> str:
    """What a run is called in a table of its own: its algorithm; by its label where the objective is not the usual one
    of the algorithm, or trains a policy."""
    config, algorithm = flatten(result.get("config", {})), str(result["algorithm"])
    usual = registry.algorithm(algorithm).objective if algorithm in registry.algorithms() else config.get("objective")
    telling = "objective" in config and (config["objective"] != usual or makes_policy(config))
    return label(config) if telling else algorithm


def order(config: Config) -> tuple[Any, ...]:
    """What rows are sorted by: the registry's order of methods and objectives, then the form."""
    places = (list(registry.algorithms()), list(registry.objectives()))
    names = (config["algorithm"], config["objective"])
    where = [known.index(name) if name in known else len(known) for known, name in zip(places, names, strict=True)]
    return (where[0], names[0], where[1], "" if form(config) == "printed" else form(config))


def makes_policy(config: Config) -> bool:
    """Whether stage 1 trains the policy itself, so that stage 2 has nothing left to train."""
    return bool(registry.objective(config["objective"]).is_policy)


def has_latent(config: Config) -> bool:
    """Whether a client's z is inferred, so that posteriors can be recorded."""
    return bool(registry.objective(config["objective"]).has_latent)


def titles() -> dict[str, str]:
    """Algorithm -> what tables call it, in the order in which they show them."""
    return {name: title(name) for name in registry.algorithms()}


def context_marks(config: Config) -> list[int]:
    """The numbers of a client's pairs that its z, or else its own part of the model, was inferred from, for the
    accuracies by context; [] where there is no such thing."""
    for kind in (registry.objective(config["objective"]), registry.algorithm(config["algorithm"])):
        for section in kind.parameters:
            if f"{section}.context_marks" in config:
                return list(config[f"{section}.context_marks"])
    return []


def own_sections(config: Config) -> list[str]:
    """The sections of a run's objective, as prefixes of keys."""
    return [f"{section}." for section in registry.objective(config["objective"]).parameters]


def options(config: Config) -> dict[str, Any]:
    """The options of its objective that a run's training used."""
    return {key: value for key, value in computed(config).items() if key.startswith(tuple(own_sections(config)))}


def work(config: Config) -> dict[str, Any]:
    """What makes the work of a round, whatever the method."""
    return {key: value for key, value in config.items() if key.startswith(WORK)}


def costs(config: Config) -> dict[str, Any]:
    """What of a method may change the cost of a round on the same work."""
    return {key: value for key, value in computed(config).items() if not key.startswith((*WORK, *NOT_COST))}


def computed(config: Config) -> dict[str, Any]:
    """What a run computes (`raypref.config.identity`)."""
    return identity.compared(config)


def method_keys() -> tuple[str, ...]:
    """Keys and sections that make a method of stage 1, for `FinishedRun.identity`."""
    sections = (name for kind in registry.objectives() for name in registry.objective(kind).parameters)
    return ("algorithm", "objective", *(f"{section}." for section in sections))


def policy_method_keys() -> tuple[str, ...]:
    """The same for policies, whose stage 2 has sections of its own."""
    return tuple(key for key in method_keys() if key.rstrip(".") not in identity.following())


def rounds_note(algorithms: Iterable[str]) -> str:
    """How the rounds of some of these are not R rounds of training for the model that is judged; '' where all are."""
    there = [registry.algorithm(name) for name in registry.algorithms() if name in set(algorithms)]
    words = [method.rounds_note for method in there if method.rounds_note]
    pooled = [method.title for method in there if method.pooled]
    if pooled:
        words.append(f"{' and '.join(pooled)} {'have' if pooled[1:] else 'has'} none (R·τ steps on pooled data)")
    return f"Rounds: {'; '.join(dict.fromkeys(words))}." if words else ""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, as it was read."""

    id: str
    started: int
    """Milliseconds since 1970, to tell the newest."""
    config: Config
    result: Mapping[str, Any]
    """Of the clients that trained, whatever was read (`raypref.evaluation.curve.seen_and_unseen`)."""
    groups: Mapping[str, Any] | None = None
    """Its groups.json, where the method groups clients."""
    latent: Latent | None = None
    """Its latent.npz, where it recorded its clients' posteriors."""
    unseen: Mapping[str, Any] | None = field(init=False)
    """The result of the others, who took no part in training; None without any."""

    def __post_init__(self) -> None:
        for name, part in zip(("result", "unseen"), seen_and_unseen(self.result), strict=True):
            object.__setattr__(self, name, part)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def setting(self) -> str:
        """`balanced` or `imbalanced`, by `data.group_sizes` (S2 2.3); `real` where the clients are not dealt so."""
        of = [g for part in (self.result, self.unseen) if part for g in part["groups"]["of"]]
        dealt = [of.count(g) for g in range(len(self.result["groups"]["names"]))]
        return _setting(self.config, self.config["data.source"] in GENERATED or dealt == self.sizes)

    @property
    def sizes(self) -> list[int]:
        return list(self.config["data.group_sizes"])

    @cached_property
    def diagnosed(self) -> dict[str, Any]:
        """`diagnostics.summary` at the initialization; empty without."""
        has = any(d["mark"] == 0 for d in self.result.get("diagnostics", ()))
        return diagnostics.summary(self.result) if has else {}

    @cached_property
    def computed(self) -> dict[str, Any]:
        return computed(self.config)

    def fits(self, point: Mapping[str, Any]) -> bool:
        """Whether it has these values; `setting` is one of the keys."""
        return all((self.setting if key == "setting" else self.config[key]) == value for key, value in point.items())

    def identity(self, leave: Iterable[str] = ()) -> str:
        """What is computed, without the keys and sections (`dpo.`) in `leave`: equal texts, equal computations."""
        left = set(leave)
        kept = {k: v for k, v in self.computed.items() if k not in left and k[: k.find(".") + 1] not in left}
        return json.dumps(kept, sort_keys=True)


@dataclass(frozen=True)
class Policy(FinishedRun):
    """The policy that followed a stage-1 run; `result` is its policy.json, `config` has stage 2's sections."""

    judgements: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Judge -> its judgement (`raypref.judges.judgement.judged`)."""

    @property
    def clients(self) -> int:
        """N, the unseen ones included."""
        return int(self.result["clients"])

    @cached_property
    def setting(self) -> str:
        return _setting(self.config, sum(self.sizes) == self.clients)

    @property
    def training(self) -> dict[str, Any]:
        """How stage 2 trained it; empty where stage 1 did."""
        return {} if makes_policy(self.config) else {f"rlhf.{name}": self.config[f"rlhf.{name}"] for name in TRAINING}

    @cached_property
    def computed(self) -> dict[str, Any]:
        """What its responses depend on: as of any run, and how policies are trained and asked."""
        asked = tuple(f"rlhf.{name}" for name in ANSWERS)
        added = {k: v for k, v in self.config.items() if k.startswith(("dpo.", *asked))}
        return computed(self.config) | added | self.training

    @property
    def judgement(self) -> tuple[str, Mapping[str, Any]]:
        """(the judge, its judgement), of a policy that has one."""
        ((judge, judgement),) = self.judgements.items()
        return judge, judgement


def _setting(config: Config, dealt: bool) -> str:
    if not dealt:
        return "real"
    return "balanced" if len(set(config["data.group_sizes"])) == 1 else "imbalanced"


Seeds = Mapping[int, FinishedRun]
"""Seed -> the run."""
R = TypeVar("R", bound=FinishedRun)
Key = TypeVar("Key", bound=Hashable)


def alike(runs: Iterable[R], common: Callable[[R], str]) -> list[list[R]]:
    """Families of runs of equal `common`, in the order in which they come."""
    families: dict[str, list[R]] = {}
    for run in runs:
        families.setdefault(common(run), []).append(run)
    return list(families.values())


def fullest(families: Iterable[Sequence[R]], point: Callable[[R], Hashable] = lambda run: None) -> list[R]:
    """Of several families the one whose runs fill most points, then the one of most runs, then the newest; [] of none.

    point: which row, column or the like a run fills.
    """

    def rank(family: Sequence[R]) -> tuple[int, int, int]:
        return len(set(map(point, family))), len(family), max(run.started for run in family)

    chosen: Sequence[R] = max(families, key=rank, default=[])
    return list(chosen)


def of_methods(runs: Iterable[R]) -> list[R]:
    """Those that agree in everything but the method, the seed and the sizes of groups."""
    return fullest(alike(runs, lambda run: run.identity((*method_keys(), "seed", "data.group_sizes"))))


def choose(runs: Iterable[FinishedRun], points: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Seeds]:
    """The runs of each point, all of one family; an empty mapping: no such run.

    points: settings of the keys that a table varies, the same keys in each; one of them is `setting`. Within the family
    each setting has one `data.group_sizes`, chosen the same way.
    """

    def point(run: FinishedRun) -> Key | None:
        return next((name for name, values in points.items() if run.fits(values)), None)

    axes = {"seed", "data.group_sizes", *(key for values in points.values() for key in values)}
    fitting = (run for run in runs if point(run) is not None)
    families = [
        [run for setting in alike(family, lambda r: r.setting) for run in fullest(alike(setting, _sizes), point)]
        for family in alike(fitting, lambda run: run.identity(axes))
    ]
    chosen = fullest(families, point)
    return {name: by_seed(run for run in chosen if point(run) == name) for name in points}


def _sizes(run: FinishedRun) -> str:
    return show(run.sizes)


def by_seed(runs: Iterable[R]) -> dict[int, R]:
    """Seed -> the newest run of it, by seed."""
    newest = {run.seed: run for run in sorted(runs, key=lambda run: run.started)}
    return {seed: newest[seed] for seed in sorted(newest)}


def by_setting(runs: Sequence[FinishedRun]) -> dict[str, Seeds]:
    """`Balanced`, `Imbalanced` and `Real` -> the runs; of several sizes of groups those that most runs have."""
    return {
        setting.capitalize(): by_seed(fullest(alike(of, _sizes)))
        for setting in ("balanced", "imbalanced", "real")
        if (of := [run for run in runs if run.setting == setting])
    }


def by_label(runs: Sequence[R], values: Callable[[Config], Config] = options) -> dict[str, list[R]]:
    """Runs by what their row is called, in the papers' order: algorithm and form, and whatever differs of the `values`
    of the runs of that algorithm and form."""
    rows: dict[str, list[R]] = {}
    for kind in sorted(alike(runs, lambda run: str(order(run.config))), key=lambda kind: order(kind[0].config)):
        section = f"{kind[0].config['objective']}."
        configs = [values(run.config) for run in kind]
        differ = varying(configs)
        for run, config in sorted(zip(kind, configs, strict=True), key=lambda each: [show(each[1][k]) for k in differ]):
            words = [f"{key.removeprefix(section)} {show(config[key])}" for key in differ]
            rows.setdefault(label(run.config, words), []).append(run)
    return rows


def each(seeds: Iterable[Seeds]) -> list[FinishedRun]:
    return [run for one in seeds for run in one.values()]


def describe(runs: Sequence[FinishedRun]) -> str:
    """Base, data and budget of runs, in the paper's symbols; several values where they differ."""

    def values(key: str) -> str:
        return ", ".join(map(show, sorted({run.config[key] for run in runs})))

    seeds = sorted({run.seed for run in runs})
    away = any(run.config["federation.dropout"] for run in runs)
    dropout = f" of whom a share of {values('federation.dropout')} does not answer," if away else ""
    data = ", ".join(dict.fromkeys(_data(run) for run in runs))
    return (
        f"{data}; base {values('model.base')}; R = {values('federation.rounds')}, "
        f"{values('federation.cohort')} clients a round,{dropout} τ = {values('federation.local_steps')}, batch "
        f"{values('optim.batch_size')}, learning rate {values('optim.learning_rate')}, "
        f"seed{'s' * (len(seeds) > 1)} {' '.join(map(str, seeds))}.{_of_methods(runs)}"
    )


def _of_methods(runs: Sequence[FinishedRun]) -> str:
    """Parameters of the runs' own methods that are not at their defaults, or have several values, in a sentence."""
    from raypref.config import RunConfig  # which is made of the files of methods, and those may import tables

    usual = flatten(to_dict(RunConfig()))
    words: dict[str, dict[str, None]] = {}
    for run in runs:
        for section in registry.algorithm(run.config["algorithm"]).parameters:
            for key in (key for key in run.config if key.startswith(f"{section}.")):
                words.setdefault(key, {})[show(run.config[key])] = None
    named = [f"{key} = {', '.join(values)}" for key, values in words.items() if list(values) != [show(usual.get(key))]]
    return f" {'; '.join(named)}." if named else ""


def show(value: Any) -> str:
    """A setting as it is typed on a command line, floats to four digits: [15, 5] -> '15 5'."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(show, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def varying(configs: Sequence[Config]) -> list[str]:
    """Keys of flat configurations whose values differ, in their order; the seed is not one of them."""
    return [key for key in configs[0] if key != "seed" and any(c[key] != configs[0][key] for c in configs)]


def _data(run: FinishedRun) -> str:
    data = PurePath(run.config["data.source"]).name
    if run.setting != "real":
        data = f"{'/'.join(map(str, run.sizes))} clients ({run.config['data.source']})"
    if run.unseen is None:
        return data
    return f"{data}, of whom {run.config['federation.unseen']} of each group took no part in training"
