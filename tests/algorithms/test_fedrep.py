"""FedRep: the head moves first and alone, then the body alone; bodies travel, heads stay."""

import json

import numpy as np
import pytest
import torch

from raypref.algorithms.fedrep import FedRep, FedRepHalf
from raypref.clients.kept import Kept
from raypref.clients.pool import InProcess
from raypref.config import UserError, override
from raypref.experiment import loop as experiment
from raypref.models.layout import last_block, lora_layout
from raypref.tools import checkpoint
from tests.algorithms.rule import Rule, config
from tests.clients.local import training


@pytest.fixture(scope="module")
def pool(tiny):
    chosen = {"algorithm": "fedrep", "optim.weight_decay": 0.1, "fedrep.fit_steps": 3, "clients.stack": 1}
    return InProcess(experiment.prepare(override(tiny, chosen)))


def body(pool):
    return ~last_block(pool.layout)


def test_a_step_moves_the_head_or_the_body_and_never_both(pool):
    """τ = 4 and a share of 0.5: two steps of the head, two of the body; neither momentum nor decay moves the other."""
    rows = pool.start()[body(pool)].repeat(2, 1)
    local = training(pool.worker, [1, 4], rows.numpy(), 4, half=FedRepHalf)
    before = local.half.head.detach().clone()
    assert torch.equal(before[0], pool.start()[~body(pool)])
    local.advance(2)
    head = local.half.head.detach().clone()
    assert torch.equal(local.rows.detach(), rows) and not torch.equal(head, before)
    local.advance(2)
    assert torch.equal(local.half.head.detach(), head) and not torch.equal(local.rows.detach(), rows)
    kept = [arrays["head"] for arrays in local.half.keep()]
    assert np.array_equal(np.stack(kept), head.numpy())
    whole = local.half.personal(local.rows.detach())
    assert torch.equal(whole[:, body(pool)], local.rows.detach()) and torch.equal(whole[:, ~body(pool)], head)


def test_who_has_no_head_trains_one_alone_on_all_or_a_few_pairs(pool):
    theta, start = pool.start()[body(pool)] + 0.01, pool.start()
    kept = Kept().updated([2], [{"head": np.full(int((~body(pool)).sum()), 0.5, np.float32)}])
    rows = pool.compose([2, 3], theta, kept)
    assert torch.equal(rows[:, body(pool)], theta.expand(2, -1))
    assert (rows[0, ~body(pool)] == 0.5).all()  # as it keeps it
    assert not torch.equal(rows[1, ~body(pool)], start[~body(pool)])
    few, every = pool.worker.fitted(np.array([3]), theta[None], [1, 10_000])
    assert torch.equal(every[0], rows[1]) and not torch.equal(few, every)


def test_a_round_by_hand():
    """The uniform mean of what three of six clients return, of bodies alone."""

    class TwoBlocks(Rule):
        layout = lora_layout([("layers.0.q_proj", 2, 2), ("layers.1.q_proj", 2, 2)], 1)

    clients = TwoBlocks()
    algorithm = FedRep(config("fedrep"), clients)
    before = algorithm.init()
    assert torch.equal(before.theta, clients.start()[:4]) and torch.equal(algorithm.shared(before), before.theta)
    after, _ = algorithm.round(before)
    assert torch.allclose(after.theta, before.theta + np.mean([clients.pull(c) for c in clients.asked[0]]))


def test_a_row_without_a_body_is_refused():
    with pytest.raises(UserError, match="is a head alone here; take ditto or lore"):
        FedRep(config("fedrep"), Rule())
    with pytest.raises(UserError, match=r"set --federation\.local-steps to 2 at least"):
        FedRep.check(config("fedrep", federation__local_steps=1))


def test_a_run_sends_bodies_and_tells_accuracy_by_choices(tiny, tmp_path):
    chosen = override(
        tiny, {"algorithm": "fedrep", "federation.rounds": 2, "fedrep.fit_steps": 2, "fit.context_marks": (1, 4)}
    )
    result = experiment.run(chosen, tmp_path, adapters=False)
    theta = checkpoint.load(tmp_path / "state.safetensors")[0]["theta"]
    D = result["parameters"]["adapter"]
    assert theta.numel() < D and result["bytes_up"] == result["bytes_down"] == 2 * 5 * 4 * theta.numel()
    assert np.array(result["probes"]["context_accuracy"]).shape == (10, 2)
    assert json.loads((tmp_path / "config.json").read_text())["fit"]["context_marks"] == [1, 4]
