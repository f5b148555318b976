"""The command line that tells what a data set would do to a run, before it is run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from raypref.config import DataConfig, RunConfig
from raypref.data import check as checking
from raypref.data.__main__ import main
from raypref.data.people import assemble
from raypref.data.synthetic import AXES
from raypref.judges import style

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def contained(monkeypatch, tmp_path_factory):
    """Nothing is left in a person's cache, or in the environment of later tests."""
    monkeypatch.setattr("raypref.tools.console.quiet", lambda: None)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte: lengths can be worked out."""
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokens = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokens)


@pytest.fixture
def base(tokenizer, tmp_path) -> str:
    tokenizer.save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


FRAME = len("Pick the better answer.\nQuestion: \nA: \nB: \nChoice:")


def rows_of(client: str, n: int = 60) -> list[dict]:
    return [
        {"client_id": client, "prompt": f"{client} asks {i:02}", "chosen": f"yes {i:02}", "rejected": f"no {i:02}"}
        for i in range(n)
    ]


LENGTH = FRAME + len("a asks 00") + len("yes 00") + len("no 00")  # of each of those rows, in tokens
LONG = {"client_id": "a", "prompt": "p", "chosen": "x" * 200, "rejected": "y"}  # its responses alone do not fit
CUT = {"client_id": "a", "prompt": "p" * 100, "chosen": "x", "rejected": "y"}  # fits when its prompt is cut


def run(tmp_path, rows: list[dict], *flags: str) -> tuple[str, list[str]]:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path), ["check", str(path), "--model.base", str(tmp_path / "base"), *flags]


def test_counts_by_tokens(tokenizer):
    config = DataConfig(max_length=LENGTH)
    federation, counts = assemble([*rows_of("a"), LONG, CUT], config)
    report = checking.check(RunConfig(data=config), federation, counts, tokenizer)
    assert (report.tokens.too_long, report.tokens.prompts_truncated, report.tokens.identical) == (1, 1, 0)
    assert report.starved == () and report.unusable == 1
    # One token less, and every prompt is cut; with room for no response nobody is left.
    shorter = DataConfig(max_length=LENGTH - 1)
    assert checking.check(RunConfig(data=shorter), federation, counts, tokenizer).tokens.prompts_truncated == 61
    nothing = checking.check(RunConfig(data=DataConfig(max_length=FRAME)), federation, counts, tokenizer)
    assert nothing.tokens.too_long == 62 and nothing.starved == ("a",)
    assert any("clients keep no pair in some fold, so a run stops: a" in line for line in nothing.lines())


def test_counts_of_what_a_policy_reads(tokenizer):
    """Question, longer answer and line end, to the token; one less cuts the prompt of every pair."""
    length = len("Question: a asks 00\nAnswer: yes 00\n")
    for most, cut in ((length, 0), (length - 1, 60)):
        data = DataConfig(max_length=most)
        federation, counts = assemble(rows_of("a"), data)
        report = checking.check(RunConfig(data=data, objective="dpo"), federation, counts, tokenizer)
        assert (report.tokens.prompts_truncated, report.tokens.too_long) == (cut, 0)
        assert f"\ntokens (template short, at most {most} a prompt with its response)" in list(report.lines())


def test_the_report_says_everything(tmp_path, base, capsys):
    rows = rows_of("a")
    reverse = {**rows[1], "chosen": rows[1]["rejected"], "rejected": rows[1]["chosen"]}
    rows += [rows[0], reverse, {**reverse, "client_id": "b"}, {**rows[2], "chosen": ""}, {**rows[3], "client_id": None}]
    rows += [{**rows[4], "rejected": rows[4]["chosen"]}, LONG, CUT]
    source, argv = run(tmp_path, rows, "--data.max_length", str(LENGTH))
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert f"{source}: 68 rows, 62 distinct pairs" in said
    lines = {" ".join(line.split()) for line in said.splitlines()}
    assert lines >= {
        "3 unusable and left out",
        "1 a response is missing or empty",
        "1 no client id",
        "1 chosen equals rejected",
        "1 repeat a row of the same client (kept once)",
        "1 pairs on which one client chose both ways (both kept, in one fold)",
        "1 pairs on which people disagree",
        "1 take part",
        "0 distinct pairs in different folds for different people or values",
        "1 pairs lose prompt text from the left",
        "1 pairs too long and left out: the responses alone do not fit",
        "0 pairs identical after truncation and left out",
    }
    assert any(line.startswith("1 left out: no pair in") and line.endswith(": b") for line in lines)
    sizes = [
        int(line.split()[1]) for line in said.splitlines() if line.split()[:1] in (["train"], ["validation"], ["test"])
    ]
    assert sum(sizes) == 63


def test_pairs_that_are_dealt_to_nobody_are_distinct_pairs_too(tmp_path, base, capsys):
    rows = [{"prompt": f"p{i}", "axis": a, "first": "x", "second": "y"} for a in ("education", "humor") for i in (0, 1)]
    rows = [{**row, "prompt": f"{row['axis']} {row['prompt']} {n}"} for n in range(50) for row in rows]
    source, argv = run(tmp_path, rows, "--data.pairs-per-axis", "40", "--data.group-sizes", "1", "0", "0", "1")
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert f"{source}: 200 rows, 200 distinct pairs, 160 of them dealt to clients\n" in out
    assert "    40  pairs dealt to no client" in out
    assert err.startswith("pairs tokenised 160/160")


def test_tldr_without_the_papers_filter_is_hinted_at(tmp_path, base, capsys):
    rows = [
        {
            "info": {"post": f"post {i}", "title": "t", "subreddit": "s"},
            "summaries": [{"text": f"zero {i}"}, {"text": f"one {i}"}],
            "choice": i % 2,
            "worker": "w",
            "split": ("train", "valid1", "valid2")[i % 3],
        }
        for i in range(90)
    ]
    hint = (
        "hint: the paper's selection of people is --data.cover-column split --data.cover-min-rows 100 "
        "--data.exact-counts 50 50 --data.template tldr (S2 2.3)\n"
    )
    assert main(run(tmp_path, rows)[1]) == 0
    assert hint in capsys.readouterr().out
    assert main(run(tmp_path, rows, "--data.cover-column", "split")[1]) == 0
    assert "hint" not in capsys.readouterr().out
    assert main(run(tmp_path, rows_of("a"))[1]) == 0
    assert "hint" not in capsys.readouterr().out


def test_strict_is_1_where_any_row_is_unusable(tmp_path, base, capsys):
    def status(rows: list[dict], *flags: str) -> int:
        return main(run(tmp_path, rows, *flags)[1])

    assert status(rows_of("a"), "--strict") == 0
    assert status([*rows_of("a"), {**rows_of("a")[0], "chosen": None}], "--strict") == 1
    assert status([*rows_of("a"), LONG], "--strict", "--data.max-length", "100") == 1
    assert status([*rows_of("a"), LONG], "--data.max-length", "100") == 0


def test_strict_counts_rows_that_cannot_be_read(tmp_path, base, capsys):
    source, argv = run(tmp_path, [*rows_of("a"), {**rows_of("a")[0], "answer": 1}])
    text = Path(source).read_text()
    Path(source).write_text(text.replace('"answer": 1', '"answer": ' + "9" * 5000))
    assert main(argv) == 0 and main([*argv, "--strict"]) == 1
    out = capsys.readouterr().out
    assert f"{source}: 61 rows, 60 distinct pairs" in out and "         1  unusable and left out" in out
    assert "which should be text (line 61)" in out
    Path(source).write_bytes(text.encode().replace(b"yes 30", b"\xe9 30"))
    assert main(argv) == main([*argv, "--strict"]) == 2
    assert "line 31 is not UTF-8 (byte 0xe9)" in capsys.readouterr().err


def test_nobody_left_is_reported_and_2(tmp_path, base, capsys):
    assert main(run(tmp_path, rows_of("a", 1))[1]) == 2
    out, err = capsys.readouterr()
    assert "1  left out: no pair in" in out
    assert err.count("\n") == 1 and "no client is left" in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["chekc"], "unknown command 'chekc'; did you mean 'check'?"),
        (
            ["check", "synthetic", "--data.clint-column", "x"],
            "'--data.clint-column'; did you mean '--data.client-column'?",
        ),
        (
            ["check", "synthetic", "--data.clint_column=x"],
            "'--data.clint_column'; did you mean '--data.client-column'?",
        ),
        (["show", "synthetic", "--strict"], "unknown flag '--strict'"),
        (["check", "synthetic", "again"], "unknown argument 'again'"),
        (["check", "synthetic", "--data.min-rows", "few"], "--data.min-rows: invalid literal"),
        (["check", "absent.jsonl"], "absent.jsonl: there is no such file"),
        (["check", "synthetic", "--data.validation", "0.9"], "must be above 0 and leave something for training"),
        (["check", "synthetic", "--data.split", "topic"], "no column 'topic'"),
        (["show", "synthetic", "-n", "0"], "n is 0; it must be at least 1"),
    ],
)
def test_what_a_person_can_mend_is_one_line_and_2(argv, said, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err
    assert err.startswith("raypref: ") and err.count("\n") == 1


def test_flags_in_either_spelling(tmp_path, base, capsys):
    rows = [{**{k: v for k, v in row.items() if k != "client_id"}, "worker": "w"} for row in rows_of("a")]
    for flag in ("--data.client-column", "--data.client_column"):
        assert main(run(tmp_path, rows, flag, "worker")[1]) == 0
    assert main(run(tmp_path, rows, "--data.client-column", "")[1]) == 0


def test_show_prints_pairs_with_client_and_group(capsys):
    sizes = ("--data.group-sizes", "1", "1", "1", "1", "--data.pairs-per-axis", "40")
    assert main(["show", "synthetic", "-n", "6", *sizes]) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")
    heads = [block.splitlines()[0] for block in blocks]
    assert [head.split(",")[0] for head in heads] == [f"client c0{c}" for c in (0, 1, 2, 3, 0, 1)]
    assert all(", group G" in head for head in heads) and len(set(blocks)) == 6
    assert all(
        [line.split()[0] for line in block.splitlines()[1:]] == ["prompt", "chosen", "rejected"] for block in blocks
    )


GRADED = ("--data.group-sizes", "2", "0", "0", "2", "--data.graded.train", "8", "12", "--data.graded.test", "30")


def test_show_prints_what_a_generator_hides(capsys):
    """The wish behind a choice, what both answers hold, and whether the label is noise; by another way here."""
    assert main(["show", "graded", "-n", "40", *GRADED]) == main(["show", "--data.source", "graded", *GRADED]) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")[:40]
    verdicts = set()
    for block in blocks:
        lines = [line.split(maxsplit=1) for line in block.splitlines()[1:]]
        assert [name for name, _ in lines] == ["prompt", "chosen", "rejected", "wish", "chosen", "rejected", "margin"]
        texts = dict(lines[:3])
        wish = {pole: float(weight) for pole, weight in (part.split() for part in lines[3][1].split(", "))}
        margin = 0.0
        for name, held in lines[4:6]:
            holds = {pole: int(n) for n, pole in (part.split() for part in held.removeprefix("holds ").split(", "))}
            counted = style.counts(texts[name])
            assert holds == {
                AXES[axis][pole]: counted[axis, pole] for axis in ("education", "humor") for pole in (0, 1)
            }
            opposite = dict(pair for poles in AXES.values() for pair in (poles, poles[::-1]))
            score = sum(weight * (holds[pole] - holds[opposite[pole]]) for pole, weight in wish.items())
            margin += score if name == "chosen" else -score
        said, verdict = lines[6][1].split(", ")
        assert float(said) == pytest.approx(margin, abs=0.5) and verdict.startswith(
            "as" if float(said) > 0 else "noise"
        )
        verdicts.add(verdict)
    assert len(verdicts) == 2


def test_check_says_what_counted_words_tell(tmp_path, base, capsys):
    assert main(["check", "graded", "--model.base", base, *GRADED]) == 0
    out, err = capsys.readouterr()
    assert "graded: 200 rows, 200 distinct pairs" in out and "fits to counted words 24/24" in err
    block = out.split("what counted words tell of the test pairs (accuracy in %, mean over clients)\n")[1].splitlines()
    names = ["logistic regression", "nearest neighbour", "the longer answer"]
    names += ["best possible, by the wish", "labels against the wish"]
    assert [line[2:34].strip() for line in block[1:]] == names
    numbers = [[float(word) for word in line[34:].removesuffix("  of all folds").split()] for line in block[1:]]
    assert [len(n) for n in numbers] == [3, 3, 1, 1, 1] and numbers[3][0] > 80 and numbers[4][0] < 20
    assert main(run(tmp_path, rows_of("a"))[1]) == 0  # no wish is known, and no group
    out = capsys.readouterr().out
    assert "the longer answer" in out and "wish" not in out and "own group" not in out


def test_alone_it_lists_its_commands(capsys):
    assert main([]) == main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n  check ") == out.count("\n  show ") == 2


def in_a_shell(*argv: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "raypref.data", *argv], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )


def test_a_hub_id_that_cannot_be_reached_is_one_line_in_a_pipe():
    done = in_a_shell("show", "nobody/nothing")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "'nobody/nothing'" in done.stderr and "local path" in done.stderr
    assert "Traceback" in in_a_shell("show", "absent.jsonl", "--debug").stderr


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from raypref.data.__main__ import main\n"
        "try: main(['check', '--help'])\nexcept SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'transformers', 'datasets', 'ray', 'mlflow', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--data.client-column" in done.stdout
