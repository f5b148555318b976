"""Claims: what they read of runs, by numbers worked out here; which runs they take; how they are judged."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import nct, t

from raypref.config import RunConfig, flatten, override, to_dict
from raypref.config.spaces import load_space
from raypref.evaluation import claims
from raypref.evaluation.claims.claim import Claim, Lacks, mean, minus, of
from raypref.evaluation.claims.judge import Judged, choose, judge
from raypref.evaluation.claims.needed import FL, GRADED, selector
from raypref.evaluation.claims.quantities import above_floor, accuracy, pairs_of
from raypref.evaluation.claims.statistics import Estimate, estimate, holm, smallest, verdict, worst_tenth_floor
from raypref.evaluation.latent import Latent
from raypref.evaluation.runs import FinishedRun, Policy
from tests.evaluation.made import finished, judgement, section

EVERY = {claim.name: claim for claim in claims.every()}
TESTED = [claim for claim in EVERY.values() if claim.statistic]


# Statistics


def test_an_interval_is_students() -> None:
    """1, 2, 3 over three seeds: mean 2, standard error 1/√3, t(2 df, 97.5 %) = 4.3027."""
    told = estimate([1.0, 2.0, 3.0])
    assert (told.mean, told.std, told.seeds) == (2.0, 1.0, 3)
    assert (told.high - 2, 2 - told.low) == pytest.approx((4.30265 / math.sqrt(3),) * 2, rel=1e-5)
    assert told.p == pytest.approx(2 * t.sf(2 * math.sqrt(3), 2))
    assert estimate([1.0, 2.0, 3.0], null=2.0).p == 1.0


def test_numbers_that_are_all_the_same_are_certain() -> None:
    assert estimate([0.9, 0.9, 0.9]) == Estimate(pytest.approx(0.9), *(pytest.approx(0.9),) * 2, 0.0, 3, 0.0)
    assert estimate([0.9, 0.9, 0.9], null=0.9).p == 1.0
    assert smallest(0.0, 3) == 0.0


def test_holm_by_hand() -> None:
    """0.005, 0.01, 0.03, 0.04 of four: times 4, 3, 2, 1 is 0.02, 0.03, 0.06, 0.04, and none below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize(("seeds", "level"), [(3, 0.05), (8, 0.05), (8, 0.01), (20, 0.001)])
def test_the_smallest_effect_is_that_of_the_noncentral_t(seeds: int, level: float) -> None:
    centre = smallest(2.0, seeds, level) * math.sqrt(seeds) / 2.0
    bound = t.ppf(1 - level / 2, seeds - 1)
    assert nct.sf(bound, seeds - 1, centre) == pytest.approx(0.8, abs=1e-3)


def test_the_floor_of_a_worst_tenth() -> None:
    """Forty clients who are all right 99.5 times of a hundred have a worst tenth of 96.7 with 33 test pairs."""
    assert worst_tenth_floor(0.995, [33] * 40) == pytest.approx(0.967, abs=5e-4)
    assert worst_tenth_floor(0.5, [1]) == pytest.approx(0.5)  # the worst of one is the one
    assert worst_tenth_floor(0.5, [1, 1]) == pytest.approx(0.25)  # both must be right


def test_the_floor_of_unequal_clients_is_what_simulation_gives() -> None:
    pairs = np.array([20] * 10 + [50] * 21)
    drawn = np.random.default_rng(0).binomial(pairs, 0.8, size=(20_000, 31)) / pairs
    told = np.sort(drawn, axis=1)[:, :4].mean()  # ⌈31 / 10⌉
    assert worst_tenth_floor(0.8, pairs.tolist()) == pytest.approx(told, abs=1e-3)


@pytest.mark.parametrize(
    ("mean", "half", "p", "null", "direction", "word"),
    [
        (3.0, 1.0, 0.01, 0.0, "above", "holds"),
        (3.0, 1.0, 0.01, 0.0, "below", "reversed"),
        (-3.0, 1.0, 0.01, 0.0, "below", "holds"),
        (3.0, 1.0, 0.06, 0.0, "above", "not separated"),  # after Holm
        (0.2, 0.7, 0.5, 0.0, "above", "no effect"),
        (0.5, 0.4, 0.01, 0.0, "above", "no effect"),  # there, and too small to matter
        (0.2, 0.9, 0.5, 0.0, "above", "not separated"),  # the interval leaves the margin
        (-1.0, 1.0, 0.01, -3.0, "above", "holds"),  # less than three points below
        (1.0, 1.0, 0.01, 5.0, "below", "holds"),
        (-4.5, 1.0, 0.01, -3.0, "above", "reversed"),
    ],
)
def test_verdicts(mean: float, half: float, p: float, null: float, direction: Any, word: str) -> None:
    assert verdict(Estimate(mean, mean - half, mean + half, p, 8, 1.0), p, null, direction, margin=1.0) == word


