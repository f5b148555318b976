"""Local (S2 section 5): every client fine-tunes the frozen base alone."""

from raypref.config import RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE, TWO_ACTORS
from tune_spaces._papers import S2

SPACE = Space(
    about="Local (S2 section 5): every client fine-tunes the frozen base alone.",
    base=RunConfig(algorithm="local", clients=TWO_ACTORS),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], "seed": [0, 1, 2]},
    smoke_grid={"seed": [0, 1]},
    presets={"paper": S2},
    smoke=SMOKE,
    against=(),
)
