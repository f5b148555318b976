"""People whom a run never met, and who were made known to it afterwards (`python -m raypref.onboard`).

`people/NAME/` in the run's folder; nothing of it is sent anywhere, to MLflow neither.

person.safetensors   the row that judges for them, their z where there is one, and what was said of them
choices.jsonl        what they have chosen: prompt, chosen, rejected
adapter/             the row as a PEFT folder
policy-…             policies that answer them (`python -m raypref.rlhf NAME --person NAME`)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypref.data.federation import Pair
from raypref.storage.results import safe_name
from raypref.tools import checkpoint
from raypref.tools.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "people"


@dataclass(frozen=True)
class Person:
    """Somebody new to a run."""

    name: str
    row: Tensor
    """[D] what judges for them."""
    z: Tensor | None
    """[d] the mean of their posterior; None without a latent."""
    said: Mapping[str, Any]
    """What they were made of: `choices`, how many; `became`, in words; `steps`, local ones; `expected`, in words."""

    @property
    def digest(self) -> str:
        """Eight hex digits that change with what judges for them."""
        both = self.row.numpy().tobytes() + (b"" if self.z is None else self.z.numpy().tobytes())
        return hashlib.sha256(both).hexdigest()[:8]


def folder_of(run: Path, name: str) -> Path:
    """Where a person of this name is, or would be."""
    return run / FOLDER / safe_name(name)


def save(run: Path, person: Person, choices: Sequence[Pair]) -> Path:
    """Write a person into the run's folder, readable by nobody else on this machine; returns where."""
    folder = folder_of(run, person.name)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    lines = [dict(zip(("prompt", "chosen", "rejected"), astuple(pair), strict=True)) for pair in choices]
    checkpoint.write_lines(folder / "choices.jsonl", lines)
    tensors = {"row": person.row} | ({} if person.z is None else {"z": person.z})
    checkpoint.save(folder / "person.safetensors", tensors, {"name": person.name, **person.said})
    return folder


def names(run: Path) -> list[str]:
    """Who is known to the run, in order."""
    files = (run / FOLDER).glob("*/person.safetensors")
    return sorted(checkpoint.values(file)["name"] for file in files)


def find(run: Path, name: str) -> Person | None:
    """The person of this name; None where there is none."""
    file = folder_of(run, name) / "person.safetensors"
    if not name or not file.exists():
        return None
    tensors, values = checkpoint.load(file)
    return Person(values.pop("name"), tensors["row"], tensors.get("z"), values)


def choices_of(run: Path, name: str) -> list[Pair]:
    """What a person has chosen so far."""
    return [Pair(**line) for line in checkpoint.read_lines(folder_of(run, name) / "choices.jsonl")]


def needed(run: Path, name: str) -> Person:
    """The person of this name. Raises `UserError` where there is none."""
    if person := find(run, name):
        return person
    known = names(run)
    hint = nearest(name, known) if known else "; nobody is yet"
    raise UserError(f"{name!r} is not known to {run}{hint}; python -m raypref.onboard {run} --name {name} begins")
