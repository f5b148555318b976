"""Named variants of FedVPA-GP's conditioned form, judged without any local step, three seeds.

`python -m raypref.compare variants --table context` shows them by the number of pairs that z is inferred from.
"""

from raypref.config import ClientsConfig, PersonalizationConfig, RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE

KEYS = tuple(f"variational.{key}" for key in ("lora", "adapted", "linear", "responses", "pooling", "context"))
VARIANTS = {
    "the default": (False, False, True, "joint", "mean", 0),
    "without linear path": (False, False, False, "joint", "mean", 0),
    "attention": (False, False, True, "joint", "attention", 0),
    "context of 16": (False, False, True, "joint", "mean", 16),
    "responses apart": (False, False, True, "apart", "mean", 0),
    "LoRA": (True, False, True, "joint", "mean", 0),
    "LoRA, adapted features": (True, True, True, "joint", "mean", 0),
}

SPACE = Space(
    about="Named variants of FedVPA-GP's conditioned form, judged without any local step, three seeds.",
    base=RunConfig(
        algorithm="fedvpa_gp",
        objective="variational",
        personalization=PersonalizationConfig(marks=(0,)),
        clients=ClientsConfig(backend="ray"),
    ),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], KEYS: list(VARIANTS.values()), "seed": [0, 1, 2]},
    smoke_grid={KEYS: list(VARIANTS.values())[::3]},
    smoke=SMOKE,
)
