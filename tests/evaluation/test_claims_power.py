"""The one test of all claims, on results that are invented with the spreads that were measured (docs/results.md):
without an effect it finds one as seldom as it says, a strong one nearly always; with clients as the unit it would
not."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from raypref.evaluation.claims.claim import Claim, mean, minus
from raypref.evaluation.claims.judge import judge
from raypref.evaluation.claims.quantities import accuracy
from raypref.evaluation.claims.statistics import estimate, holm, smallest, verdict
from raypref.evaluation.runs import FinishedRun
from tests.evaluation.made import finished

DRAWS, SEEDS, CLIENTS, PAIRS = 500, 8, 40, 200
SHARED, OWN = 4.0, 2.5
"""Standard deviations over seeds, in points: of what both methods of a seed have in common, and of each method's own;
together 4.7, as of FL and FedGD at ten steps over the seeds that were measured (2 to 6)."""
PERSON, TASTE = 9.0, 6.0
"""The same over clients: of what makes a client hard for both, and for one method; together 11 (8 to 15 measured)."""
CLAIM = Claim(
    "a-ahead-of-b",
    "S2 5.1",
    "A is ahead.",
    "1 point",
    {"A": {"algorithm": "fedgd"}, "B": {"algorithm": "fedavg"}},
    minus(accuracy(10), "A", "B"),
    space="graded",
)


def invented(effect: float, draws: int, seed: int = 0) -> np.ndarray:
    """Accuracies [draws, seeds, 2 methods, clients], of `PAIRS` test pairs each; the first is ahead by these points."""
    random = np.random.default_rng(seed)

    def normal(std: float, *shape: int) -> np.ndarray:
        return std * random.normal(size=(draws, SEEDS, *shape))

    points = 70.0 + normal(SHARED, 1, 1) + normal(OWN, 2, 1) + normal(PERSON, 1, CLIENTS) + normal(TASTE, 2, CLIENTS)
    points[:, :, 0] += effect
    return random.binomial(PAIRS, np.clip(points / 100, 0.02, 0.98)) / PAIRS


@pytest.fixture(scope="module")
def differences() -> Callable[[float], np.ndarray]:
    """effect -> [draws, seeds, clients] differences as the claim's own statistic reads them."""
    start = {role: finished([[0.5]] * CLIENTS, **point) for role, point in CLAIM.runs.items()}

    def read(effect: float) -> np.ndarray:
        def run(role: str, values: np.ndarray) -> FinishedRun:
            made = start[role]
            return FinishedRun(
                "", 0, made.config, {**made.result, "marks": [10], "test": {"accuracy": values[:, None]}}
            )

        assert CLAIM.statistic is not None
        of = CLAIM.statistic.of
        drawn = invented(effect, DRAWS)
        return np.array([[of({"A": run("A", a), "B": run("B", b)}) for a, b in seeds] for seeds in drawn])

    return read


def share(values: np.ndarray, words: set[str], of_claims: int = 1) -> float:
    """Of draws [draws, units] those whose verdict is one of these, where p is multiplied as Holm's first step does."""
    found = [estimate(one) for one in values]
    given = [verdict(f, min(1.0, of_claims * f.p), 0.0, "above", CLAIM.margin) for f in found]
    return sum(word in words for word in given) / len(given)


def test_without_an_effect_few_verdicts(differences: Callable[[float], np.ndarray]) -> None:
    nothing = differences(0.0)
    assert share(nothing.mean(axis=2), {"holds", "reversed"}) <= 0.07
    assert share(nothing.mean(axis=2)[:, :3], {"holds", "reversed"}) <= 0.07  # three seeds are enough for that


def test_clients_as_the_unit_would_fail(differences: Callable[[float], np.ndarray]) -> None:
    """320 clients are no 320 witnesses: a seed's are all of one run."""
    assert share(differences(0.0).reshape(DRAWS, -1), {"holds", "reversed"}) > 0.3


@pytest.mark.parametrize(("effect", "word"), [(12.0, "holds"), (-12.0, "reversed")])
def test_a_strong_effect_gets_its_verdict(differences: Callable[[float], np.ndarray], effect: float, word: str) -> None:
    """Also among fifty claims of its paper."""
    assert share(differences(effect).mean(axis=2), {word}, of_claims=50) >= 0.95


def test_the_smallest_effect_is_found_four_times_of_five(differences: Callable[[float], np.ndarray]) -> None:
    spread = float(differences(0.0).mean(axis=2).std(axis=1, ddof=1).mean())
    effect = smallest(spread, SEEDS)
    assert share(differences(effect).mean(axis=2), {"holds"}) == pytest.approx(0.8, abs=0.06)


def test_a_paper_without_any_effect_has_few_verdicts() -> None:
    """Thirty claims at once, which share what is common to a seed: in at most 7 % of such papers is there any."""
    random = np.random.default_rng(0)
    values = random.normal(size=(DRAWS, 30, SEEDS)) + 0.5 * random.normal(size=(DRAWS, 1, SEEDS))
    p = ttest_1samp(values, 0.0, axis=2).pvalue
    assert estimate(values[0, 0]).p == pytest.approx(p[0, 0])
    assert np.mean([min(holm(paper)) < 0.05 for paper in p.tolist()]) <= 0.07


def test_a_claim_is_judged_by_these_very_numbers(differences: Callable[[float], np.ndarray]) -> None:
    """From finished runs to the verdict: what is simulated above is what `judge` does."""
    drawn = invented(12.0, DRAWS)[0]
    runs = [
        finished([[0.0, float(x)] for x in drawn[seed, i]], id=f"graded/{role}{seed}", seed=seed, **point)
        for i, (role, point) in enumerate(CLAIM.runs.items())
        for seed in range(SEEDS)
    ]
    (told,) = judge([CLAIM], runs)
    means = differences(12.0)[0].mean(axis=1)
    assert [*told.values.values()] == pytest.approx(means) and told.estimate == pytest.approx(estimate(means))
    assert told.verdict == "holds" and told.adjusted == told.estimate.p
    assert mean(means) == pytest.approx(told.estimate.mean)
