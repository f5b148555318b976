"""S1 on what its selectors make of a policy: win rates against the frozen base (5.2 to 5.4, Tables 1 to 3, Fig. 4).

Wishes are partly shared, as helpful and harmless are, so that one policy for all can serve both groups in part. Phrases
are counted where S1 asks a language model.
"""

from functools import partial
from statistics import fmean

from raypref.evaluation.claims.claim import Claim, lead, least, minus, of
from raypref.evaluation.claims.needed import (
    ABLATION,
    COUNTS,
    FEDDPO,
    RATIOS,
    SHARED,
    UNSEEN,
    Point,
    selector,
    variational,
)
from raypref.evaluation.claims.quantities import unseen_wins, wins

GEMMA = "needs Gemma-2B and HH-RLHF"
METHODS: dict[str, Point] = {
    "FedDPO": FEDDPO,
    "FedBiscuit": selector("fedbiscuit"),
    "FedVPL": variational("fedvpl"),
    "FedVPA-GP": variational("fedvpa_gp"),
}
"""The rows of Table 1."""
PARTS = {"FedVPL+Ortho": variational("fedvpl_ortho"), "FedVPL+GB Prior": variational("fedvpl_prior")}
MEAN, LOWER, APART = (
    wins("mean of both groups' win rates", fmean),
    wins("lower of both groups' win rates", min),
    wins("distance of both groups' win rates", lambda rates: max(rates) - min(rates)),
)
AT = {"7/3": [7, 3], "3/7": [3, 7], "8/2": [8, 2], "2/8": [2, 8]}


def runs(*methods: str, sizes: list[int] | None = None, unseen: int = 0) -> dict[str, Point]:
    """Policies by the methods' selectors; ten clients unless other sizes are given."""
    setting = SHARED | {"data.group_sizes": sizes or [5, 5], "federation.unseen": unseen}
    return {method: setting | (METHODS | PARTS)[method] for method in methods}


def at_ratios(*methods: str) -> dict[str, Point]:
    return {f"{m} {name}": p for name, sizes in AT.items() for m, p in runs(*methods, sizes=sizes).items()}


win = partial(Claim, space=COUNTS, margin=2.0, budget="rounds", policies=True)
"""A claim on policies, whose first stage has the same rounds whatever the method."""

CLAIMS = [
    win(
        "policy-ahead-of-one-for-all",
        "S1 5.2, Table 1",
        "FedVPA-GP's policy is ahead of those for all, FedDPO's and FedBiscuit's: ten clients, mean of both groups.",
        "66.45 and 89.21 against 48.12 and 77.34, 48.85 and 75.12 (Qwen2)",
        runs("FedVPA-GP", "FedDPO", "FedBiscuit"),
        lead(MEAN, "FedVPA-GP", ["FedDPO", "FedBiscuit"]),
    ),
    win(
        "policy-ahead-of-fedvpl",
        "S1 5.2, Table 1",
        "With ten clients FedVPA-GP's policy is ahead of FedVPL's, mean of both groups.",
        "66.45 and 89.21 against 62.24 and 84.56 (Qwen2)",
        runs("FedVPA-GP", "FedVPL"),
        minus(MEAN, "FedVPA-GP", "FedVPL"),
    ),
    win(
        "policy-no-group-pays",
        "S1 5.2, Table 1",
        "The group that FedVPA-GP serves less is served better than the one that FedBiscuit serves less.",
        "66.45 against 48.85 (helpful, Qwen2)",
        runs("FedVPA-GP", "FedBiscuit"),
        minus(LOWER, "FedVPA-GP", "FedBiscuit"),
    ),
    win(
        "one-policy-trades-off",
        "S1 5.2, Table 1",
        "A policy for all serves one group at the other's expense: FedBiscuit's win rates lie further apart.",
        "26.27 against 22.76 points (10 clients), 27.24 against 25.73 (50), Qwen2",
        runs("FedVPA-GP", "FedBiscuit"),
        minus(APART, "FedBiscuit", "FedVPA-GP"),
    ),
    win(
        "policy-ahead-with-50",
        "S1 5.2, Table 1",
        "With 50 clients FedVPA-GP's policy is ahead of the best of the others.",
        "58.32 and 84.05; FedVPL 54.18 and 78.12 (Qwen2)",
        runs(*METHODS, sizes=[25, 25]),
        lead(MEAN, "FedVPA-GP", [m for m in METHODS if m != "FedVPA-GP"]),
    ),
    win(
        "policy-ahead-with-100",
        "S1 5.2, Table 1",
        "With 100 clients FedVPA-GP's policy is ahead of the best of the others.",
        "55.18 and 82.31; FedVPL 53.05 and 77.34 (Qwen2)",
        runs(*METHODS, sizes=[50, 50]),
        lead(MEAN, "FedVPA-GP", [m for m in METHODS if m != "FedVPA-GP"]),
    ),
    win(
        "policy-keeps-unseen",
        "S1 5.3, Table 2",
        "FedVPA-GP's policy serves clients that took no part as well as those that did, to three points.",
        "63.16 and 91.23 against 65.28 and 94.25",
        runs("FedVPA-GP", sizes=[10, 10], unseen=5),
        of(unseen_wins(), "FedVPA-GP"),
        margin=1.0,
        null=-3.0,
        space=UNSEEN,
    ),
    win(
        "policy-of-fedvpl-loses-unseen",
        "S1 5.3, Table 2",
        "FedVPL's policy serves clients that took no part worse than those that did.",
        "49.25 and 75.21 against 56.23 and 83.82",
        runs("FedVPL", sizes=[10, 10], unseen=5),
        of(unseen_wins(), "FedVPL"),
        direction="below",
        space=UNSEEN,
    ),
    win(
        "policy-ahead-at-every-ratio",
        "S1 5.4, Table 3",
        "FedVPA-GP's policy is ahead of FedBiscuit's at 7/3, 3/7, 8/2 and 2/8 clients.",
        "by 17.0 to 20.7 points in helpfulness, 12.1 to 17.0 in harmlessness",
        at_ratios("FedVPA-GP", "FedBiscuit"),
        least([minus(MEAN, f"FedVPA-GP {ratio}", f"FedBiscuit {ratio}") for ratio in AT]),
        space=RATIOS,
    ),
    win(
        "policy-serves-the-minority",
        "S1 5.4, Table 3",
        "With two clients of ten the small group is served better by FedVPA-GP's policy than by FedBiscuit's.",
        "harmless 87.23 against 70.24 at 80/20",
        runs("FedVPA-GP", "FedBiscuit", sizes=[8, 2]),
        minus(wins("win rate of the small group", lambda rates: rates[-1]), "FedVPA-GP", "FedBiscuit"),
        space=RATIOS,
    ),
    win(
        "policy-both-parts-best",
        "S1 5.4, Fig. 4",
        "The policy by both parts is ahead of the better of those by one part.",
        "66.45 and 89.21; 64.10 and 85.70 (Ortho), 64.50 and 86.00 (GB Prior), Qwen2",
        runs("FedVPA-GP", *PARTS),
        lead(MEAN, "FedVPA-GP", [*PARTS]),
        space=ABLATION,
    ),
    Claim(
        "gemma-policy-best",
        "S1 5.2, Table 1",
        "On Gemma-2B FedVPA-GP's policy is best with 10, 50 and 100 clients.",
        "73.21 and 96.34; FedVPL 66.82 and 89.15 (10 clients)",
        untestable=GEMMA,
    ),
]