# The claims


def test_there_are_claims_enough_and_most_can_be_tested() -> None:
    every = claims.every()
    away = [claim for claim in every if claim.statistic is None]
    assert len(every) >= 40 and len(EVERY) == len(every)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in EVERY)
    assert len(away) <= len(every) / 3
    assert all(re.search(r"hub|bases? |Gemma", claim.untestable) and not claim.runs for claim in away)
    assert {claim.paper for claim in every} == {"S1", "S2", "raypref"}
    assert all(re.match(r"S[12] (\d|[A-C]\.)|raypref: ", claim.place) for claim in every)
    assert not any(claim.untestable for claim in TESTED)


@pytest.mark.parametrize("claim", TESTED, ids=lambda claim: claim.name)
def test_a_claim_is_whole(claim: Claim) -> None:
    """Its runs can be configured and differ, and it fixes a margin and a space."""
    assert claim.margin > 0 and claim.space and claim.numbers and claim.statement.endswith(".")
    for point in claim.runs.values():
        config = flatten(to_dict(override(RunConfig(), point)))
        assert all(config[key] == value for key, value in point.items())
    assert len({repr(sorted(point.items())) for point in claim.runs.values()}) == len(claim.runs)


def run(point: dict[str, Any], i: int, policy: bool = False, **more: Any) -> FinishedRun:
    """The i-th run of a claim, from 0. Of group g, from 0: acc^0 50 - i², acc^10 60 + i² - 2 g, acc^40 70 + i (i + 1) -
    5 g, in points; clients that took no part are 7 points lower. From the first number of choices it is 46 - i, and 1
    more from each further one. Mean g: 1.5 of four even groups, 1 of 15/15/5/5.

    Each has a right test pair of margin 1 + i and a wrong one of -(1 + i). At ten steps the wrong one is right where
    g < i, the right one still where g >= i. Headroom is positive where g <= i. GQ is 10 to the i² in the body's two
    layers and to the i in the head's. z tell groups apart in the first run alone. Policies win 60 + 2 i² and 50 + i, 4
    less with clients that took no part.
    """
    config = override(RunConfig(), point | more)
    sizes, unseen = config.data.group_sizes, config.federation.unseen
    of = [g for g, size in enumerate(sizes) for _ in range(size)]
    away = [c for c in range(len(of)) if c + unseen >= len(of) or of[min(c + unseen, len(of) - 1)] != of[c]]
    curves = [[50 - i * i, 60 + i * i - 2 * g, 70 + i * (i + 1) - 5 * g] for g in of]
    for c in away if unseen else ():
        curves[c] = [x - 7 for x in curves[c]]
    margins = [[[1 + i, -1 - i], [1 if g >= i else -1, 1 if g < i else -1], [1, 1]] for g in of]
    told = finished(np.array(curves) / 100, **point, **more)
    gq = [[10.0 ** (i * i), 10.0 ** (i * i), 10.0**i] for _ in of]
    result = told.result | {
        "margins": {"test": margins},
        "diagnostics": [
            {
                "mark": 0,
                "gq": gq,
                "gq_median": gq,
                "gq_excluded": gq,
                "headroom": [[1 if g <= i else -1] * 2 for g in of],
            }
        ],
        "unseen": away if unseen else [],
        "probes": {"context_accuracy": [[(46 - i + j) / 100 for j in range(6)] for _ in of]},
        "parameters": {"latent": 3, "adapter": 2},
        "bytes_up": 1000 * (1 + i),
        "key": config.key,
    }
    id, started = f"graded_main/{config.algorithm}-{config.seed}-{i}", 0
    if policy:
        rates = (60 + 2 * i * i, 50 + i)
        sections = [
            section(f"G{g}", [(rate - 4 * away) / 100], unseen=away) for away in (0, 1) for g, rate in enumerate(rates)
        ]
        return Policy(
            id,
            started,
            told.config,
            {"clients": len(of), "client_steps": 3000},
            judgements={"style": judgement(*sections)},
        )
    z = np.array([[10.0 * g * (i == 0), 0.0] for g in of])
    return FinishedRun(id, started, told.config, result, latent=Latent.of(60, z, np.zeros_like(z)))


