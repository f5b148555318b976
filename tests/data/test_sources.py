"""Files that people really have: what is wrong with them, and what to do, in one line."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from raypref.config import DataConfig, UserError
from raypref.data.federation import FOLDS
from raypref.data.load import load, read
from raypref.data.readers import LONG_NUMBER, NOT_UTF8, OUT_OF_RANGE, TOO_DEEP
from raypref.data.rows import Unusable
from raypref.data.sources import digest, tables
from raypref.data.synthesize import read_prompts

HEADER = "client_id,prompt,chosen,rejected\n"
ROW = '{"client_id": "a", "prompt": "p", "chosen": "x", "rejected": "y"}\n'


def rows(path: Path) -> list[dict]:
    return [row if isinstance(row, Unusable) else dict(row) for table in tables(str(path)) for row in table.rows()]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.csv",
            b"client_id;prompt;chosen;rejected\na;p;x;y\n",
            r"separated by semicolons, not commas; write it with commas, such as pandas\.read_csv\(.*sep=';'",
        ),
        ("a.csv", HEADER.replace(",", "\t").encode(), "separated by tabs, not commas"),
        ("a.csv", HEADER.encode(), "it holds no rows, only a header"),
        (
            "a.csv",
            f"{HEADER}a,p,x,y\nb,p, x, and so on,y\n".encode(),
            r"line 3 has 5 cells and the header 4; .* in \"quotes",
        ),
        ("a.csv", f'{HEADER}a,p,"x" he said,y\n'.encode(), "line 2 is no CSV .* double the quotes"),
        ("a.csv", b"id,id\n1,2\n", "names column 'id' twice"),
        (
            "a.csv",
            f"{HEADER}a,caf\xe9,x,y\n".encode("latin-1"),
            r"not UTF-8 \(byte 0xe9\); convert it: iconv -f WINDOWS-1252",
        ),
        ("a.csv", HEADER.encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        ("a b.jsonl", ROW.replace("p", "caf\xe9").encode("latin-1"), r"iconv .* '.*a b\.jsonl' > NEW \(a guess"),
        (
            "a.jsonl",
            f'{ROW}\n{{"client_id": "b" "chosen": 1}}\n'.encode(),
            r"line 3 is no JSON \(Expecting ',' .* column 19",
        ),
        ("a.jsonl", f"{ROW}[1, 2]\n".encode(), r"line 2 is not an object such as .*; it is \[1, 2\]"),
        ("a.json", f"[{ROW}, 7]".encode(), "item 2 is not an object"),
        ("a.json", b"[\n  {},\n", "line 3 is no JSON"),
        ("a.jsonl", b"[\n  {},\n", "line 3 is no JSON"),
        ("a.jsonl", f'\n{{"prompt": "p",\n{ROW}'.encode(), r"line 2 is no JSON \(.* column 16"),
        ("a.json", f'{{"prompt": "p"\n{ROW}'.encode(), "line 1 is no JSON"),
        ("a.jsonl", f"7\n{ROW}".encode(), "line 1 is not an object such as .*; it is 7$"),
        ("a.jsonl", b"", "it holds no rows"),
        ("a.json", b"[]", "it holds no rows$"),
        ("a.jsonl.gz", ROW.encode(), "not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(ROW.encode() * 99)[:-9], "not a whole gzip file"),
        ("a.parquet", b"PAR1 not", "cannot be read"),
        ("a.xlsx", b"x", r"cannot read '\.xlsx'; give one of \.jsonl"),
        ("a", b"x", "cannot read a file without suffix"),
    ],
)
def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        rows(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "there is no data file in this folder; give one with .jsonl"),
        (["notes.txt", ".hidden/a.jsonl"], "there is no data file in this folder"),
        (["a.csv", "b.jsonl.gz"], r"holds \.csv and \.json files; name one file"),
        (["train/state.json"], "was written by save_to_disk"),
    ],
)
def test_a_folder_that_cannot_be_read_says_what_to_do(tmp_path, files, said):
    for name in files:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text("{}")
    (tmp_path / "d").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=said):
        rows(tmp_path / "d")


def test_a_folder_of_rows_of_different_forms_is_refused_with_its_files(tmp_path):
    style = '{"prompt": "p", "axis": "humor", "first": "x", "second": "y"}\n'
    tldr = '{"info": {}, "summaries": [], "choice": 0, "worker": "w"}\n'
    for name, content in {"a.jsonl": style, "b.jsonl": tldr, "c.jsonl": ROW, "notes.json": "{}"}.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="different forms") as caught:
        load(DataConfig(source=str(tmp_path)), 0)
    assert [
        f"{tmp_path}/{name} (with {columns})" in str(caught.value)
        for name, columns in (
            ("a.jsonl", "axis, first, prompt, second"),
            ("b.jsonl", "choice, info, summaries, worker"),
            ("c.jsonl", "chosen"),
        )
    ] == [True] * 3
    assert "notes" not in str(caught.value)


def test_rows_wrapped_in_an_object_are_pointed_at(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"version": 1, "data": [json.loads(ROW)] * 3}))
    with pytest.raises(UserError, match=r"is one object and no list of rows; .* under 'data', .* jq '\.data'"):
        load(DataConfig(source=str(path)), 0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", ROW * 2),
        ("a.json", f"[{ROW},{ROW}]"),
        ("a.json", json.dumps([json.loads(ROW)] * 2, indent=2)),
        ("a.jsonl", f"\ufeff\n{ROW}\n\n{ROW}"),
        ("a.CSV", f"\ufeff{HEADER}a,p,x,y\r\n\r\na,p,x,y"),
        ("a.json.gz", ROW * 2),
    ],
)
def test_forms_that_are_read(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    assert rows(path) == [json.loads(ROW)] * 2


def test_cells_longer_than_the_csv_modules_own_limit(tmp_path):
    (tmp_path / "a.csv").write_text(f"{HEADER}a,{'p' * 200_000},x,y\n")
    assert len(rows(tmp_path / "a.csv")[0]["prompt"]) == 200_000


def test_rows_that_lack_a_column_are_counted_not_fatal(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(ROW.replace('"p"', f'"p{i}"') for i in range(60)) + '{"prompt": "p"}\n')
    federation = load(DataConfig(source=str(path)), 0)
    assert federation.notes == ("rows left out, no client id: 1 of 61",)


# --- no row is lost in silence, wherever in a file the damage lies


def example_rows(n: int) -> list[dict]:
    return [{"client_id": "a", "prompt": f"p{i}", "chosen": f"careful {i}", "rejected": f"no {i}"} for i in range(n)]


def as_bytes(name: str, originals: list[dict]) -> bytes:
    """The rows in the format that the name says; `.txt` holds the prompts."""
    if name.endswith(".csv"):
        text = HEADER + "".join(",".join(row.values()) + "\n" for row in originals)
    elif name.endswith(".json"):
        text = "[\n" + ",\n".join(map(json.dumps, originals)) + "\n]\n"
    elif name.endswith(".txt"):
        text = "".join(row["chosen"] + "\n" for row in originals)
    else:
        text = "".join(json.dumps(row) + "\n" for row in originals)
    return text.encode()


N = 400  # more than any reader takes at once


@pytest.mark.parametrize(("name", "above"), [("a.jsonl", 0), ("a.jsonl.gz", 0), ("a.csv", 1), ("a.json", 1)])
@pytest.mark.parametrize("at", [0, 1, N // 2, N - 1])
def test_a_byte_that_is_no_utf8_is_refused_with_its_line(tmp_path, name, above, at):
    lines = as_bytes(name, example_rows(N)).splitlines(keepends=True)
    lines[at + above] = lines[at + above].replace(b"careful", b"caf\xe9")
    content = b"".join(lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    command = f"gzip -dc {path} | iconv" if name.endswith("gz") else "iconv"
    said = f"{path}: line {at + above + 1} is not UTF-8 (byte 0xe9); convert it: {command} -f WINDOWS-1252"
    with pytest.raises(UserError) as caught:
        rows(path)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_byte_in_a_file_of_prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(as_bytes("a.txt", example_rows(N)).replace(b"careful 300\n", b"caf\xe9 300\n"))
    with pytest.raises(UserError, match=r"prompts\.txt: line 301 is not UTF-8 \(byte 0xe9\); convert it"):
        read_prompts(path)


def test_where_other_lines_are_utf8_the_one_line_is_to_blame(tmp_path):
    """Converting the whole file would break the others."""
    path = tmp_path / "a.jsonl"
    good = json.dumps({**example_rows(1)[0], "prompt": "café"}, ensure_ascii=False).encode() + b"\n"
    for content in (good + ROW.replace("p", "caf\xe9").encode("latin-1"), ROW.encode("latin-1") * 3 + b"\xe9\n" + good):
        path.write_bytes(content)
        with pytest.raises(
            UserError, match=r"line \d is not UTF-8 .*, though other lines are; mend that line or remove"
        ):
            rows(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_line_ends_of_every_system(tmp_path, name):
    path = tmp_path / name
    for end in (b"\n", b"\r\n", b"\r"):
        path.write_bytes(as_bytes(name, example_rows(5)).replace(b"\n", end))
        assert rows(path) == example_rows(5)


@pytest.mark.parametrize(("name", "unit"), [("a.jsonl", "line"), ("a.jsonl.gz", "line"), ("a.json", "item")])
@pytest.mark.parametrize("at", [0, 5, 119])
def test_a_number_of_too_many_digits_costs_its_row_and_is_counted(tmp_path, name, unit, at):
    """Python refuses integers of more than 4,300 digits; wherever it stands, all other rows are there."""
    originals = example_rows(120)
    with_long = {**originals[at], "answer": {"is": [1, "MANY"]}}
    text = as_bytes(name, [*originals[:at], with_long, *originals[at + 1 :]]).decode()
    content = text.replace('"MANY"', "-" + "9" * 5000).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    rows_read = rows(path)
    lost = rows_read.pop(at)
    assert rows_read == originals[:at] + originals[at + 1 :]
    assert isinstance(lost, Unusable) and (str(lost), lost.place) == (LONG_NUMBER, f"{unit} {at + 1}")
    federation, counts = read(DataConfig(source=str(path)), 0)
    assert counts.rows == 120 and counts.lost == {f"{LONG_NUMBER} ({unit} {at + 1})": 1}
    assert federation.notes == (f"rows left out, {LONG_NUMBER} ({unit} {at + 1}): 1 of 120",)
    assert sum(federation.sizes(fold).sum() for fold in FOLDS) == 119


def test_numbers_that_python_reads_cost_nothing(tmp_path):
    """A text of many digits, and the longest number that is one."""
    path = tmp_path / "a.jsonl"
    path.write_text(as_bytes("a.jsonl", example_rows(3)).decode().replace('"p1"', '"p1", "is": "' + "9" * 5000 + '"'))
    assert rows(path)[1] == {**example_rows(3)[1], "is": "9" * 5000}
    path.write_text(as_bytes("a.jsonl", example_rows(3)).decode().replace('"p1"', '"p1", "is": ' + "9" * 4300))
    assert rows(path)[1] == {**example_rows(3)[1], "is": int("9" * 4300)}


@pytest.mark.parametrize("at", [0, 7, 59])
def test_a_line_nested_too_deeply_is_counted(tmp_path, at):
    path = tmp_path / "a.jsonl"
    lines = as_bytes("a.jsonl", example_rows(60)).decode().splitlines()
    lines[at] = lines[at][:-1] + ', "deep": ' + "[" * 100_000 + "]" * 100_000 + "}"
    path.write_text("\n".join(lines) + "\n")
    _, counts = read(DataConfig(source=str(path)), 0)
    assert counts.rows == 60 and counts.pairs == 59 and counts.lost == {f"{TOO_DEEP} (line {at + 1})": 1}


def test_many_lost_rows_are_one_reason_with_the_first_few_places(tmp_path):
    (tmp_path / "d").mkdir()
    long = ROW.replace('"p"', "9" * 5000)
    (tmp_path / "d" / "a.jsonl").write_bytes(as_bytes("a.jsonl", example_rows(60)) + long.encode() * 2)
    (tmp_path / "d" / "b.jsonl").write_text(ROW + long * 9)
    _, counts = read(DataConfig(source=str(tmp_path / "d")), 0)
    a, b = (tmp_path / "d" / name for name in ("a.jsonl", "b.jsonl"))
    where = f"line 61 of {a}, line 62 of {a}, line 2 of {b}, line 3 of {b}, line 4 of {b}, …"
    assert counts.lost == {f"{LONG_NUMBER} ({where})": 11} and counts.rows == 72


def test_a_file_without_a_row_that_can_be_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(ROW.replace('"p"', "9" * 5000) * 3)
    with pytest.raises(UserError, match=r"none of its rows can be read: a number .* \(line 1, line 2, line 3\)$"):
        rows(path)


def test_a_hub_data_set_without_rows_says_so(monkeypatch):
    import datasets

    empty = datasets.Dataset.from_dict({"client_id": [], "prompt": []})
    monkeypatch.setattr("datasets.load_dataset", lambda *words: {"train": empty})
    with pytest.raises(UserError, match=r"^a/b: it holds no rows, only a header$"):
        tables("a/b")


@pytest.mark.parametrize("form", ["styles", "kinds"])
def test_rows_that_are_dealt_are_counted_too(tmp_path, form):
    style = [{"prompt": f"p{i}", "axis": ("education", "humor")[i % 2], "first": "x", "second": "y"} for i in range(80)]
    hh = [{"prompt": f"p{i}", "chosen": "x", "rejected": "y"} for i in range(80)]
    long = json.dumps({**style[0], **hh[0], "prompt": 1}).replace("1", "9" * 5000) + "\n"
    names = {"styles": ["style.jsonl"], "kinds": ["helpful.jsonl", "harmless.jsonl"]}[form]
    for name in names:
        (tmp_path / name).write_bytes(as_bytes(name, style if form == "styles" else hh) + long.encode())
    config = {
        "styles": DataConfig(source=str(tmp_path / "style.jsonl"), pairs_per_axis=10, group_sizes=(1, 0, 0, 1)),
        "kinds": DataConfig(source=str(tmp_path), kinds=("helpful", "harmless"), group_sizes=(1, 1)),
    }[form]
    _, counts = read(config, 0)
    assert counts.rows == 81 * len(names)
    where = {"styles": "line 81", "kinds": "line 81 of harmless.jsonl, line 81 of helpful.jsonl"}[form]
    assert counts.lost == {f"{LONG_NUMBER} ({where})": len(names)}


def test_prompts_in_rows_that_cannot_be_read_are_counted(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(ROW + ROW.replace('"x"', "9" * 5000) + ROW.replace('"p"', '"q"'))
    assert read_prompts(path) == (["p", "q"], {f"{LONG_NUMBER} (line 2)": 1})


def test_half_a_gzip_file_is_refused_at_every_length(tmp_path):
    """Whatever part of the rows could still be read: a shorter data set would look like a whole one."""
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(as_bytes("a.jsonl", example_rows(N)))
    for length in range(1, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="is not a whole gzip file"):
            rows(path)
    path.write_bytes(whole[:-8] + bytes(8))  # its checksum is another file's
    with pytest.raises(UserError, match="is not a whole gzip file"):
        rows(path)
    path.write_bytes(whole)
    assert rows(path) == example_rows(N)


def test_a_broken_parquet_file_is_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    table = pyarrow.Table.from_pylist(example_rows(N))
    pyarrow.parquet.write_table(table, path, row_group_size=100, write_page_checksum=True)
    whole = path.read_bytes()
    assert rows(path) == example_rows(N)
    for length in range(0, len(whole), 997):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="cannot be read"):
            rows(path)
    for at in range(4, len(whole) * 3 // 4, 997):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:  # a byte that nobody reads may differ
            assert rows(path) == example_rows(N)
        except UserError as error:
            assert "cannot be read" in str(error)


@pytest.mark.parametrize("hub", [False, True])
def test_cells_of_columns_that_python_cannot_hold_cost_their_rows(tmp_path, monkeypatch, hub):
    """In a Parquet file as in a data set of the hub."""
    import datasets
    import pyarrow
    import pyarrow.parquet

    originals = example_rows(2500)
    texts = [row["chosen"].encode() for row in originals]
    texts[1700] = b"caf\xe9"
    offsets = pyarrow.array([sum(map(len, texts[:i])) for i in range(len(texts) + 1)], pyarrow.int32())
    chosen = pyarrow.Array.from_buffers(
        pyarrow.string(), len(texts), [None, offsets.buffers()[1], pyarrow.py_buffer(b"".join(texts))]
    )
    columns = {name: [row[name] for row in originals] for name in ("client_id", "prompt", "rejected")}
    when = pyarrow.array([2**62 if i == 2400 else 0 for i in range(2500)], pyarrow.timestamp("ms"))
    path, table = tmp_path / "a.parquet", pyarrow.table({**columns, "chosen": chosen, "when": when})
    pyarrow.parquet.write_table(table, path)
    monkeypatch.setattr("datasets.load_dataset", lambda *words: {"train": datasets.Dataset(table)})
    _, counts = read(DataConfig(source="a/b" if hub else str(path)), 0)
    assert counts.rows == 2500 and counts.pairs == 2498
    assert counts.lost == {f"{NOT_UTF8} (row 1701)": 1, f"{OUT_OF_RANGE} (row 2401)": 1}


def test_a_folder_is_never_read_in_part(tmp_path):
    folder, elsewhere = tmp_path / "d", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        place.mkdir()
    (folder / "a.jsonl").write_text(ROW)
    (elsewhere / "b.jsonl").write_text(ROW)
    (folder / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert rows(folder) == [json.loads(ROW)] * 2
    (folder / "c.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(UserError, match=r"d/c\.jsonl: is a link to nothing; fetch what it points to"):
        rows(folder)
    (folder / "c.jsonl").unlink()
    for name in ("c.jsonl.zst", "c.csv.gz"):
        (folder / name).write_text("x")
        with pytest.raises(UserError, match=rf"{name}: cannot read '.*'; unpack it, or keep it elsewhere"):
            rows(folder)
        (folder / name).unlink()
    (folder / "notes.txt.gz").write_text("x")
    assert rows(folder) == [json.loads(ROW)] * 2


def test_rows_of_the_hub_that_break_off_are_one_line(monkeypatch):
    class Split:
        column_names = ("client_id", "prompt")

        def __len__(self):
            return 2000

        def __getitem__(self, part):
            if part.start:
                raise OSError("the cache is\nbroken")
            return {"client_id": ["a"] * part.stop, "prompt": ["p"] * part.stop}

    monkeypatch.setattr("datasets.load_dataset", lambda *words: {"train": Split()})
    (one,) = tables("a/b")
    with pytest.raises(UserError, match=r"^a/b: its rows cannot be read \(the cache is broken\)$"):
        list(one.rows())


# --- data are known by their digest


def folder_of(root: Path) -> Path:
    (root / "more").mkdir(parents=True)
    (root / "a.jsonl").write_text(ROW)
    (root / "more" / "b.jsonl.gz").write_bytes(gzip.compress(ROW.encode() * 2, mtime=0))
    return root


def test_a_file_is_known_by_its_bytes_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(ROW)
    assert digest(str(path)) == hashlib.sha256(ROW.encode()).hexdigest()[:16]
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "b.json")
    assert digest(str(moved)) == hashlib.sha256(ROW.encode()).hexdigest()[:16]


def test_a_folder_is_known_by_what_is_read_of_it_wherever_it_lies(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "d")
    first = digest(str(folder))
    assert len(first) == 16 and int(first, 16) >= 0
    shutil.move(folder, tmp_path / "elsewhere")
    folder = tmp_path / "elsewhere"
    (folder / "README.md").write_text("not data")
    (folder / ".hidden.jsonl").write_text(ROW)
    os.utime(folder / "a.jsonl", (1, 1))
    monkeypatch.chdir(folder)
    assert digest(str(folder)) == digest(".") == digest("../elsewhere/") == first
    (folder / "a.jsonl").rename(folder / "c.jsonl")
    assert digest(str(folder)) != first


@pytest.mark.parametrize("name", ["a.jsonl", "more/b.jsonl.gz"])
def test_each_byte_counts(tmp_path, name):
    folder = folder_of(tmp_path / "d")
    whole, seen = (folder / name).read_bytes(), {digest(str(folder))}
    for at in range(len(whole)):
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        seen.add(digest(str(folder)))
    assert len(seen) == len(whole) + 1
    (folder / name).write_bytes(whole)
    assert digest(str(folder)) in seen


def test_bytes_do_not_move_between_files(tmp_path):
    texts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    digests = set()
    for i, (one, two) in enumerate(texts):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "a.csv").write_text(one)
        (tmp_path / str(i) / "b.csv").write_text(two)
        digests.add(digest(str(tmp_path / str(i))))
    assert len(digests) == 4


def test_a_file_that_does_not_change_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text(ROW)
    os.utime(path, ns=(10**18, 10**18))
    first, real, reads = digest(str(path)), hashlib.file_digest, []
    monkeypatch.setattr("hashlib.file_digest", lambda *words: reads.append(1) or real(*words))
    assert digest(str(path)) == first and not reads
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert digest(str(path)) == first and len(reads) == 1


def test_what_is_not_on_the_disk_has_no_digest(tmp_path):
    assert digest("synthetic") == digest("graded") == digest("openai/summarize_from_feedback:comparisons") == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.jsonl", "there is no such file"),
        ("", "there is no data file in this folder"),
        ("a.xlsx", r"cannot read '\.xlsx'"),
    ],
)
def test_a_source_that_cannot_be_read_has_no_digest_either(tmp_path, name, said):
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(UserError, match=said):
        digest(str(tmp_path / name))
