"""LoRe: mixtures by hand, FedAvg with a basis of one, and the paper's claims where rewards are linear."""

import numpy as np
import pytest
import torch

from raypref.algorithms.fedrep import FedRep
from raypref.algorithms.lore import LoRe, LoReHalf, simplex_fit
from raypref.clients.half import Message, Start
from raypref.clients.kept import Kept
from raypref.clients.pool import InProcess
from raypref.config import UserError, override
from raypref.experiment import loop as experiment
from raypref.objectives import OBJECTIVES
from raypref.tools import checkpoint
from tests.algorithms.rule import Rule, config


def half(kept):
    """Two persons of the basis V_0 = (1, 0), V_1 = (0, 1)."""
    rows = torch.tensor([[1.0, 0.0, 0.0, 1.0]]).repeat(len(kept), 1)
    start = Start(np.arange(len(kept)), rows, Message(), kept, Rule.layout, 1, None)
    return LoReHalf(config("lore", lore__B=2), start)


def test_a_persons_row_and_what_its_move_does_to_the_basis_by_hand():
    """w = (1/2, 1/2): the row is (0.5, 0.5); moved by (0.2, 0), both rows move by it, for w_b / ‖w‖² = 1.
    w = (0.8, 0.2): the row is (0.8, 0.2); ‖w‖² = 0.68, so the rows move by 0.2 · 0.8/0.68 and 0.2 · 0.2/0.68."""
    made = half([{}, {"a": np.log([0.8, 0.2]).astype(np.float32)}])
    assert made.personal(None).flatten().tolist() == pytest.approx([0.5, 0.5, 0.8, 0.2])
    with torch.no_grad():
        made.row += torch.tensor([0.2, 0.0])
    moved = made.result(None)
    assert moved[0].tolist() == pytest.approx([1.2, 0.0, 0.2, 1.0])
    assert moved[1].tolist() == pytest.approx([1 + 0.16 / 0.68, 0.0, 0.04 / 0.68, 1.0])
    # The mixture is then moved by just that, at any weights.
    after = torch.bmm(made.w[:, None], moved.view(2, 2, 2))[:, 0]
    assert torch.allclose(after, made.model(None, 0), atol=1e-6)
    assert [arrays["a"].shape for arrays in made.keep()] == [(2,), (2,)]


def test_weights_are_fitted_to_margins_alone():
    """Of two rewards with margins (2, -1) and (-1, 2) on two pairs the even mixture is best; on the first pair alone
    the first one, as far as the optimizer goes; and where (2, 0) meets (0, 1), a derivative of 0 says that
    2 σ(-2w) = σ(-(1 - w)), of which w = 0.66643."""
    both = torch.tensor([[2.0, -1.0], [-1.0, 2.0]])
    assert simplex_fit(both).tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
    assert simplex_fit(both[:, :1])[0] > 0.99
    assert float(simplex_fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))[0]) == pytest.approx(0.66643, abs=1e-4)
    assert simplex_fit(torch.tensor([[3.0, -1.0]])).tolist() == [1.0]


def test_a_basis_of_one_is_fedavg_to_the_bit(tiny, tmp_path):
    small = {"federation.rounds": 2, "lore.B": 1, "fit.context_marks": (1,)}
    results = {}
    for name in ("fedavg", "lore"):
        results[name] = experiment.run(override(tiny, small | {"algorithm": name}), tmp_path / name, adapters=False)
    one, other = (checkpoint.load(tmp_path / name / "state.safetensors")[0] for name in results)
    assert torch.equal(one["theta"], other["basis"][0])
    for what in ("test", "validation", "margins", "bytes_up", "bytes_down", "client_steps"):
        assert results["fedavg"][what] == results["lore"][what]


def test_a_round_by_hand():
    clients = Rule()
    algorithm = LoRe(config("lore", lore__B=3), clients)
    before = algorithm.init()
    assert before.basis.shape == (3, clients.layout.width)
    assert 0.005 < float((before.basis - clients.start()).std()) < 0.02
    after, _ = algorithm.round(before)
    n = clients.sizes[cohort := clients.asked[0]]
    moved = sum(clients.pull(c) * share for c, share in zip(cohort, n / n.sum(), strict=True))
    assert torch.allclose(after.basis, before.basis + moved, atol=1e-6)
    assert torch.equal(LoRe(config("lore", lore__B=1), clients).init().basis[0], clients.start())


@pytest.fixture(scope="module")
def linear(tiny):
    """Ten clients in four groups with a linear head, and LoRe of two rewards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OBJECTIVES, "linear", "tests.tenants.linear:Linear")
        values = {"algorithm": "lore", "objective": "linear", "lore.B": 2}
        inputs = experiment.prepare(override(tiny, values))
        yield InProcess(inputs)


def test_a_linear_reward_of_the_mixture_is_the_mixture_of_the_rewards(linear):
    """The paper's w · R_φ: Σ_b w_b (V_b · φ)."""
    V = torch.randn(2, linear.layout.width, generator=torch.Generator().manual_seed(0))
    kept = Kept().updated([3], [{"a": np.log([0.7, 0.3]).astype(np.float32)}])
    row = linear.compose([3], V.flatten(), kept)
    read = linear.worker.order_margins
    mixed = 0.7 * read(V[:1], [3], "test")[0] + 0.3 * read(V[1:], [3], "test")[0]
    assert torch.allclose(read(row, [3], "test")[0], mixed, atol=1e-5)


def test_few_choices_find_the_reward_that_a_person_holds(linear):
    """Of a basis of one reward and its opposite the right one gets the weight, from an even start, in which they cancel
    out."""
    c = 2
    alone = linear.train([c], torch.zeros(2 * linear.layout.width), 0).rows.view(2, -1)[0]
    basis = 100 * torch.stack([-alone, alone])
    few = linear.worker.by_context(np.array([c]), basis.flatten().numpy())["context_accuracy"][0]
    fitted = linear.compose([c], basis.flatten(), Kept())[0]
    share = float(fitted @ basis[1] / (basis[1] @ basis[1]))  # w_1 - w_0
    assert 0.9 < share <= 1 and few.shape == (6,) and few[-1] > 0.6


def test_a_whole_run_on_a_linear_head(linear, tmp_path):
    """A trained width of B times the layout's, through personalization, probes and exports of numbers."""
    result = experiment.run(linear.config, tmp_path, adapters=False, inputs=linear.inputs)
    D = linear.layout.width
    assert checkpoint.load(tmp_path / "state.safetensors")[0]["basis"].shape == (2, D)
    assert result["bytes_up"] == result["bytes_down"] == 4 * 5 * 4 * 2 * D
    assert np.array(result["probes"]["context_accuracy"]).shape == (10, 6)
    assert result["parameters"] == {"adapter": 0, "latent": 0, "head": D}


def test_a_linear_head_has_no_body_for_fedrep(linear):
    with pytest.raises(UserError, match="objective linear is a head alone here"):
        FedRep(override(linear.config, {"algorithm": "fedrep"}), linear)
