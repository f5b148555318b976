"""FedVPA-GP (S1 section 4): a variational selector with a federated mixture prior and prototypes."""

from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE
from tune_spaces._papers import S1, S1_GEMMA

SPACE = Space(
    about="FedVPA-GP (S1 section 4): a variational selector with a federated mixture prior and prototypes.",
    base=OPPOSED,
    grid={"seed": [0, 1, 2]},
    draws={  # a decade about S1's Table 4
        "variational.beta": ("loguniform", 1e-3, 1e-1),
        "variational.lam": ("loguniform", 1e-1, 1e1),
        "variational.gamma": ("loguniform", 1e-2, 1.0),
        "variational.tau": ("loguniform", 0.3, 3.0),
    },
    samples=12,
    ranges={"optim.learning_rate": ("about", 0.2, 5.0)},
    presets={"paper": S1, "gemma2b": S1_GEMMA},
    smoke=OPPOSED_SMOKE,
    smoke_grid={"variational.beta": [0.01, 0.1]},
    against=("fedvpl",),
)
