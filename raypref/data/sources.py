"""Rows of a source as dictionaries, as they are: local files and folders, and data sets of the Hugging Face hub.

Local files are read here rather than by `datasets`: rows may then differ in their keys (as those of TL;DR's files do),
every cell of a CSV is the text that was written, nothing is copied to a cache, and an error can name the line.

No row is lost on the way. A file that is not what it should be (another encoding, broken JSON, half a gzip file) is a
`UserError`, wherever the damage lies; a whole row that holds something nobody can read is an `Unusable` in its place.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import itertools
import json
import os
import re
import shlex
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from raypref.config import UserError

Row = Mapping[str, Any]

LONG_NUMBER = "a number of more digits than Python reads (4,300), which should be text"
TOO_DEEP = "JSON that is nested too deeply"
NOT_UTF8 = "a text that is not UTF-8"
OUT_OF_RANGE = "a value out of range, such as a date"


class Unusable(ValueError):
    """A row that holds no choice between two texts; the message is the reason, as it is counted."""

    def __init__(self, reason: str, place: str = "") -> None:
        """place: where it stands, such as `line 120`; empty where the row could be read, and lacks something."""
        super().__init__(reason)
        self.place = place


class Losses:
    """Rows left out: how many for each reason, and where the first few stand."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: dict[str, list[str]] = {}

    def add(self, row: Unusable) -> None:
        reason = str(row)
        self._counts[reason] += 1
        places = self._places.setdefault(reason, [])
        if row.place and len(places) <= SHOWN:
            places.append(row.place)

    def reasons(self) -> dict[str, int]:
        """Reason -> rows, the most frequent first; with the places where they are known."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return {why + (f" ({some(self._places[why])})" if self._places[why] else ""): n for why, n in ordered}


SHOWN = 5
"""How many of a list a sentence names."""


def some(items: Sequence[object], most: int = SHOWN) -> str:
    """The first few of a list, for a sentence."""
    return ", ".join(map(str, items[:most])) + (", …" if len(items) > most else "")


@dataclass(frozen=True)
class Table:
    """Some rows under one header; a row may lack columns."""

    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row | Unusable]]
    """Iterates anew at every call, from the disk; a row that could not be read is the reason why."""
    name: str
    """Of the file, or of the hub data set's split, behind its configuration or folder: `helpful-base/train`."""


def tables(name: str) -> list[Table]:
    """The source called `name`: a file, a folder of files of one format, or a hub id as `OWNER/NAME[:CONFIGURATION]`
    or `OWNER/NAME:FOLDER+FOLDER`.

    Raises `UserError` with one line on whatever cannot be read.
    """
    files = _files(name)
    if files is None:
        return _hub(name)
    found = [table(file) for file in files]
    lost = Losses()
    for row in rows_of(found):
        if not isinstance(row, Unusable):
            return found
        lost.add(row)
    if lost.reasons():
        raise UserError(f"{name}: none of its rows can be read: {'; '.join(lost.reasons())}")
    raise UserError(f"{name}: it holds no rows" + (", only a header" if any(t.columns for t in found) else ""))


def rows_of(tables: Sequence[Table]) -> Iterator[Row | Unusable]:
    """The rows of all of them; of several, what could not be read says in which it stands."""
    for one in tables:
        for row in one.rows():
            if isinstance(row, Unusable) and len(tables) > 1:
                yield Unusable(str(row), f"{row.place} of {one.name}")
            else:
                yield row


def digest(source: str) -> str:
    """16 hex digits that name what a local source holds; empty for `synthetic` and for a hub id, which are not looked
    at.

    Of one file its bytes, whatever it is called; of a folder the names within it and the bytes of the files that
    `tables` reads. So moving either changes nothing, and changing a byte does. Raises `UserError` as `tables` does
    where a file is missing or cannot be read.
    """
    files = None if source == "synthetic" else _files(source)
    if files is None:
        return ""
    root = Path(source).expanduser()
    if files == [root]:
        return _content(root)[:16]
    whole = hashlib.sha256()
    for file in files:
        name = os.fsencode(file.relative_to(root).as_posix())
        whole.update(len(name).to_bytes(8, "big") + name + bytes.fromhex(_content(file)))
    return whole.hexdigest()[:16]


_KNOWN: dict[tuple[str, int, int], str] = {}
"""Path, size and time of change in ns -> sha256 in hex, of files that this process has read before."""

SETTLED = 2_000_000_000
"""Nanoseconds after which a change of a file shows in its time: coarse clocks give two quick changes the same."""


