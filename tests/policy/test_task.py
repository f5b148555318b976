"""What stage 2 is given: prompts, frozen selectors and z, and nothing that a person has chosen or written."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from raypref.algorithms.base import State
from raypref.config import RunConfig, UserError, override
from raypref.data.federation import Pair
from raypref.data.load import load
from raypref.experiment import loop as experiment
from raypref.models.policy import layout_of
from raypref.policy import task as tasks
from raypref.policy.task import gather
from raypref.storage.results import saved_state


@pytest.fixture(scope="module")
def stage1(tiny, tmp_path_factory):
    """(configuration, folder) of a finished run with unseen clients."""
    config = override(
        tiny,
        {
            "algorithm": "fedvpa_gp",
            "objective": "variational",
            "variational.features": 8,
            "variational.encoder": 8,
            "variational.d": 4,
            "data.group_sizes": (3, 3),
            "federation.unseen": 1,
            "federation.cohort": 2,
            "personalization.marks": (0, 2),
            "rlhf.samples": 4,
        },
    )
    folder = tmp_path_factory.mktemp("stage1") / "run"
    experiment.run(config, folder, adapters=False)
    return config, folder


def strings(value) -> set[str]:
    """Every string in a tree."""
    if isinstance(value, str):
        return {value}
    if dataclasses.is_dataclass(value):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return set().union(*map(strings, value)) if isinstance(value, (list, tuple, set, frozenset)) else set()


def test_no_human_label_and_no_response_enters(stage1, monkeypatch):
    """The same task comes out whatever people chose and wrote: with every response replaced, none of it shows."""
    config, folder = stage1
    federation = load(config.data, config.seed)
    written = {text for c in federation.clients for f in ("train", "validation", "test") for p in c.fold(f)
               for text in (p.chosen, p.rejected)}  # fmt: skip
    task = gather(folder, config)
    assert len(written) > 100 and not strings(task) & written

    def other(pairs):
        return tuple(Pair(p.prompt, "rejected before", "chosen before") for p in pairs)

    changed = dataclasses.replace(
        federation,
        clients=tuple(
            dataclasses.replace(c, train=other(c.train), validation=other(c.validation), test=other(c.test))
            for c in federation.clients
        ),
    )
    monkeypatch.setattr(tasks, "load", lambda data, seed: changed)
    again = gather(folder, config)
    for field in dataclasses.fields(task):
        ours, theirs = getattr(task, field.name), getattr(again, field.name)
        assert str(ours) == str(theirs), field.name


def test_training_prompts_are_those_of_clients_that_took_part(stage1):
    config, folder = stage1
    task = gather(folder, config)
    federation = load(config.data, config.seed)
    assert len(task.unseen) == 2 and not task.unseen & set(task.train.client.tolist())
    for text, c in zip(task.train.texts, task.train.client, strict=True):
        assert text in {p.prompt for p in federation.clients[c].train}
    assert task.z.shape == (6, 4) and np.isfinite(task.z).all()  # the unseen ones have inferred theirs


def test_test_prompts_are_dealt_evenly_and_never_trained_on(stage1):
    config, folder = stage1
    task = gather(folder, config)
    federation = load(config.data, config.seed)
    sections = {}
    for text, c in zip(task.test.texts, task.test.client, strict=True):
        assert text in {p.prompt for p in federation.clients[c].test}
        sections.setdefault((task.groups[c], c in task.unseen), []).append(c)
    assert {len(of) for of in sections.values()} == {4} and len(sections) == 4  # two groups, seen and unseen
    for (_, away), of in sections.items():
        assert sorted(np.unique(of, return_counts=True)[1]) == ([4] if away else [2, 2])


def test_on_the_graded_benchmark_no_prompt_that_judges_see_was_trained_on():
    """Its test pairs have topics of their own; the other generated source shares all its questions."""
    shared = {}
    for source in ("graded", "synthetic"):
        config = override(RunConfig(), {"data.source": source, "data.group_sizes": (5, 5)})
        federation = load(config.data, config.seed)
        trained = set(tasks.prompts_of(federation, "train", range(10)).texts)
        judged = set(tasks.chosen_tests(federation, config, frozenset()).texts)
        assert len(judged) > 30
        shared[source] = len(judged & trained)
    assert shared["graded"] == 0 < shared["synthetic"]


def test_z_is_what_the_clients_told_and_the_prior_is_the_last_cohorts(stage1):
    config, folder = stage1
    probes = json.loads((folder / "result.json").read_text())["probes"]
    task = gather(folder, override(config, {"rlhf.z": "prior"}))
    np.testing.assert_allclose(task.z, np.array(probes["mu"]), rtol=1e-6)
    assert task.mixture.mean.shape == task.mixture.variance.shape == (2, 4)  # a cohort of two


def test_what_cannot_be_followed_is_refused(stage1, tmp_path):
    config, folder = stage1
    with pytest.raises(UserError, match="data changed"):
        gather(folder, override(config, {"data.group_sizes": (4, 3)}))
    with pytest.raises(UserError, match="needs a mixture prior"):
        tasks.mixture(override(config, {"rlhf.z": "prior", "algorithm": "fedavg"}), State(round=1))
    with pytest.raises(UserError, match="do not fit"):
        tasks.selectors(folder, override(config, {"variational.features": 9}), saved_state(folder, config))


def test_a_model_for_each_client_is_no_reward(tiny, tmp_path):
    for name, why in (("soft_fl", "a model a client"), ("local", "nothing that clients share")):
        config = override(tiny, {"algorithm": name, "federation.rounds": 1})
        experiment.run(config, tmp_path / name, adapters=False)
        with pytest.raises(UserError, match=why):
            gather(tmp_path / name, config)


def test_fedbiscuits_ensemble_has_all_its_experts(tiny, tmp_path):
    config = override(tiny, {"algorithm": "fedbiscuit", "experts.K": 3, "federation.rounds": 2, "rlhf.samples": 1})
    experiment.run(config, tmp_path / "run", adapters=False)
    task = gather(tmp_path / "run", config)
    assert task.rows.shape[0] == 3 and task.z is None and task.d == 0


def test_the_policys_row_is_laid_out_from_the_architecture(stage1):
    config, _ = stage1
    names = [segment.name for segment in layout_of(config).segments]
    assert names[-1] == "latent.z_to_embedding" and torch.Size(layout_of(config).segments[-1].shape) == (16, 4)
