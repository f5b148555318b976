"""Validation while a run trains: what it reads, and that a run with it is the same run."""

import json
from pathlib import Path

import numpy as np
import pytest

from raypref.config import override
from raypref.experiment import loop as experiment
from raypref.experiment.reports import Reports, steps
from raypref.storage.results import Store
from raypref.tools.errors import Stopped
from raypref.tools.rng import stream

METHODS = ("fedgd", "fedbiscuit", "multi_cl", "fedrep", "fedvpa_gp")


def left(folder: Path) -> dict[str, object]:
    """What a run leaves that depends on no clock, but for what has left clients, in which readings are counted."""
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    values = [{k: v for k, v in line.items() if k not in ("seconds", "left")} for line in lines]
    files = [folder / "initialization.safetensors", folder / "state.safetensors"]
    return {k: v for k, v in result.items() if k not in ("seconds", "ledger")} | {
        "lines": values, "files": [file.read_bytes() for file in files]
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_run_with_reports_is_the_same_run(tiny, tmp_path, algorithm):
    """To the last bit of its state, with dropout and randomness everywhere; unseen clients are never read."""
    objective = {"fedvpa_gp": "variational"}.get(algorithm, "choice")
    config = override(tiny, {"algorithm": algorithm, "objective": objective, "federation.unseen": 1})
    experiment.run(config, tmp_path / "without", adapters=False)
    experiment.run(config, tmp_path / "with", adapters=False, reports=Reports(1, clients=3))
    assert left(tmp_path / "with") == left(tmp_path / "without")
    rounds = [line["round"] for line in Store(tmp_path / "with", config).lines()][1:]
    assert [line["round"] for line in Store(tmp_path / "with", config).reports()] == rounds[:-1]


def test_a_reading_is_the_personalization_that_would_follow(tiny, tmp_path):
    """Where rounds change nothing, the sample has its curve of the result at the first mark above 0; 3 clients take 2
    steps each, which are not the run's."""
    assert steps(tiny) == 2 and steps(override(tiny, {"personalization.marks": (0,)})) == 0
    fedavg = override(
        tiny, {"algorithm": "fedavg", "optim.learning_rate": 1e-30, "personalization.learning_rate": 1e-2}
    )
    result = experiment.run(fedavg, tmp_path, adapters=False, reports=Reports(2, clients=3))
    sample = np.sort(stream(fedavg.seed, "clients of reports").permutation(10)[:3])
    (line,) = Store(tmp_path, fedavg).reports()
    for name, of_clients in result["validation"].items():
        assert line["metrics"][name] == pytest.approx(np.mean([of_clients[c][1] for c in sample]), rel=1e-6)
    assert (line["round"], line["client_steps"], line["report_steps"]) == (2, 2 * 5 * 3, 3 * 2)


def test_who_is_told_may_stop_the_run_which_then_goes_on_to_the_same_bits(tiny, tmp_path):
    """Stopped after the second of three readings; the next process is told the first two again, and reads the third."""
    told = []

    def heard(line):
        told.append(line["round"])
        if told == [1, 2]:
            raise Stopped

    with pytest.raises(Stopped):
        experiment.run(tiny, tmp_path / "run", adapters=False, reports=Reports(1), heard=heard)
    assert not (tmp_path / "run" / "result.json").exists()
    experiment.run(tiny, tmp_path / "run", adapters=False, reports=Reports(1), heard=heard)
    assert told == [1, 2, 1, 2, 3]
    experiment.run(tiny, tmp_path / "whole", adapters=False)
    assert left(tmp_path / "run") == left(tmp_path / "whole")
    experiment.run(tiny, tmp_path / "run", adapters=False, reports=Reports(1), heard=heard)
    assert told == [1, 2, 1, 2, 3]  # finished: nobody may stop it any more
