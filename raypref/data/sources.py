"""Rows of a source as dictionaries, as they are: local files and folders, and data sets of the Hugging Face hub.

Local files are read here rather than by `datasets`: rows may then differ in their keys (as those of TL;DR's files do),
every cell of a CSV is the text that was written, nothing is copied to a cache, and an error can name the line.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from raypref.config import UserError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Some rows under one header; a row may lack columns."""

    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]
    """Iterates anew at every call, from the disk."""
    name: str
    """Of the file, or of the hub data set's split, behind its configuration or folder: `helpful-base/train`."""


def tables(name: str) -> list[Table]:
    """The source called `name`: a file, a folder of files of one format, or a hub id as `OWNER/NAME[:CONFIGURATION]`
    or `OWNER/NAME:FOLDER+FOLDER`.

    Raises `UserError` with one line on whatever cannot be read.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        found = [table(file) for file in _inside(path)]
    elif path.exists():
        found = [table(path)]
    elif suffix(path) in READERS or name.startswith((".", "/", "~")):
        raise UserError(f"{name}: there is no such file")
    else:
        return _hub(name)
    if not any(True for one in found for _ in one.rows()):
        raise UserError(f"{name}: it holds no rows" + (", only a header" if any(t.columns for t in found) else ""))
    return found


def table(path: Path) -> Table:
    """One local file. Raises `UserError` for an unknown suffix or a file that cannot be read."""
    if suffix(path) not in READERS:
        shown = repr(suffix(path)) if suffix(path) else "a file without suffix"
        raise UserError(f"{path}: cannot read {shown}; give one of {', '.join(READERS)}")
    header, rows = READERS[suffix(path)]
    with told(path):
        return Table(tuple(header(path)), lambda: _telling(path, rows), str(path))


def suffix(path: Path) -> str:
    """'.jsonl.gz' of 'a.b.JSONL.gz'."""
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def text(path: Path, newline: str | None = None) -> IO[str]:
    """A text file, compressed or not, as UTF-8 with or without a mark at its start."""
    opening = gzip.open if path.suffix.lower() == ".gz" else open
    return opening(path, "rt", encoding="utf-8-sig", newline=newline)  # type: ignore[operator, no-any-return]


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """What goes wrong with a file, as one line that says what to do."""
    try:
        yield
    except UnicodeDecodeError as error:
        # Nobody can know the encoding; a mark at the start says UTF-16, and most others are Windows files.
        marked = path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise UserError(
            f"{path}: is not UTF-8 (byte 0x{error.object[error.start]:02x}); convert it: iconv -f "
            f"{'UTF-16' if marked else 'WINDOWS-1252'} -t UTF-8 {shlex.quote(str(path))} > NEW"
            + ("" if marked else " (a guess: use the encoding it was saved in)")
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is not a whole gzip file ({error}); fetch or compress it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except RecursionError as error:
        raise UserError(f"{path}: its JSON is nested too deeply to be rows") from error


def _telling(path: Path, rows: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
    with told(path):
        yield from rows(path)


def _inside(folder: Path) -> list[Path]:
    """The data files of a folder and its subfolders, in order; hidden ones are not looked at."""
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and suffix(f) in READERS]
    files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(folder).parts)]
    if any(f.name in ("dataset_dict.json", "state.json") for f in files):
        raise UserError(f"{folder}: was written by save_to_disk; write its rows with to_parquet or to_json instead")
    kinds = sorted({suffix(f).removesuffix(".gz").replace("jsonl", "json") for f in files})
    if not files:
        raise UserError(f"{folder}: there is no data file in this folder; give one with {', '.join(READERS)} files")
    if len(kinds) > 1:
        raise UserError(f"{folder}: holds {' and '.join(kinds)} files; name one file, or a folder with one kind")
    return files


# --- JSON


def _json_rows(path: Path) -> Iterator[Row]:
    """JSON Lines, whatever the suffix says, or one list of objects, or one object."""
    with text(path) as file:
        filled = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        (at, first), (_, second) = next(filled, (0, "")), next(filled, (0, ""))
        file.seek(0)
        with contextlib.suppress(ValueError):
            if isinstance(json.loads(first), dict):
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield _object(path, number, line)
                return
        whole = file.read()
        if not whole.strip():
            return
        try:
            value = json.loads(whole)
        except json.JSONDecodeError as error:
            if first.strip() not in ("[", "{") and ("jsonl" in suffix(path) or _is_object(second)):
                _object(path, at, first)  # of JSON Lines the first is to blame, whose end may look right
            raise UserError(f"{path}: line {error.lineno} is no JSON ({error.msg}, column {error.colno})") from error
        for number, item in enumerate(value if isinstance(value, list) else [value], 1):
            if not isinstance(item, dict):
                raise UserError(f'{path}: item {number} is not an object such as {{"prompt": …}}; it is {_short(item)}')
            yield item


def _is_object(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False


def _object(path: Path, number: int, line: str) -> Row:
    try:
        value = json.loads(line.rstrip("\n"))  # or an error at its end would be in column 1
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {number} is no JSON ({error.msg}, column {error.colno})") from error
    if not isinstance(value, dict):
        raise UserError(f'{path}: line {number} is not an object such as {{"prompt": …}}; it is {_short(value)}')
    return value


def _json_header(path: Path) -> Iterator[str]:
    return iter(dict.fromkeys(key for row in _json_rows(path) for key in row))


def _short(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 40 else shown[:39] + "…"


def wrapped(rows: Iterator[Row]) -> str:
    """The key of the only row under which a list of objects is kept: {"version": 1, "data": [{…}, …]}; else ''."""
    row = next(rows, {})
    if next(rows, None) is not None:
        return ""
    lists = [key for key, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return lists[0] if lists else ""


# --- CSV and Parquet


def _csv_header(path: Path) -> list[str]:
    with text(path, newline="") as file:
        header = next(csv.reader(file), [])
    for mark, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and mark in header[0]:
            raise UserError(
                f"{path}: its cells are separated by {called}, not commas; write it with commas, such as "
                f"pandas.read_csv({str(path)!r}, sep={mark!r}, dtype=str, keep_default_na=False).to_csv(…, index=False)"
            )
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: its header names column {twice!r} twice; rename one")
    return header


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # a prompt may be longer than the default of 128 KiB
    with text(path, newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            for cells in reader:
                if len(cells) > len(header):
                    raise UserError(
                        f"{path}: line {reader.line_num} has {len(cells)} cells and the header {len(header)}; put a "
                        'cell that holds commas in "quotes"'
                    )
                if cells:
                    yield dict(zip(header, cells, strict=False))
        except csv.Error as error:
            raise UserError(
                f"{path}: line {reader.line_num} is no CSV ({error}); put such cells in quotes, and double the quotes "
                "inside them"
            ) from error


def _parquet_header(path: Path) -> list[str]:
    with _parquet(path) as file:
        return list(file.schema_arrow.names)


def _parquet_rows(path: Path) -> Iterator[Row]:
    with _parquet(path) as file:
        for batch in file.iter_batches(1000):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


READERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Iterator[Row]]]] = {
    ".jsonl": (_json_header, _json_rows),
    ".jsonl.gz": (_json_header, _json_rows),
    ".json": (_json_header, _json_rows),
    ".json.gz": (_json_header, _json_rows),
    ".csv": (_csv_header, _csv_rows),
    ".parquet": (_parquet_header, _parquet_rows),
}
"""Suffix of a local file -> what reads its column names, and its rows."""


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
                loaded = {configuration: datasets.load_dataset(repository, configuration or None)}
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
        Table(tuple(split.column_names), lambda split=split: _hub_rows(split), f"{where}/{part}".lstrip("/"))
        for where, splits in loaded.items()
        for part, split in splits.items()
    ]


def _hub_rows(split: Any) -> Iterator[Row]:
    for batch in split.iter(1000):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))
