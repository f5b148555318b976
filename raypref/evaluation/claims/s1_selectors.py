"""S1 on its selector, by accuracy where it has win rates of policies: 5.2 to 5.5, Figures 3 and 4, Table 2.

z is inferred from a client's own training pairs, without a local step (acc^0). Forms: `printed` is Eq. 2 and Algorithm
2 as they stand, `conditioned` this project's reading, on features of the frozen base.
"""

from functools import partial
from math import log

from raypref.evaluation.claims.claim import Claim, lead, minus, of
from raypref.evaluation.claims.needed import (
    ABLATION,
    AWAY,
    COUNTS,
    FL,
    MAIN,
    PEOPLE,
    RATIOS,
    SHARED,
    UNEVEN,
    UNSEEN,
    Point,
    points,
    selector,
    variational,
)
from raypref.evaluation.claims.quantities import accuracy, cost, latent, minority, unseen_gap, worst_group

VPL, VPA = variational("fedvpl"), variational("fedvpa_gp")
PRINTED = {
    "FedVPL": variational("fedvpl", "printed"),
    "FedVPA-GP": variational("fedvpa_gp", "printed"),
}
BOTH = points(UNEVEN, {"FedVPA-GP": VPA, "FedVPL": VPL})
PARTS = {
    "FedVPL": variational("fedvpl"),
    "FedVPL+Ortho": variational("fedvpl_ortho"),
    "FedVPL+GB Prior": variational("fedvpl_prior"),
    "FedVPA-GP": variational("fedvpa_gp"),
}
"""The bars of Fig. 4."""
MODULES = cost(
    "latent over adapter parameters",
    "times",
    lambda result: result["parameters"]["latent"] / result["parameters"]["adapter"],
)
SENT = cost("100 ln(bytes up a round)", "%", lambda result: 100 * log(result["bytes_up"] / result["rounds"]))
"""Small differences of it are differences in percent."""
NAMES = {"FedVPA-GP": "fedvpa_gp", "FedVPL": "fedvpl"}


