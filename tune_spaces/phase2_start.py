"""FedGD whose phase 2 continues from θ_g (S2 Table 7); that from a random start is in `main_results`.

`python -m raypref.compare main_results phase2_start` draws the table.
"""

from raypref.config import ClientsConfig, RunConfig, override
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE
from tune_spaces._papers import S2

SPACE = Space(
    about="FedGD whose phase 2 continues from phase 1's model (S2 Table 7; the random start is in main_results).",
    base=override(RunConfig(clients=ClientsConfig(backend="ray")), {"fedgd.phase2_start": "continue"}),
    grid={
        "fedgd.phase2_start": ["continue"],  # over the paper's preset, which has the random start
        "data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)],
        "seed": [0, 1, 2],
    },
    smoke_grid={"fedgd.phase2_start": ["continue", "random"]},
    presets={"paper": S2},
    smoke=SMOKE,
)
