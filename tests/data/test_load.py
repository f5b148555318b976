"""Reading preference data: every row becomes a choice of the right person, with the right label, or is counted."""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypref.config import DataConfig, UserError
from raypref.data.federation import FOLDS, Pair
from raypref.data.forms.pairs import NO_PROMPT, NO_RESPONSE, NO_TEXT, extract
from raypref.data.load import SHUFFLED, load, read
from raypref.data.people import assemble
from raypref.data.rows import Unusable
from raypref.data.splits import key_fold, pair_key, value_fold

SHARED = Path(__file__).parents[3] / "shared" / "data"
UKP = SHARED / "ukp_arguments_by_annotator.jsonl.gz"
HARMLESS = SHARED / "hh-rlhf" / "harmless-base.test.jsonl.gz"
HELPFUL = SHARED / "hh-rlhf" / "hh_helpful_test_human_from_hidden-context.jsonl.gz"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))


def rows_of(client: str, n: int, **more: str) -> list[dict]:
    """n distinct choices of one person, texts of nobody else's."""
    return [
        {"client_id": client, "prompt": f"{client} asks {i}", "chosen": f"yes {i}", "rejected": f"no {i}", **more}
        for i in range(n)
    ]


def everything(federation):
    return [(c.id, fold, pair) for c in federation.clients for fold in FOLDS for pair in c.fold(fold)]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# --- forms of a row


def turns(*texts: str) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


HH = "\n\nHuman: one\n\nAssistant: two\n\nHuman: three\n\nAssistant:"


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "expected"),
    [
        ("why", " so\n", "no", ("why", "so", "no")),
        (turns("why"), turns("", "so")[1:], turns("", "no")[1:], ("why", "so", "no")),
        (turns("a", "b", "c"), "so", "no", ("Human: a\n\nAssistant: b\n\nHuman: c", "so", "no")),
        # TRL's implicit prompt: turns that both conversations begin with
        (None, turns("why", "so"), turns("why", "no"), ("why", "so", "no")),
        (
            None,
            turns("a", "b", "c", "so"),
            turns("a", "b", "c", "no"),
            ("Human: a\n\nAssistant: b\n\nHuman: c", "so", "no"),
        ),
        # the prompt given apart and in the conversations, too
        ("why", turns("why", "so"), turns("why", "no"), ("why", "so", "no")),
        ("be brief", turns("why", "so"), turns("why", "no"), ("be brief\n\nwhy", "so", "no")),
        # HH-RLHF transcripts: the last assistant turn, though the responses begin alike
        (None, HH + " four", HH + " four five", ("Human: one\n\nAssistant: two\n\nHuman: three", "four", "four five")),
    ],
)
def test_forms(prompt, chosen, rejected, expected):
    assert extract(prompt, chosen, rejected) == Pair(*expected)


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "reason"),
    [
        ("why", "", "no", NO_RESPONSE),
        ("why", "so", None, NO_RESPONSE),
        ("why", " \n", "no", NO_RESPONSE),
        ("why", [], turns("why", "no"), NO_RESPONSE),
        (None, HH, HH + " four", NO_RESPONSE),
        ("why", "so", " so ", "chosen equals rejected"),
        (None, turns("why", "so"), turns("why", "so"), "chosen equals rejected"),
        (None, "so", "no", NO_PROMPT),
        (" ", "so", "no", NO_PROMPT),
        (None, turns("", "so")[1:], turns("", "no")[1:], NO_PROMPT),
        (None, HH + " four", HH.replace("one", "eins") + " five", "the two prompts differ"),
        (None, HH + " four", HH + " five\n\nAssistant: six", "the two prompts differ"),
        (None, turns("why", "so"), turns("how", "no"), "the two prompts differ"),
        ("why", 1, 2, NO_TEXT),
        ("why", "so", turns("why", "no"), "one response is text and the other is not"),
        ("why", ["so"], ["no"], NO_TEXT),
        ({"text": "why"}, "so", "no", NO_TEXT),
    ],
)
def test_unusable_rows_say_why(prompt, chosen, rejected, reason):
    with pytest.raises(Unusable, match=reason):
        extract(prompt, chosen, rejected)


