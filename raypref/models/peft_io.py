"""A row as a PEFT folder, and back: its LoRA part as `adapter_model.safetensors` and `adapter_config.json`, the latent
modules of a variational selector beside it as `latent.safetensors`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from torch import Tensor

from raypref.config import ModelConfig, UserError
from raypref.models.layout import BESIDE, Layout
from raypref.models.selector import base_path

PREFIX = "base_model.model.model."
NOTICE = "without_latent_safetensors_z_is_ignored"
"""A key in `adapter_config.json` that PEFT does not know, and therefore warns of, by its name."""


def export_peft(folder: Path, row: Tensor, layout: Layout, config: ModelConfig) -> None:
    """Write row [D] so that `PeftModel.from_pretrained(base, folder)` gives the same logits: of a variational selector
    those before z, of which PEFT then warns. A row without LoRA leaves `latent.safetensors` only."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t[0].contiguous().clone() for name, t in layout.split(row[None].detach().cpu()).items()}
    latent = {name: tensors.pop(name) for name in list(tensors) if name.startswith(BESIDE)}
    if latent:
        save_file(latent, folder / "latent.safetensors")
    if not tensors:
        return
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
    if latent:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {NOTICE: True}, indent=2, sort_keys=True))


def import_peft(folder: Path, layout: Layout, config: ModelConfig) -> Tensor:
    """Read a PEFT folder as a row [D].

    Raises `UserError` where the folder's rank, scaling or modules are not those of `config`; nothing is loaded in part.
    """
    from peft import PeftConfig
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    try:
        if any(not segment.name.startswith(BESIDE) for segment in layout.segments):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", f".*{NOTICE}.*")
                found = PeftConfig.from_pretrained(str(folder))
            for name, theirs, ours in (
                ("lora_r", found.r, config.lora_r),
                ("lora_alpha", found.lora_alpha, config.lora_alpha),
            ):
                if theirs != ours:
                    raise UserError(
                        f"the adapter in {folder} has {name} {theirs:g}, the run {ours:g}; set model.{name}"
                    )
            adapter = load_file(folder / "adapter_model.safetensors")
            tensors = {k.removeprefix(PREFIX).removesuffix(".weight"): t for k, t in adapter.items()}
        if (folder / "latent.safetensors").exists():
            tensors |= load_file(folder / "latent.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"no PEFT adapter in {folder}: {str(error).splitlines()[0]}") from error
    try:
        return layout.join(tensors)
    except ValueError as error:
        raise UserError(f"the adapter in {folder} does not fit this base and model.lora-targets: {error}") from error
