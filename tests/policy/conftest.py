"""A small task of stage 2 without a stage 1, and processes that train it together without Ray."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from raypref.config import override
from raypref.data.encode import choice_tokens
from raypref.models.layout import initial_row
from raypref.models.selector import load_tokenizer, pad_id
from raypref.objectives.base import row_layout
from raypref.policy.task import Prompts, Task

TEXTS = ("How do I sleep?", "What is rain?", "Name a book.", "Why is the sky blue?", "How to cook?", "Tell of cats.")
OWNERS = np.array([0, 0, 1, 1, 2, 2])
SMALL = {
    "algorithm": "fedvpa_gp",
    "objective": "variational",
    "variational.d": 4,
    "rlhf.rounds": 2,
    "rlhf.local_steps": 2,
    "rlhf.batch_size": 4,
    "rlhf.accumulation": 2,
    "rlhf.max_new_tokens": 8,
    "optim.weight_decay": 0.1,
}
SHARE = """
import pickle, sys
from pathlib import Path
import torch.distributed
from raypref.clients.worker import Share
from raypref.policy.train import work

task, folder, rank, world = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if sys.argv[5] == "whole":
    import deepspeed
    begin = deepspeed.initialize
    def initialize(config, **given):
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        return begin(config=config, **given)
    deepspeed.initialize = initialize
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
work(pickle.loads(Path(task).read_bytes()), Share(rank, world), folder, lambda round, metrics: None)
"""
"""A process of a group. `whole`: ZeRO 3 partitions every parameter, the small ones of a tiny base included."""


@pytest.fixture(scope="session")
def make_task(tiny):
    """values -> a task of six prompts of three clients, one unseen; z and the selectors are drawn."""

    def make(values=None):
        config = override(tiny, SMALL | (values or {}))
        tokenizer = load_tokenizer(config.model.base)
        draw = torch.Generator().manual_seed(0)
        row = initial_row(row_layout(config), 0)
        given = config.objective == "variational"
        z = np.random.default_rng(0).normal(size=(3, config.variational.d)).astype(np.float32)
        return Task(
            config=config,
            choice_ids=choice_tokens(tokenizer, config.data.template),
            pad=pad_id(tokenizer),
            rows=(row + 0.1 * torch.randn(1 if given else 3, len(row), generator=draw)).numpy(),
            train=Prompts(TEXTS, OWNERS),
            test=Prompts(TEXTS[::2], OWNERS[::2]),
            ids=("a", "b", "c"),
            base="",
            groups=("G1", "G1", "G2"),
            unseen=frozenset({2}),
            z=z if given else None,
        )

    return make


@pytest.fixture(scope="session")
def together(tmp_path_factory):
    """task -> the folder in which `world` processes have done it."""

    def train(task, world=2, how="plain"):
        folder = tmp_path_factory.mktemp("together")
        (folder / "task").write_bytes(pickle.dumps(task))
        group = [
            subprocess.Popen([sys.executable, "-c", SHARE, folder / "task", folder, str(rank), str(world), how])
            for rank in range(world)
        ]
        assert [one.wait(timeout=300) for one in group] == [0] * world
        return folder

    return train
