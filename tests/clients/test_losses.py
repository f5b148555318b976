"""The variational objective on real clients: stacks, honesty of z, and what the printed form cannot do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raypref.algorithms.fedvpa_gp import VariationalHalf
from raypref.clients.half import Message
from raypref.clients.pool import InProcess
from raypref.clients.worker import measured
from raypref.config import override
from raypref.data.encode import EncodedFold
from raypref.experiment import loop as experiment
from raypref.models.layout import initial_row
from raypref.tools.rng import stream
from tests.clients.local import training

FORMS = [
    {"variational.form": "printed", "variational.lora": True},
    {"variational.form": "conditioned", "variational.lora": True, "variational.linear": False},
    {"variational.form": "conditioned", "variational.context": 5},
    {"variational.lora": True, "variational.adapted": True, "variational.pooling": "attention"},
    {"variational.lora": True, "variational.responses": "apart"},
]


def made(tiny, **more):
    return InProcess(experiment.prepare(override(tiny, {"objective": "variational"} | more)))


def moved(pool, n, seed=0):
    """Rows away from the start, so that every module does something."""
    noise = torch.randn(n, pool.layout.width, generator=torch.Generator().manual_seed(seed))
    return torch.stack([initial_row(pool.layout, 0, i) for i in range(n)]) + 0.05 * noise


def context(clients):
    """What FedVPA-GP's half is sent, and what these clients keep: two peers, a log-weight each, and labels."""
    peers, weights = np.array([1, 7]), np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    message = Message(
        shared={
            "mean": np.array([[0.5] * 32, [-0.5] * 32], np.float32),
            "variance": np.array([[1.0] * 32, [0.3] * 32], np.float32),
        },
        each={"label": np.array(clients) % 2},
        about=peers,
    )
    kept = [{"peers": peers, "log_weights": weights[c % 3]} for c in clients]
    return {"half": VariationalHalf, "message": message, "kept": kept}


@pytest.mark.parametrize("form", FORMS)
def test_stacked_is_one_at_a_time(tiny, form):
    """Gradients of rows and of peer log-weights within 1e-5 of one client alone, with all its randomness its own."""
    pool = made(tiny, **form)
    rows, stack = moved(pool, 3).numpy(), [1, 4, 8]

    def first_gradients(clients, rows):
        local = training(pool.worker, clients, rows, 2, 1e-3, **context(clients))
        local.advance(1)
        return [tensor.grad.clone() for tensor in local.trained]

    together = first_gradients(stack, rows)
    for i, c in enumerate(stack):
        alone = first_gradients([c], rows[i : i + 1])
        for one, all_of_them in zip(alone, together, strict=True):
            assert float((one[0] - all_of_them[i]).abs().max()) < 1e-5
    assert float(together[1].abs().max()) > 0  # the mixture prior teaches the log-weights


def flipped(fold: EncodedFold) -> EncodedFold:
    """The same texts, every choice the other way: both comparisons of a pair change places."""
    order = np.arange(2 * fold.pairs).reshape(-1, 2)[:, ::-1].reshape(-1)
    parts = [fold.tokens[fold.offsets[j] : fold.offsets[j + 1]] for j in order]
    return EncodedFold(np.concatenate(parts), np.cumsum([0, *map(len, parts)]), fold.spans[order])


@pytest.mark.parametrize("form", FORMS)
def test_z_never_sees_a_test_label(tiny, form):
    """Flip every test label: z is the same, and every prediction is of the same text, so each margin changes its
    sign."""
    pool = made(tiny, **form)
    rows, clients = moved(pool, 2), [0, 5]
    z, m = pool.worker.objective.infer(rows, clients).mu, pool.worker.objective.order_margins(rows, clients, "test")
    for c in clients:
        client = pool.worker.reader.clients[c]
        pool.worker.reader.clients[c] = replace(client, test=flipped(client.test))
    pool.worker.objective.frozen.clear()
    again = pool.worker.objective.order_margins(rows, clients, "test")
    assert torch.equal(pool.worker.objective.infer(rows, clients).mu, z)
    for one, other in zip(m, again, strict=True):
        assert torch.allclose(other, -one.flip(-1), atol=1e-5)


