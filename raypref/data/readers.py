"""Rows of one file, by its format: JSON Lines, JSON, CSV or Parquet.

No row is lost on the way. A file that is not what it should be (another encoding, broken JSON, half a gzip file) is a
`UserError`, wherever the damage lies; a whole row that holds something nobody can read is an `Unusable` in its place.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import itertools
import json
import shlex
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from raypref.config import UserError
from raypref.data.rows import Row, RowRead, Table, Unusable, shortened

LONG_NUMBER = "a number of more digits than Python reads (4,300), which should be text"
TOO_DEEP = "JSON that is nested too deeply"
NOT_UTF8 = "a text that is not UTF-8"
OUT_OF_RANGE = "a value out of range, such as a date"

BATCH = 1000
"""Rows that are turned into Python's objects at a time, where they come in columns."""


def suffix(path: Path) -> str:
    """The end of a file's name that tells its format, in small letters: '.jsonl.gz' of 'a.b.JSONL.gz'."""
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what goes wrong with a file into a `UserError` of one line that says what to do."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is not a whole gzip file ({error}); fetch or compress it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except RecursionError as error:
        raise UserError(f"{path}: its JSON is nested too deeply to be rows") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno} is no JSON ({error.msg}, column {error.colno})") from error


def table(path: Path) -> Table:
    """The rows of one local file, whose suffix is one of `READERS`. Raises `UserError` where it cannot be read."""
    read_header, read_rows = READERS[suffix(path)]
    with explained(path):
        _check_kind(path)

    def rows() -> Iterator[RowRead]:
        with explained(path):
            yield from read_rows(path)

    with explained(path):
        return Table(tuple(read_header(path)), rows, str(path))


def _check_kind(path: Path) -> None:
    """`UserError` where the file begins like one of another kind than its name says."""
    with path.open("rb") as file:
        head = file.read(64)
    for begins, what in KINDS.items():
        if head.startswith(begins) and not (begins == GZIP and path.suffix.lower() == ".gz"):
            raise UserError(f"{path}: {what.format(path=shlex.quote(str(path)))}")


GZIP, LFS = b"\x1f\x8b", b"version https://git-lfs"
KINDS = {
    LFS: "is Git LFS's pointer to the file, not the file itself; fetch it: git lfs pull",
    GZIP: "is compressed by gzip, which its name does not say: mv {path} {path}.gz",
    b"PK\x03\x04": "is a zip archive; unpack it first: unzip {path}",
    **{bytes([0x80, n]): "is a pickle, which could run anything; write JSON Lines or Parquet" for n in (2, 3, 4, 5)},
}
"""How files begin that are often given by mistake -> what they are, and what to do."""


