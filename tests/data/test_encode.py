"""Pairs to tokens: the label is nowhere in the input, and truncation takes only prompts."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from raypref.config import UserError
from raypref.data.encode import Counts, Encoding, choice_tokens, encode_federation, encode_pairs, encode_responses
from raypref.data.federation import Client, Federation, Pair
from raypref.data.templates import GENERATION, TEMPLATES, ask, fill
from raypref.models.embedded import PATH

PAIR = Pair("Why is the sky blue?", "Because of the light.", "It just is.")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(PATH)


def texts(fold, tokenizer):
    return [tokenizer.decode(fold.tokens[a:b]) for a, b in zip(fold.offsets, fold.offsets[1:], strict=False)]


@pytest.mark.parametrize("template", TEMPLATES)
def test_both_orders_and_no_label(template, tokenizer):
    fold = encode_pairs([[PAIR]], tokenizer, template, 512, [Counts()])[0]
    first, second = texts(fold, tokenizer)
    assert first == fill(template, PAIR.prompt, PAIR.chosen, PAIR.rejected)[0]
    assert second == fill(template, PAIR.prompt, PAIR.rejected, PAIR.chosen)[0]
    # Whoever chose the other response would read the same two texts: nothing tells which was chosen.
    other = encode_pairs([[Pair(PAIR.prompt, PAIR.rejected, PAIR.chosen)]], tokenizer, template, 512, [Counts()])[0]
    assert texts(other, tokenizer) == [second, first]
    assert first.endswith(":") and not first.rstrip().endswith(("A", "B"))


def test_spans_are_the_responses(tokenizer):
    fold = encode_pairs([[PAIR]], tokenizer, "hh", 512, [Counts()])[0]
    for j, (a, b) in enumerate([(PAIR.chosen, PAIR.rejected), (PAIR.rejected, PAIR.chosen)]):
        tokens = fold.tokens[fold.offsets[j] : fold.offsets[j + 1]]
        s = fold.spans[j]
        assert tokenizer.decode(tokens[s[0] : s[1]]).strip() == a
        assert tokenizer.decode(tokens[s[2] : s[3]]).strip() == b


def test_truncation_takes_the_prompt_from_the_left_only(tokenizer):
    long = Pair("early words " * 50 + "the last words", PAIR.chosen, PAIR.rejected)
    counts = Counts()
    fold = encode_pairs([[long]], tokenizer, "short", 60, [counts])[0]
    assert (fold.lengths <= 60).all() and counts.prompts_truncated == 1
    for text in texts(fold, tokenizer):
        assert "the last words" in text and PAIR.chosen in text and PAIR.rejected in text
        assert text.startswith("Pick the better answer.\nQuestion:") and text.endswith("Choice:")


def test_rows_that_cannot_fit_and_identical_rows_are_counted(tokenizer):
    counts = Counts()
    pairs = [Pair("q", "word " * 80, "other " * 80), Pair("q", "the same", "the same"), PAIR]
    fold = encode_pairs([pairs], tokenizer, "short", 60, [counts])[0]
    assert (counts.too_long, counts.identical, fold.pairs) == (1, 1, 1)
    assert len(counts.notes()) == 2
    # What is left out never shifts what follows (a peer's fault).
    assert texts(fold, tokenizer)[0] == fill("short", PAIR.prompt, PAIR.chosen, PAIR.rejected)[0]


def test_a_client_without_a_usable_pair_is_named(tokenizer):
    client = Client("ada", "", (PAIR,), (PAIR,), (Pair("q", "word " * 80, "other " * 80),))
    with pytest.raises(UserError, match="client 'ada' has no usable test pair"):
        encode_federation(Federation((client,)), tokenizer, Encoding(encode_pairs, "short", True), 60)


@pytest.mark.parametrize("template", TEMPLATES)
def test_choice_tokens_are_found_in_context(template, tokenizer):
    a, b = choice_tokens(tokenizer, template)
    stem = fill(template, "x", "y", "z")[0]
    assert a != b
    assert tokenizer.decode([*tokenizer(stem)["input_ids"], a]) == stem + " A"
    assert tokenizer.decode([*tokenizer(stem)["input_ids"], b]) == stem + " B"


def test_choice_tokens_of_a_tokenizer_without_a_space_token(shared):
    """stories260K has no " A": its choice follows the mark at once (" A" against "A" is a classic fault)."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k-hf")
    assert tokenizer.convert_ids_to_tokens(list(choice_tokens(tokenizer, "hh"))) == ["A", "B"]


