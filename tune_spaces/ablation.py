"""FedVPL with the orthogonal loss, with the mixture prior, and with both: FedVPA-GP (S1 5.4, Fig. 4).

`python -m raypref.rlhf ablation` then trains a policy by each selector and has its answers judged;
`python -m raypref.compare ablation --figure win-rates` draws the figure.
"""

from raypref.config.spaces import Space
from tune_spaces._bases import OPPOSED, OPPOSED_SMOKE, VARIATIONAL
from tune_spaces._papers import S1, S1_GEMMA

SPACE = Space(
    about="FedVPL with the orthogonal loss, with the mixture prior, and with both: FedVPA-GP (S1 5.4, Fig. 4).",
    base=OPPOSED,
    grid={("algorithm", "objective"): VARIATIONAL, "seed": [0, 1, 2]},
    smoke_grid={("algorithm", "objective"): VARIATIONAL},
    presets={"paper": S1, "gemma2b": S1_GEMMA},
    smoke=OPPOSED_SMOKE,
    against=("fedvpl", "fedvpl_ortho", "fedvpl_prior"),
)
