"""FedGD (S2 section 4): discover the groups, then train one model with group-debiased sampling."""

from raypref.config import RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE, TWO_ACTORS
from tune_spaces._papers import S2

SPACE = Space(
    about="FedGD (S2 section 4): discover the groups, then train one model with group-debiased sampling.",
    base=RunConfig(algorithm="fedgd", clients=TWO_ACTORS),
    grid={
        "experts.K": [2, 3, 4],
        "experts.T": [2, 5, 10],  # must divide R / 2: 30, and 200 under `paper`
        "fedgd.w": [0.3, 0.6, 1.0],
        "data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)],
        "seed": [0, 1, 2],
    },
    ranges={"experts.K": ("int", 2, 6), "fedgd.w": ("uniform", 0.1, 1.0), "optim.learning_rate": ("about", 0.2, 5.0)},
    smoke_grid={"experts.K": [2, 4], "seed": [0, 1]},
    presets={"paper": S2},
    smoke=SMOKE,
    against=("fedavg",),
)
