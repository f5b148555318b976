"""Multi-CL (S2 section 3): one model a true group on its pooled data, an oracle."""

from raypref.config import RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE, TWO_ACTORS
from tune_spaces._papers import S2

SPACE = Space(
    about="Multi-CL (S2 section 3): one model a true group on its pooled data, an oracle.",
    base=RunConfig(algorithm="multi_cl", clients=TWO_ACTORS),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], "seed": [0, 1, 2]},
    smoke_grid={"seed": [0, 1]},
    presets={"paper": S2},
    smoke=SMOKE,
    against=("cl", "fedavg"),
)
