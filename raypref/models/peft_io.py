"""The LoRA segment of a row as a PEFT folder (`adapter_model.safetensors`, `adapter_config.json`), and back."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from raypref.config import ModelConfig, UserError
from raypref.models.layout import Layout
from raypref.models.selector import base_path

PREFIX = "base_model.model.model."


def export_peft(folder: Path, row: Tensor, layout: Layout, config: ModelConfig) -> None:
    """Write row [D] so that `PeftModel.from_pretrained(base, folder)` gives the same logits."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t[0].contiguous().clone() for name, t in layout.split(row[None].detach().cpu()).items()}
    save_file({f"{PREFIX}{name}.weight": t for name, t in tensors.items()}, folder / "adapter_model.safetensors")
    LoraConfig(
        base_model_name_or_path=base_path(config.base),
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=sorted(config.lora_targets),
        task_type="CAUSAL_LM",
        inference_mode=True,
    ).save_pretrained(str(folder))


def import_peft(folder: Path, layout: Layout, config: ModelConfig) -> Tensor:
    """Read a PEFT folder as a row [D].

    Raises `UserError` where the folder's rank, scaling or modules are not those of `config`; nothing is loaded in part.
    """
    from peft import PeftConfig
    from safetensors.torch import load_file

    try:
        found = PeftConfig.from_pretrained(str(folder))
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError) as error:
        raise UserError(f"no PEFT adapter in {folder}: {str(error).splitlines()[0]}") from error
    for name, theirs, ours in (("r", found.r, config.lora_r), ("lora_alpha", found.lora_alpha, config.lora_alpha)):
        if theirs != ours:
            raise UserError(f"the adapter in {folder} has {name} {theirs:g}, the run {ours:g}; set model.{name}")
    try:
        return layout.join({k.removeprefix(PREFIX).removesuffix(".weight"): t for k, t in tensors.items()})
    except ValueError as error:
        raise UserError(f"the adapter in {folder} does not fit this base and model.lora-targets: {error}") from error
