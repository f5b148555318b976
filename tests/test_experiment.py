"""A whole run: what it leaves, and that an interruption at any moment changes nothing."""

import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from tqdm import tqdm

from raypref.config import UserError, override, to_dict
from raypref.evaluation.latent import Latent
from raypref.experiment import loop as experiment
from raypref.storage.results import Store, doubts, safe_name
from raypref.tools import checkpoint
from raypref.tools.errors import Lost
from raypref.tools.rng import stream
from tests.bars import acting


def measured(result):
    """What a run measured; the rest is names."""
    spent = ("rounds", "client_steps", "bytes_up", "bytes_down", "ledger")
    return {k: result[k] for k in ("test", "validation", "assignment", *spent)}


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    started = time.monotonic()
    result = experiment.run(tiny, folder / "run", adapters=False)
    return result, time.monotonic() - started


def test_a_run_leaves_what_it_promises(tiny, tmp_path):
    """Ten clients, three marks; every adapter as a PEFT folder that gives back the saved row."""
    from raypref.models.peft_io import import_peft
    from raypref.models.selector import base_layout

    result = experiment.run(tiny, tmp_path)
    assert result["rounds"] == 4 and result["client_steps"] == 4 * 5 * 3
    assert np.array(result["test"]["accuracy"]).shape == (10, 3)
    assert len(result["assignment"]) == 10
    for name in ("config.json", "result.json", "table.md", "results.csv", "curve.png", "groups.json", "groups.png"):
        assert (tmp_path / name).stat().st_size > 0
    layout = base_layout(tiny.model)
    start = checkpoint.load(tmp_path / "initialization.safetensors")[0]["rows"]
    assert torch.equal(import_peft(tmp_path / "adapters" / "initialization", layout, tiny.model), start)
    assert sorted(p.name for p in (tmp_path / "adapters" / "personalized").iterdir()) == sorted(result["clients"])
    groups = json.loads((tmp_path / "groups.json").read_text())
    assert groups["rounds"] == [0, 1, 2, 3, 4]


def test_a_repeat_gives_the_same_bits(tiny, tmp_path, whole):
    assert measured(experiment.run(tiny, tmp_path, adapters=False)) == measured(whole[0])


def test_seeds_differ(tiny, tmp_path, whole):
    assert measured(experiment.run(override(tiny, {"seed": 1}), tmp_path, adapters=False)) != measured(whole[0])


@pytest.mark.parametrize("moment", range(20))
def test_kill_9_at_any_moment_then_resume(tiny, tmp_path, whole, moment):
    """20 seeded moments over the length of the run, personalization included; each kills a real process, and a second
    process finishes what the first left. Bit for bit on a CPU."""
    result, seconds = whole
    after = float(stream(moment, "kill").uniform(0.02, 1.0)) * seconds
    child = start_in_child(tiny, tmp_path / "run")
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    resumed = experiment.run(tiny, tmp_path / "run", adapters=False)
    assert measured(resumed) == measured(result)
    lines = Store(tmp_path / "run", tiny).lines()
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]


def start_in_child(config, folder) -> int:
    """The run in a forked process (torch is imported already, so that the moment falls into the run).

    With a lock of its own for progress bars: tqdm's is a semaphore that forks share, and a child that is killed while
    it holds it would leave this process waiting for ever.
    """
    child = os.fork()
    if child == 0:
        try:
            tqdm.set_lock(threading.RLock())
            experiment.run(config, folder, adapters=False)
        finally:
            os._exit(0)
    return child


class Stop(Exception):
    """What ends a run where a test wants it to."""


def stopping(phase, at):
    """A progress bar that stops the run at the `at`-th advance in `phase`."""

    def act(seen):
        if seen == at:
            raise Stop

    return acting(phase, act)


@pytest.mark.parametrize("stop", [("round", 2), ("round", 4), ("personalization", 1), ("personalization", 3)])
def test_stop_at_a_known_place_then_resume(tiny, tmp_path, whole, stop):
    """The same at chosen places, so that both phases are surely met."""

    with pytest.raises(Stop):
        experiment.run(tiny, tmp_path, bar=stopping(*stop), adapters=False)
    again = experiment.run(tiny, tmp_path, adapters=False)
    assert measured(again) == measured(whole[0])


