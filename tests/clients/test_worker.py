"""Local training: stacked = one at a time, one client = plain training, and what seeds reach."""

import numpy as np
import pytest
import torch

from raypref.clients.pool import InProcess
from raypref.clients.protocol import Placement
from raypref.clients.worker import comparisons
from raypref.config import override
from raypref.experiment import loop as experiment
from raypref.models.layout import initial_row
from raypref.objectives.base import Loss
from raypref.objectives.choice import choice_loss
from raypref.tools.rng import stream
from tests.clients.local import training


@pytest.fixture(scope="module")
def pool(tiny):
    return InProcess(experiment.prepare(override(tiny, {"model.lora_dropout": 0.0})))


def start(pool, n):
    return torch.stack([initial_row(pool.layout, 0, i) for i in range(n)])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_stacked_is_one_at_a_time(tiny, dropout):
    """First gradients within 1e-6, states after three AdamW steps within 1e-3 (early steps amplify rounding); masks are
    each client's own, so this holds with dropout as well."""
    pool = InProcess(experiment.prepare(override(tiny, {"model.lora_dropout": dropout})))
    rows = start(pool, 3).numpy()
    stack = [1, 4, 8]

    def first_gradient(clients, rows):
        local = training(pool.worker, clients, rows, 3, 1e-3)
        local.advance(1)
        gradient = local.rows.grad.clone()
        local.advance(2)
        return gradient, torch.from_numpy(local.result())

    gradient, state = first_gradient(stack, rows)
    for i, c in enumerate(stack):
        alone, alone_state = first_gradient([c], rows[i : i + 1])
        assert float((gradient[i] - alone[0]).abs().max()) < 1e-6
        assert float((state[i] - alone_state[0]).abs().max()) < 1e-3


