"""Ten clients at 70/30, 30/70, 80/20 and 20/80 (S1 Table 3): FedDPO's policies, and the others' selectors.

Balanced k-means then puts some clients with the other group; `--variational.no-balanced` does not.
`python -m raypref.rlhf client_ratio` then trains a policy by each selector and has the answers of all judged;
`python -m raypref.compare client_ratio --table win-rates-ratio` draws the table.
"""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE, S1_METHODS
from tune_spaces._papers import S1, S1_GEMMA

SPACE = Space(
    about="FedDPO, FedBiscuit, FedVPL and FedVPA-GP with groups of 7/3, 3/7, 8/2 and 2/8 clients (S1 Table 3).",
    base=replace(OPPOSED, data=replace(OPPOSED.data, group_sizes=(7, 3))),
    grid={
        "data.group_sizes": [(7, 3), (3, 7), (8, 2), (2, 8)],
        ("algorithm", "objective"): S1_METHODS,
        "seed": [0, 1, 2],
    },
    smoke_grid={"data.group_sizes": [(4, 2), (2, 4)], ("algorithm", "objective"): S1_METHODS},
    presets={name: {**paper, "data.group_sizes": (7, 3)} for name, paper in (("paper", S1), ("gemma2b", S1_GEMMA))},
    smoke=OPPOSED_SMOKE,
    against=("fedvpl",),
)
