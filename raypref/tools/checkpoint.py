"""Reads and writes files that are complete or absent: safetensors with JSON inside, written aside, then renamed.

A file that is missing or damaged all the same (a full disk, half a copy) is one `UserError`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from raypref.tools.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

S = TypeVar("S")

TRACKED = "remove it, and MLflow gets a new run"
MENDS = {"mlflow.json": TRACKED, "sweep.json": TRACKED, "judgements": "remove it and judge again"}
"""What to do about a damaged file (or a folder's) that can be spared; without the others a run is broken."""


@contextlib.contextmanager
def locked(folder: Path, advice: str = "wait for it") -> Iterator[None]:
    """Make the folder and lock it, so that two commands never write to it: `UserError` for the second.

    The lock ends with the process. What earlier ones were writing when they were killed is cleared away.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        if not claim(file):
            raise UserError(f"another command is at work in {folder}; {advice}")
        clear(folder)
        yield


def claim(file: IO[Any]) -> bool:
    """Whether an open file is now this process's alone, until it is closed; True where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


ASIDE = re.compile(r"\..+\.(\d+)")
"""The name of a file that a process, whose id it ends in, has not written to its end."""


def clear(folder: Path) -> None:
    """Remove from a folder, and from those in it, what killed processes had not written to its end."""
    for path in folder.rglob(".*"):
        writer = ASIDE.fullmatch(path.name)
        if writer and path.is_file() and (int(writer[1]) == os.getpid() or not _lives(int(writer[1]))):
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    """Whether a process of this id is at work on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file at one stroke: a reader sees the old one or the new one, also after a power cut (POSIX), and where
    the disk does not take it, nothing of it is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno:
            error.filename = str(path)  # a write that fails does not say where
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, at one stroke."""
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


@contextlib.contextmanager
def reading(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Makes what goes wrong inside (`OSError`, `ValueError`, `kinds`) one line that names the file and what to do."""
    try:
        yield
    except (OSError, ValueError, *kinds) as error:
        lines = str(getattr(error, "strerror", None) or error).splitlines() or [type(error).__name__]
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({lines[0]})"
        broken = f"put a copy of it back, or remove {path.parent} and make it again"
        mend = MENDS.get(path.name) or MENDS.get(path.parent.name, broken)
        raise UserError(f"{path} {why}; {mend}") from error


def read_json(path: Path, *needs: str) -> Any:
    """The object in a file that `write_json` wrote, with the keys that it `needs`. Raises `UserError` where it is
    missing or damaged."""
    with reading(path):
        value = json.loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
        if lacks := [key for key in needs if key not in value]:
            raise ValueError(f"it lacks {', '.join(lacks)}")
        return value


def read_lines(path: Path) -> list[Any]:
    """The values of a JSONL file, none where it is missing. Raises `UserError` where a line is damaged.

    A last line without a line break was cut short by a kill, and is dropped where it is no JSON.
    """
    out: list[Any] = []
    with reading(path, RecursionError):
        *complete, last = path.read_bytes().split(b"\n") if path.exists() else [b""]
        for number, line in enumerate([*complete, *filter(None, [last])], 1):
            try:
                out.append(json.loads(line))
            except ValueError as error:
                if number <= len(complete):
                    raise ValueError(f"line {number} is no JSON: {getattr(error, 'msg', error)}") from error
    return out


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Write a JSONL file, a line for each value, at one stroke."""
    write_bytes(path, "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode())


def save(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able values into one safetensors file, so that they can never disagree."""
    from safetensors.torch import save as to_bytes

    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_bytes(path, to_bytes(copies, metadata={"raypref": json.dumps(dict(values))}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of `save`. Raises `UserError` where the file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    with reading(path, SafetensorError), safe_open(path, framework="pt") as file:
        values = _values(file)
        return {name: file.get_tensor(name) for name in file.keys()}, values  # noqa: SIM118


def values(path: Path) -> dict[str, Any]:
    """What `load` gives beside the tensors, of which none is read."""
    from safetensors import SafetensorError, safe_open

    with reading(path, SafetensorError), safe_open(path, framework="pt") as file:
        return _values(file)


def _values(file: Any) -> dict[str, Any]:
    values = (file.metadata() or {}).get("raypref")
    if values is None:
        raise ValueError("raypref did not write it")
    found: dict[str, Any] = json.loads(values)
    return found


def take_apart(state: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a frozen dataclass into its tensors, by name, and its JSON-able values.

    A field that is neither gives its tensors by a method `tensors()`; `from_tensors` of its class is the inverse.
    """
    from torch import Tensor

    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif hasattr(value, "tensors"):
            tensors |= {f"{field.name}/{name}": tensor for name, tensor in value.tensors().items()}
        else:
            values[field.name] = value
    return tensors, values


def put_together(kind: type[S], tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> S:
    """Inverse of `take_apart`: a value of the dataclass `kind`."""
    fields: dict[str, Any] = dict(values)
    nested: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        outer, _, inner = name.partition("/")
        if inner:
            nested.setdefault(outer, {})[inner] = tensor
        else:
            fields[outer] = tensor
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in nested:  # of the class that its default has
            fields[field.name] = field.default_factory.from_tensors(nested[field.name])  # type: ignore[union-attr]
    return kind(**fields)
