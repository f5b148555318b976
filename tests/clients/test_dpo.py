"""DPO on real clients: against PEFT, stacked against alone, and which reference it is."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from raypref.clients.pool import InProcess
from raypref.config import RunConfig, UserError, override, validate
from raypref.data.load import load
from raypref.evaluation.runs import run_name
from raypref.experiment import loop as experiment
from raypref.experiment.forecast import Costs, measure, predict
from raypref.models.layout import initial_row
from raypref.models.peft_io import export_peft
from raypref.objectives import base
from raypref.objectives.base import row_layout
from raypref.objectives.dpo import DPO
from raypref.tools import checkpoint
from tests.clients.local import training
from tests.test_experiment import Stop, measured, stopping

FEDDPO = {"algorithm": "feddpo", "objective": "dpo"}


def moved(layout, n, scale=0.05, seed=0):
    """Rows away from the frozen base."""
    noise = torch.randn(n, layout.width, generator=torch.Generator().manual_seed(seed))
    return torch.stack([initial_row(layout, 0, i) for i in range(n)]) + scale * noise


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    """A trained adapter, so to speak."""
    folder, layout = tmp_path_factory.mktemp("start"), row_layout(override(tiny, FEDDPO))
    export_peft(folder, moved(layout, 1, scale=0.3)[0], layout, tiny.model)
    return str(folder)


@pytest.fixture(params=["base", "adapter"])
def start(request, adapter):
    """`dpo.start`: nothing, and a trained adapter."""
    return adapter if request.param == "adapter" else ""


def made(tiny, **more):
    return InProcess(experiment.prepare(override(tiny, FEDDPO | more)))


def test_a_policy_at_its_start_prefers_nothing(tiny, start):
    """Margins of exactly 0 and a loss of log 2, from the base and from a trained adapter alike."""
    pool = made(tiny, **{"dpo.start": start, "model.lora_dropout": 0.0})
    row = pool.start()
    assert bool(start) == (not torch.equal(row, initial_row(pool.layout, 0)))
    (m,) = pool.worker.objective.order_margins(row[None], [4], "test")
    assert m.shape == (pool.worker.reader.clients[4].test.pairs, 2) and not m.any()
    local = training(pool.worker, [1, 4], row.repeat(2, 1).numpy(), 1, 1e-3)
    assert local.advance(1) == pytest.approx([math.log(2)] * 2, abs=1e-6)


def test_the_reference_stays_what_the_run_started_from(tiny, start, tmp_path):
    """After a round, margins against PEFT: the policy is the trained row, the reference the start, not the row that was
    received and not the base. In personalization, too."""
    config = override(tiny, FEDDPO | {"dpo.start": start})
    pool, c = made(tiny, **{"dpo.start": start}), 2
    row = pool.train([c], pool.start(), 0).rows[0]
    again = pool.train([c], row, 1).rows
    export_peft(tmp_path / "policy", again[0], pool.layout, config.model)
    tokenizer = AutoTokenizer.from_pretrained(config.model.base)

    def log_prob(model, prompt, answer):
        stem = f"Question: {prompt}\nAnswer:"
        ids = tokenizer(f"{stem} {answer}\n", return_tensors="pt").input_ids
        before = len(tokenizer(stem).input_ids)
        logs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        return float(logs.gather(1, ids[0, 1:, None])[before - 1 :].sum())

    def loaded(folder):
        base = AutoModelForCausalLM.from_pretrained(config.model.base)
        return PeftModel.from_pretrained(base, folder).eval() if folder else base.eval()

    policy, reference = loaded(tmp_path / "policy"), loaded(start)
    pairs = load(config.data, config.seed).clients[c].test
    with torch.no_grad():
        expected = [
            0.1 * sum(s * (log_prob(policy, p.prompt, a) - log_prob(reference, p.prompt, a))
                      for s, a in ((1, p.chosen), (-1, p.rejected)))
            for p in pairs
        ]  # fmt: skip
    (m,) = pool.worker.objective.order_margins(again, [c], "test")
    assert np.abs(expected).max() > 1e-3
    assert m.T.tolist() == [pytest.approx(expected, abs=1e-5)] * 2
    assert pool.personalize([c], again).margins[0][0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_stacked_is_one_at_a_time(tiny, start, dropout):
    """Gradients within 1e-6 of one client alone; the masks are each client's own."""
    pool = made(tiny, **{"dpo.start": start, "model.lora_dropout": dropout})
    rows, stack = moved(pool.layout, 3).numpy(), [1, 4, 8]

    def first_gradient(clients, rows):
        local = training(pool.worker, clients, rows, 2, 1e-3)
        loss = local.advance(1)
        return local.rows.grad.clone(), loss

    together, losses = first_gradient(stack, rows)
    for i, c in enumerate(stack):
        alone, loss = first_gradient([c], rows[i : i + 1])
        assert float((together[i] - alone[0]).abs().max()) < 1e-6
        assert losses[i] == pytest.approx(loss[0], abs=1e-6)
    m = pool.worker.objective.order_margins(torch.from_numpy(rows), stack, "test")
    for i, c in enumerate(stack):
        (alone,) = pool.worker.objective.order_margins(torch.from_numpy(rows[i : i + 1]), [c], "test")
        assert torch.allclose(m[i], alone, atol=1e-6)


