"""FL, FL_target, FedGD and Local, balanced and imbalanced, three seeds: the README's main table (S2 Tables 1 to 3)."""

from raypref.config import ClientsConfig, RunConfig
from raypref.spaces import Space
from tune_spaces._bases import SMOKE
from tune_spaces._papers import S2

SPACE = Space(
    about="FL, FL_target, FedGD and Local, balanced and imbalanced, three seeds: the README's main table.",
    base=RunConfig(clients=ClientsConfig(backend="ray")),
    grid={
        "data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)],
        "algorithm": ["local", "fedavg", "fl_target", "fedgd"],
        "seed": [0, 1, 2],
    },
    smoke_grid={"algorithm": ["local", "fedavg", "fl_target", "fedgd"]},
    presets={"paper": S2},
    smoke=SMOKE,
    against=("local", "fedavg", "fl_target"),
)
