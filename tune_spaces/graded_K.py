"""How much K matters (S2 5.2, C.1), on reward heads over frozen features, of which many seeds can be had."""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import MAIN

SPACE = Space(
    about="FedGD, FedBiscuit and Soft-FL with 2 to 8 models, reward heads on frozen features (graded), 20 seeds.",
    base=replace(MAIN, objective="reward"),
    grid={
        "algorithm": ["fedgd", "fedbiscuit", "soft_fl"],
        "experts.K": [2, 3, 4, 6, 8],
        "seed": list(range(20)),
    },
    smoke=GRADED_SMOKE,
    smoke_grid={"algorithm": ["fedgd", "soft_fl"], "experts.K": [2, 3]},
)