# --- rows to people

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "client_id": st.sampled_from(["a", "b", "c", None]),
            "prompt": st.sampled_from(["p", " p", "q"]),
            "chosen": st.sampled_from(["1", "2", "3", "4 ", "5", ""]),
            "rejected": st.sampled_from(["1", "2", "3", "4", "5", None]),
            "topic": st.sampled_from(["x", "y", "z", ""]),
        }
    ),
    max_size=60,
)
THIRDS = DataConfig(validation=0.3, test=0.3)
CONFIGS = st.sampled_from(
    [THIRDS, replace(THIRDS, split="topic"), DataConfig(exact_counts=(2, 1)), DataConfig(min_rows=4)]
)


@given(ROWS, CONFIGS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows, config, random):
    assert assemble(random.sample(rows, len(rows)), config) == assemble(rows, config)


@given(ROWS)
def test_no_unordered_pair_is_in_two_folds_of_anybody(rows):
    federation, counts = assemble(rows, THIRDS)
    where: dict = {}
    for _, fold, pair in everything(federation):
        where.setdefault((pair.prompt, frozenset((pair.chosen, pair.rejected))), set()).add(fold)
    assert all(len(folds) == 1 for folds in where.values())
    assert counts.crossing == 0


@given(ROWS, CONFIGS)
def test_every_row_is_a_choice_or_counted(rows, config):
    federation, counts = assemble(rows, config)
    by_client: dict = {}
    for row in rows:
        usable = row["client_id"] and row["chosen"].strip() and row["rejected"]
        if usable and row["chosen"].strip() != row["rejected"] and (config.split == "pair" or row["topic"]):
            choice = Pair(row["prompt"].strip(), row["chosen"].strip(), row["rejected"])
            by_client.setdefault(row["client_id"], []).append(choice)
    assert counts.rows == len(rows)
    assert sum(counts.lost.values()) == len(rows) - sum(map(len, by_client.values()))
    assert counts.doubled == sum(len(pairs) - len(set(pairs)) for pairs in by_client.values())
    assert {*federation.ids, *(name for ids in counts.left_out.values() for name in ids)} == set(by_client)
    for client in federation.clients:
        pairs = [pair for fold in FOLDS for pair in client.fold(fold)]
        assert sorted(map(repr, pairs)) == sorted(map(repr, set(by_client[client.id])))


def test_all_folds_of_a_client_are_its_own():
    """Splits shuffled apart from each other would hand one person's test pairs to another."""
    rows = [row for i in range(20) for row in rows_of(f"c{i:02}", 60)]
    random.Random(0).shuffle(rows)
    federation, _ = assemble(rows, DataConfig())
    assert federation.ids == tuple(f"c{i:02}" for i in range(20))
    assert all(pair.prompt.startswith(f"{client} asks") for client, _, pair in everything(federation))
    assert len(everything(federation)) == len(rows)


def test_doubled_pairs_are_kept_once_and_reversed_ones_stay_beside_them():
    rows = rows_of("a", 50)
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows[:7]]
    federation, counts = assemble([*rows, *rows[:10], *swapped], DataConfig())
    assert (counts.doubled, counts.conflicting, counts.disagreed, counts.pairs) == (10, 7, 0, 50)
    assert len(everything(federation)) == 57
    assert "kept once: 10" in " ".join(federation.notes) and "both ways, both kept: 7" in " ".join(federation.notes)


