"""Files and cells that are not what they look like: read as what they are, or refused with what to do."""

import gzip
import json
import zipfile

import pytest

from raypref.config import DataConfig, UserError
from raypref.data.forms.pairs import HALF, PRINTED, extract
from raypref.data.people import assemble
from raypref.data.readers import table
from raypref.data.rows import Unusable, as_text

TURNS = [{"role": "user", "content": 'Why "rain"?'}, {"role": "assistant", "content": "Clouds."}]
OTHER = [TURNS[0], {"role": "assistant", "content": "It's water."}]
SHAREGPT = [{"from": "human", "value": 'Why "rain"?'}, {"from": "gpt", "value": "Clouds."}]


@pytest.mark.parametrize("write", [json.dumps, repr, lambda turns: turns], ids=["JSON", "repr", "list"])
@pytest.mark.parametrize("chosen", [TURNS, SHAREGPT], ids=["TRL", "ShareGPT"])
def test_a_conversation_kept_as_text_is_a_conversation(write, chosen):
    pair = extract(None, write(chosen), write(OTHER))
    assert (pair.prompt, pair.chosen, pair.rejected) == ('Why "rain"?', "Clouds.", "It's water.")


def test_a_conversation_that_cannot_be_read_back_is_unusable_and_text_in_brackets_is_text():
    printed = "[{'role': 'user', 'content': 'a'}\n {'role': 'assistant', 'content': 'b'}]"  # as numpy prints a list
    with pytest.raises(Unusable, match=PRINTED[:20]):
        extract("q", printed, printed)
    assert extract("q", "[{x} is a set]", "[1, 2]").chosen == "[{x} is a set]"


@pytest.mark.parametrize("place", ["prompt", "chosen", "rejected"])
def test_half_a_character_makes_a_row_unusable(place):
    with pytest.raises(Unusable) as reason:
        extract(**({"prompt": "q", "chosen": "a", "rejected": "b"} | {place: "broken \ud83d text"}))
    assert str(reason.value) == HALF


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (3.0, "3"), ("3.0", "3"), ("3.00", "3"), ("3.5", "3.5"), ("v1.0", "v1.0"), ("003", "003"), (7, "7"),
        ("nan", ""), ("NaN", ""), ("<NA>", ""), (float("nan"), ""), (None, ""), ("Nan", "Nan"),
        (b"ann", "ann"), ("b'ann'", "ann"), ("b'", "b'"), (" ann ", "ann"), ("a\ud83d", "a?"),
    ],
)  # fmt: skip
def test_ids_are_what_they_were_before_other_programs_rewrote_them(cell, text):
    assert as_text(cell) == text


def test_a_person_is_one_whatever_the_file_made_of_the_id():
    ids = [2, 2.0, "2", "2.0", b"2", "nan"] * 10
    rows = [{"client_id": c, "prompt": f"q{i}", "chosen": "a", "rejected": "b"} for i, c in enumerate(ids)]
    federation, counts = assemble(rows, DataConfig(source="x", group_column=""))
    assert federation.ids == ("2",) and counts.lost == {"no client id": 10}


LINES = b'{"prompt": "q", "chosen": "a", "rejected": "b"}\n'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def zipped(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("pairs.jsonl", LINES)


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("pairs.jsonl", gzip.compress(LINES, mtime=0), "mv .*pairs.jsonl .*pairs.jsonl.gz"),
        ("pairs.csv", gzip.compress(LINES, mtime=0), "mv .*pairs.csv .*pairs.csv.gz"),
        ("pairs.jsonl", POINTER, "git lfs pull"),
        ("pairs.csv", POINTER, "git lfs pull"),
        ("pairs.parquet", POINTER, "git lfs pull"),
        ("pairs.jsonl", zipped, "unzip .*pairs.jsonl"),
        (
            "pairs.json",
            {"prompt": {"0": "q", "1": "p"}, "chosen": {"0": "a", "1": "c"}},
            "orient='records', lines=True",
        ),
        ("pairs.json", {"prompt": ["q", "p"], "chosen": ["a", "c"]}, "orient='records', lines=True"),
        ("pairs.jsonl", b"\n".join(json.dumps(json.loads(LINES), indent=2).encode() for _ in range(2)), "jq -c"),
    ],
)
def test_a_file_of_another_kind_is_one_line_that_says_what_to_do(tmp_path, name, content, advice):
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(UserError, match=advice) as error:
        list(table(path).rows())
    assert "\n" not in str(error.value)


def test_one_row_of_conversations_is_a_row_and_no_columns(tmp_path):
    row = {"prompt": [TURNS[0]], "chosen": [TURNS[1]], "rejected": [OTHER[1]]}
    (tmp_path / "one.json").write_text(json.dumps(row))
    assert list(table(tmp_path / "one.json").rows()) == [row]
