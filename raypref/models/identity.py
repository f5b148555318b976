"""Identifies the base that a run was trained on: adapters and z mean nothing on another one, whatever its folder."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from raypref.config import UserError
from raypref.models.selector import base_path, load_architecture

BEGINNING = 1 << 20
"""Bytes that are read of a weight file; the first of them tell every tensor's name, type and shape."""


def base_identity(base: str) -> str:
    """Twelve hex digits of a base: its architecture, its tokenizer, and size and beginning of every weight file.

    The same for a hub id and any local copy of it. Raises `UserError` where there is no such base.
    """
    architecture = load_architecture(base).to_dict()
    digest = hashlib.sha256(json.dumps({k: architecture.get(k) for k in SHAPE}, sort_keys=True).encode())
    for path in base_files(base_path(base)):
        digest.update(str(path.stat().st_size).encode())
        with open(path, "rb") as file:
            digest.update(file.read(BEGINNING))
    return digest.hexdigest()[:12]


@functools.lru_cache(maxsize=8)
def base_digest(base: str) -> str:
    """Sixteen hex digits of everything that a base computes: its configuration and every byte of its weights.

    Two bases of one `base_identity` may differ, such as one that was trained further. Raises `UserError` where there is
    no such base, or no weights in safetensors.
    """
    architecture = load_architecture(base).to_dict()
    known = {k: v for k, v in architecture.items() if k not in NAMES}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    weights = [path for path in base_files(base_path(base)) if path.suffix == ".safetensors"]
    if not weights:
        raise UserError(
            f"model.base={base!r} has no weights in safetensors, by which its features are kept; save it so"
        )
    for path in weights:
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


NAMES = ("_name_or_path", "transformers_version", "dtype", "architectures")
"""Of an architecture, what changes nothing that it computes in a given dtype."""
SHAPE = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size"),
)


def check_base(base: str, trained_on: str, run: str) -> str:
    """The identity of `base`; raises `UserError` where `run` was trained on one of another identity.

    trained_on: that identity; empty for runs of an earlier version, which did not save it.
    """
    identity = base_identity(base)
    if trained_on and identity != trained_on:
        raise UserError(
            f"{run} was trained on another base than {base!r}; its adapters mean nothing there: give --base the one it "
            "was trained on (a folder or a hub id)"
        )
    return identity


def same_base(name: str, base: str) -> bool | None:
    """Whether the name of an adapter's base, a folder or a hub id, means `base`; None where that cannot be known.

    They are compared by name, or by identity where both are on this machine (nothing is fetched). Two hub ids of which
    one is not on it are two bases; a folder of another machine may hold any.
    """
    path = base_path(base)
    if name in (base, path):
        return True
    here = _on_this_machine(name), _on_this_machine(path)
    if here[0] and here[1]:
        return base_identity(here[0]) == base_identity(here[1])
    return False if _is_hub_id(name) and _is_hub_id(path) else None


def _is_hub_id(word: str) -> bool:
    return not word.startswith((".", "/", "~")) and word.count("/") == 1 and not Path(word).is_dir()


def _on_this_machine(word: str) -> str | None:
    """The folder of a base that is given as a folder or a hub id; None where its weights are not here."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(base_path(word) if word == "embedded" else word).expanduser()
    if _is_hub_id(word):
        cached = try_to_load_from_cache(word, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else folder
    return str(folder) if (folder / "config.json").exists() and any(folder.glob("*.safetensors")) else None


def base_files(path: str) -> Iterator[Path]:
    """The tokenizer's and the weights' files of a folder or a hub id, as far as they are there."""
    from transformers.utils import cached_file

    def local(name: str) -> Path | None:
        try:
            file = cached_file(path, name, _raise_exceptions_for_missing_entries=False)
        except OSError:
            return None
        return None if file is None else Path(file)

    index = local("model.safetensors.index.json")
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index else ["model.safetensors"]
    except (ValueError, KeyError) as error:
        raise UserError(f"{index}: names no weight files ({error}); copy or fetch the base again") from error
    for name in ("tokenizer.json", *shards):
        if file := local(name):
            yield file
