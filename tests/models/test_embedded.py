"""The shipped base: loads offline, has its choice tokens, is what its script says, and prefers nothing by itself."""

from __future__ import annotations

import json
import re
from itertools import islice

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from raypref.data.synthetic import generate, pairs
from raypref.models.embedded import PATH, make

MADE = json.loads((PATH / "made.json").read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(PATH)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(PATH).eval()


def test_is_a_tiny_float32_qwen2(model, tokenizer):
    config = model.config
    assert config.model_type == "qwen2" and config.tie_word_embeddings
    assert model.dtype == torch.float32
    d, kv, layers = config.hidden_size, 32, config.num_hidden_layers
    attention = d * d + 2 * d * kv + d * d + (d + 2 * kv)  # q, k, v, o and the biases of q, k, v
    block = attention + 3 * d * config.intermediate_size + 2 * d  # and two norms
    assert model.num_parameters() == len(tokenizer) * d + layers * block + d
    assert (PATH / "model.safetensors").stat().st_size < 1_100_000


def test_choice_tokens_are_one_distinct_token_each_after_the_mark(tokenizer):
    a, b = make.choice_tokens(tokenizer)
    assert a != b
    assert tokenizer.decode([a]) == " A" and tokenizer.decode([b]) == " B"
    stem = tokenizer("Pick the better answer.\nA: x\nB: y\nChoice:").input_ids
    assert tokenizer("Pick the better answer.\nA: x\nB: y\nChoice: B").input_ids == [*stem, b]


def test_any_text_survives_the_tokenizer(tokenizer):
    everything = "".join(map(chr, range(32, 127))) + "\n\tNaïve — 日本 🙂\r\n  two  spaces"
    for text in (everything, everything[::-1], next(pairs("humor", 0, 100))[1], "\x00\x01\x7f"):
        assert tokenizer.decode(tokenizer(text).input_ids, clean_up_tokenization_spaces=False) == text


def test_the_script_makes_this_tokenizer(tmp_path):
    make.make_tokenizer().save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (PATH / "tokenizer.json").read_bytes()


def test_the_script_as_it_stands_made_these_weights(model):
    # Retraining takes a quarter of an hour; its inputs are compared instead.
    assert MADE["recipe"] == make.RECIPE
    assert MADE["sample_sha256"] == make.sample_digest()
    assert make.CONFIG.items() <= (model.config.to_dict() | model.config.rope_parameters).items()


def test_pretraining_names_neither_manners_nor_the_generic_wish():
    seen = [text for text, _ in islice(make.comparisons(make.RECIPE["seed"] + 1, decoys=0.5), 2_000)]
    first_lines = {text.splitlines()[0] for text in seen}
    wishes = {re.sub(r"^(Pick the|Choose the|Which answer is) | answer\.$|\?$", "", line) for line in first_lines}
    assert wishes == set(make.DECOYS) | {name for poles in make.NAMES.values() for names in poles for name in names}
    assert "manners" not in make.NAMES
    assert not re.search(r"\b(better|best|good|warm|blunt|kind|polite|rude|nice|friendly)", " ".join(first_lines), re.I)
    assert not any("better" in text for text in [*seen, *islice(make.texts(make.RECIPE["seed"]), 2_000)])


@pytest.mark.parametrize("axis", make.NAMES)
def test_named_styles_are_chosen(model, tokenizer, axis):
    assert MADE["named_accuracy"][axis] >= 0.99
    assert make.named_accuracy(model, tokenizer, axis, 200, seed=30_000) >= 0.95


@torch.inference_mode()
def test_the_frozen_base_is_at_chance_for_the_generic_wish(model, tokenizer):
    a, b = make.choice_tokens(tokenizer)
    rows = list(generate((1, 1, 1, 1), 32, tuple(make.NAMES), seed=100))
    logits = []
    for first, second in (("chosen", "rejected"), ("rejected", "chosen")):
        batch = tokenizer(
            [
                make.FRAME.format(instruction="Pick the better answer.", prompt=r["prompt"], a=r[first], b=r[second])
                for r in rows
            ],
            return_tensors="pt",
            padding=True,
            padding_side="left",
        )
        logits.append(model(**batch, logits_to_keep=1).logits[:, -1])
    margins = ((logits[0][:, a] - logits[0][:, b]) + (logits[1][:, b] - logits[1][:, a])) / 2
    right = (margins > 0).float()
    assert 0.4 < right.mean() < 0.6
    # Balance alone would give that to a base of fixed taste: it must hardly care, too (a named style has margins ~8).
    assert margins.abs().mean() < 0.2
