"""The memory that is foretold of a card is what real tensors take, and what the presets for cards leave room for."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from raypref.clients.half import Message
from raypref.clients.work import Train
from raypref.clients.worker import LocalTraining, Stretch, Worker
from raypref.config import ModelConfig, RunConfig, UserError, override, validate
from raypref.config.spaces import load_space, usable_gib
from raypref.experiment import loop as experiment
from raypref.experiment import memory
from raypref.experiment.forecast import Costs, predict
from raypref.experiment.memory import Live, Shape, base_bytes, client_actor, policy_worker
from raypref.models import quick
from raypref.models.embedded import PATH
from raypref.objectives.base import row_layout

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
}
QWEN = {"model_type": "qwen2", "vocab_size": 151936, "num_key_value_heads": 2, "tie_word_embeddings": True}
GEMMA = {"vocab_size": 256000, "num_attention_heads": 8, "head_dim": 256}
SIZES = (  # hidden, intermediate, layers
    ("Qwen/Qwen2-0.5B", (896, 4864, 24), {**QWEN, "num_attention_heads": 14}),
    ("Qwen/Qwen2.5-1.5B", (1536, 8960, 28), {**QWEN, "num_attention_heads": 12}),
    ("google/gemma-2b", (2048, 16384, 18), {**GEMMA, "model_type": "gemma", "num_key_value_heads": 1}),
    ("google/gemma-2-2b-it", (2304, 9216, 26), {**GEMMA, "model_type": "gemma2", "num_key_value_heads": 4}),
)
PARAMETERS = {  # of their model cards, in billions
    "Qwen/Qwen2-0.5B": 0.49,
    "Qwen/Qwen2.5-1.5B": 1.54,
    "google/gemma-2b": 2.51,
    "google/gemma-2-2b-it": 2.61,
}
HH_RLHF = 169_352
"""Rows of Anthropic/hh-rlhf, of which S1's ten clients hold all that are helpful or harmless."""
PRESETS = (
    *(("main_results", "paper"), ("ditto", "paper"), ("real_world", "qwen1.5b"), ("real_world", "gemma2b")),
    *((name, preset) for name in ("fedvpa_gp", "feddpo") for preset in ("paper", "gemma2b")),
)
BASES = ("qwen2", "gemma", "gemma2")
LONG = "a longer answer that says the same in many more words than it would take " * 3


@pytest.fixture(scope="module", params=BASES)
def base(request, tmp_path_factory):
    """A random base of one of the papers' architectures, at small width."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, vocab_size=len(tokenizer), **SMALL)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def configured(base, **values) -> RunConfig:
    return override(
        RunConfig(),
        {
            "model.base": str(base),
            "model.lora_r": 2,
            "data.group_sizes": (2, 1, 1, 0),
            "data.pairs_per_axis": 20,
            "federation.rounds": 1,
            "federation.cohort": 3,
            "clients.stack": 3,
            **{name.replace("__", "."): value for name, value in values.items()},
        },
    )


def test_the_base_and_its_rows_are_counted_to_the_byte(base):
    config = configured(base, algorithm="fedavg")
    inputs = experiment.prepare(config)
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        config = override(config, {"model.dtype": dtype})
        worker = Worker(config, dict(enumerate(inputs.data.clients)), inputs.choice_ids, inputs.pad)
        model = worker.selector.model
        weights = sum(p.nbytes for p in model.parameters())
        assert weights == size * model.num_parameters()
        assert base_bytes(config.model) == weights + sum(b.nbytes for b in model.buffers())
    local = LocalTraining(worker, [0, 1, 2], torch.zeros(3, inputs.layout.width), Stretch("train", 0, 1, 1e-3))
    local.advance(1)
    moments = sum(t.nbytes for t in local.optimizer.state[local.rows].values() if t.dim())
    forecast = predict(inputs, Costs())
    assert forecast.optimizer == moments == 2 * 3 * 4 * inputs.layout.width


@pytest.mark.parametrize(
    ("algorithm", "rows", "moments"),
    [
        # The rows as they came, as they are trained, their gradient, and two that AdamW computes with.
        ("fedavg", 5, 2),
        ("ditto", 7, 4),  # and v, its gradient and its moments
        ("lore", 2 * 4 + 2 + 1 + 2, 2),  # bases of B = 4 rows twice; the row, its start and gradient; no basis trains
        ("cl", 5, 2),
    ],
)
def test_rows_of_every_method_are_counted(tiny, algorithm, rows, moments):
    """In rows [3, D]; LoRe's a of 4 numbers and the like are less than a thousandth of them."""
    inputs = experiment.prepare(override(tiny, {"algorithm": algorithm}))
    forecast, row = predict(inputs, Costs()), 3 * 4 * inputs.layout.width
    assert forecast.rows == pytest.approx(rows * row, rel=0.05)
    assert forecast.optimizer == pytest.approx(moments * row, rel=0.02)


