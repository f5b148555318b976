"""Rows of one file, by its format: JSON Lines, JSON, CSV or Parquet.

No row is lost on the way. A file that is not what it should be (another encoding, broken JSON, half a gzip file) is a
`UserError`, wherever the damage lies; a whole row that holds something nobody can read is an `Unusable` in its place.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import json
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from raypref.config import UserError
from raypref.data.rows import Row, Unusable

LONG_NUMBER = "a number of more digits than Python reads (4,300), which should be text"
TOO_DEEP = "JSON that is nested too deeply"
NOT_UTF8 = "a text that is not UTF-8"
OUT_OF_RANGE = "a value out of range, such as a date"


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
