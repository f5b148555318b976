"""A hundred people of 10 to 20 training pairs each, in two groups that agree on one axis and not on the other; graded.

So little of each, and so many: what one person alone can learn is hardly anything, and what all share is half of it.
"""

from dataclasses import replace

from raypref.config import GradedConfig
from raypref.config.spaces import Space
from tune_spaces._bases import GRADED, GRADED_METHODS, GRADED_SMOKE, SEVERAL

SPACE = Space(
    about="A hundred people of 10 to 20 pairs, in two groups that agree on one of two axes (graded benchmark).",
    base=replace(
        GRADED,
        data=replace(
            GRADED.data,
            group_sizes=(50, 50),
            graded=GradedConfig(wishes=("11", "12"), train=(10, 20), validation=4),
        ),
        federation=replace(GRADED.federation, cohort=10),
    ),
    grid={GRADED_METHODS: SEVERAL, "seed": [0, 1, 2, 3, 4]},
    smoke={**GRADED_SMOKE, "data.group_sizes": (5, 5)},
    smoke_grid={GRADED_METHODS: SEVERAL[:2]},
    against=("fedavg",),
)
