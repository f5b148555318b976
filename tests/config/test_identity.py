"""A run has one identity: which fields name it, which do not, and keys that never change again."""

import dataclasses

import pytest

from raypref.config import RLHFConfig, RunConfig, UserError, flatten, from_dict, identity, override, to_dict, validate
from raypref.config.fields import Range, of_part, setting

PINNED: dict[str, dict[str, object]] = {
    "b0c54593": {},
    "568cabb7": {"algorithm": "fedavg"},
    "14d607ed": {"algorithm": "fedgd", "experts.K": 3, "fedgd.w": 0.3, "seed": 2},
    "8529375a": {"algorithm": "fedbiscuit", "federation.unseen": 2},
    "dea5f54c": {"algorithm": "soft_fl", "soft_fl.epsilon": 0.01},
    "e62e1724": {"algorithm": "multi_cl", "clients.pooled_workers": 2, "clients.backend": "ray"},
    "fe8c6591": {"algorithm": "fedvpa_gp", "objective": "variational", "variational.M": 2},
    "d428909e": {
        "algorithm": "fedvpl",
        "objective": "variational",
        "variational.form": "printed",
        "variational.lora": True,
    },
    "20223da7": {"algorithm": "feddpo", "objective": "dpo", "dpo.beta": 0.3},
    "af7f5854": {
        "algorithm": "local",
        "data.source": "choices.jsonl",
        "data.digest": "0123456789abcdef",
        "diagnostics.marks": (0,),
    },
}
"""Key -> what differs from the default."""


@pytest.mark.parametrize("key", PINNED)
def test_keys_never_change(key):
    """People have folders and MLflow runs of these names."""
    assert override(RunConfig(), PINNED[key]).key == key


@pytest.mark.parametrize(
    "values",
    [
        {"clients.backend": "ray", "clients.threads": 2, "clients.gpus_per_actor": 0.5},  # where
        {"rlhf.rounds": 7, "dpo.beta": 0.3},  # what may follow
        {"variational.d": 8},  # another objective's
        {"soft_fl.epsilon": 0.1},  # another method's
        {"data.source": "elsewhere", "data.digest": "0123"},
    ],
)
def test_what_is_computed_alone_names_a_run(values):
    known = override(RunConfig(), {"data.digest": "0123"} if "data.digest" in values else {})
    assert override(known, values).key == known.key


@pytest.mark.parametrize(
    "values",
    [
        {"clients.stack": 2},  # the bits
        {"diagnostics.marks": (0,)},  # what the result holds
        {"experts.K": 3},
        {"fedgd.w": 0.5},
        {"seed": 1},
        {"data.source": "elsewhere"},
        {"data.digest": "0123"},
        {"algorithm": "fedavg"},
        {"objective": "dpo"},
    ],
)
def test_the_rest_tells_runs_apart(values):
    assert override(RunConfig(), values).key != RunConfig().key


def test_another_method_has_other_sections():
    """FedAvg has no experts; a FedDPO run has its own β."""
    fedavg = override(RunConfig(), {"algorithm": "fedavg"})
    assert override(fedavg, {"experts.K": 3}).key == fedavg.key
    feddpo = override(RunConfig(), {"algorithm": "feddpo", "objective": "dpo"})
    assert override(feddpo, {"dpo.beta": 0.3}).key != feddpo.key


def test_what_a_source_is_made_with_counts_where_it_is_the_source():
    """`data.graded.noise` names no run on other data; `named` is another word for the source that has no such part."""
    noise = {"data.graded.noise": 0.7, "data.graded.train": (5, 5)}
    assert override(RunConfig(), noise).key == RunConfig().key == override(RunConfig(), {"data.source": "named"}).key
    graded = override(RunConfig(), {"data.source": "graded"})
    assert len({graded.key, override(graded, noise).key, RunConfig().key}) == 3
    assert from_dict(to_dict(override(graded, noise))) == override(graded, noise)
    assert override(RunConfig(), {"data.source": "named"}).data.source == "synthetic"