def test_a_cluster_too_small_after_a_loss_is_told_what_stands(tiny, tmp_path, monkeypatch):
    """The second start of the run finds half of the cluster; the first, which finds it too small, has nothing to say
    of what was saved."""
    ends = [Lost("a node died"), UserError("the run asks for 3 CPU, the cluster has 2")]

    def fails(inputs, saved, reports=None):
        raise ends.pop(0)
        yield

    monkeypatch.setattr(experiment, "stream", fails)
    with pytest.raises(UserError, match="the cluster has 2; what was saved stands, --resume goes on from there"):
        experiment.run(tiny, tmp_path / "lost", adapters=False)
    ends.append(UserError("the run asks for 3 CPU, the cluster has 2"))
    with pytest.raises(UserError, match=r"the cluster has 2$"):
        experiment.run(tiny, tmp_path / "small", adapters=False)


def test_stopped_amid_its_adapters_a_run_writes_all_of_them_again(tiny, tmp_path, monkeypatch):
    from raypref.models import peft_io

    calls = []

    def third_stops(folder, *words):
        calls.append(folder)
        if len(calls) == 3:
            folder.mkdir(parents=True)
            (folder / "adapter_model.safetensors").write_bytes(b"half")
            raise Stop
        export(folder, *words)

    export = peft_io.export_peft
    monkeypatch.setattr(peft_io, "export_peft", third_stops)
    with pytest.raises(Stop):
        experiment.run(tiny, tmp_path)
    monkeypatch.setattr(peft_io, "export_peft", export)
    experiment.run(tiny, tmp_path)
    files = sorted((tmp_path / "adapters").rglob("adapter_model.safetensors"))
    assert len(files) == 1 + 10 and all(file.stat().st_size == files[0].stat().st_size for file in files)


def test_a_variational_run_stopped_between_rounds_goes_on_as_if_it_had_not_been(tiny, tmp_path):
    """State has statistics, peers, log-weights and labels beside θ; what was shown of later rounds is shown once."""

    told = {"algorithm": "fedvpa_gp", "objective": "variational", "variational.every": 1, "variational.lora": True}
    config = override(tiny, told)
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    with pytest.raises(Stop):
        experiment.run(config, tmp_path / "cut", bar=stopping("round", 3), adapters=False)
    again = experiment.run(config, tmp_path / "cut", adapters=False)
    assert measured(again) == measured(whole) and again["probes"] == whole["probes"]
    one, other = (Latent.load(tmp_path / where / "latent.npz") for where in ("whole", "cut"))
    assert one.rounds.tolist() == other.rounds.tolist() == [1, 2, 3, 4]
    assert np.array_equal(one.mu, other.mu)
    assert whole["parameters"]["adapter"] > 0 < whole["parameters"]["latent"]
    assert (tmp_path / "cut" / "latent.png").stat().st_size > 0
    assert "latent/active_units" in Store(tmp_path / "cut", config).lines()[-1]["metrics"]


