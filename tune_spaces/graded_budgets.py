"""The main comparison's methods under budgets of other kinds: the papers' own, and equal rounds.

CL and Multi-CL take R · τ steps a model, FedBiscuit warms up beyond R; of the others both are the main comparison.
"""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import MAIN, SEEDS, SMALL, STOP, with_chosen

SPACE = Space(
    about="Methods whose client steps are others by the papers' own budgets than at equal client steps (graded).",
    base=MAIN,
    grid={**SEEDS, **with_chosen("cl", "multi_cl", "fedbiscuit", "ditto", then={STOP: 60})},
    smoke=GRADED_SMOKE,
    smoke_grid=SMALL,
)
