"""S2's real-world setting (2.3; Tables 3 and 4): TL;DR's annotators, whose groups nobody knows.

Any other data set by person goes the same way: give its `--data.…` fields. `python -m raypref.compare real_world`
draws the tables.
"""

from raypref.config import ClientsConfig, RunConfig, override
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE
from tune_spaces._papers import S2, TLDR

SPACE = Space(
    about="The six deployable methods of S2 Table 3 on real people: TL;DR by annotator, or your own --data.source.",
    against=("local", "cl", "fedavg", "fedbiscuit", "soft_fl"),
    base=override(RunConfig(clients=ClientsConfig(backend="ray")), TLDR),
    grid={"algorithm": ["local", "cl", "fedavg", "fedbiscuit", "soft_fl", "fedgd"], "seed": [0, 1, 2]},
    smoke_grid={"algorithm": ["local", "cl", "fedavg", "fedbiscuit", "soft_fl", "fedgd"]},
    presets={
        "paper": {**S2, **TLDR},
        "qwen1.5b": {**S2, **TLDR, "model.base": "Qwen/Qwen2.5-1.5B"},  # A.2, Table 4
        "gemma2b": {**S2, **TLDR, "model.base": "google/gemma-2-2b-it"},  # A.2, Table 4
    },
    # Whether the methods work, on data that need no download.
    smoke={
        **SMOKE,
        "data.source": "synthetic",
        "data.cover_column": "",
        "data.cover_min_rows": 1,
        "data.exact_counts": (8, 8),
        "data.template": "short",
    },
)
