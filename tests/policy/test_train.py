"""What a round draws: its prompts, shared out over processes; samples of the prior; pairs put together."""

import numpy as np
import pytest
import torch

from raypref.algorithms.base import Prior
from raypref.clients.worker import Share
from raypref.policy.train import Trainer, joined, sample_mixture


@pytest.fixture(scope="module")
def drawn(make_task):
    """(values, world, round) -> each process's batches [world, passes, b]."""

    def draw(values, world=1, round=0):
        return np.stack([np.stack(Trainer(make_task(values), Share(k, world)).batches(round)) for k in range(world)])

    return draw


def test_processes_share_each_batch(drawn):
    (whole,) = drawn({})
    shares = drawn({}, world=2)
    assert whole.shape == (4, 4) and shares.shape == (2, 4, 2)  # 2 steps of 2 passes, 4 prompts each
    for one, *parts in zip(whole, *shares, strict=True):
        assert sorted(np.concatenate(parts)) == sorted(one)


def test_every_prompt_comes_equally_often(drawn):
    (batches,) = drawn({"rlhf.local_steps": 3})  # 24 draws from 6 prompts
    assert np.bincount(batches.ravel()).tolist() == [4] * 6
    for k in range(4):  # one pass over all after another
        assert sorted(batches.ravel()[6 * k : 6 * k + 6]) == list(range(6))


def test_a_round_takes_at_most_so_many_prompts_and_others_than_the_last(drawn):
    told = [set(drawn({"rlhf.prompts": 3}, round=k).ravel()) for k in range(4)]
    assert all(len(one) == 3 for one in told)
    assert len(set(map(frozenset, told))) > 1


def test_a_sample_of_the_prior_is_one_of_its_components():
    """Mean (1 - 5) / 2, variance the components' own plus that between them; a blend of the two would have less."""
    mean, variance = torch.tensor([[1.0, 0.0], [-5.0, 0.0]]), torch.tensor([[0.25, 1.0], [0.25, 4.0]])
    prior = Prior(mean.numpy(), variance.numpy(), tau=0.5)
    z = sample_mixture(prior, 20_000, torch.Generator().manual_seed(0))
    assert z.shape == (20_000, 2)
    assert torch.allclose(z.mean(0), torch.tensor([-2.0, 0.0]), atol=0.1)
    assert torch.allclose(z.var(0), torch.tensor([0.25 + 9.0, 2.5]), rtol=0.05)
    first = z[:, 0] > -2
    assert abs(float(first.float().mean()) - 0.5) < 0.02
    assert torch.allclose(z[first].var(0), variance[0], rtol=0.1)
    assert torch.allclose(z[~first].var(0), variance[1], rtol=0.1)


def test_drawing_from_the_prior_leaves_the_global_stream_alone():
    torch.manual_seed(0)
    prior = Prior(np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32), tau=1.0)
    sample_mixture(prior, 3, torch.Generator().manual_seed(5))
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))


def test_first_responses_come_before_second_ones():
    """Two generations, of two prompts and of one, each its first responses and then its second."""
    one = (torch.tensor([[10, 1], [20, 2], [11, 3], [21, 4]]), torch.tensor([[1, 2]] * 4))
    other = (torch.tensor([[30, 5, 5], [31, 6, 6]]), torch.tensor([[1, 3]] * 2))
    ids, spans = joined([one, other], pad=0)
    assert ids.tolist() == [[10, 1, 0], [20, 2, 0], [30, 5, 5], [11, 3, 0], [21, 4, 0], [31, 6, 6]]
    assert spans.tolist() == [[1, 2], [1, 2], [1, 3]] * 2
