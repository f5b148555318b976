"""The objective `reward` on real clients: against sums by hand, stacked against alone, and under every algorithm."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from raypref.clients.pool import InProcess
from raypref.config import RunConfig, UserError, flatten, override, validate
from raypref.data.load import load
from raypref.evaluation.runs import label
from raypref.experiment import loop as experiment
from raypref.experiment.forecast import Costs, predict
from raypref.models.head import HIDDEN, SCORE, SMALL, head_segments, score, state_scale
from raypref.models.layout import Layout, initial_row, orthogonal_init
from raypref.models.selector import Selector
from raypref.objectives.base import row_layout
from tests.clients.local import training
from tests.test_experiment import Stop, measured, stopping

REWARD = {"algorithm": "fedavg", "objective": "reward"}
KINDS = {
    "linear": {},
    "mlp": {"reward.hidden": 4},
    "adapted": {"reward.features": "adapted"},
    "adapted mlp": {"reward.features": "adapted", "reward.hidden": 4},
}
BAYES = {
    "bayes": {"objective": "bayes", "bayes.d": 3},
    "bayes adapted mlp": {"objective": "bayes", "bayes.d": 3, "reward.features": "adapted", "reward.hidden": 4},
}


def made(tiny, **more):
    return InProcess(experiment.prepare(override(tiny, REWARD | more)))


def moved(layout, n, scale=0.05):
    """Rows away from the start."""
    noise = torch.randn(n, layout.width, generator=torch.Generator().manual_seed(0))
    return torch.stack([initial_row(layout, 0, i) for i in range(n)]) + scale * noise


def test_heads_by_hand():
    """Linear: w x. MLP: w gelu(W x + b), gelu(u) = u Φ(u): of 0 it is 0, of 1 0.841345, of 3 2.995950."""
    x = torch.tensor([[[4.0, 2.0], [3.0, -1.0]]])
    assert score({SCORE: torch.tensor([[[2.0, 0.5]]])}, x).tolist() == [[9.0, 5.5]]
    mlp = {
        f"{HIDDEN}.weight": torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]),
        f"{HIDDEN}.bias": torch.tensor([[-3.0, 1.0]]),
        SCORE: torch.tensor([[[1.0, 10.0]]]),
    }
    assert score(mlp, x)[0].tolist() == pytest.approx([0.841345 + 10 * 2.995950, 0.0], abs=1e-4)  # (1, 3) and (0, 0)


def test_a_head_starts_small_and_ends_the_row(tiny):
    for more in KINDS.values():
        layout = row_layout(override(tiny, REWARD | more))
        names = [s.name for s in layout.segments]
        head = [name for name in names if name.startswith("head.")]
        assert names[-len(head) :] == head and head[-1] == SCORE
        last = layout.split(initial_row(layout, 0)[None])[SCORE]
        assert 0 < float(last.abs().max()) <= SMALL / math.sqrt(last.shape[-1])
    assert [s.shape for s in head_segments(16, 0)] == [(1, 16)]
    assert [s.shape for s in head_segments(16, 4)] == [(4, 16), (4,), (1, 4)]


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_margins_are_the_heads_differences_of_states_read_by_transformers(tiny, kind):
    """The state of the last token of "Question: …\\nAnswer: …\\n", through plain transformers."""
    config = override(tiny, REWARD | KINDS[kind])
    pool, c = made(tiny, **KINDS[kind]), 2
    row = moved(pool.layout, 1, 0.3)
    tokenizer = AutoTokenizer.from_pretrained(config.model.base)
    model = AutoModelForCausalLM.from_pretrained(config.model.base).eval()
    scale = float(model.model.norm.weight.detach().square().mean().sqrt())
    assert state_scale(config.model.base) == pytest.approx(scale)

    def reward(prompt, response):
        ids = tokenizer(f"Question: {prompt}\nAnswer: {response}\n", return_tensors="pt").input_ids
        with torch.no_grad():
            x = model.model(input_ids=ids).last_hidden_state[0, -1] / scale
        parts = {name: t[0] for name, t in pool.layout.split(row).items()}
        if kind == "mlp":
            x = torch.nn.functional.gelu(parts[f"{HIDDEN}.weight"] @ x + parts[f"{HIDDEN}.bias"])
        return float(parts[SCORE][0] @ x)

    pairs = load(config.data, config.seed).clients[c].test
    expected = [reward(p.prompt, p.chosen) - reward(p.prompt, p.rejected) for p in pairs]
    (m,) = pool.worker.objective.order_margins(row, [c], "test")
    assert np.abs(expected).max() > 1e-3
    assert m.T.tolist() == [pytest.approx(expected, abs=1e-5)] * 2
    again = pool.worker.margins(row, pool.worker.reader.clients[c].test)[0]
    assert torch.allclose(again, m, atol=1e-6)


def test_the_loss_and_its_gradient_by_hand(tiny):
    """Linear: -log σ(w d), and -σ(-w d) d, the means over a client's own pairs, d = (x_chosen - x_rejected) / s."""
    pool = made(tiny)
    row, objective = moved(pool.layout, 1, 0.3), pool.worker.objective
    local = training(pool.worker, [4], row.numpy(), 1, 1e-3)
    pairs = local.batches[0][0] // 2
    (places,) = objective.places([4], "train")
    x = objective.features.table[places] * objective.scale
    d = (x[::2] - x[1::2])[pairs]
    loss = local.advance(1)
    m = d @ row[0]
    assert loss[0] == pytest.approx(float(torch.log1p(torch.exp(-m)).mean()), abs=1e-6)
    assert torch.allclose(local.rows.grad[0], (-torch.sigmoid(-m)[:, None] * d).mean(0), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS | BAYES)
