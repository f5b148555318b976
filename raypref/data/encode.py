"""Pairs to token arrays, once: every later pass reads slices of one flat array a fold.

Comparison 2i of a fold shows pair i with the chosen response in slot A, comparison 2i + 1 in slot B. The label is thus
the parity of the index; nothing of it is in the text (tested).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from raypref.data.federation import FOLDS, Client, Federation, Pair
from raypref.data.templates import GENERATION, TEMPLATES, ask, fill
from raypref.tools.errors import UserError


@dataclass(frozen=True)
class EncodedFold:
    """N pairs as 2N token sequences: comparisons, or (`encode_responses`) a prompt with one response each."""

    tokens: np.ndarray
    """int32, all sequences one after another."""
    offsets: np.ndarray
    """int64 [2N + 1]: sequence j is tokens[offsets[j] : offsets[j + 1]]."""
    spans: np.ndarray
    """int32 [2N, 4], start and end of response A, then of response B, in tokens of the comparison; [2N, 2] of the one
    response."""

    @property
    def pairs(self) -> int:
        """How many there are: N."""
        return (len(self.offsets) - 1) // 2

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence: int64 [2N]."""
        return np.diff(self.offsets)

    def padded(self, comparisons: np.ndarray, length: int, pad: int) -> np.ndarray:
        """Some as a matrix: int64 [len(comparisons), length], padded on the right (causal models never look there)."""
        out = np.full((len(comparisons), length), pad, dtype=np.int64)
        for row, j in enumerate(comparisons):
            start, end = self.offsets[j], self.offsets[j + 1]
            out[row, : end - start] = self.tokens[start:end]
        return out


def concatenate(folds: Sequence[EncodedFold]) -> EncodedFold:
    """The pairs of several folds in one, in their order; of none an empty one."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(f.lengths for f in folds)])
    width = folds[0].spans.shape[1] if folds else 4
    return EncodedFold(
        np.concatenate([np.zeros(0, np.int32), *(f.tokens for f in folds)]),
        np.cumsum(lengths),
        np.concatenate([np.zeros((0, width), np.int32), *(f.spans for f in folds)]),
    )


def sequences_of(fold: EncodedFold) -> Iterator[np.ndarray]:
    """The fold's token sequences one by one: int32, of any length."""
    for start, end in itertools.pairwise(fold.offsets.tolist()):
        yield fold.tokens[start:end]


@dataclass(frozen=True)
class EncodedClient:
    """One client's three folds."""

    train: EncodedFold
    validation: EncodedFold
    test: EncodedFold

    def fold(self, name: str) -> EncodedFold:
        """One of `FOLDS`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]


@dataclass
class Counts:
    """What truncation did, over all clients and folds, in pairs."""

    prompts_truncated: int = 0
    """Prompts that lost text from the left to fit `max_length`."""
    too_long: int = 0
    """Left out: the responses alone do not fit."""
    identical: int = 0
    """Left out: both orders give the same tokens."""

    def notes(self) -> list[str]:
        """A sentence for each count that is not 0."""
        sentences = {
            "pairs lost prompt text from the left to fit data.max_length": self.prompts_truncated,
            "pairs left out: their responses alone exceed data.max_length": self.too_long,
            "pairs left out: their two responses are the same tokens": self.identical,
        }
        return [f"{number} {sentence}" for sentence, number in sentences.items() if number]


@dataclass(frozen=True)
class EncodedFederation:
    """A federation as token sequences; its clients keep their order."""

    ids: tuple[str, ...]
    group_of: np.ndarray
    """int64 [C], -1 where unknown."""
    groups: tuple[str, ...]
    clients: tuple[EncodedClient, ...]
    counts: Counts
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash, in hex, of all clients, folds and tokens: equal where training would see the same."""
        digest = hashlib.sha256(repr((self.ids, self.groups, self.group_of.tolist())).encode())
        for client in self.clients:
            for fold in map(client.fold, FOLDS):
                digest.update(fold.offsets.tobytes() + fold.tokens.tobytes())
        return digest.hexdigest()

    @property
    def largest_token(self) -> int:
        """The largest token id of all clients and folds."""
        return max(int(client.fold(name).tokens.max()) for client in self.clients for name in FOLDS)

    def sizes(self, fold: str = "train") -> np.ndarray:
        """Pairs of every client: int64 [C] (S2: N_c for the training fold)."""
        return np.array([c.fold(fold).pairs for c in self.clients], dtype=np.int64)


Encode = Callable[[Sequence[Sequence[Pair]], Any, str, int, Sequence[Counts]], list[EncodedFold]]
"""What makes folds: `encode_pairs` or `encode_responses`."""
LONGEST = 256
"""Characters that no token exceeds."""
TOGETHER = 500
"""Pairs, about, that the tokenizer is given at once, so that it uses all cores and few words are in memory twice."""


class Encoding(NamedTuple):
    """How the pairs of a run become token sequences."""

    encode: Encode
    template: str
    """Of the words around a pair: a key of `raypref.data.templates.TEMPLATES`, or of `GENERATION` for responses."""
    compares: bool
    """Whether a sequence shows two responses and asks which is better; else it is a prompt with one response."""


