"""FL and its like after half of the rounds, in which FedGD trains its model (S2 3.2, Tables 1 and 2)."""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import MAIN, SEEDS, SMALL, STOP, with_chosen

SPACE = Space(
    about="FL and FL_target after half of the rounds, in which FedGD trains its model (graded benchmark).",
    base=MAIN,
    grid={**SEEDS, **with_chosen("fedavg", "fl_target", then={STOP: 30})},
    smoke=GRADED_SMOKE,
    smoke_grid=SMALL,
)
