"""Full-batch gradients, headroom and quotients on the tiny base, each against another way to compute it."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from transformers import AutoConfig, AutoModelForCausalLM

from raypref.clients.pool import InProcess
from raypref.config import ModelConfig, override
from raypref.experiment import loop as experiment
from raypref.models.layout import initial_row
from raypref.models.selector import ARCHITECTURES, Selector
from raypref.objectives import diagnostics
from raypref.objectives.choice import pair_margins

STACK = [1, 4, 8]


@pytest.fixture(scope="module")
def worker(tiny):
    return InProcess(experiment.prepare(tiny)).worker  # with LoRA dropout: no diagnosis may see it


def full_gradient(worker, clients, rows):
    reader = worker.reader
    return diagnostics.full_gradient(reader, reader.folds(clients, "train"), rows, worker.config.optim.batch_size)


def diagnose(worker, clients, rows, eta):
    train, test = (worker.reader.folds(clients, name) for name in ("train", "test"))
    return diagnostics.diagnose(worker.reader, train, test, rows, eta, worker.config.optim.batch_size)


def rows_of(worker, n):
    """Rows somewhere in training: B is not zero."""
    layout = worker.selector.layout
    noise = torch.randn(n, layout.width, generator=torch.Generator().manual_seed(0))
    return torch.stack([initial_row(layout, 0, i) for i in range(n)]) + 0.2 * noise


def plain_loss(worker, client, row):
    """L_c over all comparisons in one pass, with a loss of torch."""
    fold = worker.reader.clients[client].train
    everything = np.arange(2 * fold.pairs)
    ids, lengths, _ = worker.reader.batch([fold], [everything])
    logits = worker.selector.choice_logits(row, ids, lengths)
    return torch.nn.functional.cross_entropy(logits[0], torch.from_numpy(everything % 2))


def test_full_gradient_is_one_plain_pass(worker):
    """In batches of 8 over both orders of every pair, against all at once; stacked against alone."""
    rows = rows_of(worker, 3)
    stacked = full_gradient(worker, STACK, rows)
    for i, c in enumerate(STACK):
        row = rows[i : i + 1].clone().requires_grad_()
        (plain,) = torch.autograd.grad(plain_loss(worker, c, row), row)
        assert float((stacked[i] - plain[0]).abs().max()) < 1e-6
        assert float((stacked[i] - full_gradient(worker, [c], rows[i : i + 1])[0]).abs().max()) < 1e-6
        assert float(plain.abs().max()) > 1e-3


@pytest.fixture(scope="module")
def diagnosis(worker):
    return diagnose(worker, STACK, rows_of(worker, 3), 0.1)


def test_headroom_is_the_central_difference(worker, diagnosis):
    """D(ε) = (M(θ - εηg) - M(θ + εηg)) / 2ε at ε = 0.1 and 0.05; their errors fall with ε², so (4 D(ε/2) - D(ε)) / 3
    has none of that order."""
    rows = rows_of(worker, 3)
    step = 0.1 * full_gradient(worker, STACK, rows)
    test = [worker.reader.clients[c].test for c in STACK]

    def D(e):
        forth, back = (
            [pair_margins(m) for m in worker.objective.order_margins(rows + s * step, STACK, "test")] for s in (-e, e)
        )
        return [(f - b).double().numpy() / (2 * e) for f, b in zip(forth, back, strict=True)]

    for i, (headroom, wide, narrow) in enumerate(zip(diagnosis.headroom, D(0.1), D(0.05), strict=True)):
        assert np.allclose(headroom, (4 * narrow - wide) / 3, rtol=2e-3, atol=5e-6)
        assert headroom.shape == (test[i].pairs,) and np.abs(headroom).max() > 1e-4


def test_quotient_is_its_first_order_form_up_to_eta_squared(worker):
    """Against η‖Hg / g‖₁ / # of the only block, Hg by double backward: halving η quarters the difference."""
    row = rows_of(worker, 1).requires_grad_()
    with worker.selector.eager():  # fused attention has no double backward either
        (g,) = torch.autograd.grad(plain_loss(worker, STACK[0], row), row, create_graph=True)
        (Hg,) = torch.autograd.grad((g * g.detach()).sum(), row)
    slope = float((Hg / g).detach().double().abs().mean())
    found = [diagnose(worker, STACK[:1], row, eta).gq.item() - eta * slope for eta in (0.004, 0.002, 0.001)]
    assert abs(found[0]) < 0.01 * 0.004 * slope
    assert found[0] / found[1] == pytest.approx(4, rel=0.2) and found[1] / found[2] == pytest.approx(4, rel=0.2)