EXPECTED: dict[str, float] = {
    # S2: acc^0 is 50 - i²; acc^10 57 + i² (even) or 58 + i² (uneven); acc^40 62.5 or 65, + i (i + 1)
    "fl-starts-at-chance": 0,
    "multi-cl-starts-ahead": 50 - 49,
    "fl-overtakes-multi-cl": 57 - 58,
    "fl-overtakes-cl": 57 - 58,
    "fl-every-group-gains": 54 - 50,  # G4
    "fl-gains-early": 7 - 0.8 * 12.5,
    "multi-cl-declines": 65 - 50,
    "imbalance-raises-fl-start": 50 - 49,
    "imbalance-slows-fl": (57 - 50) - (59 - 49),
    "fl-leaves-minorities": 70 - 65,
    "debiasing-restores-fl": 58 - 59,
    "debiasing-starts-lower": 50 - 49,
    "debiasing-serves-minorities": (60 - 5) - (61 - 5),  # g is 2.5 among them
    "debiasing-spares-the-worst": (54 - 100 * worst_tenth_floor(0.58, [2] * 40))
    - (55 - 100 * worst_tenth_floor(0.59, [2] * 40)),
    "imbalance-costs-fl-more": (57 - 59) - (61 - 67),
    "longer-training-mends-imbalance": 58 - 59,
    "fedgd-ahead-of-fl-at-half": 58 - 59,
    "fedgd-best-even": 57 - 82,
    "fedgd-best-uneven": 58 - 83,
    "fedgd-ahead-of-fl": 58 - 59,
    "fedgd-starts-weakest": 50 - 41,
    "one-model-ahead-of-several": 57 - 61,
    "fedgd-ahead-of-multi-cl": 58 - 59,
    "fl-catches-up": 65 - 67,
    "gap-closes": (58 - 59) - (65 - 67),
    "federation-helps": 58 - 59,
    "fedgd-k-hardly-matters": 62 - 58,
    "k-matters-less-to-fedgd": (71 - 65) - (95 - 77),  # i = 0, 1, 2 and 3, 4, 5
    "fedgd-ahead-at-every-k": 71 - 137,  # K = 4: i = 2 beside 5 and 8; K = 2 has 65 - 107, K = 3 67 - 121
    "fedgd-finds-the-groups": 1,
    "anew-is-better-even": 57 - 58,
    "anew-is-better-uneven": 58 - 59,
    "continuing-costs-more-even": (57 - 58) - (62 - 67),
    "more-local-steps-help-fl": 58 - 57,
    "small-steps-do-not": (61 - 57) - (66 - 58),
    "fl-flattest": 0 - 1,  # log10 of (20 + 10) / 3
    "flatness-is-of-the-body": (4 - 0) - (2 - 0),
    "flat-adapts": 1,  # the steeper, the better here
    "fl-uncommitted": 1 - 2,
    "fl-headroom": 25 - 75,
    "fl-corrects": 0 - 50,
    "multi-cl-retains": 50 - 100,
    "imbalance-steepens-fl": 1 - 0,
    "imbalance-commits-fl": -2 - -1,
    "imbalance-keeps-direction": 37.5,  # 15 of 40
    "debiasing-flattens": 0 - 1,
    "debiasing-uncommits": -1 - -2,
    "debiasing-corrects": 0 - 37.5,
    "fedgd-flat": 0 - 1,
    # S1: acc^0
    "z-serves-where-one-model-cannot": 50 - 49,
    "z-serves-as-printed": 50 - 49,
    "z-serves-every-group": 50 - 49,
    "prior-and-prototypes-help": 50 - 49,
    "prior-and-prototypes-help-as-printed": 49 - 50,
    "prior-helps-where-data-are-scarce": 50 - 49,
    "more-clients-cost-fedvpl-more": (49 - 41) - (50 - 46),
    "z-comes-apart": 1 - 0,
    "z-comes-apart-as-printed": 0 - 1,
    "fedvpl-collapses": 1,
    "fedvpa-keeps-unseen": -7,
    "fedvpl-loses-unseen": -7,
    "prototypes-help": 49 - 50,
    "mixture-prior-helps": 49 - 50,
    "both-parts-are-best": 41 - 49,
    "prior-saves-the-minority": 50 - 49,
    "modules-are-small": 1.5,
    "statistics-are-small": 100 * math.log(2),
    # raypref's own
    "bayes-not-below-true-groups": 50 - 49,
    "bayes-ahead-at-ten-steps": 58 - 62,
    "bayes-from-four-choices": 48 - 50,
    "bayes-ahead-at-every-count": 46 - 45,
    "bayes-serves-unseen-people": -7,
    "bayes-ahead-of-little-data": 50 - (76 - 5),
    "bayes-ahead-where-wishes-are-shared": 50 - (76 - 5),
    # policies: 60 + 2 i² and 50 + i, mean 55 + i² + i / 2
    "policy-ahead-of-one-for-all": 55 - 60,
    "policy-ahead-of-fedvpl": 55 - 56.5,
    "policy-no-group-pays": 50 - 51,
    "one-policy-trades-off": (62 - 51) - (60 - 50),
    "policy-ahead-with-50": 65.5 - 60,
    "policy-ahead-with-100": 65.5 - 60,
    "policy-keeps-unseen": -4,
    "policy-of-fedvpl-loses-unseen": -4,
    "policy-ahead-at-every-ratio": 94 - 107.5,
    "policy-serves-the-minority": 50 - 51,
    "policy-both-parts-best": 55 - 60,
}


