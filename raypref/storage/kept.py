"""Kept results: the numbers of a run that a page rests on, a small Parquet file a run.

    results/SPACE/METHOD-seedN-KEY.parquet

A row a client, a column what was measured of it, a list over the marks where it is read at each; the rest of the
result stands in the file's metadata: the configuration, the command that makes it, and the version of the results
(`VERSION`). What no page needs is left out: adapters, what was saved between rounds, all posteriors but the last; of
margins their calibration and retention are kept, and themselves only beside diagnostics, which need them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raypref.config import UserError, flatten, from_dict, to_dict
from raypref.evaluation import calibration, diagnostics
from raypref.evaluation.curve import seen_and_unseen
from raypref.evaluation.latent import Latent
from raypref.evaluation.runs import FinishedRun
from raypref.storage.tracking import TrackedRun
from raypref.tools import checkpoint

VERSION = 1
"""Of the numbers that this code computes: raised when the same configuration comes to others than rounding explains
(`tests/test_canary.py`). Results of an earlier one are made anew before they stand beside new ones."""
KIND = b"raypref"
"""Key of the metadata."""
LISTS = ("validation", "test", "probes", "margins")
"""Parts of a result that hold, by name, a value or lists a client."""
POSTERIOR = ("mu", "log_variance")
OF_POLICIES = (*POSTERIOR, "personalized_mu")
"""Probes that stage 2 and `raypref.score` take from a run's folder."""


