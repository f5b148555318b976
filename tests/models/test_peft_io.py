"""What an adapter's configuration says, against what PEFT computes from it: loaded at that, or refused by name."""

import json
import math
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from raypref.config import ModelConfig, UserError
from raypref.models.embedded import PATH
from raypref.models.layout import initial_row
from raypref.models.peft_io import CHECKED, INERT, NOTICE, export_peft, import_peft
from raypref.models.selector import load_selector

R, ALPHA = 4, 8.0
CONFIG = ModelConfig(lora_r=R, lora_alpha=ALPHA, lora_dropout=0.0)
IDS = torch.arange(40, 64)[None]
CHOICES = (5, 7)
EVERY = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj"


@pytest.fixture(scope="module")
def selector():
    return load_selector(CONFIG, CHOICES, 0)


@pytest.fixture(scope="module")
def row(selector):
    """B is not zero, so that the adapter does something."""
    noise = torch.randn(selector.layout.width, generator=torch.Generator().manual_seed(1))
    return initial_row(selector.layout, 0) + 0.1 * noise


@pytest.fixture
def adapter(selector, row, tmp_path):
    """fields of `adapter_config.json` -> a folder whose tensors are those of `row`."""

    def make(fields=None):
        folder = tmp_path / "adapter"
        export_peft(folder, row, selector.layout, CONFIG)
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | (fields or {})))
        return folder

    return make


