"""Methods of both papers on the graded benchmark (docs/data.md): four groups even and uneven, and 8 to 1; five seeds.

`python -m raypref.compare graded` draws what was run; `--where data.group_sizes="32 4"` shows one condition alone.
"""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED, GRADED_METHODS, GRADED_SMOKE, SEVERAL

SPACE = Space(
    about="Methods of both papers on the graded benchmark: four groups even and uneven, and 8 to 1, five seeds.",
    base=GRADED,
    grid={
        "data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5), (32, 4)],  # two: opposed on every axis
        GRADED_METHODS: SEVERAL,
        "seed": [0, 1, 2, 3, 4],
    },
    smoke=GRADED_SMOKE,
    smoke_grid={"data.group_sizes": [(3, 3, 3, 3), (8, 1)], GRADED_METHODS: SEVERAL[:2]},
    against=("fedavg",),
)
