"""Objectives and algorithms mixed: FL and FedGD with either objective, FedVPL and FedVPA-GP in both forms, three seeds.

`python -m raypref.compare mix --table mix` draws the table of both papers (docs/results.md).
"""

from raypref.config import ClientsConfig, PersonalizationConfig, RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE

OPTIONS = ("form", "lora", "adapted", "linear", "beta", "lam")
KEYS = ("algorithm", "objective", *(f"variational.{key}" for key in OPTIONS))
PRINTED = ("printed", True, False, False, 0.01, 1.0)
"""As S1 has it, with β and λ of its Table 4."""
CONDITIONED = ("conditioned", False, False, True, 0.001, 0.1)
ADAPTED = ("conditioned", True, True, True, 0.001, 0.1)
COMBINED = [
    ("fedavg", "choice", *CONDITIONED),  # which has no use for any of them
    ("fedgd", "choice", *CONDITIONED),
    ("fedvpl", "variational", *PRINTED),
    ("fedvpa_gp", "variational", *PRINTED),
    ("fedvpl", "variational", *CONDITIONED),
    ("fedvpa_gp", "variational", *CONDITIONED),
    ("fedgd", "variational", *CONDITIONED),
    ("fedvpa_gp", "variational", *ADAPTED),
]

SPACE = Space(
    about="Objectives and algorithms mixed: both papers' methods and their combinations, by local steps, three seeds.",
    base=RunConfig(
        personalization=PersonalizationConfig(marks=(0, 1, 2, 5, 10, 80)), clients=ClientsConfig(backend="ray")
    ),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], KEYS: COMBINED, "seed": [0, 1, 2]},
    smoke_grid={KEYS: [COMBINED[i] for i in (0, 1, 3, 6)]},  # both objectives, both forms
    smoke=SMOKE,
    against=("fedavg",),
)
