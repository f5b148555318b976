"""Objectives and algorithms mixed: FL and FedGD with either objective, FedVPL and FedVPA-GP in both forms, three seeds.

`python -m raypref.compare mix --table mix` draws the README's first table.
"""

from raypref.config import ClientsConfig, PersonalizationConfig, RunConfig
from raypref.spaces import Space
from tune_spaces._bases import SMOKE

COMBINED = [
    ("fedavg", "choice", "conditioned", False),
    ("fedgd", "choice", "conditioned", False),
    ("fedvpl", "variational", "printed", True),
    ("fedvpa_gp", "variational", "printed", True),
    ("fedvpl", "variational", "conditioned", False),
    ("fedvpa_gp", "variational", "conditioned", False),
    ("fedgd", "variational", "conditioned", False),
    ("fedgd", "variational", "conditioned", True),
]
"""Algorithm, objective, form (which the choice objective does not have), and whether variational selectors train an
adapter, too."""
KEYS = ("algorithm", "objective", "variational.form", "variational.lora")

SPACE = Space(
    about="Objectives and algorithms mixed: both papers' methods and their combinations, by local steps, three seeds.",
    base=RunConfig(
        personalization=PersonalizationConfig(marks=(0, 1, 2, 5, 10, 80)), clients=ClientsConfig(backend="ray")
    ),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], KEYS: COMBINED, "seed": [0, 1, 2]},
    smoke_grid={KEYS: COMBINED},
    smoke=SMOKE,
    against=("fedavg",),
)
