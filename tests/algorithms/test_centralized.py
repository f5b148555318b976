"""CL and Multi-CL: pooled training as one optimizer's, whatever the blocks, processes and groups."""

import numpy as np
import torch

from raypref.algorithms.centralized import CL, MultiCL
from raypref.clients.pool import InProcess
from raypref.clients.work import TrainPooled
from raypref.clients.worker import comparisons
from raypref.config import override
from raypref.experiment import loop as experiment
from raypref.models.layout import initial_row
from raypref.objectives.choice import choice_loss
from raypref.tools.rng import stream


def trained(algorithm):
    state = algorithm.init()
    while state.round < algorithm.rounds:
        state, _ = algorithm.round(state)
    return state


def test_cl_is_one_adamw_on_all_data(tiny):
    """R · τ = 12 steps in four blocks, against one loop written out here over everybody's pairs."""
    chosen = override(tiny, {"algorithm": "cl", "model.lora_dropout": 0.0})
    pool = InProcess(experiment.prepare(chosen))
    state = trained(CL(chosen, pool))

    folds = [client.train for client in pool.inputs.data.clients]
    owner = np.concatenate([np.full(f.pairs, i) for i, f in enumerate(folds)])
    own = np.concatenate([np.arange(f.pairs) for f in folds])
    row = initial_row(pool.layout, 0)[None].clone().requires_grad_()
    optimizer = torch.optim.AdamW([row], lr=chosen.optim.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for batch in comparisons(len(owner), 8, 12, stream(0, "pooled", 0, 10)):  # ten clients: the pool is client 10
        texts = [folds[owner[j // 2]].padded(np.array([2 * own[j // 2] + j % 2]), 200, 0)[0] for j in batch]
        lengths = [folds[owner[j // 2]].lengths[2 * own[j // 2] + j % 2] for j in batch]
        logits = pool.worker.selector.choice_logits(
            row, torch.tensor(np.array(texts))[None], torch.tensor(lengths)[None]
        )
        loss = choice_loss(logits, torch.tensor(batch % 2)[None]).mean()
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    assert float((state.theta - row.detach()).abs().max()) < 1e-4


def test_multi_cl_with_one_group_is_cl(tiny):
    """Bit for bit: the same pool under the same name."""
    chosen = override(tiny, {"data.group_sizes": (6, 0, 0, 0), "federation.cohort": 2, "experts.K": 2})
    pool = InProcess(experiment.prepare(chosen))
    assert len(pool.groups) == 1
    one, many = trained(CL(chosen, pool)), trained(MultiCL(chosen, pool))
    assert torch.equal(one.theta, many.theta) and torch.equal(one.moments, many.moments)
    assert torch.equal(CL(chosen, pool).initialization(one), MultiCL(chosen, pool).initialization(many))


def test_multi_cl_trains_each_group_on_its_own_data_alone(tiny):
    """A group's model is CL's on that group: the others' data do not touch it."""
    pool = InProcess(experiment.prepare(tiny))
    algorithm = MultiCL(tiny, pool)
    state = algorithm.init()
    theta, _, _ = pool.train_pooled(
        [np.flatnonzero(pool.group_of == g) for g in range(4)], state.theta, state.moments, 0, 3
    )
    work = TrainPooled(np.array([10]), state.theta[:1].numpy(), state.moments[:1].numpy(), 0, 3)
    assert np.allclose(theta[0].numpy(), pool.worker.train_pooled(work).rows[0], atol=1e-5)
    start = algorithm.initialization(state.__class__(1, theta, state.moments))
    assert all(torch.equal(start[c], theta[g]) for c, g in enumerate(pool.group_of))
