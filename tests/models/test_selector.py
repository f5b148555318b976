"""The stacked selector against PEFT, against the full logits and against one client at a time."""

import shutil

import numpy as np
import pytest
import torch
from peft import PeftConfig
from transformers import AutoConfig, AutoModelForCausalLM

from raypref.config import ModelConfig, RunConfig, UserError, override
from raypref.models.embedded import PATH
from raypref.models.identity import base_identity
from raypref.models.layout import initial_row
from raypref.models.peft_io import export_peft, import_peft
from raypref.models.selector import ARCHITECTURES, Dropout, Selector, check_tokens, load_selector, load_tokenizer
from raypref.objectives.base import row_layout

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
CONFIG = ModelConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0)
CHOICES = (5, 7)
WINDOW = {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}
KINDS = {name: {} for name in ARCHITECTURES} | {
    "qwen2 in a window": WINDOW | {"use_sliding_window": True},
    "gemma2 in a window": WINDOW,
    "a head for each key": {"num_attention_heads": 4, "num_key_value_heads": 4},
}


def make_base(architecture: str):
    torch.manual_seed(0)
    extra = {"query_pre_attn_scalar": 8, "sliding_window": 8} if architecture == "gemma2" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **SMALL, **extra))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model.eval()


def random_rows(selector: Selector, n: int) -> torch.Tensor:
    """Rows whose B is not zero, so that the adapters do something."""
    g = torch.Generator().manual_seed(1)
    return torch.stack([initial_row(selector.layout, i) for i in range(n)]) + 0.05 * torch.randn(
        n, selector.layout.width, generator=g
    )


