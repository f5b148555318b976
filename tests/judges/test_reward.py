"""Scores of a real classifier, made here: the right logit of the right text, whatever shares its batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raypref.config import UserError
from raypref.judges.responses import Response
from raypref.judges.reward import Reward, Scorer, dialogue, named, summary

TEXTS = [
    dialogue(f"What is {what}?", "It is " + " ".join(["a cloud"] * n)) for n, what in enumerate(["rain", "tea", "ice"])
]


def make(folder: Path, labels: int, head: bool = True) -> Path:
    """A random one-layer Qwen2 classifier (a causal LM without its head) with the embedded tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    from raypref.models.embedded import PATH

    tokenizer = AutoTokenizer.from_pretrained(PATH)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(labels)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        num_labels=labels,
    )
    (AutoModelForSequenceClassification if head else AutoModelForCausalLM).from_config(config).save_pretrained(folder)
    return folder


def logits(folder: Path, text: str, most: int = 64) -> np.ndarray:
    """By hand: one text, no padding, the last `most` tokens."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"][-most:]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
        return model.score(hidden).double().numpy()


@pytest.mark.parametrize("labels", [1, 3])
def test_the_score_is_the_last_logit_at_the_last_token(tmp_path, labels):
    folder = make(tmp_path, labels)
    expected = np.array([logits(folder, text) for text in TEXTS])
    assert len({len(text) for text in TEXTS}) == 3 and np.ptp(expected[:, -1]) > 0.01
    for batch in (1, 2, 3):
        scores = Scorer(str(folder), Reward(batch=batch))(TEXTS)
        assert scores == pytest.approx(expected[:, -1], abs=1e-6)
    if labels == 3:
        assert Scorer(str(folder), Reward(label=0))(TEXTS) == pytest.approx(expected[:, 0], abs=1e-6)


def test_what_is_too_long_loses_its_beginning(tmp_path):
    folder = make(tmp_path, 1)
    long = dialogue("Why? " * 100, "Because.")
    assert Scorer(str(folder), Reward()).max_length == 64  # the classifier's own limit
    assert Scorer(str(folder), Reward())([long]) == pytest.approx(logits(folder, long, 64), abs=1e-6)
    short = Scorer(str(folder), Reward(max_length=20))
    assert short([long]) == pytest.approx(logits(folder, long, 20), abs=1e-6)


def test_dialogues_are_in_the_form_of_hh():
    assert dialogue("What is tea?", " Leaves.\n") == "\n\nHuman: What is tea?\n\nAssistant: Leaves."
    history = "Human: Hi\n\nAssistant: Hello\n\nHuman: What is tea?"
    assert dialogue(history, "Leaves.") == f"\n\n{history}\n\nAssistant: Leaves."


def test_names_of_reward_models():
    assert named("helpful=me/model") == ("helpful", "me/model")
    assert named("me/model") == ("model", "me/model") and named("/some/folder/") == ("folder", "/some/folder/")
    for word in ("=x", "helpful=", ""):
        with pytest.raises(UserError, match="takes a folder, a hub id or NAME=ID"):
            named(word)


def test_a_section_in_numbers():
    lines = [Response("p", client, "helpful", False, "x", "y") for client in "aab"]
    told = summary(lines, np.array([1.0, 2.0, 6.0]), np.array([0.0, 2.0, 1.0]))
    assert (told["ours"], told["theirs"], told["difference"]) == (3.0, 1.0, 2.0)
    assert told["scores"] == [1.0, 0.0, 5.0] and told["client_of"] == ["a", "a", "b"]
    assert (told["prompts"], told["clients"]) == (3, 2) and 0.0 <= told["interval"][0] <= 2.0 <= told["interval"][
        1
    ] <= 5.0


def test_what_is_no_classifier_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--reward-model '.*nothing': there is no such folder"):
        Scorer(str(tmp_path / "nothing"), Reward())
    with pytest.raises(UserError, match="cannot be read as a sequence classifier"):
        Scorer(str(tmp_path), Reward())
    with pytest.raises(UserError, match=r"is no trained classifier, it lacks score.weight"):
        Scorer(str(make(tmp_path / "lm", 1, head=False)), Reward())
    folder = str(make(tmp_path / "two", 2))
    with pytest.raises(UserError, match=r"--label is 2; .* has 2 logits"):
        Scorer(folder, Reward(label=2))
    with pytest.raises(UserError, match="--batch is 0; it must be at least 1"):
        Scorer(folder, Reward(batch=0))
