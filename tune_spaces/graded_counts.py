"""S1's numbers of clients (5.2, Table 1): two groups whose wishes are shared in part, selectors on frozen features."""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import MAIN, SMALL, with_chosen

SHARED = replace(MAIN.data, graded=replace(MAIN.data.graded, wishes=("11", "12")))
"""Two groups that agree on one axis of two."""

SPACE = Space(
    about="Selectors for 10, 50 and 100 clients in two groups that agree on one axis of two (graded), eight seeds.",
    base=replace(MAIN, data=SHARED),
    grid={
        ("data.group_sizes", "federation.cohort"): [((5, 5), 5), ((25, 25), 10), ((50, 50), 10)],
        "seed": list(range(8)),
        **with_chosen("fedvpl frozen", "fedvpa_gp frozen"),
    },
    smoke=GRADED_SMOKE,
    smoke_grid={**SMALL, ("data.group_sizes", "seed"): [((4, 4), 0)]},
)