def keep(folder: Path, to: Path, command: str, cpu: float | None = None) -> Path:
    """Write the kept result of a finished run.

    folder: the run's. to: the space's folder of kept results. command: the words that make it again. cpu: seconds of
    CPU time that all of it took, where one process has made it whole. Returns the file.
    """
    result = checkpoint.read_json(folder / "result.json", "algorithm", "clients")
    columns = {name: list(values) for name, values in _columns(result).items()}
    said: dict[str, Any] = {k: v for k, v in result.items() if k not in _PER_CLIENT}
    said |= {"version": VERSION, "command": command, "cpu_seconds": cpu}
    said |= {"ended": int((folder / "result.json").stat().st_mtime), "names": result["groups"]["names"]}
    seen, _ = seen_and_unseen(result)
    margins = calibration.margins_of(seen)
    said["calibration"] = {"ece": calibration.errors(seen), "pairs": sum(m.shape[1] for m in margins)}
    if 0 in result["marks"]:
        curve = diagnostics.retention_curve(seen)
        said["retention"] = {"R": curve.R.tolist(), "W": curve.W.tolist()}
    if (folder / "groups.json").exists():
        said["assignments"] = checkpoint.read_json(folder / "groups.json")
    if (folder / "latent.npz").exists():
        latent = Latent.load(folder / "latent.npz")
        away = set(result["unseen"])
        for name in POSTERIOR:
            trained = iter(getattr(latent, name)[-1].astype(np.float16))
            columns[f"latent/{name}"] = [None if c in away else next(trained) for c in range(len(result["clients"]))]
        said["latent"] = {"round": int(latent.rounds[-1]), "prototypes": _short(latent.prototypes[-1].tolist(), 4)}
    table = pa.table({name: _array(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    how = {"compression": "zstd", "compression_level": 19, "store_schema": False}
    with pq.ParquetWriter(sink, table.schema, **how) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({KIND: json.dumps(said, sort_keys=True, separators=(",", ":"))})
    path = to / f"{folder.name}.parquet"
    checkpoint.write_bytes(path, sink.getvalue().to_pybytes())
    return path


_PER_CLIENT = {*LISTS, "clients", "sizes", "groups", "unseen", "assignment", "diagnostics"}


def _columns(result: Mapping[str, Any]) -> dict[str, Any]:
    """What of a result is one value or one list a client."""
    count = len(result["clients"])
    away = set(result.get("unseen", ()))
    columns: dict[str, Any] = {
        "client": result["clients"],
        "size": result["sizes"],
        "group": result["groups"]["of"] or [-1] * count,
        "unseen": [c in away for c in range(count)],
    }
    if result["assignment"] is not None:  # of those that trained alone
        trained = iter(result["assignment"])
        columns["assignment"] = [-1 if c in away else next(trained) for c in range(count)]
    for part in ("validation", "test", "probes"):
        values = {name: of for name, of in result.get(part, {}).items() if name not in OF_POLICIES}
        columns |= {f"{part}/{name}": _short(of, 5) for name, of in values.items()}
    columns["calibration/nll"] = _short(calibration.of_clients(result).tolist(), 5)
    if result.get("diagnostics"):
        columns["margins/test"] = _short(result["margins"]["test"], 3)
    for line in result.get("diagnostics", ()):
        columns |= {f"diagnostics/{line['mark']}/{k}": v for k, v in line.items() if k != "mark"}
    return columns


def _short(values: Any, digits: int) -> Any:
    """Nested lists of numbers at so many significant digits."""
    if isinstance(values, list):
        return [_short(v, digits) for v in values]
    return float(f"{values:.{digits}g}") if isinstance(values, float) else values


def _array(values: list[Any]) -> pa.Array:
    """Floats, alone or in lists, at the width at which they were computed."""
    array = pa.array(values)
    kind, depth = array.type, 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_float64(kind):
        kind = pa.float32()
        for _ in range(depth):
            kind = pa.list_(kind)
        return array.cast(kind)
    return array


def read(path: Path) -> FinishedRun:
    """A kept result as tables and claims read runs. Raises `UserError` where the file is none."""
    said, table = _said(path), pq.read_table(path)
    values = {name: table[name].to_pylist() for name in table.column_names}
    result = {k: v for k, v in said.items() if k not in ("names", "assignments", "latent")}
    result |= {"clients": values["client"], "sizes": values["size"], "assignment": None}
    grouped = min(values["group"], default=-1) >= 0
    result["groups"] = {"names": said["names"], "of": values["group"] if grouped else []}
    result["unseen"] = [c for c, away in enumerate(values["unseen"]) if away]
    if "assignment" in values:
        result["assignment"] = [k for k in values["assignment"] if k >= 0]
    result |= {part: {} for part in LISTS}
    diagnosed: dict[str, dict[str, Any]] = {}
    result["calibration"]["nll"] = values["calibration/nll"]
    for name in values:
        match name.split("/"):
            case [("validation" | "test" | "probes" | "margins") as part, what]:
                result[part][what] = values[name]
            case ["diagnostics", mark, what]:
                diagnosed.setdefault(mark, {"mark": int(mark)})[what] = values[name]
    result["diagnostics"] = [*diagnosed.values()]
    latent = None
    if "latent" in said:
        mu, log_variance = (
            np.array([v for v in values[f"latent/{name}"] if v is not None], np.float32) for name in POSTERIOR
        )
        prototypes = np.array(said["latent"]["prototypes"], np.float32).reshape(-1, mu.shape[1])
        latent = Latent.of(said["latent"]["round"], mu, log_variance, prototypes=prototypes)
    try:
        config = flatten(to_dict(from_dict(said["config"])))  # newer fields by their defaults
    except UserError as error:
        raise UserError(f"{path} is of another version of raypref: {error}") from error
    return FinishedRun(str(path), 1000 * said["ended"], config, result, said.get("assignments"), latent)


def search(folder: Path, spaces: Sequence[str]) -> tuple[list[TrackedRun], list[str]]:
    """The kept results of these spaces as MLflow would list its runs, and the names of all spaces that have any."""
    runs = []
    for path in sorted(path for name in spaces for path in (folder / name).glob("*.parquet")):
        said = _said(path)
        params = {"algorithm": said["algorithm"], "seed": str(said["seed"])}
        tags = {"raypref.key": said["key"]}
        runs.append(TrackedRun(str(path), path.parent.name, "FINISHED", 1000 * said["ended"], params, tags))
    return runs, list(names(folder))


def read_all(folder: Path) -> list[FinishedRun]:
    """All kept results of this version in a folder and those in it, by name."""
    return [read(path) for path in sorted(folder.rglob("*.parquet")) if version(path) == VERSION]


def version(path: Path) -> int:
    """The version of the results that a file is of. Raises `UserError` where it is none of ours."""
    return int(_said(path)["version"])


def _said(path: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(pq.read_metadata(path).metadata[KIND])
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path} is no kept result: {error}; python -m raypref.results makes it anew") from error
    return said


def names(folder: Path) -> Iterator[str]:
    """The spaces of which results are kept there."""
    return (path.name for path in sorted(folder.glob("*")) if path.is_dir() and any(path.glob("*.parquet")))
