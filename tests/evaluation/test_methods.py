"""The main comparison from runs by hand: methods with settings of their own stand in one table."""

import pytest

from raypref.evaluation.claims.statistics import worst_tenth_floor
from raypref.evaluation.comparisons.methods import methods
from tests.evaluation.made import BALANCED, cells, finished


def run(algorithm: str, last: list[float], **more):
    """Four clients from chance to these accuracies, each judged on ten test pairs."""
    accuracy = [[0.5, of_client] for of_client in last]
    margins = [[[0.0] * 10, [1.0] * round(10 * a) + [-1.0] * round(10 - 10 * a)] for a in last]
    return finished(accuracy, algorithm=algorithm, margins=margins, **{"data.group_sizes": BALANCED, **more})


def test_methods_of_other_rates_and_rounds_are_compared_and_those_of_other_data_are_not():
    runs = [
        run("fedavg", [0.9, 0.7, 0.6, 0.6], **{"optim.learning_rate": 3e-3}),
        run("fedgd", [0.9, 0.9, 0.8, 0.6], **{"federation.rounds": 40}),
        run("local", [0.7, 0.5, 0.5, 0.5]),
        run("soft_fl", [1.0, 1.0, 1.0, 1.0], **{"federation.cohort": 3}),
    ]
    lines = cells(methods(runs, "test").content)
    assert list(lines) == ["Local", "FL", "FedGD"]
    of = {name: value.split(" ")[0] for name, value in lines["FedGD"].items()}
    # The lowest of four; its floor; -log σ(±1) of 32 right and 8 wrong pairs; confidence σ(1) = 0.731 against 0.8.
    assert of["Balanced acc^10"] == "80.0" and of["Balanced worst"] == "60.0"
    assert float(of["Balanced floor"]) == pytest.approx(100 * worst_tenth_floor(0.8, [10] * 4), abs=0.06)
    assert (of["Balanced NLL^10"], of["Balanced ECE^10"]) == ("0.513", "6.9")


def test_two_methods_are_no_main_comparison():
    item = methods([run("fedavg", [0.5] * 4), run("local", [0.5] * 4)], "test")
    assert item.content is None and "three methods" in item.missing[0].what
