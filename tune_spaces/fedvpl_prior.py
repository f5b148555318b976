"""FedVPL with the federated mixture prior (S1 5.4, Fig. 4: GB Prior)."""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE
from tune_spaces._papers import S1, S1_GEMMA

SPACE = Space(
    about="FedVPL with the federated mixture prior (S1 5.4, Fig. 4: GB Prior).",
    base=replace(OPPOSED, algorithm="fedvpl_prior"),
    grid={"seed": [0, 1, 2]},
    presets={"paper": S1, "gemma2b": S1_GEMMA},
    smoke=OPPOSED_SMOKE,
    smoke_grid={"seed": [0]},
)
