"""Paired differences, by numbers worked out here and by what a bootstrap must do."""

import numpy as np
import pytest

from raypref.evaluation.paired import against, difference
from raypref.evaluation.tables import Cell, Column, Table

ACC = Column("acc^10", "acc", scale=100, digits=1, best=1)


def test_what_is_the_same_for_every_client_has_no_spread():
    """Clients differ much, the methods by 0.1 for each of them: pairing cancels the clients."""
    b = {0: np.array([0.1, 0.5, 0.9]), 1: np.array([0.2, 0.3, 0.8])}
    a = {seed: values + 0.1 for seed, values in b.items()}
    told = difference(a, b)
    assert (told.mean, told.low, told.high) == pytest.approx((0.1, 0.1, 0.1)) and told.seeds == 2


def test_seeds_are_redrawn_too():
    """Gap 0 for all clients of one seed, 0.4 of the other: mean 0.2; two draws of two seeds give 0, 0.2 or 0.4."""
    zero = {0: np.zeros(5), 1: np.zeros(5)}
    told = difference({0: np.zeros(5), 1: np.full(5, 0.4)}, zero)
    assert (told.mean, told.low, told.high) == pytest.approx((0.2, 0.0, 0.4))


def test_of_one_seed_it_is_the_bootstrap_over_clients():
    """40 clients, gaps ±0.1 by halves: standard error 0.1 / √40 = 0.0158, so 95 % within about ±0.031."""
    gap = np.tile([0.1, -0.1], 20)
    told = difference({3: gap}, {3: np.zeros(40)})
    assert told.mean == pytest.approx(0) and told.seeds == 1
    assert told.high == pytest.approx(1.96 * 0.1 / np.sqrt(40), rel=0.15) and told.low == pytest.approx(
        -told.high, rel=0.2
    )
    assert told == difference({3: gap}, {3: np.zeros(40)})


def test_only_seeds_and_clients_that_both_have_count():
    told = difference({0: np.array([0.5, np.nan, 0.7]), 1: np.ones(3)}, {0: np.array([0.4, 0.2, 0.6]), 2: np.ones(3)})
    assert told.mean == pytest.approx(0.1) and told.seeds == 1
    assert difference({0: np.ones(3)}, {1: np.ones(3)}) is None
    assert difference({0: np.ones(3)}, {0: np.ones(4)}) is None


def cell(*seeds):
    arrays = {s: np.array(values) for s, values in enumerate(seeds)}
    return Cell(tuple(float(v.mean()) for v in arrays.values()), clients=arrays)


def test_the_small_table_holds_every_other_row_and_only_means_over_clients():
    columns = (ACC, Column("rounds", "rounds", span=True))
    rows = ("FL", "FedGD", "FL (balanced)", "Local")
    cells = (
        (cell([0.8, 0.6], [0.7, 0.5]), Cell((60.0,))),
        (cell([0.9, 0.7], [0.9, 0.7]), Cell((60.0,))),
        (cell([0.1, 0.1], [0.1, 0.1]), Cell((60.0,))),
        (None, Cell((0.0,))),
    )
    whole = Table("table2", "Table 2", "method", columns, rows, cells, frozenset({"FL (balanced)"}))
    small = against(whole, "FedGD")
    assert small.name == "table2-differences" and small.rows == ("FL",)
    assert [c.head for c in small.columns] == ["acc^10"] and small.columns[0].signed
    assert small.cells[0][0].mean == pytest.approx(-0.15)  # seeds: -0.1 and -0.2, alike for both clients
    assert small.cells[0][0].interval == pytest.approx((-0.2, -0.1))
    assert "seeds paired: 2" in small.notes[0] and "then clients" in small.notes[0]
    assert against(whole, "CL") is None


def test_with_one_seed_it_says_so():
    cells = ((cell([0.8, 0.6]),), (cell([0.9, 0.7]),))
    small = against(Table("t", "T", "m", (ACC,), ("FL", "FedGD"), cells), "FedGD")
    assert "one seed tells nothing" in small.notes[0]