def test_stacked_is_one_at_a_time(worker, diagnosis):
    """Headroom within 1e-6; quotients divide by gradients that may be as small as their rounding."""
    rows = rows_of(worker, 3)
    for i, c in enumerate(STACK):
        alone = diagnose(worker, [c], rows[i : i + 1], 0.1)
        assert np.allclose(alone.headroom[0], diagnosis.headroom[i], rtol=0, atol=1e-6)
        assert np.allclose(alone.gq_median[0], diagnosis.gq_median[i], rtol=1e-3)
        assert np.allclose(alone.gq[0], diagnosis.gq[i], rtol=1e-2)
        assert np.array_equal(alone.gq_excluded[0], diagnosis.gq_excluded[i])
        assert all(np.array_equal(v, getattr(alone, k)[0]) for k, v in alone.by_client()[0].items())


def test_a_fresh_adapter_moves_only_its_B(worker):
    """While B = 0 no A has a gradient: the excluded share is A's share of the row."""
    layout = worker.selector.layout
    found = diagnose(worker, [0], initial_row(layout, 0)[None], 0.1)
    inner = sum(s.size for s in layout.segments if s.name.endswith("lora_A"))
    assert found.gq_excluded.item() == pytest.approx(inner / layout.width)
    assert np.isfinite(found.gq).all()


def test_a_narrow_base_is_widened_meanwhile(tiny):
    """A bfloat16 base and the same weights in float32 give the same quotients and headroom, and it stays as it was."""
    worker = InProcess(experiment.prepare(override(tiny, {"model.dtype": "bfloat16"}))).worker
    rows = rows_of(worker, 2)
    base = list(worker.selector.model.parameters())
    weights = [p.clone() for p in base]
    narrow = diagnose(worker, [0, 1], rows, 0.1)
    assert all(torch.equal(p, q) and p.dtype == q.dtype for p, q in zip(base, weights, strict=True))
    for p in base:
        p.data = p.data.float()
    wide = diagnose(worker, [0, 1], rows, 0.1)
    assert np.array_equal(narrow.gq, wide.gq)
    assert np.array_equal(np.concatenate(narrow.headroom), np.concatenate(wide.headroom))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_eager_attention_is_the_same_function(architecture):
    """Logits within 1e-5 and a forward-mode derivative within its central difference, in every supported base."""
    torch.manual_seed(0)
    extra = {"query_pre_attn_scalar": 8, "sliding_window": 4} if architecture == "gemma2" else {}
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **sizes, **heads, **extra))
    selector = Selector(base, (5, 7), 0, ModelConfig(), "cpu")
    rows = 0.1 * torch.randn(2, selector.layout.width)
    along = torch.randn_like(rows) / selector.layout.width**0.5
    ids, lengths = torch.randint(1, 32, (2, 3, 9)), torch.randint(5, 10, (2, 3))
    before = selector.model.config._attn_implementation
    with torch.no_grad():
        fused = selector.choice_logits(rows, ids, lengths)
        up, down = (selector.choice_logits(rows + s * along, ids, lengths) for s in (1e-2, -1e-2))
        with selector.eager(), forward_ad.dual_level():
            assert selector.model.config._attn_implementation == "eager"
            eager, slope = forward_ad.unpack_dual(
                selector.choice_logits(forward_ad.make_dual(rows, along), ids, lengths)
            )
    assert selector.model.config._attn_implementation == before
    assert torch.allclose(fused, eager, rtol=0, atol=1e-5)
    assert torch.allclose(slope, (up - down) / 2e-2, rtol=0, atol=1e-2 * float(slope.abs().max()))
