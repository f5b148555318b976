"""Forms of data: rows are known by their columns, and one that is new takes a file and a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raypref.config import DataConfig, UserError
from raypref.data import forms
from raypref.data.__main__ import main
from raypref.data.federation import FOLDS, Pair
from raypref.data.forms.pairs import NO_PROMPT, NO_RESPONSE
from raypref.data.load import load, read
from raypref.data.rows import Unusable
from tests.data.ranked import FORM

TLDR = ("info", "summaries", "choice", "worker")
STYLES = ("prompt", "axis", "first", "second")


@pytest.fixture(params=["tests.data.ranked:FORM", FORM], ids=["by its place", "as it is"])
def ranked(request, monkeypatch):
    """The line that adds a form."""
    monkeypatch.setitem(forms.FORMS, "ranked", request.param)


def rankings(n: int) -> list[dict]:
    return [
        {"by": f"w{i % 2}", "question": f"q{i}", "ranking": [f"best {i}", f"good {i}", f"worst {i}"], "topic": f"t{i}"}
        for i in range(n)
    ]


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def everything(federation) -> set[tuple[str, Pair]]:
    return {(c.id, pair) for c in federation.clients for fold in FOLDS for pair in c.fold(fold)}


# --- what is known by which columns


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (("client_id", "prompt", "chosen", "rejected"), "pairs"),
        (("chosen",), "pairs"),
        (TLDR, "tldr"),
        ((*TLDR, "split", "batch"), "tldr"),
        (TLDR[1:], ""),
        ((*STYLES, "poles", "model"), "styles"),
        ((*STYLES, *TLDR, "chosen"), "pairs"),  # whoever has pairs needs no other form
        (("prompt", "answer"), ""),
        ((), ""),
    ],
)
def test_recognized_by_columns(columns, name):
    assert forms.recognized(columns, DataConfig()) == name


def test_the_chosen_column_is_the_configured_one():
    config = DataConfig(chosen_column="winner")
    assert forms.recognized(("winner", *STYLES), config) == "pairs"
    assert forms.recognized(("chosen", *STYLES), config) == "styles"


def test_who_knows_more_of_the_columns_knows_better(monkeypatch):
    monkeypatch.setitem(forms.FORMS, "more", replace(FORM, columns=frozenset({*TLDR, "scores"})))
    monkeypatch.setitem(forms.FORMS, "votes", replace(FORM, columns=frozenset({"chosen", "options"})))
    assert forms.recognized((*TLDR, "scores"), DataConfig()) == "more"
    assert forms.recognized(TLDR, DataConfig()) == "tldr"
    assert forms.recognized(("chosen", "options"), DataConfig()) == "votes"  # it says what its chosen column means
    assert forms.recognized(("chosen", "rejected"), DataConfig()) == "pairs"


@pytest.mark.parametrize("name", forms.FORMS)
def test_every_form_says_what_it_is_in_a_line(name):
    form = forms.form(name)
    assert form.about and "\n" not in form.about
    assert form.columns or name == forms.PAIRS


# --- a form of one's own


def test_a_form_of_ones_own_takes_one_line(tmp_path, ranked):
    bad = [{"by": "w0", "question": "q", "ranking": ["alone"]}, {"by": "w1", "question": "", "ranking": ["a", "b"]}]
    bad += [{"by": "w1", "question": "q", "ranking": ["a", None]}, {"by": None, "question": "q", "ranking": ["a", "b"]}]
    source = write(tmp_path / "rankings.jsonl", [*rankings(80), *bad])
    federation, counts = read(DataConfig(source=source), 0)
    expected = {
        (f"w{i % 2}", Pair(f"q{i}", f"{better} {i}", f"{worse} {i}"))
        for i in range(80)
        for better, worse in (("best", "good"), ("good", "worst"))
    }
    assert everything(federation) == expected
    assert counts.rows == 80 * 2 + len(bad)
    assert counts.lost == {"nothing to compare": 1, NO_PROMPT: 1, NO_RESPONSE: 1, "no client id": 1}
    by_topic = load(DataConfig(source=source, split="topic", group_column="by"), 0)  # a row's other columns stay
    assert everything(by_topic) == expected and by_topic.groups == ("w0", "w1")


def test_without_its_line_it_is_not_known(tmp_path):
    source = write(tmp_path / "rankings.jsonl", rankings(3))
    with pytest.raises(UserError, match="has no column 'client_id'; it has by, question, ranking, topic"):
        load(DataConfig(source=source), 0)


def test_it_does_not_mix_with_others(tmp_path, ranked):
    write(tmp_path / "a.jsonl", rankings(3))
    write(tmp_path / "b.jsonl", [{"client_id": "a", "prompt": "p", "chosen": "x", "rejected": "y"}])
    with pytest.raises(
        UserError, match=r"different forms: .*a\.jsonl \(with by, question, ranking\); .*\(with chosen\)"
    ):
        load(DataConfig(source=str(tmp_path)), 0)


def test_check_and_help_know_it(tmp_path, ranked, monkeypatch, capsys):
    monkeypatch.setattr("raypref.tools.console.quiet", lambda: None)
    source = write(tmp_path / "rankings.jsonl", rankings(80))
    assert main(["check", source]) == 0
    assert (
        f"{source}: 80 rows, 160 choices, 160 distinct pairs\nread as ranked: {FORM.about}\n" in capsys.readouterr().out
    )
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert f"\n  ranked     by, question, ranking: {FORM.about}\n" in out
    assert all(f"\n  {name:10} " in out for name in ("pairs", "styles", "tldr"))


# --- what every form owes its rows


STYLED = {"prompt": "p", "axis": "humor", "first": "x", "second": "y"}
SUMMED = {"info": {"post": "p"}, "summaries": [{"text": "x"}, {"text": "y"}], "choice": 1, "worker": "w"}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("pairs", {"client_id": "w", "prompt": "p", "chosen": "y", "rejected": "x"}),
        ("tldr", SUMMED),
        ("styles", STYLED),
    ],
)
def test_what_could_not_be_read_goes_through_as_it_is(name, row):
    config = DataConfig(group_sizes=(0, 1), pairs_per_axis=1, axes=("humor",))
    lost = Unusable("why", "line 2")
    result = list(forms.form(name).pairs([row, lost], config, 0))
    assert lost in result and len(result) == 2
    (pair,) = (one for one in result if one is not lost)
    assert (pair["prompt"].removeprefix("POST: "), pair["chosen"], pair["rejected"]) == ("p", "y", "x")
    assert set(forms.form(name).gives) <= set(pair)


def test_a_pair_of_its_row_keeps_the_columns_that_are_there():
    (result,) = forms.form("tldr").pairs([{**SUMMED, "client_id": "mine", "batch": "b"}], DataConfig(), 0)
    assert (result["client_id"], result["worker"], result["batch"], result["chosen"]) == ("mine", "w", "b", "y")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "synthetic", "group_sizes": (1, 1), "pairs_per_axis": 40}, "synthetic: the embedded generator"),
        ({"group_sizes": (1, 1), "pairs_per_axis": 1, "axes": ("humor",)}, "styles: answers in the first"),
        ({"kinds": ("helpful", "harmless"), "group_sizes": (1, 1)}, "pairs, of the kinds helpful, harmless"),
    ],
)
def test_the_counts_say_how_rows_were_read(tmp_path, options, said):
    if "kinds" in options:
        for name in ("helpful", "harmless"):
            write(tmp_path / f"{name}.jsonl", [{"prompt": "p", "chosen": "x", "rejected": "y"}])
        options["source"] = str(tmp_path)
    elif "source" not in options:
        options["source"] = write(tmp_path / "a.jsonl", [{**STYLED, "prompt": f"p{i}"} for i in range(2)])
    assert read(DataConfig(**options), 0)[1].read_as.startswith(said)
