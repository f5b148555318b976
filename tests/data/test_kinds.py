"""Files of one kind of pair each, dealt to clients that hold one kind each, as S1 5.1 does with HH-RLHF."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from raypref.config import DataConfig, RunConfig, UserError, override, validate
from raypref.data.federation import FOLDS, Federation
from raypref.data.load import load, read
from raypref.data.splits import pair_key
from tune_spaces._papers import S1

SHARED = Path(__file__).parents[3] / "shared" / "data" / "hh-rlhf"


def helpful(n: int) -> list[dict]:
    """As in the helpful file: the prompt in a column of its own, and a column that nobody asked for."""
    return [
        {"index": i, "prompt": f"\n\nHuman: how {i}\n\nAssistant:", "chosen": f" so {i}", "rejected": f" no {i}"}
        for i in range(n)
    ]


def harmless(n: int) -> list[dict]:
    """As in the harmless file: whole transcripts."""
    turns = "\n\nHuman: hello\n\nAssistant: hi\n\nHuman: may {}\n\nAssistant:"
    return [{side: turns.format(i) + f" {side} {i}" for side in ("chosen", "rejected")} for i in range(n)]


def write(folder: Path, files: dict[str, list[dict]], **options) -> DataConfig:
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(source=str(folder), kinds=("helpful", "harmless"), group_sizes=(2, 3))
    return replace(config, **options)


def pairs_of(federation: Federation) -> dict[str, list]:
    return {client.id: [pair for fold in FOLDS for pair in client.fold(fold)] for client in federation.clients}


def keys(federation: Federation) -> dict[str, set[bytes]]:
    return {c: {pair_key(p.prompt, p.chosen, p.rejected) for p in pairs} for c, pairs in pairs_of(federation).items()}


def test_every_client_holds_one_kind_in_even_numbers_whatever_the_columns(tmp_path):
    config = write(tmp_path, {"Helpful.jsonl": helpful(101), "harmless-base/test.jsonl": harmless(200)})
    federation, counts = read(config, 0)
    assert federation.groups == ("harmless", "helpful")
    assert [(c.id, c.group) for c in federation.clients] == [
        *((f"harmless-0{i}", "harmless") for i in range(3)),
        *((f"helpful-0{i}", "helpful") for i in range(2)),
    ]
    assert {name: len(pairs) for name, pairs in pairs_of(federation).items()} == {
        "harmless-00": 67, "harmless-01": 67, "harmless-02": 66, "helpful-00": 51, "helpful-01": 50,
    }  # fmt: skip
    assert len(set().union(*keys(federation).values())) == 301 == counts.rows  # nobody shares a pair
    for name, pairs in pairs_of(federation).items():
        assert all(p.prompt.startswith("Human: how" if name.startswith("helpful") else "Human: hello") for p in pairs)
        assert all("\n\nAssistant:" not in p.chosen + p.rejected for p in pairs)


def test_files_of_one_kind_are_pooled_and_those_of_none_counted(tmp_path):
    other = [{"transcript": "\n\nHuman: one"}] * 7
    files = {"helpful-a.jsonl": helpful(60), "helpful-b.jsonl": harmless(20), "red/team.jsonl": other}
    config = write(tmp_path, {**files, "harmless.jsonl": harmless(120)})
    federation = load(config, 0)
    assert federation.notes == ("rows left out, red/team.jsonl is of none of the kinds helpful, harmless: 7 of 207",)
    assert sum(len(pairs) for name, pairs in pairs_of(federation).items() if "helpful" in name) == 80


def test_the_seed_deals_and_the_order_of_rows_does_not(tmp_path):
    rows = harmless(120)
    config = write(tmp_path, {"helpful.jsonl": helpful(80), "harmless.jsonl": rows})
    first, other = load(config, 0), load(config, 1)
    random.Random(0).shuffle(rows)
    assert load(write(tmp_path, {"harmless.jsonl": rows}), 0) == first
    assert keys(first)["harmless-00"] != keys(other)["harmless-00"]
    fold_of = [{pair: fold for c in f.clients for fold in FOLDS for pair in c.fold(fold)} for f in (first, other)]
    assert fold_of[0] == fold_of[1]  # the folds are the data's


def test_all_rows_of_a_pair_go_to_one_client_and_what_is_not_dealt_is_counted(tmp_path):
    rows = helpful(100)
    reversed_ = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    broken = [{**rows[0], "rejected": ""}, {"chosen": "no transcript", "rejected": "neither"}]
    files = {"helpful.jsonl": [*rows, *rows, *reversed_, *broken], "harmless.jsonl": harmless(3 * 40)}
    everything, counts = read(write(tmp_path, files), 0)
    assert (counts.rows, counts.doubled, counts.conflicting) == (422, 100, 100)
    assert sum(counts.lost.values()) == 2 and counts.disagreed == 0
    few, counts = read(write(tmp_path, {}, pairs_per_client=30), 0)
    assert {name: len(pair_keys) for name, pair_keys in keys(few).items()} == {
        **{f"harmless-0{i}": 30 for i in range(3)}, "helpful-00": 30, "helpful-01": 30,
    }  # fmt: skip
    assert counts.undealt == (100 - 2 * 30) + (120 - 3 * 30)
    assert counts.lost["the same pair as another row"] == 2 * (100 - 2 * 30)
    assert counts.doubled == counts.conflicting == 60
    assert all(pair_keys <= keys(everything)[name] for name, pair_keys in keys(few).items())


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.jsonl": helpful(9)}, r"no file or folder has 'helpful' \(of data.kinds\) in its name; .* a.jsonl"),
        ({"helpful.jsonl": helpful(9)}, "has 'harmless'"),
        (
            {"helpful-harmless.jsonl": helpful(9)},
            "'helpful-harmless.jsonl' has several of data.kinds: helpful, harmless",
        ),
        (
            {"helpful.jsonl": [{**row, "client_id": "a"} for row in helpful(9)], "harmless.jsonl": harmless(9)},
            "helpful.jsonl names people in column 'client_id', .* --data.client-column ''",
        ),
        (
            {"helpful.jsonl": [{"chosen": "a", "rejekted": "b"}], "harmless.jsonl": harmless(9)},
            "helpful.jsonl has no column 'rejected'; did you mean 'rejekted'",
        ),
        (
            {"helpful.jsonl": helpful(1), "harmless.jsonl": harmless(9)},
            "2 clients of 'helpful' need as many pairs, and 1 are usable; lower",
        ),
        (
            {"helpful.jsonl": [{"chosen": "a", "rejected": "b"}] * 9, "harmless.jsonl": harmless(9)},
            "0 are usable; 9 rows: the prompt is missing or empty",
        ),
    ],
)
def test_files_that_do_not_fit_the_kinds(tmp_path, files, said):
    with pytest.raises(UserError, match=said) as caught:
        load(write(tmp_path, files), 0)
    assert "\n" not in str(caught.value)


def test_people_may_be_ignored(tmp_path):
    files = {"helpful.jsonl": [{**row, "client_id": "a"} for row in helpful(80)], "harmless.jsonl": harmless(120)}
    assert len(load(write(tmp_path, files, client_column=""), 0).clients) == 5


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"data.source": "synthetic"}, "data.source is synthetic; leave data.kinds empty"),
        ({"data.kinds": ("helpful", "helpful")}, "give different words"),
        ({"data.kinds": ("helpful", " ")}, "give different words"),
        ({"data.group_sizes": (15, 15, 5, 5)}, "it must say how many clients hold each, such as 5 5"),
        ({"data.group_sizes": (0, 0)}, "it must say how many clients hold each"),
        ({"data.group_sizes": (5, -1)}, "it must say how many clients hold each"),
        ({"data.pairs_per_client": -1}, "data.pairs_per_client is -1"),
        ({"data.kinds": (), "data.pairs_per_client": 5}, "it must be 0 without data.kinds"),
    ],
)
def test_kinds_that_make_no_sense(values, said):
    config = override(
        RunConfig(), {"data.source": "a", "data.kinds": ("helpful", "harmless"), "data.group_sizes": (5, 5)}
    )
    validate(config)
    with pytest.raises(UserError, match=said):
        validate(override(config, values))


def test_the_hubs_folders_are_the_kinds_files(monkeypatch):
    """HH-RLHF has no configurations there but folders, each with splits, which are pooled."""
    import datasets

    made, asked = {"helpful-base": helpful, "harmless-base": harmless}, []

    def load_dataset(path, *, data_dir):
        asked.append((path, data_dir))
        rows = made[data_dir](150)
        parts = {"train": rows[:100], "test": rows[100:]}
        return datasets.DatasetDict({name: datasets.Dataset.from_list(part) for name, part in parts.items()})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    config = override(RunConfig(), S1).data
    federation, counts = read(config, 0)
    assert asked == [("Anthropic/hh-rlhf", "helpful-base"), ("Anthropic/hh-rlhf", "harmless-base")]
    assert (
        counts.rows == counts.pairs == 300
        and [c.group for c in federation.clients] == ["harmless"] * 5 + ["helpful"] * 5
    )
    named = replace(config, source="Anthropic/hh-rlhf:helpful-base+harmless-base")
    assert read(named, 0) == (federation, counts)
    with pytest.raises(UserError, match=r"no file or folder has 'toxic' .* helpful-base/train, helpful-base/test"):
        read(replace(named, kinds=("helpful", "toxic")), 0)


@pytest.mark.skipif(not SHARED.exists(), reason="shared/data is not beside the checkout")
def test_the_real_test_files():
    config = replace(override(RunConfig(), S1).data, source=str(SHARED))
    federation, counts = read(config, 0)
    assert counts.rows == 1_987 + 2_312
    assert counts.lost == {
        "a response is missing or empty": 3 + 4,
        "the two prompts differ": 5,
        "chosen equals rejected": 2,
    }
    assert counts.pairs == 4_285 == sum(map(len, pairs_of(federation).values())) and counts.left_out == {}
    assert Counter(c.group for c in federation.clients) == {"helpful": 5, "harmless": 5}
    shares = {fold: federation.sizes(fold).sum() / 4_285 for fold in FOLDS}
    assert shares == pytest.approx({"train": 0.8, "validation": 0.1, "test": 0.1}, abs=0.015)
    many = load(replace(config, group_sizes=(50, 50)), 0)
    sizes = sum(many.sizes(fold) for fold in FOLDS)
    assert set(sizes) <= {39, 40, 46, 47}  # 1,982 helpful and 2,303 harmless pairs
    assert len(many.clients) > 90 and all("clients left out, no pair in" in note for note in many.notes[3:])
