"""Every method has as many trials, and what is reported is what validation chose of them."""

from pathlib import Path

import numpy as np
import pytest

from raypref.config import RunConfig, flatten, override, to_dict
from raypref.evaluation.comparisons.trials import validated
from raypref.storage import kept
from tune_spaces._tuned import CHOSEN, FORMS, TRIED, with_chosen

RESULTS = Path(__file__).resolve().parent.parent / "results" / "graded_tuning"
SEEDS = (100, 101, 102)


@pytest.fixture(scope="module")
def scores() -> dict[tuple[str, int], dict[int, float]]:
    """(form, trial) -> the validation accuracy of each kept seed."""
    found = {}
    runs = kept.read_all(RESULTS)
    for name, trials in TRIED.items():
        keys = {key for settings in trials for key in (*FORMS[name], *settings, "variational.M")}
        for i, settings in enumerate(trials):
            point = flatten(to_dict(override(RunConfig(), {**FORMS[name], **settings})))
            found[name, i] = {run.seed: validated(run) for run in runs if run.fits({key: point[key] for key in keys})}
    return found


def test_every_form_has_six_different_trials_that_can_be_run():
    assert all(len(trials) == 6 == len({repr(sorted(t.items())) for t in trials}) for trials in TRIED.values())
    assert set(CHOSEN) <= set(FORMS) == set(TRIED)


@pytest.mark.parametrize("name", FORMS)
def test_what_is_reported_was_chosen_by_validation(name, scores):
    """Of the trials of a form that are kept whole the best mean over seeds; before that none is called chosen."""
    of = [scores[name, i] for i in range(len(TRIED[name]))]
    if any(set(seeds) != set(SEEDS) for seeds in of):
        assert name not in CHOSEN
    else:
        assert CHOSEN[name] == int(np.argmax([np.mean(list(seeds.values())) for seeds in of]))


def test_a_grid_varies_what_belongs_together():
    ((keys, values),) = with_chosen("fedavg", "fedprox").items()
    first, second = (dict(zip(keys, point, strict=True)) for point in values)
    assert (first["algorithm"], second["algorithm"]) == ("fedavg", "fedprox")
    assert first["federation.rounds"] == TRIED["fedavg"][1]["federation.rounds"]