def test_the_printed_form_cannot_personalize(tiny):
    """Its shift is the same in both orders: whatever z, the pair margin is the adapter's alone."""
    pool = made(tiny, **FORMS[0])
    rows = moved(pool, 1)
    (m,) = pool.worker.objective.order_margins(rows, [0], "test")
    D = pool.worker.selector.layout.width
    (logits,) = pool.worker.reader.choice_logits(rows[:, :D], [pool.worker.reader.clients[0].test])
    alone = torch.stack([logits[0::2, 0] - logits[0::2, 1], logits[1::2, 1] - logits[1::2, 0]], dim=-1)
    assert float((m - alone).abs().max()) > 1e-3  # each order is shifted
    assert torch.allclose(m.mean(-1), alone.mean(-1), atol=1e-5)


@pytest.mark.parametrize("form", FORMS[1:])
def test_a_training_pair_is_judged_by_the_others_alone(tiny, form):
    """The summary from which a target's posterior comes does not change when the target's own choice does."""
    pool = made(tiny, **form)
    loss, worker, c = pool.worker.objective, pool.worker, 3
    fold = worker.reader.clients[c].train
    seen = []

    def summary(parts, batch, e):
        seen.append(original(parts, batch, e))
        return seen[-1]

    original, loss._summary = loss._summary, summary
    local = training(worker, [c], moved(pool, 1).numpy(), 1, 1e-3)
    target = int(local.batches[0][0][0]) // 2
    local.advance(1)
    order = np.arange(2 * fold.pairs)
    order[[2 * target, 2 * target + 1]] = order[[2 * target + 1, 2 * target]]
    parts = [fold.tokens[fold.offsets[j] : fold.offsets[j + 1]] for j in order]
    other = EncodedFold(np.concatenate(parts), np.cumsum([0, *map(len, parts)]), fold.spans[order])
    worker.reader.clients[c] = replace(worker.reader.clients[c], train=other)
    loss.frozen.clear()
    training(worker, [c], moved(pool, 1).numpy(), 1, 1e-3).advance(1)
    assert torch.allclose(seen[0][0, 0], seen[1][0, 0], atol=1e-5)
    assert not torch.allclose(seen[0][0, 1:], seen[1][0, 1:], atol=1e-5)  # the others do look at it


def test_the_modules_come_to_the_papers_size():
    """S1 5.5: about 0.9 M beside the adapter on Qwen2-0.5B (H = 896), here with F = 512, E = 256; a linear path adds
    F · H + d · F."""
    from raypref.objectives.latent import latent_segments
    from raypref.objectives.variational import VariationalConfig

    for form in ("printed", "conditioned"):
        config = VariationalConfig(form=form, features=512, encoder=256, linear=False)
        size = sum(s.size for s in latent_segments(896, config))
        assert abs(size - 0.9e6) < 0.09e6
    more = sum(s.size for s in latent_segments(896, replace(config, linear=True)))
    assert more - size == 512 * 896 + 32 * 512


