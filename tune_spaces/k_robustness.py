"""FedBiscuit, Soft-FL and FedGD with 2 and 3 clusters under imbalance (S2 Tables 5 and 6, Fig. 4); K = 4 is in
`main_results`.

`python -m raypref.compare main_results k_robustness` draws them.
"""

from raypref.config import ClientsConfig, DiagnosticsConfig, RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE
from tune_spaces._papers import S2

SPACE = Space(
    about="FedBiscuit, Soft-FL and FedGD with K = 2 and 3 under imbalance (S2 Tables 5, 6; K = 4 is in main_results).",
    base=RunConfig(clients=ClientsConfig(backend="ray"), diagnostics=DiagnosticsConfig(marks=(0,))),
    grid={"experts.K": [2, 3], "algorithm": ["fedbiscuit", "soft_fl", "fedgd"], "seed": [0, 1, 2]},
    smoke_grid={"experts.K": [2, 3], "algorithm": ["fedbiscuit", "soft_fl", "fedgd"]},
    presets={"paper": S2},
    smoke=SMOKE,
)