@pytest.mark.parametrize("claim", TESTED, ids=lambda claim: claim.name)
def test_what_a_claim_reads(claim: Claim) -> None:
    runs = {role: run(dict(point), i, claim.policies) for i, (role, point) in enumerate(claim.runs.items())}
    assert all(run.fits(claim.runs[role]) for role, run in runs.items())
    assert claim.statistic is not None
    assert mean(claim.statistic.of(runs)) == pytest.approx(EXPECTED[claim.name], abs=1e-9)


def test_a_client_without_test_pairs_is_left_out_of_both() -> None:
    """Of two clients one has nothing to judge under a method: the difference is the other's, not of two means."""
    a, b = finished([[0.5], [0.9]]), finished([[0.4], [float("nan")]])
    assert mean(minus(accuracy(0), "a", "b").of({"a": a, "b": b})) == pytest.approx(10)


def test_test_pairs_are_counted_from_margins_or_known_of_graded_data() -> None:
    assert pairs_of(finished([[0.5]] * 2, margins=[[[1, 2, 3]], [[1]]])) == [3, 1]
    graded = finished([[0.5]] * 2, **{"data.source": "graded"})
    assert pairs_of(graded) == [200, 200]
    with pytest.raises(Lacks, match="margins"):
        above_floor(0).read(finished([[0.5]] * 2))


# Which runs


CLAIM = Claim(
    "fedgd-ahead",
    "S2 5.1",
    "FedGD is ahead of FL.",
    "92.35 against 90.55",
    {"FedGD": GRADED | selector("fedgd"), "FL": GRADED | FL},
    minus(accuracy(10), "FedGD", "FL"),
    space="graded_main",
)


def seeds(algorithm: str, points: float, number: int = 4, **more: Any) -> list[FinishedRun]:
    """Runs whose acc^10 is 50 and so many points, and a little more with each seed."""
    setting = {"data.source": "graded", "algorithm": algorithm} | more
    return [
        finished(
            [[0.5, 0.5 + points / 100 + 0.001 * s * (algorithm == "fedgd")]] * 4,
            f"graded_main/{algorithm}{s}{more}",
            seed=s,
            **setting,
        )
        for s in range(number)
    ]


def judged(*runs: list[FinishedRun], claim: Claim = CLAIM) -> Judged:
    (told,) = judge([claim], [run for of in runs for run in of])
    return told


def test_a_claim_by_its_runs() -> None:
    """FedGD is 5, 5.1, 5.2 and 5.3 points ahead."""
    told = judged(seeds("fedgd", 10), seeds("fedavg", 5))
    assert told.values == pytest.approx({0: 5.0, 1: 5.1, 2: 5.2, 3: 5.3}) and told.verdict == "holds"
    assert told.estimate is not None and told.estimate.mean == pytest.approx(5.15)
    assert told.adjusted == told.estimate.p and not told.missing


