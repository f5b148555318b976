"""Where FedGD's second phase starts (S2 C.3, Table 7)."""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import MAIN, SEEDS, SMALL, with_chosen

SPACE = Space(
    about="FedGD whose second phase starts anew or goes on from the first (graded benchmark).",
    base=MAIN,
    grid={**SEEDS, **with_chosen("fedgd"), "fedgd.phase2_start": ["random", "continue"]},
    smoke=GRADED_SMOKE,
    smoke_grid=SMALL,
)