def test_people_disagree_on_pairs_of_opposite_choices():
    one = {"prompt": "p", "chosen": "x", "rejected": "y"}
    other = {"prompt": "p", "chosen": "y", "rejected": "x"}
    same = {"prompt": "p", "chosen": "x", "rejected": "z"}
    rows = [{"client_id": c, **row} for c, row in (("a", one), ("b", one), ("b", other), ("c", same), ("d", same))]
    _, counts = assemble(rows, DataConfig())
    assert (counts.pairs, counts.conflicting, counts.disagreed) == (2, 1, 1)


def test_a_client_without_a_fold_is_left_out_and_named():
    few = next(rows_of("few", n) for n in range(1, 9) if set(folds_of(rows_of("few", n))) == {"train"})
    federation, counts = assemble([*rows_of("many", 60), *few], DataConfig())
    assert federation.ids == ("many",)
    assert counts.left_out == {"no pair in validation or test": ("few",)}
    assert federation.notes == ("clients left out, no pair in validation or test: 1 (few)",)


def folds_of(rows: list[dict], config: DataConfig = DataConfig()) -> list[str]:  # noqa: B008
    keys = [pair_key(r["prompt"], r["chosen"], r["rejected"]) for r in rows]
    return [key_fold(key, config.validation, config.test) for key in keys]


def test_nobody_left_is_an_error_that_says_why(tmp_path):
    source = write(tmp_path / "few.jsonl", [*rows_of("a", 1), {**rows_of("b", 1)[0], "chosen": ""}])
    with pytest.raises(
        UserError, match=r"no client is left; rows left out, a response .*: 1 of 2; clients left out, no"
    ):
        load(DataConfig(source=source), seed=0)


def test_min_rows():
    federation, counts = assemble([*rows_of("a", 60), *rows_of("b", 40)], DataConfig(min_rows=41))
    assert federation.ids == ("a",)
    assert counts.left_out == {"fewer than 41 usable pairs (data.min_rows)": ("b",)}


def test_exact_counts_and_their_overlaps():
    """Each person's own draw; the same pairs at other people are in other folds, which is counted and said."""
    shared = [{**row, "client_id": c} for c in "abc" for row in rows_of("x", 20)]
    config = DataConfig(exact_counts=(5, 4))
    federation, counts = assemble([*shared, *rows_of("d", 9), *rows_of("e", 8)], config)
    assert [tuple(int(federation.sizes(f)[c]) for f in FOLDS) for c in range(3)] == [(11, 5, 4)] * 3
    assert counts.left_out == {
        "no pair in train": ("d",),
        "too few usable pairs to hold out exactly 5, 4 (data.exact_counts)": ("e",),
    }
    where: dict = {}
    for _, fold, pair in everything(federation):
        where.setdefault(pair, set()).add(fold)
    assert counts.crossing == sum(len(folds) > 1 for folds in where.values()) > 0
    assert any(
        note.startswith(f"warning: pairs in different folds for different rows: {counts.crossing}")
        for note in federation.notes
    )


@pytest.mark.parametrize("options", [{"exact_counts": (5, 0)}, {"exact_counts": (5, 5), "split": "topic"}])
def test_exact_counts_that_make_no_sense(options):
    with pytest.raises(UserError, match="exact_counts"):
        load(DataConfig(**options), seed=0)


def test_a_column_decides_the_fold():
    topics = [f"t{i}" for i in range(30)]
    rows = [{**row, "topic": topics[i % 30]} for c in "abc" for i, row in enumerate(rows_of(c, 90))]
    federation, counts = assemble(rows, replace(THIRDS, split="topic"))
    topic_of = {row["prompt"]: row["topic"] for row in rows}
    choices = everything(federation)
    assert len(choices) == 270 and counts.crossing == 0
    assert all(fold == value_fold(topic_of[pair.prompt], 0.3, 0.3) for _, fold, pair in choices)


READY = DataConfig(fold_column="fold")


