"""Clients that took no part in training (S1 5.3, Table 2): selectors on frozen features, five of each group apart."""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import EVEN, MAIN, SMALL, with_chosen

SPACE = Space(
    about="Selectors for clients that took no part, five of each group (graded benchmark), eight seeds.",
    base=MAIN,
    grid={
        "data.group_sizes": [EVEN],
        "federation.unseen": [5],
        "seed": list(range(8)),
        **with_chosen("fedvpl frozen", "fedvpa_gp frozen", "bayes adapted"),
    },
    smoke=GRADED_SMOKE,
    smoke_grid={**SMALL, "federation.unseen": [1]},
)
