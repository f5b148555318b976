"""raypref's own: what the Bayesian reward model (`raypref.objectives.bayes`) is to reach, fixed before it is judged."""

from raypref.evaluation.claims.claim import Claim, lead, least, minus, of
from raypref.evaluation.claims.needed import (
    AWAY,
    FIRST,
    FL,
    LAST,
    LOCAL,
    MAIN,
    MULTI_CL,
    ONE_ALIKE,
    PEOPLE,
    SHARED,
    UNEVEN,
    UNSEEN,
    WISHES,
    adapted,
    points,
    selector,
)
from raypref.evaluation.claims.quantities import accuracy, by_context, unseen_gap

BAYES = adapted("fedavg", "bayes")
TRUE_GROUPS = {"Multi-CL": MULTI_CL, "Multi-CL (reward)": adapted("multi_cl")}
OWN_PARTS = {
    **{"FedRep (reward)": adapted("fedrep"), "LoRe (reward)": adapted("lore")},
    **{"FedRep": selector("fedrep"), "LoRe": selector("lore")},
}
COUNTS = (1, 2, 4, 8, 16, 64)

CLAIMS = [
    Claim(
        "bayes-not-below-true-groups",
        "raypref: no local step",
        "Without a local step and without knowing groups it is within a point of models of the true groups, or above.",
        "at most 1 below",
        points(UNEVEN, {"Bayes": BAYES} | TRUE_GROUPS),
        lead(accuracy(0), "Bayes", [*TRUE_GROUPS]),
        null=-1.0,
        space=MAIN,
    ),
    Claim(
        "bayes-ahead-at-ten-steps",
        "raypref: ten steps",
        "After ten local steps it is two points ahead of models of the true groups.",
        "2 above",
        points(UNEVEN, {"Bayes": BAYES} | TRUE_GROUPS),
        lead(accuracy(FIRST), "Bayes", [*TRUE_GROUPS]),
        null=2.0,
        space=MAIN,
    ),
    Claim(
        "bayes-from-four-choices",
        "raypref: few choices",
        "From four choices of a person it is within three points of what it is from all.",
        "at most 3 below",
        {"Bayes": UNEVEN | BAYES},
        of(by_context(4), "Bayes") - of(accuracy(0), "Bayes"),
        null=-3.0,
        space=MAIN,
    ),
    Claim(
        "bayes-ahead-at-every-count",
        "raypref: few choices",
        "From 1, 2, 4, 8, 16 and all choices it is ahead of FedRep and of LoRe, as selectors and as reward models.",
        "above",
        points(UNEVEN, {"Bayes": BAYES} | OWN_PARTS),
        least([lead(by_context(count), "Bayes", [*OWN_PARTS]) for count in COUNTS]),
        space=MAIN,
    ),
    Claim(
        "bayes-serves-unseen-people",
        "raypref: unseen people",
        "People that took no part have what the others have, within a point.",
        "at most 1 below",
        {"Bayes": AWAY | BAYES},
        of(unseen_gap(), "Bayes"),
        null=-1.0,
        space=UNSEEN,
    ),
    *(
        Claim(
            f"bayes-ahead-{name}",
            f"raypref: {words}",
            f"{sentence} it is ahead of one model for all, and of each alone with {LAST} steps, without any.",
            "above",
            points(setting, {"Bayes": BAYES, "FL": FL, "Local": LOCAL}),
            least([minus(accuracy(0), "Bayes", "FL"), of(accuracy(0), "Bayes") - of(accuracy(LAST), "Local")]),
            budget="rounds",
            space=space,
        )
        for name, words, sentence, setting, space in (
            ("of-little-data", "little data", "Of a hundred people with little data", SHARED, PEOPLE),
            ("where-wishes-are-shared", "shared wishes", "Where all want one thing alike", ONE_ALIKE, WISHES),
        )
    ),
]
