"""Soft-FL (S2 B.3): soft clusters, each client a mixture of K models."""

from raypref.config import RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE, TWO_ACTORS
from tune_spaces._papers import S2

SPACE = Space(
    about="Soft-FL (S2 B.3): soft clusters, each client a mixture of K models.",
    base=RunConfig(algorithm="soft_fl", clients=TWO_ACTORS),
    grid={
        "experts.K": [2, 3, 4],
        "data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)],
        "seed": [0, 1, 2],
    },
    smoke_grid={"experts.K": [2, 4]},
    presets={"paper": S2},
    smoke=SMOKE,
    against=("fedavg",),
)
