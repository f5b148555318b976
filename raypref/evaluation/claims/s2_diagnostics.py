"""S2 on why initializations adapt: gradient quotient, margins, headroom (2.2, 3.1, 3.2, 5.2, Tables 1, 2 and 5).

The gradient quotient is compared by its log10: 1 is an order of magnitude. It grows with η, and so is compared at equal
η alone.
"""

from functools import partial

from raypref.evaluation.claims import needed
from raypref.evaluation.claims.claim import Claim, Quantity, lead, minus, of, rank_correlation
from raypref.evaluation.claims.needed import CL, DIAGNOSED, ETA, FEDGD, FIRST, FL, FL_TARGET, MULTI_CL, points
from raypref.evaluation.claims.quantities import accuracy, diagnosis, flatness, retained

EVEN, UNEVEN = needed.EVEN | ETA, needed.UNEVEN | ETA
THREE = points(EVEN, {"FL": FL, "CL": CL, "Multi-CL": MULTI_CL})
DEBIASED = points(UNEVEN, {"FL_target": FL_TARGET, "FL": FL})
SETTINGS = {"FL even": EVEN | FL, "FL uneven": UNEVEN | FL}
WRONG = diagnosis("m0_W", "mean margin of wrong pairs", "nats")
RIGHT = diagnosis("m0_R", "mean margin of right pairs", "nats")
BODY, HEAD = flatness("_body"), flatness("_head")


def headroom(name: str) -> Quantity:
    """Share of right (R) or wrong (W) pairs whose headroom is positive."""
    return diagnosis(f"Hplus_{name}", f"H+_{name}", "points", lambda share: 100.0 * share)


claim = partial(Claim, space=DIAGNOSED)

CLAIMS = [
    claim(
        "fl-flattest",
        "S2 3.1, Table 1",
        "FL's initialization has a smaller gradient quotient than CL's and Multi-CL's, balanced groups.",
        "GQ(l) 0.10 against 1.14 and 0.86",
        THREE,
        lead(flatness(), "FL", ["CL", "Multi-CL"], beside="lowest"),
        direction="below",
        margin=0.1,
    ),
    claim(
        "flatness-is-of-the-body",
        "S2 3.1, Table 1",
        "FL is flatter than Multi-CL by more in the body's layers than in the head's.",
        "GQ_B 0.11 against 1.00, GQ_H 0.09 against 0.56",
        THREE,
        minus(BODY, "Multi-CL", "FL") - minus(HEAD, "Multi-CL", "FL"),
        margin=0.1,
    ),
    claim(
        "flat-adapts",
        "S2 2.2, 3.1, Table 1",
        "The smaller the gradient quotient of an initialization, the higher its accuracy after ten steps.",
        "0.10, 0.86, 1.14: 93.45, 91.45, 52.15",
        THREE | points(EVEN, {"FedGD": FEDGD}),
        rank_correlation(flatness(), accuracy(FIRST), ["FL", "CL", "Multi-CL", "FedGD"]),
        direction="below",
        margin=0.2,
    ),
    claim(
        "fl-uncommitted",
        "S2 3.1, Table 1",
        "FL lies nearer to the decision boundary than CL and Multi-CL: right pairs have smaller margins.",
        "m0_R +2.38 against +16.00 and +22.88",
        THREE,
        lead(RIGHT, "FL", ["CL", "Multi-CL"], beside="lowest"),
        direction="below",
        margin=0.2,
    ),
    claim(
        "fl-headroom",
        "S2 3.1, Table 1",
        "More of FL's wrong pairs have positive headroom than of CL's and Multi-CL's.",
        "H+_W 96.00 against 62.02 and 59.51",
        THREE,
        lead(headroom("W"), "FL", ["CL", "Multi-CL"]),
        margin=5.0,
    ),
    claim(
        "fl-corrects",
        "S2 3.1, Table 1",
        "Ten steps put more of FL's wrong pairs right than of CL's and Multi-CL's.",
        "P^10_W 91.99 against 21.49 and 25.77",
        THREE,
        lead(retained("W", FIRST), "FL", ["CL", "Multi-CL"]),
        margin=5.0,
    ),
    claim(
        "multi-cl-retains",
        "S2 3.1, Table 1",
        "Multi-CL keeps more of its right pairs right than FL.",
        "P^10_R 97.28 against 94.01",
        THREE,
        minus(retained("R", FIRST), "Multi-CL", "FL"),
    ),
    claim(
        "imbalance-steepens-fl",
        "S2 3.2, Table 2",
        "Groups of unequal size make FL's gradient quotient larger.",
        "GQ(l) 0.72 against 0.10",
        SETTINGS,
        minus(flatness(), "FL uneven", "FL even"),
        margin=0.1,
    ),
    claim(
        "imbalance-commits-fl",
        "S2 3.2, Table 2",
        "With groups of unequal size FL is surer of what it has wrong.",
        "m0_W -27.02 against -2.34",
        SETTINGS,
        minus(WRONG, "FL uneven", "FL even"),
        direction="below",
        margin=0.2,
    ),
    claim(
        "imbalance-keeps-direction",
        "S2 3.2, Table 2",
        "Also with groups of unequal size a step moves more than nine of ten of FL's wrong pairs the right way.",
        "H+_W 96.74",
        {"FL": UNEVEN | FL},
        of(headroom("W"), "FL"),
        margin=1.0,
        null=90.0,
    ),
    claim(
        "debiasing-flattens",
        "S2 3.2, Table 2",
        "Drawing clients evenly from the true groups makes FL's gradient quotient smaller.",
        "GQ(l) 0.27 against 0.72",
        DEBIASED,
        minus(flatness(), "FL_target", "FL"),
        direction="below",
        margin=0.1,
    ),
    claim(
        "debiasing-uncommits",
        "S2 3.2, Table 2",
        "Drawing clients evenly from the true groups keeps FL near the boundary: less sure of what it has wrong.",
        "m0_W -3.65 against -27.02",
        DEBIASED,
        minus(WRONG, "FL_target", "FL"),
        margin=0.2,
    ),
    claim(
        "debiasing-corrects",
        "S2 3.2, Table 2",
        "Drawing clients evenly from the true groups lets ten steps put more of FL's wrong pairs right.",
        "P^10_W 90.62 against 2.09",
        DEBIASED,
        minus(retained("W", FIRST), "FL_target", "FL"),
        margin=5.0,
    ),
    claim(
        "fedgd-flat",
        "S2 5.2, Tables 2, 5",
        "FedGD, which does not know the groups, has a smaller gradient quotient than plain FL, groups of unequal size.",
        "GQ(l) 0.27 against 0.72 (R/2)",
        points(UNEVEN, {"FedGD": FEDGD, "FL": FL}),
        minus(flatness(), "FedGD", "FL"),
        direction="below",
        margin=0.1,
    ),
]
