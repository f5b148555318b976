"""FedVPA-GP's weights (S1 Eq. 10) and learning rate on the graded benchmark: 24 random configurations, three seeds.

On frozen features, which make a trial a matter of a minute. What `--scheduler asha` saves is measured on it
(docs/commands.md, Sweeps).
"""

from dataclasses import replace

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED, GRADED_SMOKE

SPACE = Space(
    about="FedVPA-GP's weights and learning rate on the graded benchmark: 24 random configurations, three seeds.",
    base=replace(GRADED, algorithm="fedvpa_gp", objective="variational"),
    grid={"seed": [0, 1, 2]},
    draws={
        "variational.beta": ("loguniform", 1e-3, 1.0),
        "variational.lam": ("loguniform", 1e-1, 1e1),
        "variational.gamma": ("loguniform", 1e-2, 1.0),
        "variational.tau": ("loguniform", 0.3, 3.0),
        "optim.learning_rate": ("loguniform", 3e-5, 1e-2),
    },
    samples=24,
    smoke=GRADED_SMOKE,
    smoke_grid={"variational.beta": [0.01, 0.1]},
    against=("fedvpl",),
)
