"""The seven methods of S2 Table 3, balanced and imbalanced, three seeds (docs/results.md).

`python -m raypref.compare main_results` draws Table 3 and Figure 6; beside the other spaces also their tables.
"""

from raypref.config import ClientsConfig, DiagnosticsConfig, RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE
from tune_spaces._papers import S2

SEVEN = ["local", "cl", "multi_cl", "fedavg", "fedbiscuit", "soft_fl", "fedgd"]

SPACE = Space(
    about="The seven methods of S2 Table 3, balanced and imbalanced, three seeds (docs/results.md).",
    base=RunConfig(clients=ClientsConfig(backend="ray"), diagnostics=DiagnosticsConfig(marks=(0,))),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], "algorithm": SEVEN, "seed": [0, 1, 2]},
    smoke_grid={"algorithm": SEVEN},
    presets={"paper": S2},
    smoke=SMOKE,
    against=("local", "cl", "fedavg", "fedbiscuit", "soft_fl"),
)
