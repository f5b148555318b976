"""One step is one step: DeepSpeed at every ZeRO stage against plain AdamW, and what an interrupted job goes on from."""

import sys

import pytest
import torch
from torch import nn

from raypref.clients.worker import Share
from raypref.config import UserError
from raypref.policy.engines import open_engine
from raypref.policy.train import Tally, Trainer
from raypref.tools import checkpoint

STAGES = (0, 1, 2, 3)
LONE = Share(0, 1)


def zero(stage):
    return {"rlhf.engine": "deepspeed", "rlhf.zero_stage": stage}


@pytest.fixture
def partitioned(monkeypatch):
    """ZeRO 3 leaves small parameters whole, and a tiny base has no others."""
    import deepspeed

    begin = deepspeed.initialize

    def initialize(config, **given):
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        return begin(config=config, **given)

    monkeypatch.setattr(deepspeed, "initialize", initialize)


def trained(task, rounds, folder, save=False, steps=3):
    """(row, round it began at) after these rounds, going on from `folder` where it holds something."""
    trainer = Trainer(task, LONE)
    with open_engine(trainer.policy, trainer.start(), task.config, LONE) as engine:
        began = engine.restore(folder)
        for round in rounds:
            for step in range(steps):
                batches = trainer.batches(round)
                for part in range(2):  # what `Trainer.round` does
                    engine.backward(trainer.loss(engine, batches[part], (round, step, part, 0), Tally()) / 2)
                engine.step(task.config.rlhf.learning_rate / (1 + step))
            if save:
                engine.save(folder, round + 1)
        with engine.gathered() as row:
            return row.clone(), began


@pytest.mark.parametrize(("stage", "recompute"), [*((stage, False) for stage in STAGES), (2, True)])
def test_zero_is_adamw(make_task, tmp_path, partitioned, stage, recompute):
    """Three steps of two passes each. A batch's draws depend on the row, so an early difference would grow."""
    own = nn.functional.linear
    plain, _ = trained(make_task(), [0], tmp_path)
    row, _ = trained(make_task(zero(stage) | {"clients.recompute": recompute}), [0], tmp_path)
    assert torch.allclose(row, plain, rtol=0, atol=1e-6)
    assert nn.functional.linear is own  # stage 3's would break what this process runs later
    assert (plain - Trainer(make_task(), LONE).start()).abs().max() > 5e-4


@pytest.mark.parametrize("values", [{}, *map(zero, STAGES)], ids=["torch", *map(str, STAGES)])
def test_what_is_restored_goes_on_to_the_same_bits(make_task, tmp_path, partitioned, values):
    task = make_task(values)
    whole, _ = trained(task, [0, 1], tmp_path / "none")
    trained(task, [0], tmp_path, save=True)
    row, began = trained(task, [1], tmp_path)
    assert began == 1 and torch.equal(row, whole)
    other, began = trained(make_task({} if values else zero(2)), [1], tmp_path)  # by another engine
    assert began == 1 and torch.allclose(other, whole, rtol=0, atol=1e-6)


def test_an_ensemble_labels_through_a_partitioned_base(make_task, tmp_path, partitioned):
    """Its passes run in inference mode, whose tensors must not stay behind in the base."""
    voted = {"objective": "choice", "algorithm": "fedbiscuit"}
    plain, _ = trained(make_task(voted), [0], tmp_path)
    row, _ = trained(make_task(voted | zero(3)), [0], tmp_path)
    assert torch.allclose(row, plain, rtol=0, atol=1e-6)


def test_the_row_keeps_its_precision_beside_a_bf16_base(make_task, tmp_path):
    """A step of 1e-5 is lost in a bf16 row of ones."""
    values = {"model.dtype": "bfloat16", "rlhf.learning_rate": 1e-5}
    task = make_task(values | zero(2))
    row, _ = trained(task, [0], tmp_path, steps=1)
    start = Trainer(task, LONE).start()
    assert row.dtype == torch.float32
    # Weight decay moves A, of which no other gradient is there at first; the rest starts at 0.
    assert ((row != start) & (row != 0)).float().mean() > 0.5
    assert (row - start).abs().max() <= 1.1e-5 + 1e-6 * start.abs().max()


EMBEDDED = {"model.base": "embedded", "rlhf.rounds": 1, "rlhf.local_steps": 1, "rlhf.max_new_tokens": 24}
"""Its responses end where they should, each process's at other lengths."""


@pytest.fixture(scope="module")
def two(make_task, together):
    """What two processes without DeepSpeed leave."""
    return together(make_task(EMBEDDED))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_two_processes_under_zero_are_two_without(make_task, two, together, stage):
    """Every process must run equally many passes of a partitioned base: a hang is a failure."""
    folder = together(make_task(EMBEDDED | zero(stage)), how="whole")
    rows = [checkpoint.load(f / "row.safetensors")[0]["row"] for f in (two, folder)]
    assert torch.allclose(*rows, rtol=0, atol=1e-6)
    assert (two / "responses.jsonl").read_text() == (folder / "responses.jsonl").read_text()
    trainer = Trainer(make_task(EMBEDDED), LONE)  # one process without ZeRO goes on from what they have left
    with open_engine(trainer.policy, trainer.start(), trainer.config, LONE) as engine:
        assert engine.restore(folder) == 1
        with engine.gathered() as row:
            assert torch.equal(row, rows[1])


def test_a_missing_package_is_one_line(make_task, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    task = make_task(zero(2))
    trainer = Trainer(task, LONE)
    with (
        pytest.raises(UserError, match=r"pip install 'raypref\[deepspeed\]'"),
        open_engine(trainer.policy, trainer.start(), task.config, LONE),
    ):
        pass
