"""Makes the embedded base: `python -m raypref.models.embedded.make OUT_DIR`.

One small Qwen2 model learns two things on the synthetic generator's texts: to model them as language, and to choose
between two answers when the instruction NAMES the wanted style ("Pick the simpler answer."), on the axes "education"
and "humor" only. It never sees a generic instruction ("Pick the better answer."), nor a name for the axis "manners",
whose answers it meets as plain text. Pairs come from generator seeds of 10,000 and more, apart from the benchmark's,
so that a benchmark pair is in here by rare chance only. One thread, fixed seeds: a repeat gives the same bits on the
same kind of machine with the same versions.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from raypref.data.synthetic import AXES, Draws, pairs

RECIPE = {
    "seed": 10_000,  # first generator seed; 10_001 and on feed the batches
    "held_out_seed": 20_000,
    "tokenizer_pairs": 3_000,  # an axis
    "vocabulary": 1_536,
    "steps": 1_800,
    "batch": 64,
    "plain": 12,  # texts a batch; the others are comparisons
    "decoys": 0.25,  # share of comparisons ...
    "decoys_from": 1_000,  # ... after this step: decoys from the start keep the choice from being learnt at all
    "learning_rate": 3e-3,
    "warmup": 100,
    "choice_weight": 1.0,  # beside the mean language-model loss a token
}

FRAME = "{instruction}\nQuestion: {prompt}\nA: {a}\nB: {b}\nChoice:"
PLAIN = "Question: {prompt}\nAnswer: {answer}"
DESCRIPTION = "\nThis answer is the {style} one."
INSTRUCTIONS = (
    "Pick the {style} answer.",
    "Pick the {style} answer.",
    "Choose the {style} answer.",
    "Which answer is {style}?",
)
NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "education": (("simpler", "easier", "more basic"), ("more scholarly", "more academic", "more learned")),
    "humor": (("funnier", "sillier", "more playful"), ("plainer", "drier", "more serious")),
}
"""Axis -> what the instruction calls its first and its second pole."""
DECOYS: tuple[str, ...] = (
    *("greener", "louder", "older", "newer", "rounder", "heavier", "brighter", "cleaner", "wetter", "sharper"),
    *("earlier", "later", "redder", "narrower", "deeper", "thicker", "colder", "slower", "more northern"),
    *("more remote", "more distant", "more liquid", "more visible", "more frequent", "more regional", "more wooden"),
)
"""Styles in neither answer: then either slot is right with even odds, so that a wish the base cannot read leaves it
undecided. Without these, measured, a frozen base read "better" as the second pole of both axes, on every pair."""

CONFIG = dict(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1_024,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
    initializer_range=0.05,
)


def comparisons(seed: int, axes: tuple[str, ...] = tuple(NAMES), decoys: float = 0.0) -> Iterator[tuple[str, int]]:
    """Endless (named comparison, 0 if its answer is " A" and 1 if " B"): axis, pole, name and slot by fair draws.

    decoys: the share of comparisons that name a style in neither answer.
    """
    draws = Draws(seed, 0, len(AXES))  # beside the keys (seed, 0, axis) of the pairs
    sources = {axis: pairs(axis, 0, seed) for axis in axes}
    while True:
        axis = draws.pick(axes)
        prompt, *answers = next(sources[axis])
        pole, slot = draws.below(2), draws.below(2)
        styles = DECOYS if draws.below(1_000) < 1_000 * decoys else NAMES[axis][pole]
        instruction = draws.pick(INSTRUCTIONS).format(style=draws.pick(styles))
        a, b = (answers[pole], answers[1 - pole]) if slot == 0 else (answers[1 - pole], answers[pole])
        yield FRAME.format(instruction=instruction, prompt=prompt, a=a, b=b), slot


def texts(seed: int) -> Iterator[str]:
    """Endless questions with one answer, in every pole of every axis in turn; named axes: the style named after it.

    (Without these descriptions the choice is learnt some 300 steps later.)
    """
    draws = Draws(seed, 1, len(AXES))
    sources = {axis: pairs(axis, 1, seed) for axis in AXES}
    while True:
        for axis, source in sources.items():
            for pole in (0, 1):
                prompt, *answers = next(source)
                text = PLAIN.format(prompt=prompt, answer=answers[pole])
                yield text + DESCRIPTION.format(style=draws.pick(NAMES[axis][pole])) if axis in NAMES else text


def corpus() -> list[str]:
    """What the tokenizer is trained on."""
    n = RECIPE["tokenizer_pairs"]
    chosen = (text + (" A", " B")[slot] for text, slot in comparisons(RECIPE["seed"], decoys=RECIPE["decoys"]))
    return [*islice(chosen, 2 * n), *islice(texts(RECIPE["seed"]), 2 * n)]


def make_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level BPE in Qwen2's own pipeline, which is what `AutoTokenizer` rebuilds."""
    return Qwen2Tokenizer().train_new_from_iterator([corpus()], RECIPE["vocabulary"], show_progress=False)