@pytest.mark.parametrize(
    ("algorithm", "dtype", "recompute"),
    [
        ("fedavg", "float32", False),
        ("fedavg", "bfloat16", True),
        ("feddpo", "float32", True),
        ("feddpo", "bfloat16", False),
        ("ditto", "float32", True),  # two passes
    ],
)
def test_a_step_takes_what_was_foretold(base, algorithm, dtype, recompute, monkeypatch):
    """The fullest moment of a real round of three clients, counted as it trains, within a tenth: beside what was
    counted without data, it holds ids, masks and the way the machine's own attention works. Computed as on a card."""
    monkeypatch.setattr(quick, "covers", lambda model: False)
    objective = "dpo" if algorithm == "feddpo" else "choice"
    config = configured(base, algorithm=algorithm, objective=objective, model__dtype=dtype)
    config = override(config, {"clients.recompute": recompute, "federation.local_steps": 1, "clients.eval_batch": 1})
    inputs = experiment.prepare(config)
    worker = Worker(config, dict(enumerate(inputs.data.clients)), inputs.choice_ids, inputs.pad)
    forecast = predict(inputs, Costs())
    clients, read = np.arange(3), []
    reading = worker.selector._passed
    worker.selector._passed = lambda rows, ids, *rest, **further: (
        read.append(tuple(ids.shape)) or reading(rows, ids, *rest, **further)
    )
    start = worker.objective.start(config, inputs.layout).repeat(3, 1).numpy()
    if objective == "dpo":
        for c in clients:
            worker.objective.referred(c, "train")  # once a run, in evaluation's passes
        read.clear()
    with Live() as live:
        worker.train(Train(clients, start, 0, Message(), [{}] * 3))
    n, sequences, length = read[0]
    batch = sequences // (2 if objective == "dpo" else 1)
    shape = Shape(n, batch, length, pairs=0, largest=0)
    told = client_actor(config, shape, forecast.rows, forecast.optimizer).parts
    assert live.peak == pytest.approx(sum(told.values()) - told["base weights"], rel=0.1)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """The papers' bases as they are, without weights: name -> folder."""
    folders = {}
    for name, (hidden, intermediate, layers), values in SIZES:
        folder = folders[name] = tmp_path_factory.mktemp("papers") / name.rpartition("/")[2]
        sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
        AutoConfig.for_model(**values, **sizes).save_pretrained(folder)
    return folders


def test_the_bases_are_as_large_as_their_cards_say(papers):
    for name, folder in papers.items():
        size = base_bytes(ModelConfig(base=str(folder), dtype="bfloat16"))
        assert size / 2e9 == pytest.approx(PARAMETERS[name], abs=0.006)


@pytest.mark.parametrize("card", ["24gb", "80gb"])
@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_preset_for_a_card_fits_it(papers, card, name, preset):
    """With every comparison as long as the preset lets it be: 1,024 tokens."""
    config = load_space(name).configured(preset, card=card)
    config = override(config, {"model.base": str(papers[config.model.base])})
    n, width = config.clients.stack, row_layout(config).width
    rows, moments = (7, 4) if name == "ditto" else (5, 2)  # see test_rows_of_every_method_are_counted
    shape = Shape(n, config.optim.batch_size, config.data.max_length, HH_RLHF, HH_RLHF // 10)
    actor = client_actor(config, shape, rows * 4 * n * width, moments * 4 * n * width)
    assert config.data.max_length == 1024 and actor.fits(usable_gib(card)), actor.sentence(name, card=usable_gib(card))
    if name == "fedvpa_gp":
        policy = policy_worker(config)
        assert policy.fits(usable_gib(card)), policy.sentence("stage 2", card=usable_gib(card))


def test_what_does_not_fit_is_said(papers):
    """Gemma 2 with every activation kept takes four times an 80 GB card."""
    config = override(RunConfig(), {"model.base": str(papers["google/gemma-2-2b-it"]), "model.dtype": "bfloat16"})
    actor = client_actor(config, Shape(2, 16, 1024, 0, 0), 0, 0)
    assert not actor.fits(79.0) and "DOES NOT FIT the card's 79 GiB" in actor.sentence("actor", card=79.0)
    assert actor.fits(79.0 * 4) and not actor.fits(79.0 * 4, processes=2)


def test_a_few_blocks_tell_of_all(tmp_path):
    for architecture in ("qwen2", "gemma2"):
        folder = tmp_path / architecture
        sizes = {**SMALL, "num_hidden_layers": 8}
        AutoConfig.for_model(architecture, vocab_size=512, **sizes).save_pretrained(folder)
        config = ModelConfig(base=str(folder), lora_r=2)
        for recompute, words in ((False, 0), (True, 8), (None, 8)):
            arguments = (config, (2, 3, 16), recompute, words)
            # Without a way back a small base is fullest at the vocabulary, and its few blocks do not count.
            whole = memory._read(*arguments, 1, 8)
            assert memory._peak(*arguments) == pytest.approx(whole, rel=0.05 if recompute is None else 1e-12)


def test_what_is_run_again_does_not_go_with_partitioned_weights():
    values = {"rlhf.recompute": True, "rlhf.engine": "deepspeed", "rlhf.zero_stage": 3}
    with pytest.raises(UserError, match=r"^rlhf\.recompute and rlhf\.zero_stage 3 do not go together"):
        validate(override(RunConfig(), values))
    validate(override(RunConfig(), values | {"rlhf.zero_stage": 2}))


def test_a_card_is_put_over_a_preset_and_under_what_is_given():
    space = load_space("fedvpa_gp")
    small = space.configured("gemma2b", card="24gb")
    assert (small.clients.gpus_per_actor, small.clients.stack, small.clients.recompute) == (1.0, 1, True)
    assert (small.rlhf.gpus_per_worker, small.rlhf.recompute) == (1.0, True)
    assert (small.optim.batch_size, space.configured("gemma2b").optim.batch_size) == (16, 32)
    large = space.configured("gemma2b", card="80gb")
    assert large.key == override(space.configured("gemma2b"), {"clients.stack": 2, "clients.eval_batch": 128}).key
    # A copy of the base in a folder of its name; the base that is given decides, not the preset's.
    assert space.configured("paper", card="24gb", model="/models/gemma-2b/").clients.stack == 1
    with pytest.raises(UserError, match=r"unknown card '12gb'; there are: 24gb, 80gb"):
        space.configured("paper", card="12gb")
    with pytest.raises(UserError, match=r"--card 24gb knows .* and not model.base 'embedded'; name one of them"):
        space.configured(card="24gb")
