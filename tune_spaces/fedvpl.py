"""FedVPL (S1 5.1): the variational selector with a fixed Gaussian prior and no orthogonal loss."""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE
from tune_spaces._papers import S1, S1_GEMMA

SPACE = Space(
    about="FedVPL (S1 5.1): the variational selector with a fixed Gaussian prior and no orthogonal loss.",
    base=replace(OPPOSED, algorithm="fedvpl"),
    grid={"variational.beta": [0.001, 0.01, 0.1], "seed": [0, 1, 2]},
    presets={"paper": S1, "gemma2b": S1_GEMMA},
    smoke=OPPOSED_SMOKE,
    smoke_grid={"seed": [0]},
)
