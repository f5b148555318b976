"""FedDPO (Ye et al., 2024; S1 5.1): federated DPO, one policy without a selector, average by N_c."""

from dataclasses import replace

from raypref.config import OptimConfig
from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE
from tune_spaces._papers import S1, S1_GEMMA

SPACE = Space(
    about="FedDPO (Ye et al., 2024; S1 5.1): federated DPO, one policy without a selector, average by N_c.",
    # At 1e-3 a loss near 0 jumps up again after a dozen rounds: a fresh AdamW takes full steps, however flat it is.
    base=replace(OPPOSED, algorithm="feddpo", objective="dpo", optim=OptimConfig(learning_rate=3e-4)),
    grid={"seed": [0, 1, 2]},
    presets={"paper": S1, "gemma2b": S1_GEMMA},
    smoke=OPPOSED_SMOKE,
    smoke_grid={"seed": [0]},
)