def test_no_claim_is_judged_on_the_seeds_on_which_settings_are_chosen() -> None:
    runs = [
        finished(
            [[0.5, x]] * 4,
            f"graded_main/{algorithm}{seed}",
            seed=seed,
            **{"data.source": "graded", "algorithm": algorithm},
        )
        for seed in (100, 101, 102)
        for algorithm, x in (("fedgd", 0.6), ("fedavg", 0.5))
    ]
    assert judged(runs).missing[0].what == "runs of FedGD, FL"


def test_runs_of_other_spaces_do_not_count() -> None:
    fl = [FinishedRun(r.id.replace("graded_main", "graded"), 0, r.config, r.result) for r in seeds("fedavg", 5)]
    assert judged(seeds("fedgd", 10), fl).missing[0].what == "runs of FL"


def test_seeds_that_one_of_the_runs_lacks_are_not_used() -> None:
    assert [*judged(seeds("fedgd", 10, 4), seeds("fedavg", 5, 3)).values] == [0, 1, 2]


def test_without_runs_a_claim_says_which_and_how_to_make_them() -> None:
    told = judged(seeds("fedavg", 5))
    assert told.verdict is None and told.estimate is None
    assert told.missing == (("runs of FedGD", "python -m raypref.results graded_main --make"),)
    assert judged([]).missing[0].what == "runs of FedGD, FL"


def test_two_seeds_are_too_few() -> None:
    told = judged(seeds("fedgd", 10, 2), seeds("fedavg", 5, 2))
    assert told.verdict is None and told.missing[0].what == "all its runs have 2 seeds of 3 at least"


def test_runs_that_lack_what_is_read_are_said() -> None:
    claim = Claim("x", "S2 5.1", "X.", "1", {"FL": GRADED | FL}, of(accuracy(40), "FL"), space="graded_main")
    told = judged(seeds("fedavg", 5), claim=claim)
    assert told.verdict is None and told.missing[0].what == "its runs have no acc^40"


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"model.base": "another"}, "model.base"),
        ({"data.graded.temperature": 0.3}, "data.graded.temperature"),
        ({"optim.batch_size": 16}, "optim.batch_size"),
        ({"federation.local_steps": 5}, "federation.local_steps"),
    ],
)
def test_runs_of_another_task_are_not_compared(other: dict[str, Any], word: str) -> None:
    told = judged(seeds("fedgd", 10, **other), seeds("fedavg", 5))
    assert told.verdict is None and f"of other {word})" in told.missing[0].what


def spent(runs: list[FinishedRun], steps: int) -> list[FinishedRun]:
    return [FinishedRun(r.id, r.started, r.config, {**r.result, "client_steps": steps}) for r in runs]


def fedgd(points: float, rounds: int, steps: int) -> list[FinishedRun]:
    return spent(seeds("fedgd", points, **{"federation.rounds": rounds}), steps)


def test_client_steps_are_alike_but_for_an_early_stop() -> None:
    """Of a budget of 3,000 steps half, or twice, is another budget; a client alone takes none."""
    fl = spent(seeds("fedavg", 5), 3000)
    assert judged(fedgd(12, 40, 2000), fl).values[0] == pytest.approx(7.0)
    assert "of 1,500 client steps)" in judged(fedgd(12, 30, 1500), fl).missing[0].what
    assert "of 6,000 client steps)" in judged(fedgd(12, 60, 3000), spent(fl, 6000)).missing[0].what
    assert judged(fedgd(12, 30, 1500), fedgd(10, 60, 3000), fl).values[0] == pytest.approx(5.0)
    alone = Claim(**{**vars(CLAIM), "runs": CLAIM.runs | {"FL": GRADED | selector("local")}})
    assert judged(fedgd(12, 40, 2000), spent(seeds("local", 5), 0), claim=alone).values[0] == pytest.approx(7.0)


