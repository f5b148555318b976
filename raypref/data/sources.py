"""Rows of a source as dictionaries, as they are: local files and folders, and data sets of the Hugging Face hub.

Local files are read here rather than by `datasets`: rows may then differ in their keys (as those of TL;DR's files do),
every cell of a CSV is the text that was written, nothing is copied to a cache, and an error can name the line.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from raypref.config import GENERATED
from raypref.data.readers import BATCH, READERS, explained, rows_of_batch, suffix, table
from raypref.data.rows import Losses, Row, RowRead, Table, Unusable
from raypref.tools.errors import UserError

if TYPE_CHECKING:
    from raypref.config import RunConfig


def identified(config: RunConfig) -> RunConfig:
    """The same run with its data known by their digest (`data.digest`), so that they may lie anywhere."""
    data = dataclasses.replace(config.data, digest=digest(config.data.source))
    return dataclasses.replace(config, data=data)


def tables(name: str) -> list[Table]:
    """The rows of a source, as a table for each of its files or splits.

    name: a file, a folder of files of one format, or a hub id as `OWNER/NAME[:CONFIGURATION]`,
    `OWNER/NAME:CONFIGURATION,CONFIGURATION` or `OWNER/NAME:FOLDER+FOLDER`. Raises `UserError` with one line on whatever
    cannot be read.
    """
    files = _files(name)
    result = _hub(name) if files is None else [table(file) for file in files]
    losses = Losses()
    for row in rows_of(result):
        if not isinstance(row, Unusable):
            return result
        losses.add(row)
    if losses.reasons():
        raise UserError(f"{name}: none of its rows can be read: {'; '.join(losses.reasons())}")
    raise UserError(f"{name}: it holds no rows" + (", only a header" if any(t.columns for t in result) else ""))


def rows_of(tables: Sequence[Table]) -> Iterator[RowRead]:
    """The rows of all of them; of several, what could not be read says in which it stands."""
    for part in tables:
        for row in part.rows():
            if isinstance(row, Unusable) and len(tables) > 1:
                yield Unusable(str(row), f"{row.place} of {part.name}")
            else:
                yield row


def digest(source: str) -> str:
    """16 hex digits that name what a local source holds.

    Empty for what is generated and for a hub id, which are not looked at. Of one file its bytes, whatever it is called;
    of a folder the names within it and the bytes of the files that `tables` reads. So moving either changes nothing,
    and changing a byte does. Raises `UserError` as `tables` does where a file is missing or cannot be read.
    """
    files = None if source in GENERATED else _files(source)
    if files is None:
        return ""
    root = Path(source).expanduser()
    if files == [root]:
        return _content(root)[:16]
    contents = hashlib.sha256()
    for file in files:
        name = os.fsencode(file.relative_to(root).as_posix())
        contents.update(len(name).to_bytes(8, "big") + name + bytes.fromhex(_content(file)))
    return contents.hexdigest()[:16]


_CONTENTS: dict[tuple[str, int, int], str] = {}
"""Path, size and time of change in ns -> sha256 in hex, of files that this process has read before."""

SETTLED = 2_000_000_000
"""Nanoseconds after which a change of a file shows in its time: coarse clocks give two quick changes the same."""


def _content(file: Path) -> str:
    """The sha256 of a file's bytes, in hex; read once as long as it does not change."""
    with explained(file):
        status = file.stat()
        key = (str(file.absolute()), status.st_size, status.st_mtime_ns)
        if key in _CONTENTS:
            return _CONTENTS[key]
        with file.open("rb") as handle:
            content = hashlib.file_digest(handle, "sha256").hexdigest()
        if time.time_ns() - status.st_mtime_ns > SETTLED:
            _CONTENTS[key] = content
        return content


