"""S2 on groups and on what training is given: 3.2, 5.2, C.1 to C.3, Tables 5 to 7, Figures 4 to 6."""

from raypref.evaluation.claims.claim import Claim, lead, least, minus, of, spread
from raypref.evaluation.claims.needed import (
    EVEN,
    FEDGD,
    FIRST,
    FL,
    LAST,
    MAIN,
    NUMBERS,
    STARTS,
    STEPS,
    UNEVEN,
    Point,
    reward,
)
from raypref.evaluation.claims.quantities import accuracy, partition

SEVERAL = {"FedGD": "fedgd", "FedBiscuit": "fedbiscuit", "Soft-FL": "soft_fl"}


def by_K(*methods: str, of: tuple[int, ...] = (2, 3, 4)) -> dict[str, Point]:
    """`FedGD K=2` and so on, on frozen features, of which many seeds can be had."""
    return {f"{method} K={K}": UNEVEN | reward(SEVERAL[method], K) for method in methods for K in of}


def start(setting: Point) -> dict[str, Point]:
    """FedGD whose phase 2 starts anew, or continues."""
    return {
        "anew": setting | FEDGD | {"fedgd.phase2_start": "random"},
        "continued": setting | FEDGD | {"fedgd.phase2_start": "continue"},
    }


def local_steps(tau: int, rate: float) -> dict[str, Point]:
    """`τ=30 at 0.001` and so on: FL, balanced groups."""
    more = {"federation.local_steps": tau, "optim.learning_rate": rate}
    return {f"τ={tau} at {rate:g}": EVEN | FL | more}


GROWS = minus(accuracy(FIRST), "τ=30 at 0.001", "τ=1 at 0.001")

CLAIMS = [
    Claim(
        "fedgd-k-hardly-matters",
        "S2 5.2, Table 5",
        "With K = 2, 3 or 4 clusters FedGD is within 3 points of itself at ten steps.",
        "acc^10 91.00, 92.80, 92.35",
        by_K("FedGD"),
        spread(accuracy(FIRST), [*by_K("FedGD")]),
        direction="below",
        null=3.0,
        budget="rounds",
        space=NUMBERS,
    ),
    Claim(
        "k-matters-less-to-fedgd",
        "S2 C.1, Table 6",
        "K moves FedGD less than FedBiscuit at the last step.",
        "by 0.25 against 7.30",
        by_K("FedBiscuit", "FedGD"),
        spread(accuracy(LAST), [*by_K("FedBiscuit")]) - spread(accuracy(LAST), [*by_K("FedGD")]),
        budget="rounds",
        space=NUMBERS,
    ),
    Claim(
        "fedgd-ahead-at-every-k",
        "S2 C.1, Table 6",
        "At K = 2, 3 and 4 FedGD ends ahead of the better of FedBiscuit and Soft-FL.",
        "acc^80 93.50, 93.65, 93.75; Soft-FL 84.45, 86.30, 86.20",
        by_K(*SEVERAL),
        least([lead(accuracy(LAST), f"FedGD K={K}", [f"FedBiscuit K={K}", f"Soft-FL K={K}"]) for K in (2, 3, 4)]),
        budget="rounds",
        space=NUMBERS,
    ),
    Claim(
        "fedgd-finds-the-groups",
        "S2 3.2, 5.2, Fig. 4",
        "With K = 4 FedGD finds the four groups: adjusted Rand index above 0.9.",
        "exactly the true groups",
        {"FedGD": UNEVEN | FEDGD | {"experts.K": 4}},
        of(partition(), "FedGD"),
        margin=0.05,
        null=0.9,
        space=MAIN,
    ),
    Claim(
        "anew-is-better-even",
        "S2 C.3, Table 7",
        "After ten steps FedGD whose phase 2 starts anew is ahead of one that continues phase 1's, balanced groups.",
        "acc^10 94.55 against 87.95",
        start(EVEN),
        minus(accuracy(FIRST), "anew", "continued"),
        space=STARTS,
    ),
    Claim(
        "anew-is-better-uneven",
        "S2 C.3, Table 7",
        "After ten steps FedGD whose phase 2 starts anew is ahead of one that continues phase 1's, unequal groups.",
        "acc^10 92.35 against 91.00",
        start(UNEVEN),
        minus(accuracy(FIRST), "anew", "continued"),
        space=STARTS,
    ),
    Claim(
        "continuing-costs-more-even",
        "S2 C.3, Table 7",
        "To continue phase 1's model in phase 2 costs FedGD more where groups are balanced.",
        "6.60 against 1.35",
        {
            f"{run}, {name}": point
            for name, s in (("even", EVEN), ("uneven", UNEVEN))
            for run, point in start(s).items()
        },
        minus(accuracy(FIRST), "anew, even", "continued, even")
        - minus(accuracy(FIRST), "anew, uneven", "continued, uneven"),
        space=STARTS,
    ),
    Claim(
        "more-local-steps-help-fl",
        "S2 C.2, Fig. 5",
        "The more local steps a round has, the better FL is after ten steps of personalization: 30 against 1.",
        "drawn only",
        local_steps(1, 1e-3) | local_steps(30, 1e-3),
        GROWS,
        budget="rounds",
        space=STEPS,
    ),
    Claim(
        "small-steps-do-not",
        "S2 C.2, Fig. 5",
        "At a tenth of the learning rate more local steps of a round help FL less.",
        "drawn only",
        {r: p for tau in (1, 30) for rate in (1e-3, 1e-4) for r, p in local_steps(tau, rate).items()},
        GROWS - minus(accuracy(FIRST), "τ=30 at 0.0001", "τ=1 at 0.0001"),
        budget="rounds",
        space=STEPS,
    ),
    Claim(
        "real-k-hardly-matters",
        "S2 C.1, Table 6",
        "On people's own choices, too, K hardly moves FedGD.",
        "acc^240 64.47, 64.77, 64.41",
        untestable="needs Reddit TL;DR with its annotators, which is on the hub",
    ),
]
