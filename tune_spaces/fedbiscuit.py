"""FedBiscuit (S2 B.2): size-balanced hard clusters, one model each."""

from raypref.config import RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE, TWO_ACTORS
from tune_spaces._papers import S2

SPACE = Space(
    about="FedBiscuit (S2 B.2): size-balanced hard clusters, one model each.",
    base=RunConfig(algorithm="fedbiscuit", clients=TWO_ACTORS),
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
