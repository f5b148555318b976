"""Local steps of a round and the learning rate (S2 C.2, Figs. 5, 6), balanced groups, equal rounds."""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import EVEN, MAIN, STOP

SPACE = Space(
    about="FL by local steps of a round and learning rate (graded benchmark), balanced, equal rounds.",
    base=MAIN,
    grid={
        "data.group_sizes": [EVEN],
        STOP: [60],
        "federation.local_steps": [1, 30],
        "optim.learning_rate": [1e-4, 1e-3],
        "algorithm": ["fedavg"],
        "seed": [0, 1, 2, 3],
    },
    smoke=GRADED_SMOKE,
    smoke_grid={"federation.local_steps": [1, 3], "algorithm": ["fedavg"]},
)
