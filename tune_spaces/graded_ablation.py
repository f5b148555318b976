"""What FedVPA-GP is made of (S1 5.4, Fig. 4): its selector on frozen features, with and without each part."""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE, VARIATIONAL
from tune_spaces._tuned import MAIN, UNEVEN, chosen

SPACE = Space(
    about="FedVPA-GP's selector on frozen features, with and without prior and prototypes (graded), eight seeds.",
    base=MAIN,
    grid={
        "data.group_sizes": [UNEVEN],
        ("algorithm", "objective"): VARIATIONAL,
        **{key: [value] for key, value in chosen("fedvpa_gp frozen").items()},
        "seed": list(range(8)),
    },
    smoke=GRADED_SMOKE,
    smoke_grid={("algorithm", "objective"): VARIATIONAL[:2]},
)