def clients(N: int, *names: str) -> dict[str, Point]:
    """`FedVPA-GP N=10` and so on: half of N clients in each of two groups, five or ten of them a round (S1 5.1)."""
    how = {"data.group_sizes": [N // 2, N // 2], "federation.cohort": 5 if N == 10 else 10}
    return {f"{name} N={N}": SHARED | how | variational(NAMES[name]) for name in names}


claim = partial(Claim, space=MAIN)

CLAIMS = [
    claim(
        "z-serves-where-one-model-cannot",
        "S1 5.2, Table 1",
        "A selector that is conditioned on a client's z is ahead of one model for all, without any local step.",
        "win rates 66.45 and 89.21 against FedBiscuit's 48.85 and 75.12 (10 clients, Qwen2)",
        points(UNEVEN, {"FedVPA-GP": VPA, "FL": FL}),
        minus(accuracy(0), "FedVPA-GP", "FL"),
    ),
    claim(
        "z-serves-as-printed",
        "S1 5.2, Table 1",
        "A selector in the printed form is ahead of one model for all, without any local step.",
        "win rates 66.45 and 89.21 against FedBiscuit's 48.85 and 75.12 (10 clients, Qwen2)",
        points(UNEVEN, {"FedVPA-GP": PRINTED["FedVPA-GP"], "FL": FL}),
        minus(accuracy(0), "FedVPA-GP", "FL"),
    ),
    claim(
        "z-serves-every-group",
        "S1 5.2, Table 1",
        "No group pays for z: the lowest group of FedVPA-GP is above the lowest of one model for all.",
        "both win rates above all baselines'",
        points(UNEVEN, {"FedVPA-GP": VPA, "FL": FL}),
        minus(worst_group(0), "FedVPA-GP", "FL"),
    ),
    claim(
        "prior-and-prototypes-help",
        "S1 5.2, Table 1",
        "FedVPA-GP is ahead of FedVPL, which has neither mixture prior nor prototypes.",
        "win rates by 2.1 to 12.0 points",
        BOTH,
        minus(accuracy(0), "FedVPA-GP", "FedVPL"),
    ),
    claim(
        "prior-and-prototypes-help-as-printed",
        "S1 5.2, Table 1",
        "In the printed form FedVPA-GP is ahead of FedVPL, which has neither mixture prior nor prototypes.",
        "win rates by 2.1 to 12.0 points",
        points(UNEVEN, PRINTED),
        minus(accuracy(0), "FedVPA-GP", "FedVPL"),
    ),
    claim(
        "prior-helps-where-data-are-scarce",
        "S1 5.2, Table 1",
        "FedVPA-GP is ahead of FedVPL with a hundred clients that have few pairs each, on adapted features.",
        "win rates 55.18 and 82.31 against 53.05 and 77.34 (100 clients, Qwen2)",
        points(
            SHARED | {"data.group_sizes": [50, 50], "data.graded.train": [10, 20]},
            {name: variational(NAMES[name], lora=True) | {"variational.adapted": True} for name in NAMES},
        ),
        minus(accuracy(0), "FedVPA-GP", "FedVPL"),
        budget="rounds",
        space=PEOPLE,
    ),
    claim(
        "more-clients-cost-fedvpl-more",
        "S1 5.2, Table 1",
        "From 10 to 100 clients FedVPL loses more than FedVPA-GP.",
        "mean of both win rates: FedVPL 8.2, FedVPA-GP 9.1 points (Qwen2); 11.2, 8.5 (Gemma-2B)",
        clients(10, *NAMES) | clients(100, *NAMES),
        minus(accuracy(0), "FedVPL N=10", "FedVPL N=100") - minus(accuracy(0), "FedVPA-GP N=10", "FedVPA-GP N=100"),
        space=COUNTS,
    ),
    claim(
        "z-comes-apart",
        "S1 5.3, Fig. 3",
        "FedVPA-GP's z tell the groups apart better than FedVPL's: k-means of z against the true groups.",
        "drawn only: entangled, separated",
        BOTH,
        minus(latent("ari", "ARI"), "FedVPA-GP", "FedVPL"),
        margin=0.05,
    ),
    claim(
        "z-comes-apart-as-printed",
        "S1 5.3, Fig. 3",
        "In the printed form, too, FedVPA-GP's z tell the groups apart better than FedVPL's.",
        "drawn only: entangled, separated",
        points(UNEVEN, PRINTED),
        minus(latent("ari", "ARI"), "FedVPA-GP", "FedVPL"),
        margin=0.05,
    ),
    claim(
        "fedvpl-collapses",
        "S1 3.3, 5.3, Figs. 2, 3",
        "FedVPL's posteriors collapse: the groups cannot be told from its z (adjusted Rand index below 0.2).",
        "drawn only: entangled throughout training",
        {"FedVPL": UNEVEN | VPL},
        of(latent("ari", "ARI"), "FedVPL"),
        direction="below",
        margin=0.05,
        null=0.2,
    ),
    claim(
        "fedvpa-keeps-unseen",
        "S1 5.3, Table 2",
        "Clients that took no part are served by FedVPA-GP as well as those that did, to three points.",
        "win rates 63.16 and 91.23 against 65.28 and 94.25",
        {"FedVPA-GP": AWAY | variational("fedvpa_gp")},
        of(unseen_gap(), "FedVPA-GP"),
        null=-3.0,
        space=UNSEEN,
    ),
    claim(
        "fedvpl-loses-unseen",
        "S1 5.3, Table 2",
        "FedVPL serves clients that took no part worse than those that did.",
        "win rates 49.25 and 75.21 against 56.23 and 83.82",
        {"FedVPL": AWAY | variational("fedvpl")},
        of(unseen_gap(), "FedVPL"),
        direction="below",
        space=UNSEEN,
    ),
    claim(
        "prototypes-help",
        "S1 5.4, Fig. 4",
        "Adding the orthogonal loss alone to FedVPL helps.",
        "win rates 64.10 and 85.70 against 63.24 and 84.56 (Qwen2)",
        points(UNEVEN, {name: PARTS[name] for name in ("FedVPL", "FedVPL+Ortho")}),
        minus(accuracy(0), "FedVPL+Ortho", "FedVPL"),
        space=ABLATION,
    ),
    claim(
        "mixture-prior-helps",
        "S1 5.4, Fig. 4",
        "Adding the mixture prior alone to FedVPL helps.",
        "win rates 64.50 and 86.00 against 63.24 and 84.56 (Qwen2)",
        points(UNEVEN, {name: PARTS[name] for name in ("FedVPL", "FedVPL+GB Prior")}),
        minus(accuracy(0), "FedVPL+GB Prior", "FedVPL"),
        space=ABLATION,
    ),
    claim(
        "both-parts-are-best",
        "S1 5.4, Fig. 4",
        "Both together are ahead of the better of the two alone.",
        "win rates 66.45 and 89.21 against 64.50 and 86.00 (Qwen2)",
        points(UNEVEN, PARTS),
        lead(accuracy(0), "FedVPA-GP", ["FedVPL+Ortho", "FedVPL+GB Prior"]),
        space=ABLATION,
    ),
    claim(
        "prior-saves-the-minority",
        "S1 5.4, Table 3",
        "Two clients of ten with a wish of their own are served better by FedVPA-GP than by FedBiscuit.",
        "harmless 87.23 against 70.24 at 80/20, helpful 64.88 against 44.15 at 20/80",
        points(
            SHARED | {"data.group_sizes": [8, 2]},
            {"FedVPA-GP": variational("fedvpa_gp"), "FedBiscuit": selector("fedbiscuit")},
        ),
        minus(minority(0), "FedVPA-GP", "FedBiscuit"),
        space=RATIOS,
    ),
    claim(
        "modules-are-small",
        "S1 5.5",
        "The latent modules have fewer than twice the parameters of the adapter beside which they are trained.",
        "0.9 million, comparable to the adapter's",
        {"FedVPA-GP": UNEVEN | PRINTED["FedVPA-GP"]},
        of(MODULES, "FedVPA-GP"),
        direction="below",
        margin=0.05,
        null=2.0,
    ),
    claim(
        "statistics-are-small",
        "S1 5.5",
        "The statistics of z that clients send add less than a hundredth to what they send anyway.",
        "256 bytes a client and round, beside megabytes",
        points(UNEVEN, PRINTED),
        minus(SENT, "FedVPA-GP", "FedVPL"),
        direction="below",
        margin=0.05,
        null=1.0,
    ),
]