def test_ready_folds_are_taken_as_they_are():
    """Each row is where its file says, whatever shares and hash would do with it; names of others mean the same."""
    names = {"train": "train", "Training": "train", "val": "validation", "dev": "validation", "valid": "validation"}
    names |= {"validation": "validation", " TEST ": "test"}
    rows = [{**row, "fold": list(names)[i % 7]} for c in "ab" for i, row in enumerate(rows_of(c, 21))]
    federation, counts = assemble(rows, READY)
    assert {(c, pair.prompt): fold for c, fold, pair in everything(federation)} == {
        (row["client_id"], row["prompt"]): names[row["fold"]] for row in rows
    }
    assert counts.crossing == 0 and not federation.notes
    assert assemble(rows[::-1], replace(READY, validation=0.4, test=0.5))[0] == federation


def test_rows_without_a_ready_fold_and_clients_without_one_are_counted():
    folds = ["train", "validation", "test", "test2", "holdout", "test2", "", None]
    rows = [{**row, "fold": fold} for row, fold in zip(rows_of("a", 8), folds, strict=True)]
    rows += [{**row, "fold": "train" if i else "dev"} for i, row in enumerate(rows_of("b", 3))]
    federation, counts = assemble(rows, READY)
    assert federation.ids == ("a",) and counts.left_out == {"no pair in test": ("b",)}
    assert counts.lost == {
        "column 'fold' names none of train, training, validation, val, valid, dev, test (it says test2, it says "
        "holdout)": 3,
        "nothing in column 'fold', which decides the fold": 2,
    }


def test_what_ready_folds_have_twice_is_tested_on_or_counted():
    """One person's repeat is kept once, in the test; other people's, and the other way round, are said to cross."""
    own = [{**row, "fold": fold} for row, fold in zip(rows_of("a", 4), [*FOLDS, "train"], strict=True)]
    federation, counts = assemble([*own, {**own[0], "fold": "test"}], READY)
    (client,) = federation.clients
    assert [len(client.fold(fold)) for fold in FOLDS] == [1, 1, 2] and (counts.doubled, counts.crossing) == (1, 0)
    reverse = {**own[0], "chosen": own[0]["rejected"], "rejected": own[0]["chosen"], "fold": "test"}
    federation, counts = assemble([*own, reverse], READY)
    assert (counts.conflicting, counts.crossing) == (1, 1)
    assert any("in different folds" in note and "data.fold_column has no such" in note for note in federation.notes)


@pytest.mark.parametrize("options", [{"split": "topic"}, {"exact_counts": (5, 5)}])
def test_ready_folds_are_cut_by_nothing_else(options):
    with pytest.raises(UserError, match=r"data\.fold_column takes folds as they are, and data\.\w+ cuts others"):
        load(replace(READY, **options), seed=0)


def test_a_fold_column_that_is_not_there(tmp_path):
    source = write(tmp_path / "a.jsonl", rows_of("a", 3, folds="train"))
    with pytest.raises(UserError, match=r"no column 'fold'; did you mean 'folds'\?.*--data\.fold-column"):
        load(replace(READY, source=source), seed=0)


def test_a_pair_under_two_topics_is_counted_as_crossing():
    topics = {value_fold(t, 0.3, 0.3): t for t in map(str, range(30))}
    rows = [{**row, "topic": topics[f]} for c in "ab" for f in FOLDS for row in rows_of(f"{c} {f}", 3)]
    rows = [{**row, "client_id": row["client_id"][0]} for row in rows]
    rows.append({**rows[0], "client_id": "b", "topic": topics["test"]})
    assert rows[0]["topic"] == topics["train"]
    _, counts = assemble(rows, replace(THIRDS, split="topic"))
    assert counts.crossing == 1


def test_a_choice_repeated_under_another_topic_is_kept_once_whatever_the_order():
    topics = {value_fold(t, 0.3, 0.3): t for t in map(str, range(30))}
    rows = [{**row, "client_id": "a", "topic": topics[f]} for f in FOLDS for row in rows_of(f, 3)]
    rows.append({**rows[0], "topic": topics["test"]})
    split = replace(THIRDS, split="topic")
    one = assemble(rows, split)
    assert one == assemble(rows[::-1], split)
    assert one[1].doubled == 1 and len(everything(one[0])) == 9


