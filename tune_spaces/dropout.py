"""What it costs that clients do not answer: a tenth, a third and more than half of each cohort, drawn anew each round.

`python -m raypref.compare dropout --table dropout` draws the table.
"""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED, GRADED_METHODS, GRADED_SMOKE

METHODS = [
    *((name, "choice", False, False, "frozen") for name in ("fedavg", "fedgd", "scaffold")),
    ("fedvpl", "variational", True, True, "frozen"),
]

SPACE = Space(
    about="FL, FedGD, SCAFFOLD, FedVPL where 0, 10, 30 and 60 % of a cohort do not answer (graded benchmark).",
    base=GRADED,
    grid={GRADED_METHODS: METHODS, "federation.dropout": [0.0, 0.1, 0.3, 0.6], "seed": [0, 1, 2]},
    smoke=GRADED_SMOKE,
    smoke_grid={GRADED_METHODS: METHODS[:2], "federation.dropout": [0.0, 0.6]},
    against=("fedavg",),
)
