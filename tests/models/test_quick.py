"""The written-out pass against the modules that it stands for."""

import pytest
import torch

from raypref.config import ModelConfig
from raypref.models import quick
from raypref.models.lora import Dropout
from raypref.models.selector import Selector
from tests.models.test_selector import CHOICES, make_base, random_batch, random_rows

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("targets", [ALL, ("q_proj", "v_proj"), ("down_proj",)], ids=" ".join)
@pytest.mark.parametrize("architecture", quick.ARCHITECTURES)
def test_it_computes_what_the_modules_do(architecture, targets, monkeypatch):
    """States and gradients of two clients of unlike lengths with the same dropout masks, drawn in the same order; and
    of what no parameter of a row reaches nothing."""
    config = ModelConfig(lora_r=4, lora_alpha=8, lora_targets=targets)
    selector = Selector(make_base(architecture), CHOICES, 0, config, "cpu")
    rows, (ids, lengths) = random_rows(selector, 2).requires_grad_(), random_batch(2, 3, 12)
    at = torch.stack([lengths - 1, lengths // 2], dim=-1)
    weights, results = torch.randn(2, 3, 2, 16), []
    for covered in (True, False):
        monkeypatch.setattr(quick, "covers", lambda model, covered=covered: covered)
        generators = [torch.Generator().manual_seed(i) for i in (3, 4)]
        states = selector.states(rows, ids, at, Dropout(0.3, generators, [(3, 12), (2, 9)]))
        results.append((states, torch.autograd.grad((states * weights).sum(), rows)[0]))
    for one, other in zip(*results, strict=True):
        one, other = one.detach(), other.detach()
        assert torch.allclose(one, other, rtol=0, atol=2e-6 * float(other.abs().max()))
        assert float(other.abs().max()) > 0.1


def test_what_is_not_written_out_is_left_to_the_modules():
    """Half precision, attention step by step, a window that hides something, scores that are capped, weights that are
    elsewhere."""
    assert quick.covers(make_base("qwen2"))
    assert not quick.covers(make_base("gemma2")) and not quick.covers(make_base("llama").bfloat16())
    selector = Selector(make_base("gemma"), CHOICES, 0, ModelConfig(lora_r=4), "cpu")
    with selector.eager():
        assert not quick.covers(selector.model)
    windowed = make_base("qwen2")
    windowed.config.layer_types = ["full_attention", "sliding_attention"]
    assert not quick.covers(windowed)
    parted = make_base("llama")
    parted.model.layers[0].mlp.up_proj.weight.data = torch.zeros(0)
    assert not quick.covers(parted)
