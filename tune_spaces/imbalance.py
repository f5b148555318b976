"""CL, Multi CL, FL and FL_target at half of the rounds, balanced and imbalanced (S2 section 3, Tables 1 and 2).

S2 trains these for 200 rounds (preset `paper`), and for 400 in its main table, which is `main_results`. FL at R/2
rounds is also what FedGD's second phase has. `python -m raypref.compare imbalance` draws them.
"""

from raypref.config import ClientsConfig, DiagnosticsConfig, FederationConfig, RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE
from tune_spaces._papers import S2

FOUR = ["cl", "multi_cl", "fedavg", "fl_target"]

SPACE = Space(
    about="CL, Multi CL, FL and FL_target at half of the rounds, with diagnostics (S2 section 3: Tables 1, 2).",
    base=RunConfig(
        algorithm="fl_target",
        federation=FederationConfig(rounds=30),
        diagnostics=DiagnosticsConfig(marks=(0,)),
        clients=ClientsConfig(backend="ray"),
    ),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], "algorithm": FOUR, "seed": [0, 1, 2]},
    smoke_grid={"data.group_sizes": [(3, 3, 3, 3), (4, 4, 2, 2)], "algorithm": FOUR},
    presets={"paper": {**S2, "federation.rounds": 200}},  # section 3
    smoke=SMOKE,
    against=("cl", "multi_cl", "fedavg"),
)