def test_a_younger_field_leaves_earlier_keys_alone(monkeypatch):
    """At its neutral value it is not there at all; its default may be another one, and then names new runs."""

    @dataclasses.dataclass(frozen=True)
    class Section:
        old: int = 1
        new: int = setting(5, neutral=0)

    fields = {f"data.{f.name}": f for f in dataclasses.fields(Section)}
    monkeypatch.setattr(identity, "described", lambda: fields)
    flat = {"algorithm": "fedavg", "objective": "choice", "data.old": 1}
    before = identity.known(flat, identity.TRAINED)
    assert before == {"data.old": 1} == identity.known(flat | {"data.new": 0}, identity.TRAINED)
    assert identity.known(flat | {"data.new": 5}, identity.TRAINED) == {"data.old": 1, "data.new": 5}


def test_every_field_says_its_part():
    """None is known by a name in a list: those of stage 2 that say where it runs, and how policies are asked."""
    where = ("backend", "gpus_per_worker", "cpus_per_worker", "recompute", "wait", "engine", "zero_stage")
    assert of_part(RLHFConfig, "where") == where
    answers = {"samples", "generation_batch", "temperature", "top_p", "max_new_tokens"}
    assert set(of_part(RLHFConfig, "answers")) == answers
    shown = {name for name, field in identity.described().items() if field.metadata.get("part") == "shown"}
    assert shown == {
        "diagnostics.marks",
        "diagnostics.eta",
        "variational.every",
        "variational.context_marks",
        "bayes.every",
        "bayes.context_marks",
    } | {"fit.context_marks"}


def test_a_saved_configuration_is_read_back_to_the_same_key():
    config = override(RunConfig(), {"federation.rounds": 7, "data.kinds": ("a", "b"), "data.group_sizes": (1, 2)})
    assert from_dict(to_dict(config)) == config and from_dict(to_dict(config)).key == config.key
    assert set(identity.known(flatten(to_dict(config)), identity.BITS)) <= set(flatten(to_dict(config)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"least": 1}, "be at least 1"),
        ({"least": 0}, "not be negative"),
        ({"above": 0}, "be above 0"),
        ({"above": 0, "most": 1}, "be in (0, 1]"),
        ({"least": 0, "below": 1}, "be in [0, 1)"),
        ({"most": 3}, "be at most 3"),
        ({"below": 3}, "be below 3"),
    ],
)
def test_a_range_reads_as_a_sentence(values, words):
    assert str(Range(**values)) == words


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("fedgd.w", 0.0, r"fedgd.w is 0; it must be in \(0, 1\]"),
        ("optim.betas", (0.9, 1.0), r"optim.betas is \(0.9, 1.0\); it must be in \[0, 1\)"),
        ("model.lora_dropout", 1.0, "model.lora_dropout is 1; it must be in"),
        ("seed", -1, "seed is -1; it must not be negative"),
        ("federation.rounds", 0, "federation.rounds is 0; it must be at least 1"),
        ("variational.tau", float("inf"), "variational.tau is inf; it must be a finite number"),
        ("algorithm", "fedvag", "unknown algorithm 'fedvag'; did you mean 'fedavg'"),
        ("objective", "chioce", "unknown objective 'chioce'; did you mean 'choice'"),
    ],
)
def test_what_is_out_of_range_is_one_line(field, value, why):
    with pytest.raises(UserError, match=why):
        validate(override(RunConfig(), {field: value}))


def test_mlflow_gets_what_has_a_part_and_no_more() -> None:
    """FedAvg on generated data: no expert, no column, nothing of where it ran unless that was chosen."""
    usual = flatten(to_dict(RunConfig()))
    flat = usual | {"algorithm": "fedavg", "clients.backend": "ray", "federation.rounds": 7}
    logged = identity.logged(flat, usual)
    assert logged["federation.rounds"] == 7 and logged["clients.backend"] == "ray" and "seed" in logged
    assert not {"experts.K", "rlhf.rounds", "dpo.beta", "data.client_column", "clients.stack"} & set(logged)
    assert len(logged) < 40
    assert "rlhf.rounds" in identity.logged(flat, usual, policy=True)
    assert "data.client_column" in identity.logged(flat | {"data.source": "a.csv"}, usual)
