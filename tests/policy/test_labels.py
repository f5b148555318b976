"""Labels of generated pairs: by the selector given z, in both orders, and by an ensemble's votes."""

from __future__ import annotations

import pytest
import torch

from raypref.clients.worker import Worker
from raypref.config import RunConfig, override
from raypref.data.encode import Counts, choice_tokens, encode_pairs, encode_responses
from raypref.data.federation import Pair
from raypref.models.layout import initial_row
from raypref.models.selector import load_tokenizer, pad_id
from raypref.objectives.choice import order_margins, pair_margins
from raypref.policy.labels import VariationalSelector, VotingSelectors

PROMPTS = ["How does rain work?", "Tell me about tea.", "What is fog?"]
FIRST = ["It is like a toy box.", "The leaves meet hot water.", "It is a game."]
SECOND = ["It is a stochastic regime.", "A priori, hot water limits the leaves.", "It is a spectral flux, you see."]


def made(**values):
    config = override(RunConfig(), {"model.lora_dropout": 0.0, **values})
    tokenizer = load_tokenizer("embedded")
    worker = Worker(config, {}, choice_tokens(tokenizer, "short"), pad_id(tokenizer))
    draw = torch.Generator().manual_seed(0)
    rows = torch.stack([initial_row(worker.layout, k) for k in range(3)])
    return worker, tokenizer, rows + 0.05 * torch.randn(rows.shape, generator=draw)


FORMS = {
    "conditioned": {},
    "conditioned with LoRA": {"variational.lora": True},
    "adapted": {"variational.lora": True, "variational.adapted": True},
    "printed": {"variational.form": "printed", "variational.lora": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_given_z_swapping_the_responses_turns_the_label(form):
    worker, tokenizer, rows = made(objective="variational", **FORMS[form])
    labels = VariationalSelector(worker, tokenizer, rows[:1])
    z = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    m, usable = labels(PROMPTS, FIRST, SECOND, z)
    swapped, _ = labels(PROMPTS, SECOND, FIRST, z)
    assert usable.all()
    torch.testing.assert_close(swapped, -m, atol=1e-5, rtol=1e-4)
    one_by_one = torch.cat([labels([PROMPTS[i]], [FIRST[i]], [SECOND[i]], z[i : i + 1])[0] for i in range(3)])
    torch.testing.assert_close(one_by_one, m, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("features", ["frozen", "adapted"])
def test_a_reward_model_labels_by_its_margins(features):
    """Each response behind its prompt, as it was trained; the reverse pair is the opposite."""
    worker, tokenizer, rows = made(objective="reward", **{"reward.features": features})
    m, usable = VotingSelectors(worker, tokenizer, rows[:1])(PROMPTS, FIRST, SECOND, None)
    swapped, _ = VotingSelectors(worker, tokenizer, rows[:1])(PROMPTS, SECOND, FIRST, None)
    pairs = [Pair(*texts) for texts in zip(PROMPTS, FIRST, SECOND, strict=True)]
    fold = encode_responses([pairs], tokenizer, "short", 512, [Counts()])[0]
    assert usable.all() and torch.equal(m, pair_margins(worker.margins(rows[:1], fold)[0]).sign())
    assert torch.equal(swapped, -m)


def test_only_the_conditioned_form_lets_z_decide():
    """S1 Eq. 2 shifts a pair's two orders alike, so its order-averaged label cannot depend on z."""
    z = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    for form, moves in (("printed", False), ("conditioned", True)):
        worker, tokenizer, rows = made(objective="variational", **FORMS[form])
        labels = VariationalSelector(worker, tokenizer, rows[:1])
        one, other = (labels(PROMPTS, FIRST, SECOND, sign * z)[0] for sign in (1, -1))
        assert bool((one - other).abs().max() > 1e-3) is moves


def test_an_ensemble_votes():
    """The margin is (for - against) / U of each selector's own order-averaged judgement."""
    worker, tokenizer, rows = made()
    m, usable = VotingSelectors(worker, tokenizer, rows)(PROMPTS, FIRST, SECOND, None)
    pairs = [Pair(*texts) for texts in zip(PROMPTS, FIRST, SECOND, strict=True)]
    (fold,) = encode_pairs([pairs], tokenizer, "short", 512, [Counts()])
    votes = torch.stack(
        [pair_margins(order_margins(worker.reader.choice_logits(row[None], [fold])[0])) for row in rows]
    )
    expected = ((votes > 0).sum(0) - (votes < 0).sum(0)) / 3
    torch.testing.assert_close(m, expected.float())
    assert usable.all() and (m.abs() >= 0.33).all()  # three cannot tie


def test_what_cannot_be_compared_is_marked_and_disturbs_nobody():
    worker, tokenizer, rows = made(objective="variational", **{"data.max_length": 60})
    labels = VariationalSelector(worker, tokenizer, rows[:1])
    z = torch.zeros(5, 32)
    first = [FIRST[0], "", "The same.", "long " * 80, FIRST[1]]
    second = [SECOND[0], "B", "The same.", "C", SECOND[1]]
    m, usable = labels([*PROMPTS, *PROMPTS[:2]], first, second, z)
    assert usable.tolist() == [True, False, False, False, True]
    alone, _ = labels([PROMPTS[0]], FIRST[:1], SECOND[:1], z[:1])
    torch.testing.assert_close(m[0], alone[0], atol=1e-5, rtol=1e-4)
