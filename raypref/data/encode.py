"""Pairs to token arrays, once: every later pass reads slices of one flat array a fold.

Comparison 2i of a fold shows pair i with the chosen response in slot A, comparison 2i + 1 in slot B. The label is thus
the parity of the index; nothing of it is in the text (tested).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from raypref.data.federation import FOLDS, Federation, Pair
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
        return (len(self.offsets) - 1) // 2

    @property
    def lengths(self) -> np.ndarray:
        """int64 [2N]"""
        return np.diff(self.offsets)

    def padded(self, comparisons: np.ndarray, length: int, pad: int) -> np.ndarray:
        """int64 [len(comparisons), length], padded on the right (a causal model never looks there)."""
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


@dataclass(frozen=True)
class EncodedClient:
    """One client's three folds."""

    train: EncodedFold
    validation: EncodedFold
    test: EncodedFold

    def fold(self, name: str) -> EncodedFold:
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
        said = {
            "prompts_truncated": "pairs lost prompt text from the left to fit data.max_length",
            "too_long": "pairs left out: their responses alone exceed data.max_length",
            "identical": "pairs left out: their two responses are the same tokens",
        }
        return [f"{getattr(self, f.name)} {said[f.name]}" for f in fields(self) if getattr(self, f.name)]


@dataclass(frozen=True)
class EncodedFederation:
    """All clients, in the federation's order."""

    ids: tuple[str, ...]
    group_of: np.ndarray
    """int64 [C], -1 where unknown."""
    groups: tuple[str, ...]
    clients: tuple[EncodedClient, ...]
    counts: Counts
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hex of all clients, folds and tokens: equal where training would see the same."""
        told = hashlib.sha256(repr((self.ids, self.groups, self.group_of.tolist())).encode())
        for client in self.clients:
            for fold in map(client.fold, FOLDS):
                told.update(fold.offsets.tobytes() + fold.tokens.tobytes())
        return told.hexdigest()

    def sizes(self, fold: str = "train") -> np.ndarray:
        """int64 [C], pairs (S2: N_c for the training fold)."""
        return np.array([c.fold(fold).pairs for c in self.clients], dtype=np.int64)


Encode = Callable[[Sequence[Pair], Any, str, int, Counts], EncodedFold]
"""What makes a fold: `encode_pairs` or `encode_responses`."""


class Encoding(NamedTuple):
    """How the pairs of a run become token sequences."""

    encode: Encode
    template: str
    """Of the words around a pair: a key of `raypref.data.templates.TEMPLATES`, or of `GENERATION` for responses."""
    compares: bool
    """Whether a sequence shows two responses and asks which is better; else it is a prompt with one response."""


def encode_federation(federation: Federation, tokenizer: Any, encoding: Encoding, max_length: int) -> EncodedFederation:
    """Tokenise every pair of every client.

    Raises `UserError` where a client is left without a usable pair in a fold.
    """
    encode, template, _ = encoding
    counts = Counts()
    clients = tuple(
        EncodedClient(**{f: encode(c.fold(f), tokenizer, template, max_length, counts) for f in FOLDS})
        for c in federation.clients
    )
    for client, encoded in zip(federation.clients, clients, strict=True):
        for name in FOLDS:
            if encoded.fold(name).pairs == 0:
                raise UserError(
                    f"client {client.id!r} has no usable {name} pair within data.max_length={max_length}; raise it, "
                    "give clients more pairs, or raise data.min_rows to leave such clients out"
                )
    notes = (*federation.notes, *counts.notes())
    return EncodedFederation(federation.ids, federation.group_of, federation.groups, clients, counts, notes)


def encode_pairs(pairs: Sequence[Pair], tokenizer: Any, template: str, max_length: int, counts: Counts) -> EncodedFold:
    """One fold. Adds to `counts`. Over-long inputs lose prompt tokens from the left, never a response or the mark."""
    if not pairs:
        return EncodedFold(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros((0, 4), np.int32))
    filled = [fill(template, p.prompt, *o) for p in pairs for o in ((p.chosen, p.rejected), (p.rejected, p.chosen))]
    encoding = tokenizer([text for text, _ in filled], return_offsets_mapping=True)
    rows: list[list[np.ndarray]] = []
    spans: list[list[int]] = []
    for i in range(len(pairs)):
        orders = [
            _fit(
                np.asarray(encoding["input_ids"][j], dtype=np.int32),
                np.asarray(encoding["offset_mapping"][j], dtype=np.int64).reshape(-1, 2),
                filled[j][1],
                max_length,
            )
            for j in (2 * i, 2 * i + 1)
        ]
        if orders[0] is None or orders[1] is None:
            counts.too_long += 1
        elif np.array_equal(orders[0][0], orders[1][0]):
            counts.identical += 1
        else:
            counts.prompts_truncated += int(orders[0][2] or orders[1][2])
            rows.append([orders[0][0], orders[1][0]])
            spans += [orders[0][1], orders[1][1]]
    flat = [ids for both in rows for ids in both]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in flat], dtype=np.int64)])
    tokens = np.concatenate(flat) if flat else np.zeros(0, np.int32)
    return EncodedFold(tokens, offsets.astype(np.int64), np.asarray(spans, np.int32).reshape(-1, 4))


def encode_responses(
    pairs: Sequence[Pair], tokenizer: Any, template: str, max_length: int, counts: Counts
) -> EncodedFold:
    """One fold for DPO: sequence 2i is prompt i with the chosen response, 2i + 1 with the rejected one, each to its
    end.

    template: one of `raypref.data.templates.GENERATION`. Adds to `counts`. Over-long inputs lose prompt tokens from the
    left, never a response.
    """
    ids: list[np.ndarray] = []
    spans: list[tuple[int, int]] = []
    for pair in pairs:
        both = [
            respond(pair.prompt, answer, tokenizer, template, max_length) for answer in (pair.chosen, pair.rejected)
        ]
        if both[0] is None or both[1] is None:
            counts.too_long += 1
        elif np.array_equal(both[0][0], both[1][0]):
            counts.identical += 1
        else:
            counts.prompts_truncated += int(both[0][2] or both[1][2])
            for sequence, span, _ in (both[0], both[1]):
                ids.append(sequence)
                spans.append(span)
    offsets = np.cumsum([0, *map(len, ids)]).astype(np.int64)
    tokens = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    return EncodedFold(tokens, offsets, np.asarray(spans, np.int32).reshape(-1, 2))


def respond(
    prompt: str, answer: str, tokenizer: Any, template: str, max_length: int
) -> tuple[np.ndarray, tuple[int, int], bool] | None:
    """A prompt with an answer to its end as tokens, where the answer and its end lie, and whether the prompt lost text
    from the left; None where even without it they exceed `max_length`."""
    stem, where = ask(template, prompt)
    end = GENERATION[template].end
    encoding = tokenizer(f"{stem} {answer}{end}", return_offsets_mapping=True)
    ids, characters = (np.asarray(encoding[name]) for name in ("input_ids", "offset_mapping"))
    if not end and tokenizer.eos_token_id is not None and ids[-1] != tokenizer.eos_token_id:
        ids = np.append(ids, tokenizer.eos_token_id)
        characters = np.concatenate([characters, characters[-1:, 1:].repeat(2, axis=1)])
    fitted = _fit(ids.astype(np.int32), characters.reshape(-1, 2), [where, (len(stem), len(stem) + 1)], max_length)
    if fitted is None:
        return None
    kept, (start, _), cut = fitted
    return kept, (start, len(kept)), cut


def _fit(
    ids: np.ndarray, characters: np.ndarray, where: list[tuple[int, int]], max_length: int
) -> tuple[np.ndarray, list[int], bool] | None:
    """Drop prompt tokens from the left until the comparison fits; None where even that is not enough."""
    excess = len(ids) - max_length
    start, end = where[0]
    if excess > 0:
        inside = np.flatnonzero((characters[:, 0] >= start) & (characters[:, 1] <= end) & (characters[:, 1] > start))
        if len(inside) < excess:
            return None
        keep = np.ones(len(ids), dtype=bool)
        keep[inside[:excess]] = False
        ids, characters = ids[keep], characters[keep]
    span: list[int] = []
    for start, end in where[1:]:
        inside = np.flatnonzero((characters[:, 1] > start) & (characters[:, 0] < end))
        span += [int(inside[0]), int(inside[-1]) + 1] if len(inside) else [0, 0]
    return ids, span, excess > 0


def choice_tokens(tokenizer: Any, template: str) -> tuple[int, int]:
    """The ids that continue a comparison with choice A and choice B, found by tokenising them in context.

    Raises `UserError` where a choice is not one token of its own, or both are the same.
    """
    stem = fill(template, "x", "y", "z")[0]
    base = tokenizer(stem)["input_ids"]
    for form in (" {}", "\n{}", "{}"):
        found = [tokenizer(stem + form.format(letter))["input_ids"] for letter in "AB"]
        if all(len(ids) == len(base) + 1 and ids[:-1] == base for ids in found) and found[0][-1] != found[1][-1]:
            return found[0][-1], found[1][-1]
    raise UserError(
        f"this tokenizer has no single, distinct tokens for the choices A and B after {TEMPLATES[template][-14:]!r}; "
        "use another base or data.template"
    )