def encode_federation(federation: Federation, tokenizer: Any, encoding: Encoding, max_length: int) -> EncodedFederation:
    """Turn every pair of every client into token sequences.

    Raises `UserError` where a client is left without a usable pair in a fold.
    """
    counts = Counts()
    clients: list[EncodedClient] = []
    for some in _by_pairs(federation.clients, TOGETHER):
        lists = [client.fold(name) for client in some for name in FOLDS]
        read = encoding.encode(lists, tokenizer, encoding.template, max_length, [counts] * len(lists))
        for client, *folds in zip(some, *(read[i :: len(FOLDS)] for i in range(len(FOLDS))), strict=True):
            for name, fold in zip(FOLDS, folds, strict=True):
                if not fold.pairs:
                    raise UserError(
                        f"client {client.id!r} has no usable {name} pair within data.max_length={max_length}; raise "
                        "it, give clients more pairs, or raise data.min_rows to leave such clients out"
                    )
            clients.append(EncodedClient(*folds))
    notes = (*federation.notes, *counts.notes())
    return EncodedFederation(federation.ids, federation.group_of, federation.groups, tuple(clients), counts, notes)


def _by_pairs(clients: Sequence[Client], most: int) -> Iterator[list[Client]]:
    """Clients in their order, in parts of about `most` pairs."""
    pairs = np.cumsum([sum(len(client.fold(name)) for name in FOLDS) for client in clients])
    for _, part in itertools.groupby(range(len(clients)), key=(pairs // most).tolist().__getitem__):
        yield [clients[i] for i in part]


def encode_pairs(
    lists: Sequence[Sequence[Pair]], tokenizer: Any, template: str, max_length: int, counts: Sequence[Counts]
) -> list[EncodedFold]:
    """The comparisons of several lists of pairs, each pair in both orders: a fold of each list.

    Adds to each list's own of `counts`. Over-long inputs lose prompt tokens from the left, never a response or the
    mark.
    """
    filled = [
        fill(template, pair.prompt, *order)
        for pair in _bounded(lists, LONGEST * max_length)
        for order in ((pair.chosen, pair.rejected), (pair.rejected, pair.chosen))
    ]
    read = _tokenised([text for text, _ in filled], tokenizer)
    sequences = [_fit(tokens, parts, max_length) for tokens, (_, parts) in zip(read, filled, strict=True)]
    return _folds(sequences, lists, 4, counts)


class Fit(NamedTuple):
    """One pair as token sequences."""

    fold: EncodedFold | None
    """Of this pair alone; None where it cannot be compared."""
    why: str
    """Why not, or what it has lost; empty for nothing."""


def encode_each(pairs: Sequence[Pair], tokenizer: Any, encoding: Encoding, max_length: int) -> list[Fit]:
    """Each pair by itself, with what became of it."""
    counts = [Counts() for _ in pairs]
    folds = encoding.encode([[pair] for pair in pairs], tokenizer, encoding.template, max_length, counts)

    def fit(fold: EncodedFold, count: Counts) -> Fit:
        if count.too_long:
            return Fit(None, f"whose responses alone exceed data.max_length={max_length}")
        if count.identical:
            return Fit(None, "whose responses are the same tokens")
        lost = f"lost prompt text from the left to fit data.max_length={max_length}"
        return Fit(fold, lost * count.prompts_truncated)

    return [fit(fold, count) for fold, count in zip(folds, counts, strict=True)]


def encode_responses(
    lists: Sequence[Sequence[Pair]], tokenizer: Any, template: str, max_length: int, counts: Sequence[Counts]
) -> list[EncodedFold]:
    """The responses of several lists of pairs, for DPO, each behind its prompt: a fold of each list.

    Sequence 2i is prompt i with the chosen response, 2i + 1 with the rejected one, each to its end. template: one of
    `raypref.data.templates.GENERATION`. Adds to each list's own of `counts`. Over-long inputs lose prompt tokens from
    the left, never a response.
    """
    end, eos = GENERATION[template].end, tokenizer.eos_token_id
    pairs = _bounded(lists, LONGEST * max_length)
    asked = [ask(template, pair.prompt) for pair in pairs for _ in range(2)]
    responses = (response for pair in pairs for response in (pair.chosen, pair.rejected))
    texts = [f"{stem} {response}{end}" for (stem, _), response in zip(asked, responses, strict=True)]
    sequences: list[Fitted | None] = []
    for tokens, (stem, prompt) in zip(_tokenised(texts, tokenizer), asked, strict=True):
        ends = [eos] if not end and eos is not None and tokens.ids[-1] != eos else []
        fitted = _fit(tokens, [prompt, (len(stem), len(stem) + 1)], max_length, ends)
        sequences.append(fitted and fitted._replace(spans=[fitted.spans[0], len(fitted.tokens)]))
    return _folds(sequences, lists, 2, counts)


def _bounded(lists: Sequence[Sequence[Pair]], most: int) -> list[Pair]:
    """All pairs in one list, without the text that could not fit anyway: a line of 20 MB would take minutes. What is
    left of it is still too long, for the responses, or more than enough, for the prompt, whose beginning is lost but
    for the token that it shares with the template."""

    def bounded(pair: Pair) -> Pair:
        prompt = pair.prompt if len(pair.prompt) <= most + LONGEST else pair.prompt[:LONGEST] + pair.prompt[-most:]
        return Pair(prompt, pair.chosen[:most], pair.rejected[:most])

    return [bounded(pair) for pairs in lists for pair in pairs]


def _tokenised(texts: list[str], tokenizer: Any) -> list[Any]:
    """The tokens of each text as the tokenizer itself has them, an `Encoding`: lists of all their offsets, of which
    hardly any is looked at, would take as long as the tokens."""
    fast = tokenizer.backend_tokenizer
    fast.no_truncation()
    fast.no_padding()
    return list(fast.encode_batch(texts)) if texts else []


class Fitted(NamedTuple):
    """A token sequence that fits."""

    tokens: np.ndarray
    """int32"""
    spans: list[int]
    """Start and end of each response in it."""
    truncated: bool
    """Whether its prompt lost text from the left."""


def _folds(
    sequences: Sequence[Fitted | None], lists: Sequence[Sequence[Pair]], width: int, counts: Sequence[Counts]
) -> list[EncodedFold]:
    """The folds of lists of pairs, whose sequences are two a pair."""
    cuts = np.cumsum([0, *(2 * len(pairs) for pairs in lists)]).tolist()
    parts = itertools.pairwise(cuts)
    return [_fold(sequences[i:j], width, of_list) for (i, j), of_list in zip(parts, counts, strict=True)]


def _fold(sequences: Sequence[Fitted | None], width: int, counts: Counts) -> EncodedFold:
    """The fold of sequences two by two (None: does not fit); pairs left out are counted. width: of the spans."""
    kept: list[Fitted] = []
    for first, second in zip(sequences[::2], sequences[1::2], strict=True):
        if first is None or second is None:
            counts.too_long += 1
        elif np.array_equal(first.tokens, second.tokens):
            counts.identical += 1
        else:
            counts.prompts_truncated += int(first.truncated or second.truncated)
            kept += [first, second]
    return EncodedFold(
        np.concatenate([np.zeros(0, np.int32), *(sequence.tokens for sequence in kept)]),
        np.cumsum([0, *(len(sequence.tokens) for sequence in kept)], dtype=np.int64),
        np.asarray([sequence.spans for sequence in kept], np.int32).reshape(-1, width),
    )


def _fit(tokens: Any, parts: list[tuple[int, int]], max_length: int, ends: Sequence[int] = ()) -> Fitted | None:
    """Drop prompt tokens from the left until the comparison fits; None where even that is not enough.

    tokens: an `Encoding`. parts: start and end of the prompt, then of each response, in characters. ends: tokens to put
    behind.
    """
    ids = np.asarray([*tokens.ids, *ends], np.int32)
    excess = len(ids) - max_length
    spans = [_span(tokens, *part) for part in parts[1:]]
    if excess <= 0:
        return Fitted(ids, [at for span in spans for at in span], False)
    start, end = parts[0]
    characters = np.asarray(tokens.offsets, np.int64).reshape(-1, 2)
    inside = np.flatnonzero((characters[:, 0] >= start) & (characters[:, 1] <= end) & (characters[:, 1] > start))
    if len(inside) < excess:
        return None
    gone = inside[:excess]
    shifted = [at - int((gone < at).sum()) for span in spans for at in span]
    return Fitted(np.delete(ids, gone), shifted, True)


def _span(tokens: Any, start: int, end: int) -> tuple[int, int]:
    """The first token of these characters, and the one behind their last; (0, 0) where there is none."""
    first, last = (tokens.char_to_token(at) for at in (start, end - 1))
    if first is None or last is None:  # such as a blank that no token has
        characters = np.asarray(tokens.offsets, np.int64).reshape(-1, 2)
        inside = np.flatnonzero((characters[:, 1] > start) & (characters[:, 0] < end))
        return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)
    while (after := tokens.token_to_chars(last + 1)) and after[0] < end and after[1] > start:
        last += 1  # several tokens make one character
    return first, last + 1


def choice_tokens(tokenizer: Any, template: str) -> tuple[int, int]:
    """The ids that continue a comparison with choice A and choice B, found by tokenising them in context.

    Raises `UserError` where a choice is not one token of its own, or both are the same.
    """
    stem = fill(template, "x", "y", "z")[0]
    base = tokenizer(stem)["input_ids"]
    for form in (" {}", "\n{}", "{}"):
        a, b = (tokenizer(stem + form.format(letter))["input_ids"] for letter in "AB")
        if a[:-1] == b[:-1] == base and a[-1] != b[-1]:
            return a[-1], b[-1]
    raise UserError(
        f"this tokenizer has no single, distinct tokens for the choices A and B after {TEMPLATES[template][-14:]!r}; "
        "use another base or data.template"
    )
