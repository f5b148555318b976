"""The choice loss and the margins, by numbers and properties (S2 2.1)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raypref.objectives.base import Loss
from raypref.objectives.choice import choice_loss, margins, metrics, order_margins, pair_margins


def test_margin_is_preferred_minus_other():
    logits = torch.tensor([[2.0, -1.0], [2.0, -1.0]])
    assert margins(logits, torch.tensor([0, 1])).tolist() == [3.0, -3.0]


def test_loss_is_each_clients_own_mean():
    """Client 0: margins 0 and (invalid); client 1: margins 3 and -3. -log σ(0) = log 2; the mean of log(1 + e^-3) and
    log(1 + e^3) is 1.5 + log(1 + e^-3)."""
    logits = torch.tensor([[[1.0, 1.0], [9.0, 0.0]], [[2.0, -1.0], [2.0, -1.0]]])
    slots = torch.tensor([[0, 1], [0, 1]])
    valid = torch.tensor([[True, False], [True, True]])
    expected = [math.log(2), 1.5 + math.log1p(math.exp(-3))]
    loss = Loss({"choice": choice_loss(logits, slots)}, valid)
    assert loss.by_client()["choice"].tolist() == pytest.approx(expected)


def test_always_a_is_half_on_orders_and_nothing_on_pairs():
    logits = torch.tensor([[5.0, -5.0]]).repeat(8, 1)  # 4 pairs, both orders
    found = metrics(order_margins(logits))
    assert float(found["order_accuracy"]) == 0.5
    assert float(found["accuracy"]) == 0.0  # M = 0 is wrong
    assert float(found["agreement"]) == 0.0


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=12), st.floats(-50, 50))
def test_a_constant_shift_leaves_pair_margins(logits, shift):
    """A slot bias, or any additive term that does not know the responses, cannot move a pair margin."""
    both = torch.tensor(logits[: len(logits) // 2 * 2], dtype=torch.float64)
    moved = both + torch.tensor([shift, 0.0], dtype=torch.float64)
    assert torch.allclose(pair_margins(order_margins(both)), pair_margins(order_margins(moved)), atol=1e-9)


def test_metrics_by_hand():
    """Orders of three pairs: (1, 2) right twice, M = 1.5; (3, -1) split, M = 1; (-1, -2) wrong twice."""
    found = metrics(torch.tensor([[1.0, 2.0], [3.0, -1.0], [-1.0, -2.0]]))
    assert float(found["accuracy"]) == pytest.approx(2 / 3)
    assert float(found["order_accuracy"]) == pytest.approx(3 / 6)
    assert float(found["agreement"]) == pytest.approx(2 / 3)
    losses = [math.log1p(math.exp(-m)) for m in (1, 2, 3, -1, -1, -2)]
    assert float(found["loss"]) == pytest.approx(sum(losses) / 6, rel=1e-6)