def test_a_clients_data_move_no_other_row(tiny):
    pool = made(tiny, **{"model.lora_dropout": 0.0})
    rows = moved(pool.layout, 2).numpy()
    results = []
    for other in (3, 7):
        local = training(pool.worker, [1, other], rows, 1, 1e-3)
        local.advance(1)
        results.append(local.rows.grad)
    assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
    assert float((results[0][1] - results[1][1]).abs().max()) > 1e-3


def test_uneven_batches_in_a_stack(tiny):
    """A client with fewer pairs than a batch uses them all, once each; padding adds nothing."""
    pool = made(tiny, **{"model.lora_dropout": 0.0})
    fold = pool.worker.reader.clients[4].train
    few = dataclasses.replace(
        fold, tokens=fold.tokens[: fold.offsets[6]], offsets=fold.offsets[:7], spans=fold.spans[:6]
    )
    pool.worker.reader.clients[4] = dataclasses.replace(pool.worker.reader.clients[4], train=few)
    rows = moved(pool.layout, 2)
    together = training(pool.worker, [1, 4], rows.numpy(), 1, 1e-3).advance(1)
    pool.worker.reader.clients[4] = dataclasses.replace(pool.worker.reader.clients[4], test=few)
    (m,) = pool.worker.objective.order_margins(rows[1:], [4], "test")
    assert together[1] == pytest.approx(float(-torch.nn.functional.logsigmoid(m[:, 0]).mean()), abs=1e-6)


def test_it_learns_what_the_client_prefers(tiny):
    pool = made(tiny, **{"dpo.beta": 1.0})
    local = training(pool.worker, [3], initial_row(pool.layout, 0)[None].numpy(), 60, 1e-2)
    losses = [float(local.advance(20)[0]) for _ in range(3)]
    assert losses[0] < math.log(2) and losses[2] < 0.4
    (m,) = pool.worker.objective.order_margins(torch.from_numpy(local.result()), [3], "train")
    assert float((m > 0).float().mean()) > 0.9


def test_a_run_stopped_between_rounds_goes_on_as_if_it_had_not_been(tiny, tmp_path, adapter):
    """With FedGD: any algorithm takes the objective."""
    more = {"algorithm": "fedgd", "dpo.start": adapter, "federation.rounds": 2, "personalization.marks": (0, 1)}
    config = override(tiny, FEDDPO | more)
    whole = experiment.run(config, tmp_path / "whole", adapters=False)
    with pytest.raises(Stop):
        experiment.run(config, tmp_path / "cut", bar=stopping("round", 1), adapters=False)
    assert measured(experiment.run(config, tmp_path / "cut", adapters=False)) == measured(whole)
    assert run_name(whole) == "FedGD (dpo)"


