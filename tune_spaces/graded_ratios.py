"""A minority of two clients of ten (S1 5.4, Table 3), in groups whose wishes are shared in part."""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import MAIN, SMALL, with_chosen
from tune_spaces.graded_counts import SHARED

SPACE = Space(
    about="A minority of two clients of ten, whose wishes are shared in part (graded benchmark), eight seeds.",
    base=replace(MAIN, data=SHARED),
    grid={
        "data.group_sizes": [(8, 2), (2, 8)],
        "seed": list(range(8)),
        **with_chosen("fedbiscuit", "fedvpl frozen", "fedvpa_gp frozen"),
    },
    smoke=GRADED_SMOKE,
    smoke_grid={**SMALL, ("data.group_sizes", "seed"): [((4, 2), 0)]},
)
