"""The table of what was tried, from runs by hand."""

import pytest

from raypref.evaluation.comparisons.trials import tried, validated
from tests.evaluation.made import cells, finished, flat


def trial(algorithm: str, rate: float, last: float, seed: int, **more):
    of = {"algorithm": algorithm, "optim.learning_rate": rate, "seed": seed, "federation.rounds": 40}
    return finished(flat(0.5, last), f"{algorithm} {rate} {seed}", **of, **more)


def test_each_method_has_its_best_by_the_mean_over_seeds():
    scores = {("fedavg", 0.001): (0.7, 0.8), ("fedavg", 0.003): (0.9, 0.5), ("local", 0.001): (0.6, 0.6)}
    runs = [trial(*key, last, seed) for key, of in scores.items() for seed, last in enumerate(of)]
    runs += [trial("local", 0.003, last, seed, **{"experts.K": 2}) for seed, last in enumerate((0.5, 0.6))]
    lines = cells(tried(runs, "test").content)
    assert {name: (of["validation acc^10"][:4], of["chosen"]) for name, of in lines.items()} == {
        "Local (optim.learning_rate 0.003, experts.K 2)": ("55.0", "–"),
        "Local (optim.learning_rate 0.001, experts.K 4)": ("60.0", "best"),
        "FL (optim.learning_rate 0.001)": ("75.0", "best"),
        "FL (optim.learning_rate 0.003)": ("70.0", "–"),
    }
    assert validated(runs[0]) == pytest.approx(0.7)


def test_one_trial_is_no_table_nor_one_method_among_others_that_was_run_again():
    one, again, other = trial("fedavg", 0.001, 0.7, 0), trial("fedavg", 0.003, 0.8, 0), trial("local", 0.001, 0.6, 0)
    assert tried([one], "test").content is None and tried([one, again, other], "test").content is None
    assert [of["chosen"] for of in cells(tried([one, again], "test").content).values()] == ["–", "best"]