def test_one_client_is_plain_training(pool):
    """Against a loop written out here: AdamW of torch on one row, the same batches."""
    config = pool.config
    fold = pool.worker.reader.clients[2].train
    row = start(pool, 1).requires_grad_()
    optimizer = torch.optim.AdamW([row], lr=config.optim.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    draw = stream(config.seed, "train", 5, 2)
    order = np.concatenate([draw.permutation(fold.pairs) for _ in range(-(-3 * 8 // fold.pairs))])[:24]
    for batch in (2 * order + draw.integers(0, 2, 24)).reshape(3, 8):
        length = int(fold.lengths[batch].max())
        ids = torch.from_numpy(fold.padded(batch, length, 0))[None]
        lengths = torch.from_numpy(fold.lengths[batch])[None]
        logits = pool.worker.selector.choice_logits(row, ids, lengths)
        loss = torch.nn.functional.cross_entropy(logits[0], torch.from_numpy(batch % 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    returned = pool.train([2], start(pool, 1)[0], 5)
    assert torch.allclose(returned.rows, row.detach(), atol=1e-6)


def test_uneven_batches_in_a_stack(pool):
    """A client with fewer pairs than the batch uses them all; its neighbours' padding never enters its loss."""
    losses = choice_loss(torch.randn(2, 4, 2), torch.zeros(2, 4, dtype=torch.long))
    valid = torch.tensor([[True] * 4, [True, True, False, False]])
    assert torch.allclose(Loss({"choice": losses}, valid).by_client()["choice"][1], losses[1, :2].mean())


def test_batches_pass_over_all_pairs_in_both_orders():
    batches = comparisons(10, 4, 25, stream(0, "train"))
    assert batches.shape == (25, 4)
    pairs, counts = np.unique(batches // 2, return_counts=True)
    assert pairs.tolist() == list(range(10)) and counts.tolist() == [10] * 10
    assert 0.3 < (batches % 2).mean() < 0.7
    assert comparisons(3, 16, 2, stream(0, "train")).shape == (2, 3)


def test_the_seed_reaches_the_trainer(tiny, pool):
    """A peer's fault: a seed that never does."""
    other = InProcess(pool_inputs(tiny, pool, seed=1))
    same = pool.train([3], start(pool, 1)[0], 0).rows
    assert torch.equal(same, pool.train([3], start(pool, 1)[0], 0).rows)
    assert not torch.equal(same, other.train([3], start(pool, 1)[0], 0).rows)
    assert not torch.equal(same, pool.train([3], start(pool, 1)[0], 1).rows)


def pool_inputs(tiny, pool, seed):
    """The same clients' data under another seed of training."""
    import dataclasses

    inputs = experiment.prepare(override(tiny, {"model.lora_dropout": 0.0}))
    return dataclasses.replace(inputs, config=dataclasses.replace(inputs.config, seed=seed))


def test_evaluation_of_many_rows_is_each_alone(pool):
    rows = start(pool, 4) + 0.05 * torch.randn(4, pool.layout.width, generator=torch.Generator().manual_seed(0))
    together = pool.evaluate(rows, "validation")
    assert together["loss"].shape == (4, 10)
    for k in range(4):
        alone = pool.evaluate(rows[k : k + 1], "validation")
        assert np.allclose(together["loss"][k], alone["loss"][0], atol=1e-6)


def test_personalization_marks_are_read_outs_not_restarts(tiny, pool):
    """One optimizer state throughout: reading at 2 does not change where step 4 ends."""
    import dataclasses

    inputs = experiment.prepare(override(tiny, {"model.lora_dropout": 0.0, "personalization.marks": (0, 4)}))
    fewer = InProcess(inputs)
    rows = start(pool, 1).repeat(2, 1)
    a, b = pool.personalize([0, 5], rows), fewer.personalize([0, 5], rows)
    assert np.array_equal(a.rows, b.rows)
    assert a.curves["test"]["accuracy"].shape == (2, 3)
    assert np.array_equal(a.curves["test"]["loss"][:, [0, 2]], b.curves["test"]["loss"])
    assert dataclasses.is_dataclass(a)


def test_budget_is_counted(pool):
    """Two clients of a three-step round: 6 client steps, two rows of 4 D bytes each way; an evaluation of one row sends
    it to all ten."""
    before = pool.used
    pool.train([0, 1], start(pool, 1)[0], 0)
    pool.evaluate(start(pool, 1), "validation")
    row = 4 * pool.layout.width
    assert pool.used.client_steps - before.client_steps == 6
    assert pool.used.bytes_down - before.bytes_down == 2 * row + 10 * row
    assert pool.used.bytes_up - before.bytes_up == 2 * row + 10 * 8


def test_stacks_are_a_function_of_configuration_and_cohort():
    placement = Placement(clients=10, per_worker=3, stack=2)
    assert placement.workers == 4
    assert sorted(np.concatenate([placement.members(w) for w in range(4)]).tolist()) == list(range(10))
    assert [(w, m.tolist()) for w, m in placement.stacks([9, 1, 5, 0])] == [(0, [0]), (1, [1, 5]), (1, [9])]
    assert placement.stacks([0, 9, 5, 1])[1][1].tolist() == [1, 5]


def test_small_steps_move_float32_adapters_under_a_bfloat16_base(tiny):
    """At the paper's learning rate a bfloat16 adapter of size 0.25 would never move (its grid is 2^-10 there): a peer's
    fault. Ours are float32 whatever the base is."""
    half = override(tiny, {"model.dtype": "bfloat16", "optim.learning_rate": 1e-5, "model.lora_dropout": 0.0})
    pool = InProcess(experiment.prepare(half))
    rows = start(pool, 1) + 0.25
    moved = pool.train([0], rows[0], 0).rows - rows
    assert pool.worker.selector.model.dtype == torch.bfloat16
    assert 1e-5 < float(moved.abs().max()) < 3.1e-5  # three AdamW steps of at most 1e-5 each
    assert float((moved != 0).float().mean()) > 0.5


@pytest.mark.parametrize(
    "values",
    [
        {"algorithm": "ditto"},
        {"algorithm": "feddpo", "objective": "dpo"},
        {"algorithm": "fedvpa_gp", "objective": "variational", "variational.lora": True},
    ],
)
def test_a_run_whose_blocks_run_again_backwards_has_the_same_bits(tiny, values):
    """Two passes with the same dropout; log-probabilities; a latent beside the adapter. It is no other run."""
    rows = []
    for recompute in (False, True):
        config = override(tiny, {**values, "clients.recompute": recompute, "federation.rounds": 2})
        pool = InProcess(experiment.prepare(config))
        start = pool.start()
        rows.append((pool.train([0, 1, 2], start, 0).rows, config.key))
        assert not torch.equal(rows[-1][0][0], start)
    assert torch.equal(rows[0][0], rows[1][0]) and rows[0][1] == rows[1][1]
