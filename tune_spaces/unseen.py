"""Twenty clients, of which five a group take no part in training and only infer their z (S1 5.3, Table 2).

`python -m raypref.rlhf unseen` then trains a policy by each selector and has the answers of all judged;
`python -m raypref.compare unseen --table win-rates-unseen` draws the table, `--table unseen` that of accuracies.
"""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE, S1_METHODS
from tune_spaces._papers import S1, S1_GEMMA

TABLE_2 = {"data.group_sizes": (10, 10), "federation.unseen": 5}

SPACE = Space(
    about="FedDPO, FedBiscuit, FedVPL, FedVPA-GP with 10 clients that train and 10 that they never saw (S1 Table 2).",
    base=replace(
        OPPOSED,
        data=replace(OPPOSED.data, group_sizes=(10, 10)),
        federation=replace(OPPOSED.federation, unseen=5),
    ),
    grid={("algorithm", "objective"): S1_METHODS, "seed": [0, 1, 2]},
    smoke_grid={("algorithm", "objective"): S1_METHODS},
    presets={"paper": {**S1, **TABLE_2}, "gemma2b": {**S1_GEMMA, **TABLE_2}},
    smoke={**OPPOSED_SMOKE, "data.group_sizes": (4, 4), "federation.unseen": 2},
    against=("fedvpl",),
)