def test_groups_are_kept_and_must_be_one_a_client():
    rows = [*rows_of("a", 60, style="G2"), *rows_of("b", 60, style="G1")]
    federation, _ = assemble(rows, DataConfig(group_column="style"))
    assert federation.groups == ("G1", "G2") and federation.group_of.tolist() == [1, 0]
    rows[0]["style"] = "G1"
    with pytest.raises(UserError, match="client 'a' is in the groups G1, G2"):
        assemble(rows, DataConfig(group_column="style"))


def test_clients_are_sorted_as_text_whatever_their_type():
    rows = [row for c in ("10", "9", "a") for row in rows_of(c, 60)]
    for row in rows:
        row["client_id"] = {"10": 10.0, "9": 9}.get(row["client_id"], row["client_id"])
    rows.append({**rows[0], "client_id": float("nan")})
    federation, counts = assemble(rows, DataConfig())
    assert federation.ids == ("10", "9", "a")
    assert counts.lost == {"no client id": 1}


# --- sources


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
def test_every_file_format_reads_alike(tmp_path, suffix):
    rows = [*rows_of("007", 60), *rows_of("7", 60)]
    rows[0] |= {"chosen": "NA", "rejected": "3.10"}
    rows[1] |= {"chosen": 'a "quoted", line\nand another'}
    rows[2] |= {"chosen": ""}
    path = tmp_path / f"data.{suffix}"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if suffix == "jsonl.gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif suffix == "jsonl":
        path.write_text(text)
    elif suffix == "json":
        path.write_text(json.dumps(rows))
    else:
        import pandas

        table = pandas.DataFrame(rows)
        table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    assert read(DataConfig(source=str(path)), seed=0) == assemble(rows, DataConfig())


def test_conversations_in_a_file(tmp_path):
    rows = [
        {"who": "a", "chosen": turns(f"ask {i}", f"yes {i}"), "rejected": turns(f"ask {i}", f"no {i}")}
        for i in range(60)
    ]
    federation = load(DataConfig(source=write(tmp_path / "chat.jsonl", rows), client_column="who"), seed=0)
    assert {pair for _, _, pair in everything(federation)} == {
        Pair(f"ask {i}", f"yes {i}", f"no {i}") for i in range(60)
    }


def comparisons(n: int) -> list[dict]:
    """Rows as in OpenAI's TL;DR comparisons; row i prefers summary i % 2."""
    return [
        {
            "info": {
                "id": f"t{i}",
                "post": f"post {i}",
                "title": f"title {i}",
                "subreddit": "AskReddit",
                "article": None,
            },
            "summaries": [{"text": f" zero {i}", "policy": "x"}, {"text": f" one {i}", "policy": "y"}],
            "choice": i % 2,
            "worker": f"w{i % 3}",
            "batch": "b",
        }
        for i in range(n)
    ]


@pytest.mark.parametrize("column", ["client_id", "worker"])
def test_tldr_comparisons_of_both_labels_are_read(tmp_path, column):
    """No label is dropped: choice 0 and choice 1 alike, for the person who chose."""
    rows = comparisons(180)
    federation = load(DataConfig(source=write(tmp_path / "batch0.json", rows), client_column=column), seed=0)
    expected = {
        (
            f"w{i % 3}",
            Pair(
                f"SUBREDDIT: r/AskReddit\n\nTITLE: title {i}\n\nPOST: post {i}",
                f"{('zero', 'one')[i % 2]} {i}",
                f"{('one', 'zero')[i % 2]} {i}",
            ),
        )
        for i in range(180)
    }
    assert {(client, pair) for client, _, pair in everything(federation)} == expected


