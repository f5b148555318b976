"""Wishes that are partly shared: all four groups want warm answers, and each one style more; graded, five seeds.

One model for all can serve everybody on the axis that they share, so that what personalization adds is measured and
not given by construction, for selectors and for policies (`python -m raypref.rlhf graded_shared`).
"""

from dataclasses import replace

from raypref.config import GradedConfig
from raypref.config.spaces import Space
from tune_spaces._bases import GRADED, GRADED_METHODS, GRADED_SMOKE, SEVERAL

SPACE = Space(
    about="Wishes that are partly shared: all want warm answers, each group one style more (graded benchmark).",
    base=replace(
        GRADED,
        data=replace(
            GRADED.data,
            axes=("education", "humor", "manners"),
            group_sizes=(10, 10, 10, 10),
            # A third of what answers hold is of an axis that the group has no wish on: margins are smaller, too.
            graded=GradedConfig(wishes=("101", "201", "011", "021"), temperature=0.4),
        ),
    ),
    grid={GRADED_METHODS: SEVERAL, "seed": [0, 1, 2, 3, 4]},
    smoke=GRADED_SMOKE,
    smoke_grid={GRADED_METHODS: SEVERAL[:2]},
    against=("fedavg",),
)
