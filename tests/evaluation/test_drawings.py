"""Tables and figures by their decorators: what is found, what a person may type, and a table from elsewhere."""

import pytest

from raypref.config import UserError
from raypref.evaluation import drawings
from raypref.evaluation.drawings import Item, reference, table
from raypref.evaluation.rows import Row, accuracy, drawn
from raypref.evaluation.tables import markdown
from tests.evaluation.made import finished, flat


@pytest.fixture
def elsewhere(monkeypatch):
    """A table that no module of `raypref.evaluation.comparisons` has."""
    drawings.drawings()  # those of the package are registered once, when they are imported
    monkeypatch.setattr(drawings, "_drawings", dict(drawings._drawings))

    @table("by-seed", rows=("Seed 7",), after_run=True)
    def by_seed(runs, fold) -> Item:
        """A row a seed"""
        rows = [Row(f"Seed {run.seed}", {"": {run.seed: run}}) for run in runs]
        return drawn(rows, [accuracy(10, fold)], title="By seed", reference="Seed 0")

    return by_seed


def test_a_table_needs_its_decorator_and_nothing_else(elsewhere):
    there = drawings.drawings()
    assert there["table", "by-seed"] is elsewhere and "by-seed: A row a seed" in drawings.listing("table")
    item = elsewhere([finished(flat(0.5, acc), seed=seed) for seed, acc in ((0, 0.9), (7, 0.8))])
    assert (item.name, item.content.name, item.reference) == ("by-seed", "by-seed", "Seed 0")
    assert "| Seed 7 | 80.0 ± 0.0 | 1 |" in markdown(item.content)
    assert reference("seed 7") == "Seed 7"
    assert [run.seed for run in item.runs] == [0, 7]


def test_the_papers_come_first_and_policies_last():
    words = [word for kind, word in drawings.drawings() if kind == "table"]
    assert words[:7] == list("1234567") and words[-3:] == ["win-rates", "win-rates-ratio", "win-rates-unseen"]
    assert {"mix", "context", "latent", "overhead", "unseen"} < set(words)
    figures = [word for kind, word in drawings.drawings() if kind == "figure"]
    assert figures == ["2", "3", "4", "5", "6", "calibration", "gq", "latent", "latent-numbers", "win-rates"]


def test_a_name_is_taken_once(elsewhere):
    def other(runs, fold) -> Item:
        return Item()

    other.__module__ = "somewhere.else"
    with pytest.raises(ValueError, match="by-seed is there already, in tests"):
        table("by-seed")(other)


@pytest.mark.parametrize(
    ("word", "row"),
    [
        ("FedGD", "FedGD"),
        ("fedavg", "FL"),
        ("fl_TARGET", "FL_target"),
        ("feddpo", "FedDPO"),
        ("FedGD (dpo)", "FedGD (dpo)"),
        ("FedGD (K=3)", "FedGD (K=3)"),
        ("random", "Random"),
    ],
)
def test_a_reference_is_a_row_by_label_or_algorithm(word, row):
    assert reference(word) == row


@pytest.mark.parametrize(
    ("word", "hint"), [("FedG", "did you mean 'FedGD'"), ("Zzz", "there are: Local, CL, Multi CL")]
)
def test_an_unknown_reference_is_refused_with_the_nearest(word, hint):
    with pytest.raises(UserError, match=hint):
        reference(word)
