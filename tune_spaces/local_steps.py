"""FL and CL over the local steps τ before aggregation, at two learning rates, balanced (S2 Fig. 5).

Every τ has the same number of rounds, as in the paper, so client steps grow with it. The learning rate is that of
personalization, too, for S2 names one; `--personalization.learning-rate` fixes it there. One seed: `--seeds 0 1 2`
adds to it. `python -m raypref.compare local_steps` draws the figure.
"""

from raypref.config import ClientsConfig, DataConfig, RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE
from tune_spaces._papers import S2

SPACE = Space(
    about="FL and CL over local steps before aggregation, at two learning rates, balanced (S2 Fig. 5).",
    base=RunConfig(
        algorithm="fedavg", data=DataConfig(group_sizes=(10, 10, 10, 10)), clients=ClientsConfig(backend="ray")
    ),
    grid={
        "algorithm": ["fedavg", "cl"],
        "federation.local_steps": [1, 5, 15, 30],
        "optim.learning_rate": [1e-3, 1e-4],  # the base's, and a tenth
        "seed": [0],
    },
    smoke_grid={
        "algorithm": ["fedavg", "cl"],
        "federation.local_steps": [1, 5],
        "optim.learning_rate": [1e-3, 1e-4],
    },
    presets={"paper": S2},
    preset_grid={"paper": {"optim.learning_rate": [1e-5, 1e-6]}},  # C.2: the default one, and a tenth
    smoke={**SMOKE, "data.group_sizes": (3, 3, 3, 3)},
)
