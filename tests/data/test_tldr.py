"""TL;DR's comparisons by worker (S2 2.3), in the public schema, from the hub, from folders and from files."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from raypref.config import DataConfig, RunConfig, UserError, override, validate
from raypref.data.__main__ import main
from raypref.data.federation import FOLDS, Pair
from raypref.data.forms.pairs import NO_PROMPT, NO_RESPONSE
from raypref.data.load import load, read
from raypref.data.people import assemble
from tune_spaces._papers import S2, TLDR


@pytest.fixture(autouse=True)
def contained(monkeypatch, tmp_path_factory):
    monkeypatch.setattr("raypref.tools.console.quiet", lambda: None)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))


def row(worker: str | None, split: str, i: int, choice: int | None = 0, **info: object) -> dict:
    """A row with the fields of `openai/summarize_from_feedback`, configuration `comparisons`."""
    post = {"id": f"t3_{i}", "post": f"post {i}", "title": f"title {i}", "subreddit": "AskReddit"}
    return {
        "info": {"site": None, "article": None, **post, **info},
        "summaries": [
            {"text": f" {worker} {split} zero {i}", "policy": "sup2", "note": "ok"},
            {"text": f" {worker} {split} one {i}", "policy": "ref", "note": None},
        ],
        "choice": choice,
        "worker": worker,
        "batch": "batch3",
        "split": split,
        "extra": {"confidence": 7},
    }


def rows_of(worker: str, train: int, valid1: int, valid2: int) -> list[dict]:
    counts = {"train": train, "valid1": valid1, "valid2": valid2}
    return [row(worker, split, i, i % 2) for split, n in counts.items() for i in range(n)]


def news(worker: str, i: int) -> dict:
    """As in the files on CNN/DM: an article, no post; nothing in `extra`."""
    made = row(worker, "valid2", i)
    return {**made, "info": {"id": f"n{i}", "article": f"article {i}", "title": None, "site": "cnn"}, "extra": {}}


UNUSUAL = [
    row("w0", "train", 900, None),
    row("w0", "train", 901, 2),
    {**row("w0", "train", 902), "summaries": row("w0", "train", 902)["summaries"][:1]},
    {**row("w0", "train", 903), "summaries": None},
    {**row("w0", "train", 904), "summaries": [{"text": None, "policy": "x"}, {"text": "y", "policy": "x"}]},
    row(None, "train", 905),
    row("w0", "train", 906, post=None, article=None),
    {**row("w0", "train", 907), "info": None},
    row("w0", "train", 908, title=None),
    news("w0", 909),
    {**row("w0", "train", 910), "choice": 1.0},
]
LOST = {
    "no choice between the two summaries": 2,
    "not two summaries": 2,
    NO_PROMPT: 2,
    NO_RESPONSE: 1,
    "no client id": 1,
}


def write(path: Path, rows: list[dict]) -> Path:
    text = "".join(json.dumps(r) + "\n" for r in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def everything(federation) -> list[tuple[str, Pair]]:
    return [(c.id, pair) for c in federation.clients for fold in FOLDS for pair in c.fold(fold)]


PAPER = DataConfig(
    client_column="worker", cover_column="split", cover_min_rows=30, exact_counts=(50, 50), template="tldr"
)


def test_unusual_rows_are_read_or_counted_by_reason(tmp_path, capsys):
    source = write(tmp_path / "batch0.json", [*rows_of("w0", 60, 30, 30), *UNUSUAL])
    federation, counts = read(replace(PAPER, source=str(source)), 0)
    assert counts.rows == 120 + len(UNUSUAL) and counts.lost == LOST
    pairs = {pair.prompt: pair for _, pair in everything(federation)}
    assert len(pairs) == 60 + 3  # posts repeat over splits
    assert pairs["SUBREDDIT: r/AskReddit\n\nPOST: post 908"].chosen == "w0 train zero 908"
    assert pairs["POST: article 909"].rejected == "w0 valid2 one 909"
    assert pairs["SUBREDDIT: r/AskReddit\n\nTITLE: title 910\n\nPOST: post 910"].chosen == "w0 train one 910"
    flags = ["--data.client-column", "worker", "--data.template", "tldr"]
    assert main(["check", str(source), *flags]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {f"{n} {why}" for why, n in LOST.items()} <= lines and "8 unusable and left out" in lines
    assert main(["check", str(source), "--strict", *flags]) == 1


def test_who_is_not_in_every_split_is_left_out_and_named(tmp_path, capsys):
    rows = [
        *rows_of("all", 60, 30, 30),
        *rows_of("less", 200, 29, 30),
        *rows_of("only", 200, 0, 0),
        *rows_of("short", 30, 30, 30),
        *rows_of("again", 21, 40, 40),
        *rows_of("again", 9, 0, 0),  # repeats are samples that people gave, too
    ]
    config = replace(PAPER, source=str(write(tmp_path / "rows.jsonl", rows)), min_rows=1)
    federation, counts = read(config, 0)
    assert federation.ids == ("again", "all")
    assert [federation.sizes(fold).tolist() for fold in FOLDS] == [[1, 20], [50, 50], [50, 50]]
    fewer = "fewer than 30 usable rows with {} in column 'split' (data.cover_min_rows)"
    assert counts.left_out == {
        fewer.format("valid1"): ("less",),
        fewer.format("valid1 or valid2"): ("only",),
        "too few usable pairs to hold out exactly 50, 50 (data.exact_counts)": ("short",),
    }
    assert f"clients left out, {fewer.format('valid1')}: 1 (less)" in federation.notes
    flags = ["--data.cover-column", "split", "--data.cover-min-rows", "30", "--data.client-column", "worker"]
    assert main(["check", str(config.source), *flags, "--data.exact-counts", "50", "50"]) == 0
    assert f"left out: {fewer.format('valid1 or valid2')}: only" in capsys.readouterr().out


def test_unusable_rows_and_rows_without_a_value_cover_nothing():
    rows = rows_of("a", 60, 30, 30)
    config = replace(PAPER, client_column="client_id", chosen_column="yes", rejected_column="no", prompt_column="q")
    plain = [
        {"client_id": "a", "q": "p", "yes": f"{r['split']} {i}", "no": "n", "split": r["split"]}
        for i, r in enumerate(rows)
    ]
    assert assemble(plain, config)[0].ids == ("a",)
    for damaged in ({"yes": ""}, {"split": None}):
        federation, counts = assemble([{**plain[0]}, *plain[1:-1], {**plain[-1], **damaged}], config)
        assert federation.ids == () and list(counts.left_out) == [
            "fewer than 30 usable rows with valid2 in column 'split' (data.cover_min_rows)"
        ]
    many = [{**r, "split": str(i)} for i, r in enumerate(plain[:10])]
    _, counts = assemble([*many, {**many[0], "client_id": "b", "yes": "x"}], replace(config, cover_min_rows=1))
    assert "fewer than 1 usable rows with 9 of the 10 values in column 'split' (data.cover_min_rows)" in counts.left_out


def test_a_folder_is_read_whole_whatever_the_keys_of_its_files(tmp_path):
    train, valid = rows_of("w0", 60, 0, 0), rows_of("w0", 0, 30, 30)
    write(tmp_path / "d" / "batch0.json", [{**r, "extra": {}} for r in train])
    write(tmp_path / "d" / "more" / "batch1.jsonl.gz", [*valid, news("w0", 0)])
    write(tmp_path / "d" / ".cache" / "old.jsonl", rows_of("nobody", 9, 9, 9))
    (tmp_path / "d" / "README.md").write_text("not data")
    (tmp_path / "d" / "d.py").write_text("raise SystemExit('a script of the hub, which nobody may run')")
    federation, counts = read(replace(PAPER, source=str(tmp_path / "d")), 0)
    assert counts.rows == 121 and counts.lost == {} and federation.ids == ("w0",)
    one = write(tmp_path / "one.jsonl", [*valid, news("w0", 0), *train])
    assert read(replace(PAPER, source=str(one)), 0) == (federation, counts)


def test_rows_of_a_parquet_folder_as_the_hub_keeps_them(tmp_path):
    import pyarrow
    import pyarrow.parquet

    for split, rows in (("train", rows_of("w0", 60, 0, 0)), ("validation", rows_of("w0", 0, 30, 30))):
        (tmp_path / "d" / split).mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d" / split / "0000.parquet")
    one = write(tmp_path / "one.jsonl", rows_of("w0", 60, 30, 30))
    folder = read(replace(PAPER, source=str(tmp_path / "d")), 0)
    assert folder == read(replace(PAPER, source=str(one)), 0) and folder[0].ids == ("w0",)


def test_the_hub_id_names_the_configuration_and_no_script_is_run(tmp_path, monkeypatch):
    """On the hub the data come as a Python script, which `datasets` refuses since version 4: the hub's own Parquet copy
    is read instead, laid out here as it is there and loaded by `datasets` itself."""
    import datasets
    import pyarrow
    import pyarrow.parquet

    rows = {"train": rows_of("w0", 60, 0, 0), "validation": [*rows_of("w0", 0, 30, 30), row("w0", "valid1", 900, None)]}
    for split, part in rows.items():
        (tmp_path / "comparisons" / split).mkdir(parents=True)
        table = pyarrow.Table.from_pylist(part)
        pyarrow.parquet.write_table(table, tmp_path / "comparisons" / split / "0000.parquet")
    (tmp_path / "axis" / "test").mkdir(parents=True)
    other = pyarrow.Table.from_pylist([{"info": {"id": "x"}, "summary": {"text": "y"}}])
    pyarrow.parquet.write_table(other, tmp_path / "axis" / "test" / "0000.parquet")
    real, asked = datasets.load_dataset, []

    def load_dataset(path, name=None, *, data_dir=None, revision=None):
        asked.append((path, name, data_dir, revision))
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found summarize_from_feedback.py")
        return real(str(tmp_path), data_dir=data_dir)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    config = override(RunConfig(), TLDR | {"data.cover_min_rows": 30}).data
    federation, counts = read(config, 0)
    hub = "openai/summarize_from_feedback"
    assert asked == [(hub, "comparisons", None, None), (hub, None, "comparisons", "refs/convert/parquet")]
    assert counts.rows == 121 and counts.lost == {"no choice between the two summaries": 1}
    assert Counter(client for client, _ in everything(federation)) == {"w0": 120}


def test_a_hub_id_that_loads_as_it_is_and_one_whose_configuration_is_missing(monkeypatch):
    import datasets

    rows = rows_of("w0", 60, 30, 30)

    def load_dataset(path, name=None):
        if name is None:
            raise ValueError(
                "Config name is missing.\nPlease pick one among the available configs: ['axis', 'comparisons']"
            )
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert read(replace(PAPER, source="a/b:comparisons"), 0) == assemble_raw(rows)
    with pytest.raises(UserError, match=r"a/b has several configurations: axis, comparisons; .* such as a/b:axis"):
        load(replace(PAPER, source="a/b"), 0)


def assemble_raw(rows: list[dict]):
    plain = [
        {
            "worker": r["worker"],
            "split": r["split"],
            "prompt": f"SUBREDDIT: r/AskReddit\n\nTITLE: {r['info']['title']}\n\nPOST: {r['info']['post']}",
            "chosen": r["summaries"][r["choice"]]["text"],
            "rejected": r["summaries"][1 - r["choice"]]["text"],
        }
        for r in rows
    ]
    return assemble(plain, PAPER)


def test_another_column_may_name_the_client(tmp_path):
    rows = [{**r, "batch": f"b{i % 2}"} for i, r in enumerate(rows_of("w0", 120, 0, 0))]
    source = str(write(tmp_path / "rows.jsonl", rows))
    assert load(DataConfig(source=source, client_column="batch"), 0).ids == ("b0", "b1")
    assert load(DataConfig(source=source), 0).ids == ("w0",)
    with pytest.raises(UserError, match=r"no column 'wroker'; did you mean 'worker'\?"):
        load(DataConfig(source=source, client_column="wroker"), 0)
    with pytest.raises(UserError, match=r"no column 'splits'; did you mean 'split'\?.*--data\.cover-column"):
        load(DataConfig(source=source, cover_column="splits"), 0)


def test_the_papers_numbers():
    """S2 2.3 and Tables 3 and 4, typed in again."""
    config = override(RunConfig(), S2 | TLDR)
    validate(config)
    assert config.data.source == "openai/summarize_from_feedback:comparisons"
    assert (config.data.client_column, config.data.cover_column) == ("worker", "split")
    assert config.data.cover_min_rows == 100 and config.data.exact_counts == (50, 50)
    assert config.data.template == "tldr"
    marks = config.personalization.marks
    assert {0, 80, 240} <= set(marks) and max(marks) == 240
    assert max(b - a for a, b in itertools.pairwise(marks)) <= 40


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"data.cover_min_rows": 0, "data.cover_column": "split"}, "data.cover_min_rows is 0; it must be at least 1"),
        ({"data.cover_min_rows": 100}, "name that column, too"),
    ],
)
def test_filters_that_make_no_sense(values, said):
    with pytest.raises(UserError, match=said):
        validate(override(RunConfig(), values))
