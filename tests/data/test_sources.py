"""Files that people really have: what is wrong with them, and what to do, in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from raypref.config import DataConfig, UserError
from raypref.data.load import load
from raypref.data.sources import tables

HEADER = "client_id,prompt,chosen,rejected\n"
ROW = '{"client_id": "a", "prompt": "p", "chosen": "x", "rejected": "y"}\n'


def rows(path: Path) -> list[dict]:
    return [dict(row) for table in tables(str(path)) for row in table.rows()]


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