def test_or_rounds_are_equal_or_those_that_the_claim_names() -> None:
    fl, more = spent(seeds("fedavg", 5), 3000), fedgd(12, 60, 4500)
    by_rounds = Claim(**{**vars(CLAIM), "budget": "rounds"})
    assert judged(more, fl, claim=by_rounds).values[0] == pytest.approx(7.0)
    assert "of other federation.rounds)" in judged(fedgd(10, 40, 3000), fl, claim=by_rounds).missing[0].what
    named = CLAIM.runs | {"FedGD": CLAIM.runs["FedGD"] | {"federation.rounds": 30}}
    half = Claim(**{**vars(CLAIM), "runs": named})
    assert judged(more, fedgd(10, 30, 1500), fl, claim=half).values[0] == pytest.approx(5.0)
    assert "of 4,500 client steps)" in judged(fedgd(10, 30, 1500), spent(fl, 4500), claim=half).missing[0].what


def test_methods_may_be_tuned_apart_and_variants_are_not_mixed() -> None:
    """FedGD's learning rate is its own. Of two of its variants the one of more seeds counts, all of it."""
    few, many = (
        seeds("fedgd", 30, 3, **{"optim.learning_rate": 3e-3}),
        seeds("fedgd", 10, 4, **{"optim.learning_rate": 1e-2}),
    )
    told = judged(few, many, seeds("fedavg", 5))
    assert told.values == pytest.approx({0: 5.0, 1: 5.1, 2: 5.2, 3: 5.3})


def test_holm_is_within_each_paper_and_counts_what_was_tested() -> None:
    """The same claim four times over, twice a paper, one of them without runs: p is doubled in one paper alone."""

    def again(name: str, place: str, **more: Any) -> Claim:
        return Claim(**{**vars(CLAIM), "name": name, "place": place, **more})

    away = {"FedGD": GRADED | selector("ditto"), "FL": GRADED | FL}
    four = [again("a", "S2 5.1"), again("b", "S2 5.1"), again("c", "S1 5.1"), again("d", "S1 5.1", runs=away)]
    told = judge(four, [*seeds("fedgd", 10), *seeds("fedavg", 5)])
    p = told[2].estimate.p if told[2].estimate else None
    assert p is not None and [of.adjusted for of in told[:3]] == pytest.approx([2 * p, 2 * p, p])
    assert told[3].verdict is None and math.isnan(told[3].adjusted)
    assert told[0].smallest > told[2].smallest


def taken(config: RunConfig) -> int:
    """The client steps of a run."""
    f, K, T = config.federation, config.experts.K, config.experts.T
    rounds = f.rounds + (K * T - T) * (config.algorithm == "fedbiscuit")  # it warms its models up
    one = {"local": 0, "cl": 1, "multi_cl": len(config.data.group_sizes), "ditto": 2 * f.cohort}
    return rounds * f.local_steps * one.get(config.algorithm, f.cohort)


@pytest.fixture(scope="module")
def planned() -> list[FinishedRun]:
    """Three seeds of all runs that the claims' spaces make, as if they had run."""
    trials = {}
    for name in dict.fromkeys(name for claim in TESTED if not claim.policies for name in claim.space.split()):
        space = load_space(name)
        trials |= {f"{name}/{c.key}": c for c in space.trials(space.configured()) if c.seed < 3}
    result = finished([[0.5] * 3] * 4).result
    return [
        FinishedRun(id, 0, flatten(to_dict(config)), {**result, "client_steps": taken(config)})
        for id, config in trials.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("claim", [c for c in TESTED if not c.policies], ids=lambda claim: claim.name)
def test_spaces_make_what_a_claim_needs(claim: Claim, planned: list[FinishedRun]) -> None:
    """All its runs, alike in all that must be."""
    chosen = choose(claim, [run for run in planned if run.id.split("/")[0] in claim.space.split()])
    assert {role: sorted(seeds) for role, seeds in chosen.items()} == {role: [0, 1, 2] for role in claim.runs}


def test_policies_and_selectors_are_not_taken_for_each_other() -> None:
    claim = EVERY["policy-ahead-of-fedvpl"]
    points: Callable[[bool], list[FinishedRun]] = lambda policy: [  # noqa: E731
        run(dict(point), i, policy, seed=seed) for seed in range(3) for i, point in enumerate(claim.runs.values())
    ]
    assert judged(points(True), claim=claim).values == pytest.approx(dict.fromkeys(range(3), -1.5))
    assert judged(points(False), claim=claim).missing[0].what == "policies of FedVPA-GP, FedVPL"