@pytest.mark.parametrize("template", GENERATION)
def test_a_response_follows_its_prompt_and_ends_once(template, tokenizer):
    """Spans are the response's tokens and what ends it: a line end for `short`, else one token of the tokenizer's."""
    fold = encode_responses([[PAIR]], tokenizer, template, 512, [Counts()])[0]
    end = "\n" if template == "short" else tokenizer.eos_token
    assert texts(fold, tokenizer) == [f"{ask(template, PAIR.prompt)[0]} {a}{end}" for a in (PAIR.chosen, PAIR.rejected)]
    for j, answer in enumerate((PAIR.chosen, PAIR.rejected)):
        tokens = fold.tokens[fold.offsets[j] : fold.offsets[j + 1]]
        start, stop = fold.spans[j]
        assert tokenizer.decode(tokens[start:stop]) == f" {answer}{end}"
        assert tokens.tolist().count(tokenizer.eos_token_id) == (template != "short")


def test_a_tokenizer_that_ends_texts_itself_is_not_asked_to_twice(tokenizer):
    from tokenizers.processors import TemplateProcessing

    ending = AutoTokenizer.from_pretrained(PATH)
    token, number = ending.eos_token, ending.eos_token_id
    ending.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {token}", special_tokens=[(token, number)])
    assert ending("x")["input_ids"][-1] == number
    one, other = (encode_responses([[PAIR]], t, "conversation", 512, [Counts()])[0] for t in (ending, tokenizer))
    assert one.tokens.tolist() == other.tokens.tolist() and one.spans.tolist() == other.spans.tolist()


def test_a_long_prompt_is_cut_on_the_left_and_its_responses_are_whole(tokenizer):
    long = Pair("early words " * 50 + "the last words", PAIR.chosen, PAIR.rejected)
    counts = Counts()
    fold = encode_responses([[long, PAIR]], tokenizer, "short", 30, [counts])[0]
    assert (fold.pairs, counts.prompts_truncated, int(fold.lengths.max())) == (2, 1, 30)
    for j, answer in enumerate((PAIR.chosen, PAIR.rejected)):
        tokens = fold.tokens[fold.offsets[j] : fold.offsets[j + 1]]
        start, stop = fold.spans[j]
        assert tokenizer.decode(tokens[start:stop]) == f" {answer}\n"
        assert tokenizer.decode(tokens[:start]).startswith("Question:")
        assert tokenizer.decode(tokens[:start]).endswith("the last words\nAnswer:")


def test_responses_that_cannot_fit_or_do_not_differ_are_counted(tokenizer):
    counts = Counts()
    pairs = [Pair("q", "word " * 80, "no"), Pair("q", "the same", "the same"), PAIR]
    fold = encode_responses([pairs], tokenizer, "short", 60, [counts])[0]
    assert (counts.too_long, counts.identical, fold.pairs) == (1, 1, 1)
    assert PAIR.chosen in texts(fold, tokenizer)[0] and PAIR.rejected in texts(fold, tokenizer)[1]


def test_padding_goes_behind(tokenizer):
    fold = encode_pairs([[PAIR, Pair("q", "a", "b")]], tokenizer, "short", 512, [Counts()])[0]
    padded = fold.padded(np.array([0, 2]), int(fold.lengths.max()), 0)
    assert padded[0, : fold.lengths[0]].tolist() == fold.tokens[: fold.lengths[0]].tolist()
    assert not padded[1, fold.lengths[2] :].any()