def test_a_broken_label_never_shifts_later_ones(tmp_path):
    rows = comparisons(180)
    broken = [{**row, "choice": None} if i in (3, 50) else row for i, row in enumerate(rows)]
    whole = load(DataConfig(source=write(tmp_path / "whole.jsonl", rows)), seed=0)
    federation = load(DataConfig(source=write(tmp_path / "broken.jsonl", broken)), seed=0)
    missing = set(everything(whole)) - set(everything(federation))
    assert set(everything(federation)) < set(everything(whole))
    assert {pair.prompt[-7:].strip() for _, _, pair in missing} == {"post 3", "post 50"}
    assert federation.notes == ("rows left out, no choice between the two summaries: 2 of 180",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"client_column": "client"},
            r"no column 'client'; did you mean 'client_id'\?; .*--data\.client-column \(empty",
        ),
        (
            {"chosen_column": "winner"},
            r"no column 'winner'; it has client_id, prompt, chosen, rejected; .*--data\.chosen",
        ),
        ({"rejected_column": "reject"}, r"did you mean 'rejected'\?.*--data\.rejected-column"),
        ({"group_column": "group"}, r"no column 'group'.*--data\.group-column"),
        ({"split": "topic"}, r"no column 'topic'.*--data\.split"),
        ({"prompt_column": "promt"}, r"did you mean 'prompt'\?.*--data\.prompt-column"),
    ],
)
def test_a_missing_column_is_named_with_the_nearest_and_its_flag(tmp_path, options, said):
    source = write(tmp_path / "data.jsonl", rows_of("a", 3))
    with pytest.raises(UserError, match=said):
        load(DataConfig(source=source, **options), seed=0)


