"""Named variants of FedVPA-GP's conditioned form, judged without any local step, three seeds.

`python -m raypref.compare variants --table context` shows them by the number of pairs that z is inferred from.
"""

from raypref.config import ClientsConfig, PersonalizationConfig, RunConfig
from raypref.spaces import Space
from tune_spaces._bases import SMOKE

KEYS = tuple(f"variational.{key}" for key in ("lora", "adapted", "responses", "pooling", "context"))
VARIANTS = {
    "frozen": (False, False, "joint", "mean", 0),
    "attention": (False, False, "joint", "attention", 0),
    "context of 8": (False, False, "joint", "mean", 8),
    "responses apart": (False, False, "apart", "mean", 0),
    "LoRA": (True, False, "joint", "mean", 0),
    "LoRA, adapted": (True, True, "joint", "mean", 0),
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
    smoke_grid={KEYS: list(VARIANTS.values())},
    smoke=SMOKE,
)
