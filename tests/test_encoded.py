"""Tokens that are kept for later runs of the same data."""

import dataclasses
import json

import numpy as np
import pytest

from raypref.config import RunConfig, override, registry
from raypref.data.sources import identified
from raypref.experiment import encoded as module
from raypref.experiment.encoded import encoded
from raypref.models.selector import load_tokenizer

SMALL = {"data.group_sizes": (2, 2, 1, 1), "data.pairs_per_axis": 10}


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads a run's data, all of which are kept; the second value says whether they were read anew."""
    monkeypatch.setattr(module, "KEPT_FROM", 1)
    tokenizer, loads, load = load_tokenizer("embedded"), [], module.load

    def counted(config, seed):
        loads.append(config)
        return load(config, seed)

    monkeypatch.setattr(module, "load", counted)

    def read(config):
        config = override(config, {"model.feature_cache": str(tmp_path / "cache")})
        before = len(loads)
        data = encoded(config, tokenizer, registry.objective(config.objective).encoding(config))
        return data, len(loads) > before

    return read


@pytest.mark.parametrize("objective", ["choice", "reward"])
def test_the_same_data_are_read_once(read, objective):
    config = override(RunConfig(), SMALL | {"objective": objective})
    (first, anew), (second, again) = read(config), read(config)
    assert anew and not again
    assert first.digest == second.digest and vars(first.counts) == vars(second.counts)
    for field in dataclasses.fields(first):
        one, other = (getattr(data, field.name) for data in (first, second))
        if field.name not in ("clients", "counts"):
            assert np.array_equal(one, other)
    for one, other in zip(first.clients, second.clients, strict=True):
        assert np.array_equal(one.test.spans, other.test.spans)


@pytest.mark.parametrize(
    "values",
    [{"seed": 1}, {"data.template": "hh"}, {"data.pairs_per_axis": 11}, {"data.max_length": 100}, {"objective": "dpo"}],
)
def test_other_data_are_others(read, values):
    config = override(RunConfig(), SMALL)
    assert read(config)[1] and read(override(config, values))[1] and not read(config)[1]


def test_what_changes_nothing_of_the_data_reads_nothing(read):
    config = override(RunConfig(), SMALL)
    assert read(config)[1]
    assert not read(override(config, {"algorithm": "fedavg", "federation.rounds": 3, "optim.batch_size": 2}))[1]


def test_damage_is_mended_and_little_is_not_kept(read, tmp_path, monkeypatch):
    config = override(RunConfig(), SMALL)
    whole, _ = read(config)
    (file,) = (tmp_path / "cache" / "encoded").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    mended, anew = read(config)
    assert anew and mended.digest == whole.digest and not read(config)[1]
    file.unlink()
    monkeypatch.setattr(module, "KEPT_FROM", 10_000)
    assert read(config)[1] and read(config)[1]


def test_local_data_are_known_wherever_they_lie_and_a_hub_s_are_read(read, tmp_path):
    rows = [
        {"client_id": f"c{i % 2}", "prompt": f"q{i}", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(60)
    ]
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, other = (override(RunConfig(), {"data.source": str(tmp_path / name)}) for name in ("one", "other"))
    assert read(one)[1] and read(one)[1]  # a name alone, as a hub's, says nothing of what lies there
    assert read(identified(one))[1] and not read(identified(other))[1]
