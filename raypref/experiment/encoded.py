"""A run's data as token sequences: read, dealt to people and tokenised once, then kept on disk for all later runs.

What is kept is known by all that it depends on: the data's part of the run's identity (local data count by their
digest), the seed, the tokenizer, the template and this package's code that reads. Sources that may change under their
name, on a hub, are read anew every time, and so is what takes a moment only.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raypref import data as package
from raypref.config import RunConfig, UserError, flatten, identity, to_dict
from raypref.data.encode import (
    Counts,
    EncodedClient,
    EncodedFederation,
    EncodedFold,
    Encoding,
    concatenate,
    encode_federation,
)
from raypref.data.federation import FOLDS
from raypref.data.load import load
from raypref.data.templates import GENERATION, TEMPLATES
from raypref.models.features import root
from raypref.tools import checkpoint, console

KEPT_FROM = 20_000
"""Pairs; fewer are read in some seconds."""


def encoded(config: RunConfig, tokenizer: Any, encoding: Encoding) -> EncodedFederation:
    """The run's data, as they were kept or by reading them. Raises `UserError` as `load` and `encode_federation` do."""
    if not (config.data.digest or config.data.generated):
        return _read(config, tokenizer, encoding)
    path = root(config.model) / "encoded" / f"{_key(config, tokenizer, encoding)}.safetensors"
    if path.exists():
        try:
            return _joined(*checkpoint.load(path))
        except UserError:
            path.unlink(missing_ok=True)  # damaged: it is made again
    data = _read(config, tokenizer, encoding)
    if sum(int(data.sizes(fold).sum()) for fold in FOLDS) >= KEPT_FROM:
        try:
            checkpoint.save(path, *_parted(data))
        except OSError as error:
            console.note(f"the data's tokens are not kept for the next run: {error}")
    return data


def _read(config: RunConfig, tokenizer: Any, encoding: Encoding) -> EncodedFederation:
    return encode_federation(load(config.data, config.seed), tokenizer, encoding, config.data.max_length)


def _key(config: RunConfig, tokenizer: Any, encoding: Encoding) -> str:
    """Sixteen hex digits of all that the sequences depend on."""
    depends = {
        "data": identity.known(flatten(to_dict(config)), identity.BITS, {"data"}),
        "seed": config.seed,
        "tokenizer": [tokenizer.backend_tokenizer.to_str(), tokenizer.eos_token_id],
        "encoding": [encoding.encode.__name__, (TEMPLATES | GENERATION)[encoding.template]],
        "code": _code(),
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _code() -> str:
    """A digest of the modules that read and tokenise."""
    digest = hashlib.sha256()
    for file in sorted(Path(package.__path__[0]).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _parted(data: EncodedFederation) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """As tensors and JSON: all folds one after another."""
    folds = [client.fold(name) for client in data.clients for name in FOLDS]
    whole = concatenate(folds)
    tensors = {
        "tokens": torch.from_numpy(whole.tokens),
        "lengths": torch.from_numpy(whole.lengths.astype(np.int32)),
        "spans": torch.from_numpy(whole.spans),
        "pairs": torch.tensor([fold.pairs for fold in folds]),
        "group_of": torch.from_numpy(data.group_of),
    }
    return tensors, {"ids": data.ids, "groups": data.groups, "counts": vars(data.counts), "notes": data.notes}


def _joined(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> EncodedFederation:
    """Inverse of `_parted`; the folds are views of the whole."""
    tokens, lengths, spans, pairs, group_of = (
        tensors[name].numpy() for name in ("tokens", "lengths", "spans", "pairs", "group_of")
    )
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    folds = []
    for i, j in itertools.pairwise([0, *np.cumsum(2 * pairs).tolist()]):
        start, end = offsets[i], offsets[j]
        folds.append(EncodedFold(tokens[start:end], offsets[i : j + 1] - start, spans[i:j]))
    clients = tuple(EncodedClient(*folds[c : c + len(FOLDS)]) for c in range(0, len(folds), len(FOLDS)))
    groups, notes = tuple(values["groups"]), tuple(values["notes"])
    return EncodedFederation(tuple(values["ids"]), group_of, groups, clients, Counts(**values["counts"]), notes)