def random_batch(n: int, b: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(8, 64, (n, b, length), generator=g)
    return ids, torch.randint(length // 2, length + 1, (n, b), generator=g)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_head_rows_are_the_full_logits(architecture):
    model = make_base(architecture)
    ids, lengths = random_batch(1, 3, 12)
    with torch.no_grad():
        full = model(input_ids=ids[0]).logits
        expected = torch.stack([full[i, lengths[0, i] - 1, list(CHOICES)] for i in range(3)])
        selector = Selector(model, CHOICES, 0, CONFIG, "cpu")
        zero = torch.stack([initial_row(selector.layout, 0)])  # B = 0: the base itself
        found = selector.choice_logits(zero, ids, lengths)
    assert torch.allclose(found[0], expected, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probs_are_those_of_the_full_logits(architecture):
    """Sums over the responses' tokens of the full model's log-softmax; none of an empty response; two rows stacked as
    each alone."""
    model = make_base(architecture)
    ids, lengths = random_batch(2, 3, 12)
    spans = torch.stack([torch.full_like(lengths, 3), lengths], dim=-1)
    spans[1, 2] = 4  # empty
    with torch.no_grad():
        full = torch.log_softmax(model(input_ids=ids.flatten(0, 1)).logits.float(), dim=-1).view(2, 3, 12, -1)
        selector = Selector(model, (), 0, CONFIG, "cpu")
        found = selector.log_probs(None, ids, spans)
        rows = random_rows(selector, 2)
        stacked = selector.log_probs(rows, ids, spans)
        alone = [selector.log_probs(rows[i : i + 1], ids[i : i + 1], spans[i : i + 1])[0] for i in range(2)]
    for i in range(2):
        for j in range(3):
            start, end = spans[i, j].tolist()
            told = [float(full[i, j, t - 1, ids[i, j, t]]) for t in range(start, end)]
            assert float(found[i, j]) == pytest.approx(sum(told), abs=1e-4)
    assert torch.allclose(stacked, torch.stack(alone), atol=1e-5)
    assert float((stacked - found).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_what_the_whole_block_computes(kind):
    """States and gradients at three positions a sequence, one of them twice, another the first token."""
    torch.manual_seed(0)
    architecture = kind.split()[0] if kind.split()[0] in ARCHITECTURES else "llama"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **SMALL | KINDS[kind]))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    selector = Selector(model.eval(), CHOICES, 0, CONFIG, "cpu")
    rows = random_rows(selector, 2).requires_grad_()
    ids, lengths = random_batch(2, 3, 12)
    at = torch.stack([lengths - 1, lengths // 2, lengths - 1], dim=-1)
    at[0, 0, 1] = 0
    whole = selector.hidden(rows, ids)
    expected = whole.gather(2, at[..., None].expand(*at.shape, whole.shape[-1]))
    found = selector.states(rows, ids, at)
    assert torch.allclose(found, expected, atol=1e-5)
    weights = torch.randn_like(found)
    (of_found,) = torch.autograd.grad((found * weights).sum(), rows)
    (of_whole,) = torch.autograd.grad((expected * weights).sum(), rows)
    assert torch.allclose(of_found, of_whole, atol=1e-5 * float(of_whole.abs().max()))
    assert torch.equal(selector.hidden(rows, ids), whole)  # later passes are whole again


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_alone_is_read_through_merged_weights(architecture):
    """Without gradients, in float32; the sums are other ones, so their last digits are. In half precision what is small
    beside a weight would be lost, and it stays apart."""
    selector = Selector(make_base(architecture), CHOICES, 0, CONFIG, "cpu")
    rows, (ids, lengths) = random_rows(selector, 1), random_batch(1, 3, 12)
    apart = selector.choice_logits(rows, ids, lengths)
    with torch.no_grad():
        merged = selector.choice_logits(rows, ids, lengths)
    assert torch.allclose(merged, apart, atol=1e-5) and not torch.equal(merged, apart)
    half = Selector(make_base(architecture).to(torch.bfloat16), CHOICES, 0, CONFIG, "cpu")
    apart = half.choice_logits(rows, ids, lengths)
    with torch.no_grad():
        assert torch.equal(half.choice_logits(rows, ids, lengths), apart)


def test_padding_never_shows():
    selector = Selector(make_base("qwen2"), CHOICES, 0, CONFIG, "cpu")
    rows = random_rows(selector, 1)
    ids, lengths = random_batch(1, 3, 12)
    other = ids.clone()
    for i in range(3):
        other[0, i, lengths[0, i] :] = 1
    assert torch.equal(selector.choice_logits(rows, ids, lengths), selector.choice_logits(rows, other, lengths))


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_row_is_the_peft_adapter(architecture, tmp_path):
    """One row against `PeftModel.from_pretrained` on the exported folder (1e-5), and back to the same bits."""
    from peft import PeftModel

    model = make_base(architecture)
    model.save_pretrained(tmp_path / "base")
    selector = Selector(model, CHOICES, 0, CONFIG, "cpu")
    row = random_rows(selector, 1)
    ids, lengths = random_batch(1, 3, 12)
    export_peft(tmp_path / "adapter", row[0], selector.layout, CONFIG)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    peft = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        full = peft(input_ids=ids[0]).logits
        found = selector.choice_logits(row, ids, lengths)
    expected = torch.stack([full[i, lengths[0, i] - 1, list(CHOICES)] for i in range(3)])
    assert torch.allclose(found[0], expected, atol=1e-5)
    assert torch.equal(import_peft(tmp_path / "adapter", selector.layout, CONFIG), row[0])


def test_partial_or_foreign_adapters_are_refused(tmp_path):
    """Partial loading that passes silently is a classic fault of peers."""
    from safetensors.torch import load_file, save_file

    selector = Selector(make_base("qwen2"), CHOICES, 0, CONFIG, "cpu")
    export_peft(tmp_path, random_rows(selector, 1)[0], selector.layout, CONFIG)
    with pytest.raises(UserError, match="lora_alpha"):
        import_peft(tmp_path, selector.layout, ModelConfig(lora_r=4, lora_alpha=16))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match="lacks 1 tensors"):
        import_peft(tmp_path, selector.layout, CONFIG)


@pytest.mark.parametrize("lora", [True, False])
def test_a_variational_row_is_an_adapter_and_its_latent_modules(tmp_path, lora):
    """Back to the same bits; PEFT, which knows no z, warns when it loads the adapter alone."""
    config = override(RunConfig(), {"objective": "variational", "variational.lora": lora})
    layout = row_layout(config)
    row = initial_row(layout, 0) + 0.01
    export_peft(tmp_path, row, layout, config.model)
    assert torch.equal(import_peft(tmp_path, layout, config.model), row)
    assert (tmp_path / "adapter_model.safetensors").exists() == lora
    if lora:
        with pytest.warns(UserWarning, match="z_is_ignored"):
            PeftConfig.from_pretrained(str(tmp_path))
    (tmp_path / "latent.safetensors").unlink()
    with pytest.raises(UserError, match="lacks"):
        import_peft(tmp_path, layout, config.model)


def test_stacked_gradients_are_each_clients_own():
    """n clients in one pass against each alone: logits and gradients within 1e-6 of the largest."""
    selector = Selector(make_base("qwen2"), CHOICES, 0, CONFIG, "cpu")
    rows = random_rows(selector, 3).requires_grad_()
    ids, lengths = random_batch(3, 4, 12)

    def gradient(rows, ids, lengths):
        logits = selector.choice_logits(rows, ids, lengths)
        loss = -torch.nn.functional.logsigmoid(logits[..., 0] - logits[..., 1]).mean(-1).sum()
        return torch.autograd.grad(loss, rows)[0]

    stacked = gradient(rows, ids, lengths)
    for i in range(3):
        alone = gradient(rows[i : i + 1], ids[i : i + 1], lengths[i : i + 1])
        assert float((stacked[i] - alone[0]).abs().max()) <= 1e-6 * max(1.0, float(alone.abs().max()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_blocks_that_run_again_backwards_give_the_same_bits_and_keep_less(architecture):
    """With two clients' dropout, which the second run must draw again and leave where the first had left it."""
    selector = Selector(make_base(architecture), CHOICES, 0, CONFIG, "cpu")
    rows, (ids, lengths) = random_rows(selector, 2).requires_grad_(), random_batch(2, 3, 12)
    spans = torch.stack([lengths // 2, lengths], dim=-1)
    results, kept = [], []
    for selector.recompute in (False, True):
        dropout = Dropout(0.3, [torch.Generator().manual_seed(i) for i in (3, 4)], [(3, 12), (3, 12)])
        kept.append(0)

        def keep(tensor):
            kept[-1] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            loss = selector.choice_logits(rows, ids, lengths, dropout).sum()
            loss = loss + selector.log_probs(rows, ids, spans, dropout).sum()
        drawn = [g.get_state() for g in dropout.generators]
        results.append((loss, torch.autograd.grad(loss, rows)[0], *drawn))
        assert all(torch.equal(g.get_state(), one) for g, one in zip(dropout.generators, drawn, strict=True))
        assert all(group.bound is None for group in selector.groups.values())
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert kept[1] < kept[0] / 3


def test_other_architectures_and_missing_modules_are_refused(tmp_path):
    AutoConfig.for_model("gpt2").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'gpt2' model; supported are qwen2, llama, gemma, gemma2"):
        load_selector(ModelConfig(base=str(tmp_path)), CHOICES, 0)
    with pytest.raises(UserError, match="no linear modules named c_attn"):
        Selector(make_base("qwen2"), CHOICES, 0, ModelConfig(lora_targets=("q_proj", "c_attn")), "cpu")


def test_damaged_weights_are_told_in_one_line(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    model = make_base("qwen2")
    model.save_pretrained(base)
    selector = Selector(model, CHOICES, 0, CONFIG, "cpu")
    export_peft(adapter, random_rows(selector, 1)[0], selector.layout, CONFIG)
    for file in (base / "model.safetensors", adapter / "adapter_model.safetensors"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"cannot load model\.base=.*; give a local folder"):
        load_selector(ModelConfig(base=str(base)), CHOICES, 0)
    with pytest.raises(UserError, match=r"no PEFT adapter in .*adapter: "):
        import_peft(adapter, selector.layout, CONFIG)
    (base / "model.safetensors").unlink()
    (base / "model.safetensors.index.json").write_text('{"weight_map"')
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json: names no weight files .*; copy or fetch"):
        base_identity(str(base))


@pytest.mark.parametrize("error", [Exception("bare"), ImportError("pip install it"), TypeError("x"), IndexError("y")])
def test_whatever_a_library_raises_on_loading_is_one_line(tmp_path, monkeypatch, error):
    def fails(*args, **kwargs):
        raise error

    make_base("qwen2").save_pretrained(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fails)
    with pytest.raises(UserError, match=f"cannot load model.base=.*{error}; give a local folder"):
        load_selector(ModelConfig(base=str(tmp_path)), CHOICES, 0)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Newer"}}')
    with pytest.raises(UserError, match=r"no tokenizer for model\.base"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("harmful", [True, False])
def test_a_base_that_is_a_pickle_is_refused_and_not_run(tmp_path, harmful):
    class Harmful:
        def __reduce__(self):
            return (tmp_path / "harm").touch, ()

    folder = shutil.copytree(
        PATH, tmp_path / "base", ignore=shutil.ignore_patterns("*.py", "__pycache__", "*.safetens*")
    )
    torch.save({"x": Harmful() if harmful else torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"its weights are a pickle, .* save them as safetensors \(save_pretrained\)$"):
        load_selector(ModelConfig(base=str(folder)), (1, 2), 0)
    assert not (tmp_path / "harm").exists()


def test_weights_that_git_lfs_has_not_fetched(tmp_path):
    make_base("qwen2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(UserError, match=r"cannot load model\.base=.*: model\.safetensors is Git LFS's .*git lfs pull"):
        load_selector(ModelConfig(base=str(tmp_path)), CHOICES, 0)


def test_a_tokenizer_that_knows_more_than_the_model_is_refused(tmp_path):
    base = make_base("qwen2")
    base.save_pretrained(tmp_path)
    check_tokens(str(tmp_path), base.config.vocab_size - 1)
    with pytest.raises(UserError, match="they do not belong together"):
        check_tokens(str(tmp_path), base.config.vocab_size)


def test_lora_start_is_peft_default():
    selector = Selector(make_base("qwen2"), CHOICES, 0, CONFIG, "cpu")
    parts = selector.layout.split(initial_row(selector.layout, 3)[None])
    for name, value in parts.items():
        if name.endswith("lora_B"):
            assert not value.any()
        else:
            bound = 1 / np.sqrt(value.shape[-1])
            assert float(value.abs().max()) <= bound
            assert float(value.std()) == pytest.approx(bound / np.sqrt(3), rel=0.25)
