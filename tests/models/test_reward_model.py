"""A reward row as what the field calls a reward model: loaded by plain transformers and PEFT, it gives our margins."""

import json

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from raypref import score
from raypref.clients.pool import InProcess
from raypref.config import UserError, override
from raypref.data.load import load
from raypref.experiment import loop as experiment
from raypref.judges.reward import Reward, Scorer
from raypref.models.peft_io import export_peft, import_peft
from raypref.objectives.base import row_layout
from tests.clients.test_reward import KINDS, REWARD, moved

LINEAR = ["linear", "adapted"]


@pytest.fixture(params=LINEAR)
def exported(request, tiny, tmp_path):
    """A run's clients, a row away from the start, and its folder."""
    config = override(tiny, REWARD | KINDS[request.param])
    pool = InProcess(experiment.prepare(config))
    row = moved(pool.layout, 1, 0.3)
    export_peft(tmp_path / "model", row[0], pool.layout, config.model)
    return pool, row, tmp_path / "model"


def texts(config, c):
    pairs = load(config.data, config.seed).clients[c].test
    return [f"Question: {p.prompt}\nAnswer: {response}\n" for p in pairs for response in (p.chosen, p.rejected)]


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("how", ["peft", "transformers"])
def test_transformers_and_peft_score_pairs_as_we_do(exported, padding, how):
    """All responses of a client's test fold in one padded batch; margins to 1e-5, and each reward as well."""
    pool, row, folder = exported
    base = pool.config.model.base
    if how == "peft":
        model = PeftModel.from_pretrained(
            AutoModelForSequenceClassification.from_pretrained(base, num_labels=1), folder
        )
    else:
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side=padding)
    model.config.pad_token_id = tokenizer.pad_token_id
    batch = tokenizer(texts(pool.config, 2), padding=True, return_tensors="pt")
    assert not batch["attention_mask"].all()
    with torch.no_grad():
        rewards = model.eval()(**batch).logits[:, 0]
    (m,) = pool.worker.order_margins(row, [2], "test")
    assert float(m.abs().max()) > 0.01
    assert (rewards[::2] - rewards[1::2]).tolist() == pytest.approx(m[:, 0].tolist(), rel=1e-5, abs=1e-5)


def test_what_is_exported_comes_back(exported, tiny, tmp_path):
    """To rounding: the head is divided by the base's scale and back. Another kind of adapter is refused by name."""
    pool, row, folder = exported
    back = import_peft(folder, pool.layout, pool.config.model)
    assert torch.allclose(back, row[0], rtol=1e-6, atol=0)
    with pytest.raises(UserError, match=r"task_type.*give an adapter of a causal language model"):
        import_peft(folder, row_layout(override(tiny, {"objective": "choice"})), pool.config.model)
    if pool.worker.objective.adapter:
        linear = override(tiny, REWARD)
        with pytest.raises(UserError, match=r"has unknown .* tensors"):
            import_peft(folder, row_layout(linear), linear.model)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"modules_to_save": ["score", "embed_tokens"]}))
    with pytest.raises(UserError, match="modules_to_save"):
        import_peft(folder, pool.layout, pool.config.model)


@pytest.mark.parametrize("kind", ["mlp", "adapted mlp"])
def test_an_mlp_head_is_a_file_of_its_own(tiny, tmp_path, kind):
    """Back to the same bits; no classifier has one, which the judge says."""
    config = override(tiny, REWARD | KINDS[kind])
    layout = row_layout(config)
    row = moved(layout, 1, 0.3)[0]
    export_peft(tmp_path, row, layout, config.model)
    assert torch.equal(import_peft(tmp_path, layout, config.model), row)
    assert (tmp_path / "adapter_config.json").exists() == ("adapted" in kind)
    with pytest.raises(UserError, match=r"its head is an MLP, .* --reward\.hidden 0"):
        Scorer(str(tmp_path), Reward())


def test_the_judge_takes_it(exported):
    """Scores of `raypref.judge --by reward --reward-model FOLDER` are the rewards of plain transformers."""
    pool, row, folder = exported
    (m,) = pool.worker.order_margins(row, [2], "test")
    rewards = Scorer(str(folder), Reward(batch=3))(texts(pool.config, 2))
    assert np.allclose(rewards[::2] - rewards[1::2], m[:, 0].numpy(), atol=1e-5)
    adapter = folder / "adapter_model.safetensors"
    from safetensors.torch import load_file, save_file

    tensors = {name: t for name, t in load_file(adapter).items() if not name.endswith("score.weight")}
    save_file(tensors, adapter)
    with pytest.raises(UserError, match="its adapter has no head"):
        Scorer(str(folder), Reward())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_it_and_scores_pairs(tiny, tmp_path, capsys, kind):
    """`raypref.score RUN PAIRS --client ID` from the run's rows, and from its adapters where they alone are left."""
    config = override(tiny, REWARD | KINDS[kind] | {"federation.rounds": 1, "personalization.marks": (0, 2)})
    result = experiment.run(config, tmp_path / "run")
    assert ("no classifier with an MLP head" in capsys.readouterr().out) == ("mlp" in kind)
    width = row_layout(config).width
    assert (
        result["parameters"]["adapter"] + result["parameters"]["head"] == width and not result["parameters"]["latent"]
    )
    client = load(config.data, config.seed).clients[2]
    lines = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in client.test]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def margins():
        assert score.command([str(tmp_path / "run"), str(tmp_path / "pairs.jsonl"), "--client", client.id]) == 0
        return [json.loads(line)["margin"] for line in capsys.readouterr().out.splitlines()]

    expected = result["margins"]["test"][2][-1]
    assert margins() == pytest.approx(expected, abs=1e-5)
    for file in (tmp_path / "run" / "clients").iterdir():
        file.unlink()
    assert margins() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("features", ["frozen", "adapted"])
def test_a_bayesian_client_is_a_classifier_of_its_own(tiny, tmp_path, features):
    """Its head is u + Bᵀμ, whose rewards differ by t + x · μ; the judge loads it, and the row comes back."""
    config = override(tiny, {"algorithm": "fedavg", "objective": "bayes", "bayes.d": 3, "reward.features": features})
    pool = InProcess(experiment.prepare(config))
    row = moved(pool.layout, 1, 0.3)
    mu = torch.from_numpy(pool.worker.objective.posterior(row, [2])["mu"][0])
    export_peft(tmp_path, row[0], pool.layout, config.model, mu)
    assert torch.allclose(import_peft(tmp_path, pool.layout, config.model), row[0], rtol=1e-6, atol=0)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=1).eval()
    tokenizer = AutoTokenizer.from_pretrained(config.model.base)
    model.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        rewards = model(**tokenizer(texts(config, 2), padding=True, return_tensors="pt")).logits[:, 0]
    expected = pool.worker.margins(row, pool.worker.reader.clients[2].test, mu)[0, :, 0]
    assert (rewards[::2] - rewards[1::2]).tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)
    Scorer(str(tmp_path), Reward())