def test_stacked_is_one_at_a_time(tiny, kind):
    """Gradients within 1e-6 of one client alone, with uneven batches and dropout."""
    pool = made(tiny, **(KINDS | BAYES)[kind], **{"model.lora_dropout": 0.3})
    rows, stack = moved(pool.layout, 3).numpy(), [1, 4, 8]

    def first_gradient(clients, rows):
        local = training(pool.worker, clients, rows, 1, 1e-3)
        local.batches = [b[:, : 3 + c % 3] for b, c in zip(local.batches, clients, strict=True)]
        return local.advance(1), local.rows.grad

    losses, together = first_gradient(stack, rows)
    margins = pool.worker.order_margins(torch.from_numpy(rows), stack, "test")
    for i, c in enumerate(stack):
        loss, alone = first_gradient([c], rows[i : i + 1])
        assert losses[i] == pytest.approx(loss[0], abs=1e-6)
        assert float((together[i] - alone[0]).abs().max()) < 1e-6 < float(alone.abs().max())
        (m,) = pool.worker.order_margins(torch.from_numpy(rows[i : i + 1]), [c], "test")
        assert torch.allclose(margins[i], m, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS | BAYES)
def test_it_learns_what_a_client_prefers(tiny, kind):
    pool = made(tiny, **(KINDS | BAYES)[kind], **{"model.base": "embedded"})
    local = training(pool.worker, [3], initial_row(pool.layout, 0)[None].numpy(), 60, 1e-2)
    losses = [float(local.advance(30)[0]) for _ in range(2)]
    assert losses[0] < math.log(2) and losses[1] < 0.5
    (m,) = pool.worker.order_margins(torch.from_numpy(local.result()), [3], "train")
    assert float((m > 0).float().mean()) > 0.8


def test_no_step_and_no_evaluation_pads_or_reads_anything(tiny, monkeypatch):
    """On frozen features a step looks up rows of a table; the base stands still."""
    pool = made(tiny)
    pool.worker.objective.places(range(10), "train")
    pool.worker.objective.places(range(10), "test")
    monkeypatch.setattr(Selector, "states", lambda *a, **k: pytest.fail("the base was asked"))
    monkeypatch.setattr(type(pool.worker.reader), "batch", lambda *a, **k: pytest.fail("a batch was padded"))
    training(pool.worker, list(range(10)), moved(pool.layout, 10).numpy(), 3).advance(3)
    pool.worker.order_margins(moved(pool.layout, 10), range(10), "test")


