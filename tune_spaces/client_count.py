"""10, 50 and 100 clients, cohorts of 5, 10 and 10 (S1 Table 1): FedDPO's policies, and the others' selectors.

`python -m raypref.rlhf client_count` then trains a policy by each selector and has the answers of all judged;
`python -m raypref.compare client_count --table win-rates` draws the table.
"""

from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE, S1_METHODS
from tune_spaces._papers import S1, S1_GEMMA

CLIENTS = ("data.group_sizes", "federation.cohort")

SPACE = Space(
    about="FedDPO, FedBiscuit, FedVPL and FedVPA-GP with 10, 50 and 100 clients (S1 Table 1).",
    base=OPPOSED,
    grid={
        CLIENTS: [((5, 5), 5), ((25, 25), 10), ((50, 50), 10)],
        ("algorithm", "objective"): S1_METHODS,
        "seed": [0, 1, 2],
    },
    smoke_grid={CLIENTS: [((2, 2), 2), ((4, 4), 3)], ("algorithm", "objective"): S1_METHODS},
    presets={"paper": S1, "gemma2b": S1_GEMMA},
    smoke=OPPOSED_SMOKE,
    against=("fedvpl",),
)