# --- text


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not, each with its end; UTF-8 with or without a mark at its start.

    Each is decoded by itself, so that what is wrong with one is said of that line and no other. Raises `UserError` at
    the first that is not UTF-8.
    """
    with _open(path) as file:
        number = 0
        for block in file:
            for raw in block.splitlines(keepends=True):  # a carriage return alone ends a line, too
                number += 1
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise _not_utf8(path, number, error) from error
                yield line


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))


def _not_utf8(path: Path, number: int, error: UnicodeDecodeError) -> UserError:
    """Nobody can know the encoding; a mark at the start says UTF-16, and most others are Windows files. Not so where
    other lines are beyond ASCII and UTF-8: there the one line is to blame."""
    problem = f"{path}: line {number} is not UTF-8 (byte 0x{error.object[error.start]:02x})"
    with _open(path) as file:
        utf16 = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        if not utf16 and any(not line.isascii() and "\ufffd" not in line.decode(errors="replace") for line in file):
            return UserError(f"{problem}, though other lines are; mend that line or remove it")
    name = shlex.quote(str(path))
    command = f"iconv -f {'UTF-16' if utf16 else 'WINDOWS-1252'} -t UTF-8"
    command = f"gzip -dc {name} | {command} | gzip > NEW" if path.suffix.lower() == ".gz" else f"{command} {name} > NEW"
    guess = "" if utf16 else " (a guess: use the encoding it was saved in)"
    return UserError(f"{problem}; convert it: {command}{guess}")


# --- JSON


_LONG = object()
"""Stands for an integer of more digits than Python reads."""


def _json_rows(path: Path) -> Iterator[RowRead]:
    """JSON Lines, whatever the suffix says, or one list of objects, or one object."""
    numbered = ((number, line) for number, line in enumerate(lines(path), 1) if line.strip())
    at, first = next(numbered, (0, ""))
    if not first:
        return
    if _is_object(first):
        for number, line in itertools.chain([(at, first)], numbered):
            yield _json_line(path, number, line)
        return
    try:
        value, has_long = _parse("".join(lines(path)))
    except json.JSONDecodeError as error:
        if first.strip() == "{" and error.msg == "Extra data":
            name = shlex.quote(str(path))
            raise UserError(
                f"{path}: its objects go over several lines; put each on one: jq -c . {name} > NEW"
            ) from None
        _, second = next(numbered, (0, ""))
        if first.strip() not in ("[", "{") and ("jsonl" in suffix(path) or _is_object(second)):
            _json_line(path, at, first)  # of JSON Lines the first is to blame, whose end may look right
        raise
    for number, item in enumerate(value if isinstance(value, list) else [value], 1):
        yield _json_row(path, f"item {number}", item, has_long and _holds_long(item))


def _are_columns(value: Any) -> bool:
    """Whether it is what pandas makes of a table by default: column -> number of the row -> cell, or a list of cells
    (not turns of a conversation, which are objects)."""
    if not isinstance(value, dict) or len(value) < 2 or len({type(cells) for cells in value.values()}) > 1:
        return False
    first = next(iter(value.values()))
    if isinstance(first, dict):
        return all(cells.keys() == first.keys() and all(map(str.isdigit, cells)) for cells in value.values())
    return isinstance(first, list) and not any(isinstance(cell, dict) for cells in value.values() for cell in cells)


def _json_line(path: Path, number: int, line: str) -> RowRead:
    try:
        value, has_long = _parse(line.rstrip("\r\n"))  # or an error at its end would be in column 1
    except json.JSONDecodeError as error:
        error.lineno = number
        raise
    except RecursionError:
        return Unusable(TOO_DEEP, f"line {number}")
    return _json_row(path, f"line {number}", value, has_long)


def _json_row(path: Path, place: str, value: Any, has_long: bool) -> RowRead:
    """The value as a row. has_long: whether `_LONG` is in it."""
    if not isinstance(value, dict):
        text = shortened(json.dumps(value, ensure_ascii=False, default=lambda long: "…"))
        raise UserError(f'{path}: {place} is not an object such as {{"prompt": …}}; it is {text}')
    if _are_columns(value):
        raise UserError(
            f"{path}: {place} is an object of columns and no row; write rows: "
            "DataFrame.to_json(…, orient='records', lines=True)"
        )
    return Unusable(LONG_NUMBER, place) if has_long else value


def _parse(text: str) -> tuple[Any, bool]:
    """What the JSON says, and whether `_LONG` is in it."""
    try:
        return json.loads(text), False
    except json.JSONDecodeError:
        raise
    except ValueError:  # of int()
        most = sys.get_int_max_str_digits()
        return json.loads(text, parse_int=lambda n: _LONG if len(n.lstrip("-")) > most else int(n)), True


def _holds_long(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_long, value.values()))
    return any(map(_holds_long, value)) if isinstance(value, list) else value is _LONG


def _is_object(line: str) -> bool:
    try:
        return isinstance(_parse(line)[0], dict)
    except RecursionError:
        return line.lstrip().startswith("{")
    except json.JSONDecodeError:
        return False


def _json_header(path: Path) -> Iterable[str]:
    return dict.fromkeys(key for row in _json_rows(path) if not isinstance(row, Unusable) for key in row)


# --- CSV


def _csv_header(path: Path) -> list[str]:
    header = next(csv.reader(lines(path)), [])
    for mark, marks in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and mark in header[0]:
            raise UserError(
                f"{path}: its cells are separated by {marks}, not commas; write it with commas, such as "
                f"pandas.read_csv({str(path)!r}, sep={mark!r}, dtype=str, keep_default_na=False).to_csv(…, index=False)"
            )
    for name in header:
        if header.count(name) > 1:
            raise UserError(f"{path}: its header names column {name!r} twice; rename one")
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


# --- Parquet


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (pyarrow.ArrowException, ValueError) as error:  # a column's name may be broken text, too
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


def _parquet_header(path: Path) -> list[str]:
    with _parquet(path) as file:
        return list(file.schema_arrow.names)


def _parquet_rows(path: Path) -> Iterator[RowRead]:
    with _parquet(path) as file:
        first = 0  # row of the batch, in the file
        for batch in file.iter_batches(BATCH):
            read = functools.partial(_rows_of_arrow, batch, first)
            yield from rows_of_batch(read, first, first + batch.num_rows)
            first += batch.num_rows


def _rows_of_arrow(batch: Any, first: int, start: int, end: int) -> list[Row]:
    return batch.slice(start - first, end - start).to_pylist()


def rows_of_batch(read: Callable[[int, int], list[Row]], start: int, end: int) -> Iterator[RowRead]:
    """Rows `start` to `end` of data kept by columns; one with a cell that Python cannot hold costs itself alone.

    read: (start, end) -> these rows. Both count from 0 in the file.
    """
    try:
        yield from read(start, end)
    except (ValueError, OverflowError):
        for i in range(start, end):
            try:
                yield from read(i, i + 1)
            except (ValueError, OverflowError) as error:
                reason = NOT_UTF8 if isinstance(error, UnicodeDecodeError) else OUT_OF_RANGE
                yield Unusable(reason, f"row {i + 1}")


READERS: dict[str, tuple[Callable[[Path], Iterable[str]], Callable[[Path], Iterator[RowRead]]]] = {
    **dict.fromkeys((".jsonl", ".jsonl.gz", ".json", ".json.gz"), (_json_header, _json_rows)),
    ".csv": (_csv_header, _csv_rows),
    ".parquet": (_parquet_header, _parquet_rows),
}
"""Suffix of a local file -> what reads its column names, and its rows."""