def test_prototypes_start_orthogonal_at_their_radius(tiny):
    pool = made(tiny, **{"variational.M": 3})
    P = pool.layout.split(initial_row(pool.layout, 0)[None])["latent.prototypes"][0]
    assert torch.allclose(P @ P.T, 25 * torch.eye(3), atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_fewer_context_pairs_are_a_client_that_has_only_those(tiny, form):
    """z from k drawn training pairs, against a client whose training fold is these k pairs; all of them: the
    accuracy at mark 0."""
    pool = made(tiny, **{"variational.context_marks": (3, 1000)} | form)
    loss, worker, c = pool.worker.objective, pool.worker, 5
    rows = moved(pool, 1)
    few, every = loss.probe(rows, [c])["context_accuracy"][0]
    assert every == measured(loss.order_margins(rows, [c], "test"))["accuracy"][0]
    fold = worker.reader.clients[c].train
    chosen = np.sort(stream(tiny.seed, "context", c).permutation(fold.pairs)[:3])
    order = np.stack([2 * chosen, 2 * chosen + 1], axis=1).reshape(-1)
    parts = [fold.tokens[fold.offsets[j] : fold.offsets[j + 1]] for j in order]
    small = EncodedFold(np.concatenate(parts), np.cumsum([0, *map(len, parts)]), fold.spans[order])
    worker.reader.clients[c] = replace(worker.reader.clients[c], train=small)
    loss.frozen.clear()
    assert few == measured(loss.order_margins(rows, [c], "test"))["accuracy"][0]


@pytest.mark.parametrize("form", FORMS[:2])
def test_posteriors_of_all_clients_whoever_holds_them(tiny, form):
    """Over two workers in stacks of three, against one client alone."""
    pool = made(tiny, **{"clients.clients_per_actor": 5, "clients.stack": 3} | form)
    rows = moved(pool, 10)
    found = pool.posterior(range(10), rows)
    assert found["mu"].shape == found["log_variance"].shape == (10, 32)
    for c in (0, 7):
        alone = pool.worker.objective.posterior(rows[c : c + 1], [c])
        for name, values in alone.items():
            assert np.allclose(found[name][c], values[0], atol=1e-6)


def test_the_printed_posterior_is_that_of_its_pairs_together(tiny):
    """Mean and variance of the mixture of N comparisons' posteriors: E μ, E σ² + Var μ."""
    pool = made(tiny, **FORMS[0])
    rows, loss = moved(pool, 1), pool.worker.objective
    q = loss._by_comparison(loss._parts(rows[0]), loss.states(2, "train").all_shown)
    found = loss.infer(rows, [2])
    assert torch.allclose(found.mu[0], q.mu.mean(0), atol=1e-6)
    second = (q.log_variance.exp() + q.mu**2).mean(0)
    assert torch.allclose(found.log_variance[0].exp(), second - q.mu.mean(0) ** 2, atol=1e-5)


@pytest.mark.slow
def test_the_printed_form_seems_perfect_where_z_sees_the_judged_pair(tiny):
    """A client trained by Algorithm 2 as printed: with z from the test pair itself nearly every one is "right", with z
    from its training pairs the answers are the adapter's."""
    pool = made(tiny, **FORMS[0], **{"data.group_sizes": (1, 1, 1, 1), "federation.cohort": 1})
    start = initial_row(pool.layout, 0)[None].numpy()
    local = training(pool.worker, [0], start, 300, 1e-2)
    local.advance(300)
    told = pool.worker.objective.probe(torch.from_numpy(local.result()), [0])
    assert told["leaked_accuracy"][0] > 0.9


def test_a_client_that_is_its_only_peer_falls_back_to_the_standard_gaussian(tiny):
    """A cohort of one, drawn twice running: the mixture without the client itself is empty."""
    pool = made(tiny)
    rows = moved(pool, 2).numpy()
    lonely = Message(
        {"mean": np.ones((1, 32), np.float32), "variance": np.ones((1, 32), np.float32)}, about=np.array([4])
    )

    def kl(message):
        local = training(pool.worker, [4, 5], rows, 1, 1e-3, VariationalHalf, message)
        local.advance(1)
        return local.parts()["kl"]

    with_peer, without = kl(lonely), kl(None)
    assert with_peer[0] == pytest.approx(without[0])  # client 4 has nobody but itself
    assert abs(with_peer[1] - without[1]) > 1e-6  # client 5 has client 4


@pytest.mark.parametrize("form", FORMS)
def test_the_parts_of_the_loss_add_up(tiny, form):
    pool = made(tiny, **form)
    local = training(pool.worker, [1, 4], moved(pool, 2).numpy(), 2, 1e-3, **context([1, 4]))
    losses = local.advance(2)
    parts = local.parts()
    assert set(parts) == {"reconstruction", "kl", "pull", "orthonormality"}
    assert np.allclose(sum(parts.values()), losses, rtol=1e-5)