METHODS = (
    "local", "cl", "multi_cl", "fedavg", "fl_target", "fedbiscuit", "soft_fl", "fedgd", "fedgd_target",
    "fedprox", "scaffold", "ditto", "fedrep", "lore",
)  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        *((name, "linear") for name in METHODS),
        *((name, "adapted mlp") for name in ("soft_fl", "fedgd", "ditto", "fedrep", "lore")),
        *((name, "bayes") for name in (*METHODS, "fedgd_z")),
        *((name, "bayes adapted mlp") for name in ("soft_fl", "fedgd", "ditto")),
    ],
)
def test_every_algorithm_takes_it(tiny, tmp_path, algorithm, kind):
    """Cut after a round and resumed: the bits of a run that was not; and a forecast of its bytes."""
    config = override(tiny, REWARD | (KINDS | BAYES)[kind] | {"algorithm": algorithm, "federation.rounds": 2})
    if algorithm == "fedrep" and kind == "linear":
        with pytest.raises(UserError, match="a row of objective reward is a head alone here"):
            experiment.run(config, tmp_path / "whole", adapters=False)
        return
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    name = "Bayesian" if kind in BAYES else "reward"
    assert label(flatten(whole["config"])).endswith(f"({name}{', adapted, MLP 4' * ('mlp' in kind)})")
    if algorithm != "local":
        first = stopping("blocks" if "cl" in algorithm else "round", 1)
        with pytest.raises(Stop):
            experiment.run(config, tmp_path / "cut", bar=first, adapters=False)
        assert measured(experiment.run(config, tmp_path / "cut", adapters=False)) == measured(whole)
    predicted = predict(experiment.prepare(config), Costs()).used
    assert (predicted.bytes_up, predicted.bytes_down) == (whole["bytes_up"], whole["bytes_down"])


def test_a_row_of_lore_is_the_paper_s_mixture_of_rewards(tiny):
    """Σ_b w_b r_b(x) of each response, with r_b the reward of head b: margins of the mixture of rows are the mixture of
    the rows' margins. Under LoRA they are not: there the rows are mixed, not the rewards."""
    w = torch.tensor([0.5, 0.3, 0.2])
    for kind, exact in (("linear", True), ("adapted", False)):
        clients = made(tiny, **KINDS[kind])
        V = moved(clients.inputs.layout, 3)
        c = [0] * 3
        of_each = torch.stack(clients.worker.order_margins(V, c, "test"))
        (mixed,) = clients.worker.order_margins((w @ V)[None], [0], "test")
        same = torch.allclose(mixed, torch.einsum("b,bnk->nk", w, of_each), atol=1e-5)
        assert same == exact


def test_soft_fl_starts_from_orthogonal_small_rows(tiny):
    """⟨θ_j, θ_k⟩ = 0 and ‖θ_k‖ = ε (1 + jitter k), whatever r is; more experts than parameters are refused."""
    layout = Layout(head_segments(16, 0))
    rows = orthogonal_init(layout, 3, {}, 0.005, 0.01, 0).double()
    expected = torch.diag((0.005 * torch.tensor([1.0, 1.01, 1.02])) ** 2).double()
    assert torch.allclose(rows @ rows.T, expected, atol=1e-10)
    config = override(tiny, REWARD | {"algorithm": "soft_fl", "experts.K": 16, "model.lora_r": 8})
    experiment.prepare(config)
    with pytest.raises(UserError, match=r"experts\.K must be at most 16, the parameters of a head, but is 17"):
        experiment.prepare(override(config, {"experts.K": 17}))


def test_what_makes_no_sense_is_refused():
    for values, message in (
        ({"reward.hidden": -1}, "reward.hidden is -1; it must not be negative"),
        ({"diagnostics.marks": (0,)}, "diagnostics.marks are S2's"),
        ({"algorithm": "fedvpl"}, "trains the variational selector"),
    ):
        with pytest.raises(UserError, match=message):
            validate(override(RunConfig(), REWARD | values))