def test_a_missing_prompt_column_is_an_error_unless_prompts_are_implicit(tmp_path):
    rows = [{"client_id": "a", "prompts": "p", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(60)]
    with pytest.raises(UserError, match=r"no column 'prompt'; did you mean 'prompts'\?.*--data\.prompt-column"):
        load(DataConfig(source=write(tmp_path / "data.jsonl", rows)), seed=0)
    implicit = [{"client_id": "a", "chosen": f"{HH} yes {i}", "rejected": f"{HH} no {i}"} for i in range(60)]
    federation = load(DataConfig(source=write(tmp_path / "implicit.jsonl", implicit)), seed=0)
    assert len(everything(federation)) == 60


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.jsonl", None, "there is no such file"),
        ("data.xlsx", "x", r"cannot read '\.xlsx'; give one of \.jsonl"),
        ("empty.jsonl", "", "it holds no rows"),
        ("empty.csv", "", "it holds no rows"),
        ("broken.jsonl", '{"client_id": "a"}\n{"client_id": "b" "chosen": 1}\n', "line 2 is no JSON"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said) as caught:
        load(DataConfig(source=str(tmp_path / name)), seed=0)
    assert "\n" not in str(caught.value)


def test_the_synthetic_federation_has_known_groups_and_stable_folds():
    config = DataConfig(group_sizes=(2, 1, 1, 1), pairs_per_axis=30, client_column="ignored", group_column="")
    federation, other = load(config, seed=100), load(config, seed=101)
    assert len(federation.groups) == 4 and federation.group_of.tolist() == [0, 0, 1, 2, 3]
    assert len(everything(federation)) == 5 * 2 * 30
    assert {pair for *_, pair in everything(federation)} != {pair for *_, pair in everything(other)}
    for _, fold, pair in everything(federation):
        assert fold == key_fold(pair_key(pair.prompt, pair.chosen, pair.rejected), config.validation, config.test)


# --- real data


@pytest.mark.skipif(not UKP.exists(), reason="shared/data is not beside the checkout")
def test_ukp_arguments():
    config = DataConfig(source=str(UKP))
    federation, counts = read(config, seed=0)
    rows = lines(UKP)
    assert counts.rows == len(rows) == 23_614 and counts.lost == {} and counts.left_out == {}
    assert len(federation.clients) == 143
    choices = {(r["client_id"], r["prompt"], r["chosen"], r["rejected"]) for r in rows}
    assert counts.doubled == 23_614 - len(choices)
    assert {(c, p.prompt, p.chosen, p.rejected) for c, _, p in everything(federation)} == choices
    sides: dict = {}
    for r in rows:
        key = (r["prompt"], frozenset((r["chosen"], r["rejected"])))
        sides.setdefault(key, {}).setdefault(r["chosen"], set()).add(r["client_id"])
    assert counts.pairs == len(sides)
    assert counts.disagreed == sum(len(s) == 2 and len(set.union(*s.values())) > 1 for s in sides.values()) > 2_700
    shares = {fold: federation.sizes(fold).sum() / len(choices) for fold in FOLDS}
    assert shares == pytest.approx({"train": 0.68, "validation": 0.16, "test": 0.16}, abs=0.01)


@pytest.mark.skipif(not HARMLESS.exists(), reason="shared/data is not beside the checkout")
def test_hh_transcripts_split_at_the_last_assistant_turn():
    federation, counts = read(DataConfig(source=str(HARMLESS), client_column=""), seed=0)
    assert counts.rows == 2_312
    assert counts.lost == {"the two prompts differ": 5, NO_RESPONSE: 4}
    assert federation.ids == ("all",)
    pairs = [pair for _, _, pair in everything(federation)]
    assert len(pairs) == 2_312 - 9 - counts.doubled
    assert all("\n\nAssistant:" not in f"{p.chosen}{p.rejected}" for p in pairs)
    assert all(p.prompt.startswith("Human:") and "Human:" in p.prompt.split("\n\nAssistant:")[-1] for p in pairs)
    transcripts = {row["chosen"].strip() for row in lines(HARMLESS)}
    spaced = {" ".join(text.split()) for text in transcripts}
    assert all(" ".join(f"{p.prompt} Assistant: {p.chosen}".split()) in spaced for p in pairs)


@pytest.mark.skipif(not HELPFUL.exists(), reason="shared/data is not beside the checkout")
def test_hh_with_explicit_prompts():
    _, counts = read(DataConfig(source=str(HELPFUL), client_column=""), seed=0)
    rows = lines(HELPFUL)
    empty = sum(not r["chosen"].strip() or not r["rejected"].strip() for r in rows)
    same = sum(r["chosen"].strip() == r["rejected"].strip() != "" for r in rows)
    assert counts.lost == {NO_RESPONSE: empty, "chosen equals rejected": same}
    assert counts.pairs == len({pair_key(r["prompt"], r["chosen"], r["rejected"]) for r in rows}) - empty - same


def test_shuffled_people_keep_their_numbers_and_lose_what_is_theirs(tmp_path):
    """A control: each of three people has as many choices as before, of texts that were all somebody's; other seeds
    deal otherwise, the same one alike, and the result says so."""
    rows = [row for name, n in (("a", 30), ("b", 20), ("c", 10)) for row in rows_of(name, n, group=name.upper())]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = DataConfig(source=str(tmp_path / "rows.jsonl"), group_column="group", min_rows=2)
    plain, dealt, again, other = (
        load(replace(config, shuffled=shuffled), seed)
        for shuffled, seed in ((False, 0), (True, 0), (True, 0), (True, 1))
    )
    sizes = [[sum(map(len, (c.train, c.validation, c.test))) for c in f.clients] for f in (plain, dealt)]
    assert sizes == [[30, 20, 10]] * 2 and [c.group for c in dealt.clients] == ["A", "B", "C"]
    assert everything(dealt) != everything(plain) and everything(dealt) == everything(again) != everything(other)
    assert {p.prompt.split()[0] for p in dealt.clients[0].train} == {"a", "b", "c"}
    assert SHUFFLED in dealt.notes and SHUFFLED not in plain.notes