def _content(file: Path) -> str:
    """The sha256 of a file's bytes, in hex; read once as long as it does not change."""
    with told(file):
        status = file.stat()
        key = (str(file.absolute()), status.st_size, status.st_mtime_ns)
        if key in _KNOWN:
            return _KNOWN[key]
        with open(file, "rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
        if time.time_ns() - status.st_mtime_ns > SETTLED:
            _KNOWN[key] = found
        return found


def _files(name: str) -> list[Path] | None:
    """The local files that a source stands for, in order; None where it is a hub id. Raises `UserError` where they are
    not there or cannot be read together."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _inside(path)
    if path.exists():
        if suffix(path) not in READERS:
            shown = repr(suffix(path)) if suffix(path) else "a file without suffix"
            raise UserError(f"{path}: cannot read {shown}; give one of {', '.join(READERS)}")
        return [path]
    if suffix(path) in READERS or name.startswith((".", "/", "~")):
        raise UserError(f"{name}: there is no such file")
    return None


def table(path: Path) -> Table:
    """One local file, whose suffix is one of `READERS`. Raises `UserError` where it cannot be read."""
    header, rows = READERS[suffix(path)]
    with told(path):
        return Table(tuple(header(path)), lambda: _telling(path, rows), str(path))


def suffix(path: Path) -> str:
    """'.jsonl.gz' of 'a.b.JSONL.gz'."""
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not, each with its end; UTF-8 with or without a mark at its start.

    Each is decoded by itself, so that what is wrong with one is said of that line and no other. Raises `UserError` at
    the first that is not UTF-8.
    """
    opening = gzip.open if path.suffix.lower() == ".gz" else open
    with opening(path, "rb") as file:
        number = 0
        for block in file:
            for raw in block.splitlines(keepends=True):  # a carriage return alone ends a line, too
                number += 1
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise _not_utf8(path, number, error) from error
                yield line


def _not_utf8(path: Path, number: int, error: UnicodeDecodeError) -> UserError:
    """Nobody can know the encoding; a mark at the start says UTF-16, and most others are Windows files. Not so where
    other lines are beyond ASCII and UTF-8: there the one line is to blame."""
    said = f"{path}: line {number} is not UTF-8 (byte 0x{error.object[error.start]:02x})"
    packed = path.suffix.lower() == ".gz"
    with (gzip.open if packed else open)(path, "rb") as file:
        marked = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        if not marked and any(_is_utf8(line) and not line.isascii() for line in file):
            return UserError(f"{said}, though other lines are; mend that line or remove it")
    of = shlex.quote(str(path))
    command = f"iconv -f {'UTF-16' if marked else 'WINDOWS-1252'} -t UTF-8"
    command = f"gzip -dc {of} | {command} | gzip > NEW" if packed else f"{command} {of} > NEW"
    return UserError(
        f"{said}; convert it: {command}" + ("" if marked else " (a guess: use the encoding it was saved in)")
    )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """What goes wrong with a file, as one line that says what to do."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is not a whole gzip file ({error}); fetch or compress it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except RecursionError as error:
        raise UserError(f"{path}: its JSON is nested too deeply to be rows") from error


def _telling(path: Path, rows: Callable[[Path], Iterator[Row | Unusable]]) -> Iterator[Row | Unusable]:
    with told(path):
        yield from rows(path)


def _inside(folder: Path) -> list[Path]:
    """The data files of a folder and its subfolders, linked ones too, in order; hidden ones are not looked at."""
    files = sorted(_walk(folder))
    if any(f.name in ("dataset_dict.json", "state.json") for f in files):
        raise UserError(f"{folder}: was written by save_to_disk; write its rows with to_parquet or to_json instead")
    for file in files:
        if suffix(file) in READERS and not file.exists():
            raise UserError(f"{file}: is a link to nothing; fetch what it points to, or remove the link")
        packed = file.suffix.lower() in PACKED and suffix(file.with_suffix("")) in READERS
        if packed and suffix(file) not in READERS:
            raise UserError(f"{file}: cannot read {suffix(file)!r}; unpack it, or keep it elsewhere")
    files = [f for f in files if suffix(f) in READERS and f.is_file()]
    kinds = sorted({suffix(f).removesuffix(".gz").replace("jsonl", "json") for f in files})
    if not files:
        raise UserError(f"{folder}: there is no data file in this folder; give one with {', '.join(READERS)} files")
    if len(kinds) > 1:
        raise UserError(f"{folder}: holds {' and '.join(kinds)} files; name one file, or a folder with one kind")
    return files


PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def _walk(folder: Path) -> Iterator[Path]:
    """All that is no folder; one that is linked to twice, or within itself, is entered once."""

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error

    entered: set[str] = set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (place := os.path.realpath(root)) in entered:
            folders.clear()
            continue
        entered.add(place)
        yield from (Path(root, name) for name in names if not name.startswith("."))


# --- JSON


class _Long(int):
    """Stands for an integer of more digits than Python reads."""


def _json_rows(path: Path) -> Iterator[Row | Unusable]:
    """JSON Lines, whatever the suffix says, or one list of objects, or one object."""
    filled = ((number, line) for number, line in enumerate(lines(path), 1) if line.strip())
    (at, first), (_, second), *_ = *itertools.islice(filled, 2), (0, ""), (0, "")
    if not first:
        return
    if _is_object(first):
        for number, line in enumerate(lines(path), 1):
            if line.strip():
                yield _object(path, number, line)
        return
    try:
        value, long = _parse("".join(lines(path)))
    except json.JSONDecodeError as error:
        if first.strip() not in ("[", "{") and ("jsonl" in suffix(path) or _is_object(second)):
            _object(path, at, first)  # of JSON Lines the first is to blame, whose end may look right
        raise UserError(f"{path}: line {error.lineno} is no JSON ({error.msg}, column {error.colno})") from error
    for number, item in enumerate(value if isinstance(value, list) else [value], 1):
        if not isinstance(item, dict):
            raise UserError(f'{path}: item {number} is not an object such as {{"prompt": …}}; it is {_short(item)}')
        yield Unusable(LONG_NUMBER, f"item {number}") if long and _holds_long(item) else item


def _parse(text: str) -> tuple[Any, bool]:
    """What the JSON says, and whether a `_Long` is in it."""
    try:
        return json.loads(text), False
    except json.JSONDecodeError:
        raise
    except ValueError:  # of int(), which takes 4,300 digits
        return json.loads(text, parse_int=_integer), True


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        return _Long()


def _holds_long(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_long, value.values()))
    return any(map(_holds_long, value)) if isinstance(value, list) else isinstance(value, _Long)


def _is_object(line: str) -> bool:
    try:
        return isinstance(_parse(line)[0], dict)
    except RecursionError:
        return line.lstrip().startswith("{")
    except ValueError:
        return False


def _object(path: Path, number: int, line: str) -> Row | Unusable:
    try:
        value, long = _parse(line.rstrip("\r\n"))  # or an error at its end would be in column 1
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {number} is no JSON ({error.msg}, column {error.colno})") from error
    except RecursionError:
        return Unusable(TOO_DEEP, f"line {number}")
    if not isinstance(value, dict):
        raise UserError(f'{path}: line {number} is not an object such as {{"prompt": …}}; it is {_short(value)}')
    return Unusable(LONG_NUMBER, f"line {number}") if long else value


def _json_header(path: Path) -> Iterator[str]:
    return iter(dict.fromkeys(key for row in _json_rows(path) if not isinstance(row, Unusable) for key in row))


def _short(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 40 else shown[:39] + "…"


def wrapped(rows: Iterable[Row | Unusable | None]) -> str:
    """The key of the only row under which a list of objects is kept: {"version": 1, "data": [{…}, …]}; else ''."""
    rows = (row for row in rows if isinstance(row, Mapping))
    row = next(rows, {})
    if next(rows, None) is not None:
        return ""
    lists = [key for key, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return lists[0] if lists else ""


# --- CSV and Parquet


def _csv_header(path: Path) -> list[str]:
    header = next(csv.reader(lines(path)), [])
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
    reader = csv.reader(lines(path), strict=True)
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


def _parquet_rows(path: Path) -> Iterator[Row | Unusable]:
    with _parquet(path) as file:
        before = 0
        for batch in file.iter_batches(1000):
            yield from _cells(batch, before)
            before += batch.num_rows


def _cells(batch: Any, before: int) -> list[Row | Unusable]:
    """The rows of an Arrow batch; those with a cell that Python cannot hold say so, after `before` others."""
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError) as error:
        if batch.num_rows > 1:
            return [row for i in range(batch.num_rows) for row in _cells(batch.slice(i, 1), before + i)]
        reason = NOT_UTF8 if isinstance(error, UnicodeDecodeError) else OUT_OF_RANGE
        return [Unusable(reason, f"row {before + 1}")]


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (pyarrow.ArrowException, ValueError) as error:  # a column's name may be broken text, too
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


READERS: dict[str, tuple[Callable[[Path], Iterable[str]], Callable[[Path], Iterator[Row | Unusable]]]] = {
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
        Table(tuple(split.column_names), lambda split=split: _hub_rows(name, split), f"{where}/{part}".lstrip("/"))
        for where, splits in loaded.items()
        for part, split in splits.items()
    ]


def _hub_rows(name: str, split: Any) -> Iterator[Row]:
    try:
        for batch in split.iter(1000):
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(batch, values, strict=True))
    except Exception as error:  # of many kinds: a broken cache, cells that cannot be decoded
        raise UserError(f"{name}: its rows cannot be read ({' '.join(str(error).split())})") from error
