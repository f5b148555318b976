"""DPO's loss by hand."""

import math

import pytest
import torch

from raypref.objectives.base import Loss
from raypref.objectives.dpo import dpo_loss, margin


def test_the_margin_is_the_difference_of_the_log_ratios():
    """Chosen: log 0.5 against log 0.25 under the reference; rejected: log 0.1 against log 0.4; β = 0.1: 0.1 log 8."""
    chosen, rejected = math.log(0.5 / 0.25), math.log(0.1 / 0.4)
    m = margin(torch.tensor([chosen]), torch.tensor([rejected]), 0.1)
    assert float(m) == pytest.approx(0.1 * math.log(8))


def test_the_loss_is_each_clients_mean_over_its_own_pairs():
    """log 2 at a margin of 0; log(1 + e^-log 3) = log(4/3); the second client's second pair is padding."""
    m = torch.tensor([[0.0, math.log(3)], [0.0, -50.0]])
    loss = Loss({"dpo": dpo_loss(m)}, torch.tensor([[True, True], [True, False]])).by_client()["dpo"]
    assert loss.tolist() == pytest.approx([(math.log(2) + math.log(4 / 3)) / 2, math.log(2)])


def test_the_gradient_is_that_of_the_paper():
    """∇ = -β σ(-m) (∇ log π(chosen) - ∇ log π(rejected)) (Rafailov et al., 2023, section 4), here with m = β log 3."""
    ratios = torch.tensor([math.log(6), math.log(2)], requires_grad=True)
    dpo_loss(margin(ratios[None, :1], ratios[None, 1:], 0.5)).sum().backward()
    g = -0.5 / (1 + math.sqrt(3))
    assert ratios.grad.tolist() == pytest.approx([g, -g])
