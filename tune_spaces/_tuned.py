"""Methods on the graded benchmark at equal chances: what each was tried with, and what validation chose.

Every form of a method has six trials: three settings of its learning rate and of a parameter of its own where it has
one, each stopped after two thirds of the client steps and after all 3,000 (60 rounds of 5 clients x 10 steps, or as
many of its own). `graded_tuning` runs them on three seeds of their own; `python -m raypref.compare graded_tuning
--results results --table trials` shows what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from raypref.config import ClientsConfig, PersonalizationConfig
from tune_spaces._bases import GRADED, GRADED_METHODS, SEVERAL

Values = Mapping[str, Any]
RATE, STOP = "optim.learning_rate", "federation.rounds"


def choice(algorithm: str) -> Values:
    """A method of adapters, with S2's objective."""
    return {"algorithm": algorithm, "objective": "choice"}


def latent(algorithm: str, form: str, **values: Any) -> Values:
    """A method with a latent: `printed`, or conditioned on `frozen` or on `adapted` features."""
    lora = {"variational.lora": form != "frozen", "variational.adapted": form == "adapted"}
    kind = {"variational.form": "printed" if form == "printed" else "conditioned"}
    more = {f"variational.{name}": value for name, value in values.items()}
    return {"algorithm": algorithm, "objective": "variational"} | kind | lora | more


def reward(algorithm: str, objective: str = "reward", features: str = "adapted") -> Values:
    """A method of reward models."""
    return {"algorithm": algorithm, "objective": objective, "reward.features": features}


FORMS: Mapping[str, Values] = {
    **{name: choice(name) for name in ("local", "cl", "multi_cl", "fedavg", "fl_target", "fedgd", "fedgd_target")},
    **{name: choice(name) for name in ("fedbiscuit", "soft_fl", "fedprox", "scaffold", "ditto", "fedrep", "lore")},
    **{f"fedvpl {form}": latent("fedvpl", form) for form in ("printed", "frozen", "adapted")},
    **{f"fedvpa_gp {form}": latent("fedvpa_gp", form) for form in ("printed", "frozen", "adapted")},
    "fedvpa_gp adapted M=2": latent("fedvpa_gp", "adapted", M=2),
    **{f"{name} reward": reward(name) for name in ("fedavg", "multi_cl", "fedrep", "lore")},
    **{
        # A read-out of every posterior reads all training pairs: at every tenth round, as long as a third of the run.
        f"bayes {features}": {**reward("fedavg", "bayes", features), "bayes.every": 0}
        for features in ("frozen", "adapted")
    },
}
"""What tables have a row of: each method, S1's in its forms and with too few prototypes, and the Bayesian reward model
beside reward models of the methods that are nearest to it."""

ROUNDS = {
    "local": (60, 40),  # without effect
    "cl": (300, 200),  # R · τ steps of one model
    **dict.fromkeys(("multi_cl", "multi_cl reward"), (75, 50)),  # R · τ of each of four
    "fedbiscuit": (45, 25),  # and K · T - T of warming up, at T = 5
    "ditto": (30, 20),  # two passes a round
}
"""R of the forms whose rounds are of another size, to 3,000 and 2,000 client steps; of all others 60 and 40."""

RATES = (1e-3, 2e-3, 3e-3)
OTHERS: Mapping[str, tuple[Values, ...]] = {
    "fedgd": ({RATE: 1e-3}, {RATE: 3e-3}, {RATE: 3e-3, "fedgd.w": 0.9}),
    "fedbiscuit": tuple({"experts.T": 5, RATE: rate} for rate in RATES),
    "fedprox": ({RATE: 1e-3}, {RATE: 3e-3}, {RATE: 3e-3, "fedprox.mu": 0.1}),
    "ditto": ({RATE: 1e-3}, {RATE: 3e-3}, {RATE: 3e-3, "ditto.lam": 1.0}),
    **{
        f"{name}{kind}": ({RATE: 1e-3}, {RATE: 3e-3}, {RATE: 3e-3, **other})
        for name, other in (("fedrep", {"fedrep.fit_steps": 20}), ("lore", {"lore.B": 8}))
        for kind in ("", " reward")
    },
    "bayes adapted": ({RATE: 1e-3}, {RATE: 3e-3}, {RATE: 3e-3, "bayes.d": 8}),
    **{
        f"{name} {form}": ({RATE: 1e-3}, {RATE: 3e-3}, {RATE: 3e-3, "variational.beta": 0.01})
        for name in ("fedvpl", "fedvpa_gp")
        for form in ("printed", "adapted", "adapted M=2")
    },
    **{f"{name} frozen": tuple({RATE: r} for r in (1e-3, 3e-3, 1e-2)) for name in ("fedvpl", "fedvpa_gp", "bayes")},
}
"""The settings of the forms that have others than the three learning rates."""

TRIED: Mapping[str, tuple[Values, ...]] = {
    name: tuple(
        {STOP: rounds, **settings}
        for rounds in ROUNDS.get(name, (60, 40))
        for settings in OTHERS.get(name, tuple({RATE: rate} for rate in RATES))
    )
    for name in FORMS
}
"""Form -> its six trials."""


CHOSEN: Mapping[str, int] = {
    "local": 2,
    "multi_cl": 0,
    "fedavg": 2,
    "multi_cl reward": 3,
    "bayes adapted": 2,
}
"""Form -> which of its trials validation chose, from 0, where all of its trials are kept (a test chooses again)."""
UNTRIED = 1
"""The trial of the forms that are not chosen yet."""


def chosen(name: str) -> Values:
    """The settings with which a form enters what is reported."""
    return TRIED[name][CHOSEN.get(name, UNTRIED)]


def points(of: Mapping[str, Sequence[Values]]) -> dict[tuple[str, ...], list[tuple[Any, ...]]]:
    """A grid whose keys vary together: each form with each of its settings; keys that one lacks are at their
    defaults."""
    from raypref.config import RunConfig, flatten, to_dict

    usual = flatten(to_dict(RunConfig()))
    rows = [{**FORMS[name], **settings} for name, all_settings in of.items() for settings in all_settings]
    keys = tuple(dict.fromkeys(key for row in rows for key in row))
    return {keys: [tuple(row.get(key, usual[key]) for key in keys) for row in rows]}


def with_chosen(*names: str, then: Values = MappingProxyType({})) -> dict[tuple[str, ...], list[tuple[Any, ...]]]:
    """`points` of forms as they were chosen (all without names), `then` with other settings."""
    return points({name: [{**chosen(name), **then}] for name in names or FORMS})


MAIN = replace(
    GRADED,
    data=replace(GRADED.data, graded=replace(GRADED.data.graded, test=100)),
    personalization=PersonalizationConfig(marks=(0, 1, 5, 10, 40)),
    clients=ClientsConfig(),
)
"""What is reported: the graded benchmark, read at these local steps. A hundred test pairs of each of forty people leave
0.6 points of chance in a seed's mean, beside some four between seeds, and half as much to read as two hundred."""
EVEN, UNEVEN = (10, 10, 10, 10), (15, 15, 5, 5)
SEEDS = {("data.group_sizes", "seed"): [*((UNEVEN, seed) for seed in range(8)), *((EVEN, seed) for seed in range(8))]}
"""Eight seeds, with which an effect of some nine points can be shown among fifty claims; none is of those on which
settings were chosen."""
SMALL = {GRADED_METHODS: SEVERAL[:2], ("data.group_sizes", "seed"): [((4, 4, 2, 2), 0)]}
"""Under `--smoke`."""