def test_what_a_run_leaves_another_can_start_from(tiny, tmp_path):
    config = override(tiny, FEDDPO | {"federation.rounds": 1, "personalization.marks": (0,)})
    assert run_name(experiment.run(config, tmp_path)) == "FedDPO"
    left = tmp_path / "adapters" / "initialization"
    trained = checkpoint.load(tmp_path / "initialization.safetensors")[0]["rows"]
    next_one = override(config, {"dpo.start": str(left)})
    assert torch.equal(DPO.start(next_one, row_layout(next_one)), trained)
    assert next_one.key != config.key


def test_a_forecast_needs_no_start(tiny, adapter):
    inputs = experiment.prepare(override(tiny, FEDDPO | {"dpo.start": adapter}))
    told = predict(inputs, Costs())
    assert told.used.bytes_down == 4 * inputs.layout.width * 4 * 5  # float32, four rounds of five clients
    assert measure(inputs).step > 0


def test_no_choice_tokens_are_asked_for(tiny, monkeypatch):
    """A base without tokens of its own for A and B can be a policy."""
    monkeypatch.setattr(base, "choice_tokens", lambda *asked: pytest.fail("it has none"))
    assert experiment.prepare(override(tiny, FEDDPO)).choice_ids == ()


def test_another_objective_on_the_same_data_reads_them_anew(tiny):
    config = override(tiny, FEDDPO)
    comparisons = experiment.prepare(tiny)
    responses = experiment.prepare_like(comparisons, config)
    assert responses.data.digest == experiment.prepare(config).data.digest != comparisons.data.digest
    assert responses.data.clients[0].train.spans.shape[1] == 2
    assert experiment.prepare_like(responses, tiny).data.digest == comparisons.data.digest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dpo.beta": 0.0}, "dpo.beta is 0; it must be above 0"),
        ({"diagnostics.marks": (0,)}, "diagnostics.marks are S2's"),
        ({"algorithm": "soft_fl", "dpo.start": "x"}, "soft_fl starts from orthogonal adapters of its own"),
        ({"rlhf.workers": 0}, "rlhf.workers is 0; it must be at least 1"),
        ({"rlhf.samples": -1}, "rlhf.samples is -1; it must not be negative"),
        ({"rlhf.temperature": 0.0}, "rlhf.temperature is 0; it must be above 0"),
        ({"rlhf.top_p": 1.5}, r"rlhf.top_p is 1.5; it must be in \(0, 1\]"),
        ({"rlhf.workers": 2}, "rlhf.workers is 2, but rlhf.backend local is one process; add --rlhf.backend ray"),
        (
            {"rlhf.batch_size": 10, "rlhf.workers": 4, "rlhf.backend": "ray"},
            "10, which 4 workers cannot share evenly; .* such as 12",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        validate(override(RunConfig(), FEDDPO | values))


def test_what_does_not_fit_is_refused_before_anything_starts(tiny, adapter, tmp_path):
    for values, message in (
        ({"dpo.start": str(tmp_path)}, f"no PEFT adapter in {tmp_path}"),
        ({"dpo.start": adapter, "model.lora_r": 4}, "has lora_r 2, the run 4; set model.lora_r"),
        ({"algorithm": "fedvpa_gp"}, "trains the variational selector"),
    ):
        with pytest.raises(UserError, match=message):
            experiment.prepare(override(tiny, FEDDPO | values))
        with pytest.raises(UserError, match=message):
            experiment.prepare_like(experiment.prepare(override(tiny, FEDDPO)), override(tiny, FEDDPO | values))


def test_folders_and_lines_say_what_was_trained():
    """`fedavg` alone would be its selector."""
    names = {
        values: RunConfig(*values).method for values in (("feddpo", "dpo"), ("fedgd", "dpo"), ("fedvpl", "variational"))
    }
    assert list(names.values()) == ["feddpo", "fedgd-dpo", "fedvpl"]
