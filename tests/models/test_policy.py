"""The conditional policy against the plain Hugging Face model, and generation against what training sees."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from raypref.config import DataConfig, ModelConfig, RunConfig
from raypref.models.embedded import PATH
from raypref.models.layout import initial_row
from raypref.models.policy import Z_TO_EMBEDDING, Policy, Sampling, policy_layout
from raypref.models.selector import load_selector, load_tokenizer, pad_id

D = 3
CONFIG = RunConfig(model=ModelConfig(lora_dropout=0.0))
PROMPTS = ["How does rain work?", "Tell me about tea.", "Why does a very old clock that nobody winds matter?"]


@pytest.fixture(scope="module")
def policy():
    tokenizer = load_tokenizer("embedded")
    return Policy(load_selector(CONFIG.model, (0, 1), pad_id(tokenizer)), tokenizer, CONFIG, D)


@pytest.fixture(scope="module")
def moved(policy):
    """A row away from its start, in every segment."""
    draw = torch.Generator().manual_seed(0)
    return initial_row(policy.layout, 0) + 0.05 * torch.randn(policy.layout.width, generator=draw)


def padded(policy, texts, answer=" It is like a toy box.\n"):
    """Prompts with one answer each -> ids [B, L] and spans [B, 2]."""
    stems = [policy.ask(text, 20) for text in texts]
    end = policy.tokenizer(answer)["input_ids"]
    rows = [torch.tensor([*stem, *end]) for stem in stems]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=policy.selector.pad)
    return ids, torch.tensor([[len(stem), len(stem) + len(end)] for stem in stems])


def test_a_new_policy_is_the_frozen_base_whatever_z_is(policy):
    ids, spans = padded(policy, PROMPTS)
    z = torch.randn(3, D, generator=torch.Generator().manual_seed(1))
    start = initial_row(policy.layout, 0)
    assert torch.equal(policy.log_probs(start, ids, spans, z), policy.log_probs(None, ids, spans))


def test_log_probs_are_those_of_inputs_embeds_plus_z(policy, moved):
    """A plain model with the LoRA update merged into its weights and inputs_embeds shifted by W z at every position."""
    ids, spans = padded(policy, PROMPTS)
    z = torch.randn(3, D, generator=torch.Generator().manual_seed(1))
    plain = AutoModelForCausalLM.from_pretrained(PATH)
    parts = {name: tensor[0] for name, tensor in policy.layout.split(moved[None]).items()}
    with torch.no_grad():
        for name in policy.selector.modules:
            update = parts[f"{name}.lora_B"] @ parts[f"{name}.lora_A"]
            plain.model.get_submodule(name).weight += CONFIG.model.lora_alpha / CONFIG.model.lora_r * update
        embeds = plain.get_input_embeddings()(ids) + (z @ parts[Z_TO_EMBEDDING].T)[:, None]
        logits = torch.log_softmax(plain(inputs_embeds=embeds).logits, dim=-1)
    expected = torch.stack([
        sum(logits[b, t - 1, ids[b, t]] for t in range(*spans[b].tolist())) for b in range(3)
    ])  # fmt: skip
    torch.testing.assert_close(policy.log_probs(moved, ids, spans, z).detach(), expected, atol=2e-4, rtol=1e-5)


def test_logits_in_parts_are_the_same(policy, moved, monkeypatch):
    """A vocabulary too large to hold at once: seven tokens at a time, made again in the backward pass."""
    ids, spans = padded(policy, PROMPTS)
    z, told = torch.ones(3, D), []
    for most in (1 << 28, 7 * policy.selector.model.config.vocab_size):
        monkeypatch.setattr("raypref.models.selector.LOGITS", most)
        row = moved.clone().requires_grad_()
        value = policy.log_probs(row, ids, spans, z)
        told.append((value.detach(), torch.autograd.grad(value.sum(), row)[0]))
    torch.testing.assert_close(told[0], told[1], atol=1e-5, rtol=1e-5)


def test_each_sequence_has_its_own_z(policy, moved):
    ids, spans = padded(policy, PROMPTS)
    z = torch.randn(3, D, generator=torch.Generator().manual_seed(1))
    together = policy.log_probs(moved, ids, spans, z)
    for b in range(3):
        alone = policy.log_probs(moved, ids[b : b + 1], spans[b : b + 1], z[b : b + 1])
        torch.testing.assert_close(alone[0], together[b], atol=1e-4, rtol=1e-5)
    assert (policy.log_probs(moved, ids, spans, -z) - together).abs().min() > 1e-3


def test_the_gradient_reaches_lora_and_z_alike(policy):
    ids, spans = padded(policy, PROMPTS)
    row = initial_row(policy.layout, 0).requires_grad_()
    (gradient,) = torch.autograd.grad(policy.log_probs(row, ids, spans, torch.ones(3, D)).sum(), row)
    parts = policy.layout.split(gradient[None])
    assert parts[Z_TO_EMBEDDING].abs().max() > 0 and parts["layers.0.mlp.up_proj.lora_B"].abs().max() > 0


def test_what_is_generated_is_what_training_sees_as_most_likely(policy, moved):
    """Nearly without noise, prompts of different lengths in one left-padded batch: each token is the arg max of the
    right-padded pass that log_probs makes, under the same z."""
    z = torch.randn(3, D, generator=torch.Generator().manual_seed(1))
    told = policy.generate(moved, PROMPTS, z, Sampling(1e-4, 1.0, 12), seed=0)
    with torch.no_grad(), policy.bound(moved, z):
        best = policy.selector.full_head(policy.selector.hidden(None, told.ids[None])[0]).argmax(-1)
    assert (told.spans[:, 1] - told.spans[:, 0]).min() >= 3
    for b, (start, end) in enumerate(told.spans.tolist()):
        assert told.ids[b, start:end].tolist() == best[b, start - 1 : end - 1].tolist()


def test_a_seed_repeats_and_another_differs(policy, moved):
    z, sampling = torch.zeros(3, D), Sampling(1.0, 1.0, 8)
    one, same, other = (policy.generate(moved, PROMPTS, z, sampling, seed).texts for seed in (1, 1, 2))
    assert one == same != other


def test_generating_leaves_torchs_own_numbers_alone(policy, moved):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    policy.generate(moved, PROMPTS[:1], torch.zeros(1, D), Sampling(1.0, 1.0, 4), 0)
    assert torch.equal(torch.rand(3), expected)


def test_a_response_ends_with_its_end_which_is_no_part_of_its_text(policy):
    tokens = policy.tokenizer(" It is a game.\nThis answer is the funnier one.")["input_ids"]
    own, text = policy._cut(tokens)
    assert text == "It is a game." and policy.tokenizer.decode(own).rstrip(" ") == " It is a game.\n"
    end = policy.tokenizer.eos_token_id
    own, text = policy._cut([*policy.tokenizer(" Yes.")["input_ids"], end, 5, 5])
    assert text == "Yes." and own[-1] == end and 5 not in own


def test_long_prompts_lose_text_from_the_left_and_keep_the_frame(policy):
    config = RunConfig(model=CONFIG.model, data=DataConfig(max_length=40))
    short = Policy(policy.selector, policy.tokenizer, config, D)
    ids = short.ask("one " * 100 + "two?", 20)
    text = policy.tokenizer.decode(ids)
    assert len(ids) == 20 and text.endswith("two?\nAnswer:") and text.startswith("Question:")


def test_without_z_nothing_is_added(policy):
    layout = policy.selector.layout
    assert policy_layout(layout, 64, 0) is layout and policy.layout.width == layout.width + 64 * D
    with pytest.raises(ValueError, match="z must be given"), policy.bound(torch.zeros(policy.layout.width), None):
        pass