@pytest.mark.parametrize("stop", [("round", 3), ("personalization", 2)])
@pytest.mark.parametrize("name", ["scaffold", "ditto", "fedrep", "lore"])
def test_what_clients_keep_is_there_after_a_stop(tiny, tmp_path, name, stop):
    """Control variates, models, heads and weights of their own: the same state and numbers, to the bit."""
    small = {
        "federation.rounds": 3,
        "fit.context_marks": (1, 4),
        "fedrep.fit_steps": 2,
        "personalization.marks": (0, 1),
    }
    config = override(tiny, small | {"algorithm": name})
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    with pytest.raises(Stop):
        experiment.run(config, tmp_path / "cut", bar=stopping(*stop), adapters=False)
    again = experiment.run(config, tmp_path / "cut", adapters=False)
    assert measured(again) == measured(whole) and again["probes"] == whole["probes"]
    one, other = (checkpoint.load(tmp_path / where / "state.safetensors")[0] for where in ("whole", "cut"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert any(key.startswith("kept/") for key in one)


def test_another_configuration_is_refused(tiny, tmp_path):
    Store(tmp_path, tiny).resume("digest")
    with pytest.raises(UserError, match="holds a run of another configuration"):
        Store(tmp_path, override(tiny, {"seed": 5}))


def test_data_that_changed_are_not_mixed_into_a_resume(tiny, tmp_path):
    Store(tmp_path, tiny).resume("one")
    Store(tmp_path, tiny).resume("one")
    with pytest.raises(UserError, match="the data changed"):
        Store(tmp_path, tiny).resume("other")


def test_a_result_that_cannot_be_believed_is_said():
    fine, broken = {"test": {"loss": [[0.7, 0.6]]}}, {"test": {"loss": [[0.7, float("nan")], [0.7, 0.6]]}}
    assert doubts(fine) == [] and "loss of 1 clients" in doubts(broken)[0]


def test_where_it_runs_is_not_part_of_the_key(tiny):
    assert override(tiny, {"clients.backend": "ray", "clients.threads": 2}).key == tiny.key
    assert override(tiny, {"clients.stack": 2}).key != tiny.key
    assert override(tiny, {"experts.K": 3}).key != tiny.key
    assert to_dict(tiny)["experts"] == {"K": 4, "T": 1}


def test_a_state_file_is_whole_or_absent(tmp_path, monkeypatch):
    """A write that dies before the rename leaves the old file."""
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, {"a": torch.ones(2)}, {"round": 1})

    def dies(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(path, {"a": torch.zeros(2)}, {"round": 2})
    tensors, values = checkpoint.load(path)
    assert values == {"round": 1} and tensors["a"].tolist() == [1.0, 1.0]


def test_client_names_as_folders():
    assert safe_name("w01.5-x") == "w01.5-x"
    assert safe_name("a/b") == "a%2Fb" and safe_name("..") == "%2E." and safe_name("é") == "%C3%A9"
    long = [safe_name("界" * n) for n in (200, 201)]
    assert len(set(long)) == 2 and max(map(len, long)) < 200


def test_errors_say_what_to_do(tiny, tmp_path):
    cases = (
        ({"federation.cohort": 11}, "federation.cohort is 11 but there are 10 clients"),
        ({"experts.K": 11}, "experts.K is 11 but there are 10 clients"),
        ({"experts.T": 3}, "try --federation.rounds 6"),
        ({"optim.learning_rate": float("nan")}, "must be a finite number"),
        ({"optim.betas": (1.0, 2.0)}, r"optim.betas is \(1.0, 2.0\); it must be in \[0, 1\)"),
        ({"model.lora_targets": ()}, "must name at least one module"),
        ({"clients.gpus_per_actor": -1.0}, "must not be negative"),
        ({"seed": -1}, "seed is -1"),
        ({"algorithm": "fedgdd"}, "did you mean 'fedgd'"),
        ({"model.base": str(tmp_path)}, "has no tokenizer"),
        ({"data.source": str(tmp_path / "no.jsonl")}, "no.jsonl"),
        ({"data.min_rows": 10**6, "data.source": str(empty_rows(tmp_path))}, "min"),
    )
    for i, (values, message) in enumerate(cases):
        with pytest.raises(UserError, match=message) as error:
            experiment.run(override(tiny, values), tmp_path / str(i), adapters=False)
        assert "\n" not in str(error.value)


def empty_rows(folder):
    """Two people with one pair each."""
    path = folder / "few.jsonl"
    rows = [{"client_id": c, "prompt": "q", "chosen": "yes", "rejected": "no"} for c in "ab"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("displaced", "calls"), [(False, 4), (True, 1)])
def test_a_run_without_its_places_does_not_begin_again_by_itself(tiny, tmp_path, monkeypatch, displaced, calls):
    """Three restarts, but none in places that are not whole: they are given back."""
    begun = []

    def lose(inputs, saved, reports):
        begun.append(saved)
        raise Lost("a node died", displaced)
        yield

    monkeypatch.setattr(experiment, "stream", lose)
    with pytest.raises(Lost, match=r"a node died; .* --resume"):
        experiment.run(tiny, tmp_path, adapters=False)
    assert len(begun) == calls
