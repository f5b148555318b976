"""Rows of mixed algorithms and objectives: which runs share one, and what they are called."""

from raypref.evaluation.comparisons import mix
from tests.evaluation.made import BALANCED, cells, finished, flat

VARIATIONAL = {"objective": "variational", "variational.context_marks": (1, 4)}


def probed(value, leak=None, alone=0.5, **how):
    """A variational run whose four clients have `value` with one pair, 0.1 more with four."""
    run = finished(flat(value + 0.2, 0.9), **VARIATIONAL, **how)
    run.result["probes"] = {
        "context_accuracy": [[value, value + 0.1]] * 4,
        "linear_accuracy": [[alone, alone, alone + 0.3]] * 4,
    } | ({"leaked_accuracy": [leak] * 4} if leak else {})
    return run


def test_a_row_is_an_algorithm_an_objective_and_the_options_that_differ():
    runs = [
        finished(flat(0.5, 0.8), algorithm="fedavg"),
        finished(flat(0.6, 0.9), algorithm="fedgd"),
        probed(0.6, algorithm="fedgd", **{"variational.lora": False}),
        probed(0.6, algorithm="fedvpa_gp", **{"variational.form": "printed"}),
        probed(0.6, algorithm="fedvpa_gp", **{"variational.lora": False}),
        probed(0.7, algorithm="fedvpa_gp", **{"variational.lora": True}),
        probed(0.7, algorithm="fedvpa_gp", seed=1, **{"variational.lora": True}),
        probed(0.9, algorithm="fedvpa_gp", **{"variational.lora": True, "federation.rounds": 7}),  # another budget
    ]
    item = mix.mixed(runs, "test")
    told = cells(item.content)
    assert list(told) == [
        "FL",
        "FedGD",
        "FedGD (conditioned)",
        "FedVPA-GP (printed)",
        "FedVPA-GP (conditioned, lora False)",
        "FedVPA-GP (conditioned, lora True)",
    ]
    assert told["FedVPA-GP (conditioned, lora True)"]["Imbalanced acc^0"] == "90.0 ± 0.0 (± 0.0)"
    assert told["FL"]["Imbalanced acc^10"] == "80.0 ± 0.0" and told["FL"]["n"] == "1"
    assert len(item.runs) == 7


def test_feddpo_and_other_policies_by_their_names():
    runs = [
        finished(flat(0.5, 0.8), algorithm="fedavg"),
        finished(
            flat(0.5, 0.7), algorithm="feddpo", objective="dpo", **{"variational.d": 16}
        ),  # which has no part in it
        finished(flat(0.5, 0.6), algorithm="fedgd", objective="dpo", **{"dpo.beta": 0.1}),
        finished(flat(0.5, 0.9), algorithm="fedgd", objective="dpo", **{"dpo.beta": 0.5, "rlhf.rounds": 3}),
    ]
    told = cells(mix.mixed(runs, "test").content)
    assert list(told) == ["FL", "FedGD (dpo, beta 0.1)", "FedGD (dpo, beta 0.5)", "FedDPO"]
    assert told["FedDPO"]["Imbalanced acc^10"] == "70.0 ± 0.0"


def test_one_objective_alone_is_not_mixed():
    item = mix.mixed([finished(flat(0.5, 0.8), algorithm="fedavg")], "test")
    assert item.content is None and "raypref.sweep mix" in item.missing[0].command


def test_accuracy_by_context_beside_what_a_client_does_alone():
    runs = [
        probed(0.6, leak=1.0, algorithm="fedvpl", **{"variational.form": "printed"}),
        probed(0.7, algorithm="fedvpl", **{"data.group_sizes": BALANCED}),
    ]
    item = mix.by_context(runs, "test")
    told = cells(item.content)
    assert told["FedVPL (printed)"]["Imbalanced 1"] == "60.0 ± 0.0"
    assert told["FedVPL (printed)"]["Imbalanced all"] == "80.0 ± 0.0"
    assert told["FedVPL (printed)"]["Imbalanced leak"] == "100.0 ± 0.0"
    assert told["FedVPL (conditioned)"]["Balanced 4"] == "80.0 ± 0.0"
    assert told[mix.ALONE]["Balanced 1"] == "50.0 ± 0.0" and told[mix.ALONE]["Imbalanced all"] == "80.0 ± 0.0"
    assert told[mix.ALONE]["rounds"] == "0"


def test_heads_and_weights_of_clients_stand_beside_z():
    """FedRep's marks are `fit.context_marks`; a client alone is shown where a run tells it."""
    head = finished(flat(0.5, 0.9), algorithm="fedrep", **{"fit.context_marks": (2, 4)})
    head.result["probes"] = {"context_accuracy": [[0.5, 0.75]] * 4}
    told = cells(mix.by_context([head, probed(0.6, algorithm="fedvpl")], "test").content)
    assert list(told) == [mix.ALONE, "FedRep", "FedVPL (conditioned)"]
    assert told["FedRep"]["Imbalanced 4"] == "75.0 ± 0.0" and told["FedRep"]["Imbalanced 1"] == "–"
    assert list(cells(mix.by_context([head], "test").content)) == ["FedRep"]


def test_choice_runs_have_no_context():
    assert mix.by_context([finished(flat(0.5, 0.8), algorithm="fedavg")], "test").content is None