def _files(name: str) -> list[Path] | None:
    """The local files that a source stands for, in order; None where it is a hub id. Raises `UserError` where they are
    not there or cannot be read together."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _inside(path)
    if not path.exists():
        if suffix(path) in READERS or name.startswith((".", "/", "~")):
            raise UserError(f"{name}: there is no such file")
        return None
    if suffix(path) not in READERS:
        ending = repr(suffix(path)) if suffix(path) else "a file without suffix"
        raise UserError(f"{path}: cannot read {ending}; give one of {', '.join(READERS)}")
    return [path]


def _inside(folder: Path) -> list[Path]:
    """The data files of a folder and its subfolders, linked ones too, in order; hidden ones are not looked at."""
    files = sorted(_walk(folder))
    if any(f.name in ("dataset_dict.json", "state.json") for f in files):
        raise UserError(f"{folder}: was written by save_to_disk; write its rows with to_parquet or to_json instead")
    for file in files:
        if suffix(file) in READERS and not file.exists():
            raise UserError(f"{file}: is a link to nothing; fetch what it points to, or remove the link")
        compressed = file.suffix.lower() in COMPRESSED and suffix(file.with_suffix("")) in READERS
        if compressed and suffix(file) not in READERS:
            raise UserError(f"{file}: cannot read {suffix(file)!r}; unpack it, or keep it elsewhere")
    files = [f for f in files if suffix(f) in READERS and f.is_file()]
    kinds = sorted({suffix(f).removesuffix(".gz").replace("jsonl", "json") for f in files})
    if not files:
        raise UserError(f"{folder}: there is no data file in this folder; give one with {', '.join(READERS)} files")
    if len(kinds) > 1:
        raise UserError(f"{folder}: holds {' and '.join(kinds)} files; name one file, or a folder with one kind")
    return files


COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
"""What may hold rows, and is not read as such but for `READERS`."""


def _walk(folder: Path) -> Iterator[Path]:
    """All that is no folder; one that is linked to twice, or within itself, is entered once."""

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error

    entered: set[str] = set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (real := os.path.realpath(root)) in entered:
            folders.clear()
            continue
        entered.add(real)
        yield from (Path(root, name) for name in names if not name.startswith("."))


# --- the hub

EXPORT = "refs/convert/parquet"
"""Branch with the hub's own Parquet copy of a data set, a folder for each configuration."""


def _hub(name: str) -> list[Table]:
    """All of a data set's own splits: we cut folds ourselves."""
    repository, _, configuration = name.partition(":")

    import datasets

    try:
        try:
            if "+" in configuration:  # folders of a repository without configurations, such as HH-RLHF's
                loaded = {part: datasets.load_dataset(repository, data_dir=part) for part in configuration.split("+")}
            else:
                loaded = {part: datasets.load_dataset(repository, part or None) for part in configuration.split(",")}
        except RuntimeError as error:
            # TL;DR's comparisons come with a Python script, which `datasets` does not run since version 4.
            if "scripts are no longer supported" not in str(error):
                raise
            exported = datasets.load_dataset(repository, data_dir=configuration or None, revision=EXPORT)
            loaded = {configuration: exported}
    except Exception as error:  # of many kinds: network, authentication, parsing, schema
        cause = " ".join(str(error.__cause__ or error).split())
        several = re.search(r"Config name is missing.*?\[(.*?)\]", cause)
        if several:
            options = re.findall(r"[\"'](.*?)[\"']", several[1])
            raise UserError(
                f"{name} has several configurations: {', '.join(options)}; name one, such as {repository}:{options[0]}"
            ) from error
        raise UserError(
            f"{name!r} is no local file or folder and could not be loaded from the Hugging Face hub ({cause}); check "
            "the id (OWNER/NAME, or OWNER/NAME:CONFIGURATION where there are several) and the network, or give a "
            f"local path ({', '.join(READERS)})"
        ) from error
    return [
        Table(tuple(split.column_names), lambda split=split: _hub_rows(name, split), f"{folder}/{part}".lstrip("/"))
        for folder, splits in loaded.items()
        for part, split in splits.items()
    ]


def _hub_rows(name: str, split: Any) -> Iterator[RowRead]:
    def read(start: int, end: int) -> list[Row]:
        columns = split[start:end]
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]

    try:
        for start in range(0, len(split), BATCH):
            yield from rows_of_batch(read, start, min(start + BATCH, len(split)))
    except Exception as error:  # of many kinds: a broken cache, cells that cannot be decoded
        raise UserError(f"{name}: its rows cannot be read ({' '.join(str(error).split())})") from error