def choice_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    stem = tokenizer("Choice:").input_ids
    ids = [tokenizer("Choice:" + choice).input_ids for choice in (" A", " B")]
    if any(i[:-1] != stem for i in ids):
        raise ValueError(f'" A" and " B" must add one token each to "Choice:", not {ids}')
    return [i[-1] for i in ids]


@torch.inference_mode()
def named_accuracy(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, axis: str, n: int, seed: int) -> float:
    """Share of n fresh named comparisons on which the right choice token has the larger logit."""
    sample = list(islice(comparisons(seed, (axis,)), n))
    right = 0
    for start in range(0, n, 64):
        chunk = sample[start : start + 64]
        batch = tokenizer([text for text, _ in chunk], return_tensors="pt", padding=True, padding_side="left")
        logits = model(**batch, logits_to_keep=1).logits[:, -1, choice_tokens(tokenizer)]
        right += int((logits.argmax(1) == torch.tensor([slot for _, slot in chunk])).sum())
    return right / n


def streams() -> tuple[Iterator[tuple[str, int]], Iterator[tuple[str, int]], Iterator[str]]:
    """What pretraining reads: comparisons before and after the decoys come in, and texts beside both."""
    seed = RECIPE["seed"]
    return comparisons(seed + 1), comparisons(seed + 3, decoys=RECIPE["decoys"]), texts(seed + 2)


def train(tokenizer: PreTrainedTokenizerBase, out: Path | None = None) -> Qwen2ForCausalLM:
    """Pretrains on fresh texts at every step and prints as it goes; `out`: where to save every 500 steps."""
    torch.manual_seed(RECIPE["seed"])
    end = tokenizer.eos_token_id
    config = Qwen2Config(vocab_size=len(tokenizer), eos_token_id=end, pad_token_id=end, bos_token_id=None, **CONFIG)
    model = Qwen2ForCausalLM(config)
    steps, warmup = RECIPE["steps"], RECIPE["warmup"]
    rate = RECIPE["learning_rate"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.01)
    )
    choice = torch.tensor(choice_tokens(tokenizer))
    early, late, plain = streams()
    n_plain = RECIPE["plain"]
    n_compared = RECIPE["batch"] - n_plain
    begin = time.monotonic()
    for step in range(1, steps + 1):
        compared = early if step <= RECIPE["decoys_from"] else late
        rows, slots = zip(*islice(compared, n_compared), strict=True)
        batch = tokenizer([*rows, *islice(plain, n_plain)], return_tensors="pt", padding=True, padding_side="left")
        logits = model(**batch).logits
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        lm_loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        slots = torch.tensor(slots)
        last = logits[:n_compared, -1]
        choice_loss = torch.nn.functional.cross_entropy(last, choice[slots])
        optimizer.zero_grad()
        (lm_loss + RECIPE["choice_weight"] * choice_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            accuracy = float((last[:, choice].argmax(1) == slots).float().mean())
            print(
                f"step {step}  language {lm_loss.item():.3f}  choice {choice_loss.item():.3f}  accuracy {accuracy:.2f}"
                f"  {time.monotonic() - begin:.0f} s",
                flush=True,
            )
        if out and step % 500 == 0:
            model.save_pretrained(out)
    return model


def sample_digest() -> str:
    """SHA-256 of the first generated training texts: changes when the generator, the frames or the seeds do."""
    return hashlib.sha256(json.dumps([list(islice(stream, 500)) for stream in streams()]).encode()).hexdigest()


def main(out: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(out)
    print(f"{len(tokenizer)} tokens")
    model = train(tokenizer, out).eval()
    model.save_pretrained(out)
    accuracy = {axis: named_accuracy(model, tokenizer, axis, 1_000, RECIPE["held_out_seed"]) for axis in NAMES}
    made = {"recipe": RECIPE, "sample_sha256": sample_digest(), "named_accuracy": accuracy}
    (out / "made.json").write_text(json.dumps(made, indent=2) + "\n")
    print(made)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m raypref.models.embedded.make OUT_DIR")
    main(Path(sys.argv[1]))
