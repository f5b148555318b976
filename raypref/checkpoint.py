"""Files that are whole or absent: safetensors with JSON inside, written aside and renamed. No pickle."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

S = TypeVar("S")


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic on POSIX: a reader sees the old file or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_lines(path: Path) -> list[Any]:
    """What a JSONL file holds, none where it is not there; a last line cut short by a kill is dropped."""
    out = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return out


def save(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Tensors and JSON-able values in one safetensors file, so that they can never disagree."""
    from safetensors.torch import save as to_bytes

    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_bytes(path, to_bytes(whole, metadata={"raypref": json.dumps(dict(values))}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of `save`."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["raypref"])  # noqa: SIM118


def take_apart(state: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A frozen dataclass of tensors and JSON-able values -> (tensors, values)."""
    from torch import Tensor

    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in fields.items() if name not in tensors}


def put_together(kind: type[S], tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> S:
    """Inverse of `take_apart`."""
    return kind(**tensors, **values)