def of_peft(folder):
    """Logits [2] of the choices at the last token, by PEFT."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(PATH), folder).eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits[0, -1, list(CHOICES)]


def ours(selector, row, alpha):
    """The same of a row, where the run's α is another one than the selector's."""
    tensors = {name: t[0] for name, t in selector.layout.split(row[None]).items()}
    scaled = selector.layout.join({n: t * (alpha / ALPHA) ** n.endswith("lora_B") for n, t in tensors.items()})
    with torch.no_grad():
        return selector.choice_logits(scaled[None], IDS[None], torch.tensor([[IDS.shape[1]]]))[0, 0]


SAME = {
    "as exported": ({}, ALPHA),
    "rank-stabilized: α / √r is (α √r) / r": ({"use_rslora": True}, ALPHA * math.sqrt(R)),
    "one α for all, by a pattern": ({"alpha_pattern": {EVERY: 64}}, 64.0),
    "one α for all, a pattern a module": ({"alpha_pattern": dict.fromkeys(EVERY.split("|"), 2)}, 2.0),
    "both": ({"alpha_pattern": {EVERY: 16}, "use_rslora": True}, 16 * math.sqrt(R)),
    "a pattern of nothing": ({"alpha_pattern": {"lm_head": 64}, "rank_pattern": {"proj": 2}}, ALPHA),
    "one rank for all, by a pattern": ({"r": 16, "rank_pattern": {EVERY: R}}, ALPHA),
    "every layer, by number": ({"layers_to_transform": [0, 1, 2, 3, 4, 5, 6, 7], "layers_pattern": "layers"}, ALPHA),
    "an expression for names": ({"target_modules": rf".*\.({EVERY})"}, ALPHA),
    "another start": ({"init_lora_weights": "gaussian"}, ALPHA),
    "of training only": ({"lora_dropout": 0.5, "inference_mode": False, "task_type": None}, ALPHA),
    "off, in other words": ({"modules_to_save": [], "layer_replication": [], "a_later_field": None}, ALPHA),
}


def test_modules_are_written_in_the_same_order_every_time(adapter):
    """PEFT keeps a set of names."""
    modules = json.loads((adapter() / "adapter_config.json").read_text())["target_modules"]
    assert modules == sorted(EVERY.split("|"))


@pytest.mark.parametrize("name", SAME)
@pytest.mark.filterwarnings("ignore:The following .*_pattern keys", "ignore:Unexpected keyword arguments")
def test_what_peft_computes_is_what_the_row_computes(selector, row, adapter, name):
    fields, alpha = SAME[name]
    folder = adapter(fields)
    found = import_peft(folder, selector.layout, ModelConfig(lora_r=R, lora_alpha=alpha))
    assert torch.equal(found, row)
    assert torch.allclose(ours(selector, found, alpha), of_peft(folder), atol=1e-4)
    if alpha != ALPHA:
        assert not torch.allclose(ours(selector, found, ALPHA), of_peft(folder), atol=1e-2)
        with pytest.raises(UserError, match=rf"lora_alpha .* set model\.lora_alpha to {alpha!r}$"):
            import_peft(folder, selector.layout, CONFIG)


DIFFERENT = {
    "an α of its own": {"alpha_pattern": {"q_proj": 64}},
    "its base is not the base": {"init_lora_weights": "pissa"},
    "some layers": {"layers_to_transform": [0]},
    "some modules": {"target_modules": ["q_proj", "v_proj"]},
    "all but some modules": {"exclude_modules": ["up_proj"]},
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.filterwarnings("ignore:Found missing adapter keys", "ignore:.*unexpected")
def test_what_no_row_computes_is_refused(selector, row, adapter, name):
    folder = adapter(DIFFERENT[name])
    (field,) = DIFFERENT[name]
    assert not torch.allclose(ours(selector, row, ALPHA), of_peft(folder), atol=1e-2)
    with pytest.raises(UserError, match=f"{field}.*; ") as error:
        import_peft(folder, selector.layout, CONFIG)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", sorted(LoraConfig().to_dict().keys() - set(CHECKED) - set(INERT)))
def test_every_other_field_of_peft_must_be_at_its_default(selector, adapter, field):
    """Also those that PEFT has added since this was written."""
    value = {"bias": "all"}.get(field, True)
    with pytest.raises(UserError, match=rf"has {field}={json.dumps(value)}; merge it into its base"):
        import_peft(adapter({field: value}), selector.layout, CONFIG)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"peft_type": "LOHA"}, 'has peft_type="LOHA"; give a LoRA adapter'),
        ({"task_type": "SEQ_CLS"}, 'has task_type="SEQ_CLS"; give an adapter of a causal'),
        ({"a_later_field": 3}, "a_later_field=3; the installed PEFT does not know it: update PEFT, or merge"),
        ({"init_lora_weights": "pissa_niter_4"}, 'init_lora_weights="pissa_niter_4"; merge'),
        ({"r": 2}, r"lora_r 2, the run 4; set model\.lora_r"),
        ({"rank_pattern": {"q_proj": 2}}, 'rank_pattern={"q_proj": 2}, by which its modules differ in rank'),
        ({"alpha_pattern": {"(": 2}}, "no PEFT adapter in .*: adapter_config.json cannot be read"),
        ({"lora_alpha": None}, "no PEFT adapter in .*: adapter_config.json cannot be read"),
        ({"alpha_pattern": [1]}, "no PEFT adapter in .*: adapter_config.json cannot be read"),
        ({"target_modules": None}, "names no target_modules"),
        ({"target_modules": "(", "layers_pattern": "x"}, "no PEFT adapter in .*"),
    ],
)
def test_lines_that_say_what_is_wrong(selector, adapter, fields, line):
    with pytest.raises(UserError, match=line) as error:
        import_peft(adapter(fields), selector.layout, CONFIG)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_configuration(selector, adapter):
    folder = adapter()
    for text in ("", "[]", "{"):
        (folder / "adapter_config.json").write_text(text)
        with pytest.raises(UserError, match=f"no PEFT adapter in {folder}: "):
            import_peft(folder, selector.layout, CONFIG)
    with pytest.raises(UserError, match=r"no PEFT adapter in .*nowhere"):  # and not looked up on the hub
        import_peft(folder / "nowhere", selector.layout, CONFIG)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(selector, adapter, value):
    folder = adapter()
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors[min(tensors)].view(-1)[[0, 3]] = value
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"has 2 values in layers\.0\..*lora_A that are not finite"):
        import_peft(folder, selector.layout, CONFIG)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_cut_file_is_refused(selector, adapter, kept):
    file = adapter() / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UserError, match="no PEFT adapter in ") as error:
        import_peft(file.parent, selector.layout, CONFIG)
    assert "\n" not in str(error.value)


def test_an_adapter_as_a_pickle_is_refused(selector, adapter):
    file = adapter() / "adapter_model.safetensors"
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()
    with pytest.raises(UserError, match=r"adapter_model\.bin is a pickle, which could run anything; save it"):
        import_peft(file.parent, selector.layout, CONFIG)


def test_a_tensor_under_a_name_that_peft_does_not_read_is_refused(selector, adapter):
    file = adapter() / "adapter_model.safetensors"
    save_file({k.removeprefix("base_model.model."): t for k, t in load_file(file).items()}, file)
    with pytest.raises(UserError, match="does not fit this base"):
        import_peft(file.parent, selector.layout, CONFIG)


def test_half_precision_is_read_exactly(selector, row, adapter):
    file = adapter() / "adapter_model.safetensors"
    save_file({k: t.bfloat16() for k, t in load_file(file).items()}, file)
    assert torch.equal(import_peft(file.parent, selector.layout, CONFIG), row.bfloat16().float())


def test_an_adapter_of_another_base_is_refused(selector, row, adapter, tmp_path):
    """As far as that can be known here: by name, or by the files of both."""
    ignored = shutil.ignore_patterns("*.py", "__pycache__")
    other = shutil.copytree(PATH, tmp_path / "other", ignore=ignored)
    moved = shutil.copytree(PATH, tmp_path / "moved", ignore=ignored)
    weights = load_file(other / "model.safetensors")
    save_file(weights | {"more": torch.zeros(1)}, other / "model.safetensors", metadata={"format": "pt"})

    def named(name, base="embedded"):
        config = ModelConfig(base=str(base), lora_r=R, lora_alpha=ALPHA)
        return import_peft(adapter({"base_model_name_or_path": name}), selector.layout, config)

    for name in (str(moved), str(PATH), "embedded", None, "/of/another/machine", "an-organization/of-the-hub"):
        assert torch.equal(named(name), row)
    assert torch.equal(named("an-organization/a-base", "an-organization/a-base"), row)
    for name, base in ((str(other), "embedded"), ("embedded", other), ("an-organization/a-base", "another/a-base")):
        with pytest.raises(UserError, match=r"base_model_name_or_path=.* that is another base than model\.base="):
            named(name, base)


def test_the_notice_of_a_variational_adapter_is_no_unknown_field():
    assert NOTICE in INERT
