"""A row as a PEFT folder, and back: its LoRA part as `adapter_model.safetensors` and `adapter_config.json`, the latent
modules of a variational selector beside it as `latent.safetensors`. A reward model with a linear head is PEFT's adapter
of a sequence classifier, its head among the adapter's tensors; an MLP head is beside it, as `head.safetensors`. Of a
Bayesian reward model the classifier is the client's own, at the mean of its z, and its parts are beside it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raypref.config import ModelConfig, UserError
from raypref.models.head import BASIS, HIDDEN, SCORE, state_scale
from raypref.models.identity import same_base
from raypref.models.layout import BESIDE, HEAD, Layout
from raypref.models.selector import base_layout, base_path

PREFIX = "base_model.model.model."
CLASSIFIER = "base_model.model.score.weight"
"""The head of a sequence classifier of transformers, as PEFT names it."""
NOTICE = "without_latent_safetensors_z_is_ignored"
HEAD_NOTICE = "without_head_safetensors_there_is_no_reward"
"""Keys in `adapter_config.json` that PEFT does not know, and therefore warns of, by their names."""
FILES = {BESIDE: ("latent.safetensors", NOTICE), HEAD: ("head.safetensors", HEAD_NOTICE)}
"""Prefix of segments that PEFT knows nothing of -> their file, and the notice."""
NOWHERE = ("layers.0.self_attn.q_proj",)
"""What the adapter is on that does nothing."""
CHECKED = (
    *("peft_type", "task_type", "base_model_name_or_path", "init_lora_weights"),
    *("r", "rank_pattern", "lora_alpha", "alpha_pattern", "use_rslora"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
)
"""Fields of `adapter_config.json` that may have other values than PEFT's defaults, as `check_config` allows."""
INERT = (
    *("auto_mapping", "inference_mode", "lora_dropout", "peft_version", "revision", "runtime_config"),
    *(NOTICE, HEAD_NOTICE),
    *("corda_config", "eva_config", "loftq_config", "lora_ga_config"),  # of an initialization, which is checked itself
    *("megatron_core", "qalora_group_size"),  # of `megatron_config` and `use_qalora`, which may not be set
)
"""Fields that may have any value: nothing that a trained adapter computes depends on them."""
INITIALIZATIONS = (True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base as it is. The others take the adapter's start out of the base, or
quantize it, when an adapter is loaded, too."""
MERGE = "merge it into its base with PEFT (`merge_and_unload`) and give the result as model.base, or train one without"


def export_peft(folder: Path, row: Tensor, layout: Layout, config: ModelConfig, z: Tensor | None = None) -> None:
    """Write row [D] as a PEFT folder: `PeftModel.from_pretrained(base, folder)` gives the same logits, or rewards.

    Of a variational selector these are the logits before z, of which PEFT warns; without LoRA it is only
    `latent.safetensors`. A linear reward head is the `score` of a sequence classifier; where there is no LoRA, it is
    beside an adapter of rank 1 in one module that is zero, as PEFT wants one. An MLP head is `head.safetensors`. With
    directions B the `score` is u + Bᵀz (u where z [d] is not known), and u and B are in `head.safetensors`.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t[0].contiguous().clone() for name, t in layout.split(row[None].detach().cpu()).items()}
    score = {}
    if is_classifier(layout):
        own = tensors[SCORE] if z is None else tensors[SCORE] + z.to(tensors[SCORE]) @ tensors[BASIS]
        score = {CLASSIFIER: own / state_scale(config.base)}
        if BASIS not in tensors:
            del tensors[SCORE]
    notices = []
    for prefix, (file, notice) in FILES.items():
        if part := {name: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}:
            save_file(part, folder / file)
            notices += [] if score else [notice]
    modules: Sequence[str] = sorted(config.lora_targets)
    if score and not tensors:
        modules, config = NOWHERE, replace(config, lora_r=1, lora_alpha=1.0, lora_dropout=0.0)
        segments = base_layout(replace(config, lora_targets=("q_proj",))).segments[:2]
        tensors = {segment.name: torch.zeros(segment.shape) for segment in segments}
    if not tensors:
        return
    adapter = {f"{PREFIX}{name}.weight": t for name, t in tensors.items()}
    save_file(adapter | score, folder / "adapter_model.safetensors")
    write_config(folder, config, modules, "SEQ_CLS" if score else "CAUSAL_LM", notices)


def is_classifier(layout: Layout) -> bool:
    """Whether rows are a reward model that a sequence classifier of transformers can be: one with a linear head."""
    names = {segment.name for segment in layout.segments}
    return SCORE in names and f"{HIDDEN}.weight" not in names


def write_config(folder: Path, config: ModelConfig, modules: Sequence[str], task: str, notices: Sequence[str]) -> None:
    """`adapter_config.json`."""
    from peft import LoraConfig

    LoraConfig(
        base_model_name_or_path=base_path(config.base),
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=list(modules),
        task_type=task,
        modules_to_save=["score"] if task == "SEQ_CLS" else None,
        inference_mode=True,
    ).save_pretrained(str(folder))
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text()) | dict.fromkeys(notices, True)
    values["target_modules"].sort()  # PEFT writes a set, whose order is another in every process
    path.write_text(json.dumps(values, indent=2, sort_keys=True))


def import_peft(folder: Path, layout: Layout, config: ModelConfig) -> Tensor:
    """Read a PEFT folder as a row [D] that computes what PEFT computes from it.

    Raises `UserError` where no row of `config` does that: another rank, scale, base or set of modules, a kind of
    adapter that is not plain LoRA, missing or damaged files, values that are not finite. Nothing is loaded in part.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    names = {f"{PREFIX}{s.name}.weight": s.name for s in layout.segments if s.side}
    if is_classifier(layout):
        names[CLASSIFIER] = SCORE  # in `head.safetensors`, too, where it is not the row's own
    tensors: dict[str, Tensor] = {}
    try:
        if names:
            check_config(folder, json.loads((folder / "adapter_config.json").read_text()), layout, config)
            tensors = {names.get(k, k): t for k, t in load_file(folder / "adapter_model.safetensors").items()}
            if names.keys() == {CLASSIFIER}:  # what does nothing beside a head without LoRA
                tensors = {k: t for k, t in tensors.items() if k == SCORE or t.any()}
            if SCORE in tensors:
                tensors[SCORE] = tensors[SCORE] * state_scale(config.base)
        for file, _ in FILES.values():
            if (folder / file).exists():
                tensors |= load_file(folder / file)
    except (OSError, ValueError, SafetensorError) as error:
        why = str(error).splitlines()[0]
        if (folder / "adapter_model.bin").exists():
            why = "adapter_model.bin is a pickle, which could run anything; save it by save_pretrained as safetensors"
        raise UserError(f"no PEFT adapter in {folder}: {why}") from error
    try:
        row = layout.join(tensors)
    except ValueError as error:
        raise UserError(f"the adapter in {folder} does not fit this base and model.lora-targets: {error}") from error
    for name, tensor in layout.split(row[None]).items():
        if wrong := int((~torch.isfinite(tensor)).sum()):
            raise UserError(
                f"the adapter in {folder} has {wrong} values in {name} that are not finite; its training has diverged "
                "or the file is damaged: give another one"
            )
    return row


def check_config(folder: Path, values: Any, layout: Layout, config: ModelConfig) -> None:
    """`UserError` where PEFT computes something else from `adapter_config.json` than the run from a row of `layout`.

    values: what the file holds. A field that is not listed above must have PEFT's default, so that one which a later
    PEFT adds is refused, too, unless it is off.
    """
    from peft import LoraConfig

    def refuse(field: str, remedy: str = MERGE) -> UserError:
        return UserError(f"the adapter in {folder} has {field}={json.dumps(values.get(field))}; {remedy}")

    if not isinstance(values, dict):
        raise ValueError("adapter_config.json is not an object of fields")
    if values.get("peft_type") != "LORA":
        raise refuse("peft_type", "give a LoRA adapter")
    task, what = ("SEQ_CLS", "sequence classifier") if is_classifier(layout) else ("CAUSAL_LM", "causal language model")
    if values.get("task_type") not in (None, task):
        raise refuse("task_type", f"give an adapter of a {what}")
    heads = task == "SEQ_CLS" and set(values.get("modules_to_save") or ()) <= {"score", "classifier"}
    defaults = json.loads(json.dumps(LoraConfig().to_dict(), default=list))
    for field in sorted(values.keys() - set(CHECKED) - set(INERT) - ({"modules_to_save"} if heads else set())):
        default = defaults.get(field)
        if values[field] != default and (values[field] or default):
            unknown = "the installed PEFT does not know it: update PEFT, or "
            raise refuse(field, unknown * (field not in defaults) + MERGE)
    values = {field: defaults[field] for field in CHECKED} | values
    if values["init_lora_weights"] not in INITIALIZATIONS:
        raise refuse("init_lora_weights")
    name = values["base_model_name_or_path"]
    if name and same_base(str(name), config.base) is False:
        raise refuse(
            "base_model_name_or_path",
            f"that is another base than model.base={config.base!r}: set model.base, or correct the field in "
            "adapter_config.json where both are the same",
        )
    modules = list(dict.fromkeys(s.name.rpartition(".")[0] for s in layout.segments if s.side))
    if not modules:
        return
    try:
        check_modules(folder, values, modules)
        check_scale(folder, values, modules, config)
    except (TypeError, AttributeError, re.error) as error:
        raise ValueError(f"adapter_config.json cannot be read: {error}") from error


def check_modules(folder: Path, values: Mapping[str, Any], modules: list[str]) -> None:
    """`UserError` where PEFT does not adapt one of these: it would leave that one's tensors out."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    targets = values["target_modules"]
    if not targets:
        raise ValueError("adapter_config.json names no target_modules")
    fields = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
    peft = LoraConfig(**{field: values[field] for field in fields})
    keys = [f"model.{name}" for name in modules]
    left = [key for key in keys if targets != "all-linear" and not check_target_module_exists(peft, key)]
    if left:
        raise UserError(
            f"the adapter in {folder} does not adapt {left[0]} (by {', '.join(f for f in fields if values[f])}); set "
            "model.lora-targets to the modules of every block that it adapts, or give another adapter"
        )


def check_scale(folder: Path, values: Mapping[str, Any], modules: list[str], config: ModelConfig) -> None:
    """`UserError` where a module's rank is not the run's, or its update not scaled by the run's α / r.

    As PEFT (`LoraModel._create_and_replace`, `LoraLayer.update_layer`): α and r of a module by the first pattern that
    matches its name, the scale α / r, with `use_rslora` α / √r.
    """
    from peft.utils.other import get_pattern_key

    def of(pattern: str, usual: str) -> list[float]:
        given = values[pattern] or {}
        return [given.get(get_pattern_key(given.keys(), f"model.{name}"), values[usual]) for name in modules]

    ranks, alphas = of("rank_pattern", "r"), of("alpha_pattern", "lora_alpha")
    for what, given, of_modules in (("rank", "rank_pattern", ranks), ("scale", "alpha_pattern", alphas)):
        if len(set(of_modules)) > 1:
            raise UserError(
                f"the adapter in {folder} has {given}={json.dumps(values[given])}, by which its modules differ in "
                f"{what}; {MERGE}"
            )
    if ranks[0] != config.lora_r:
        raise UserError(f"the adapter in {folder} has lora_r {ranks[0]:g}, the run {config.lora_r:g}; set model.lora_r")
    alpha = alphas[0] * math.sqrt(config.lora_r) if values["use_rslora"] else alphas[0]
    if not math.isclose(alpha, config.lora_alpha, rel_tol=1e-12):
        how = ", ".join(f for f in ("use_rslora", "alpha_pattern") if values[f])
        raise UserError(
            f"the adapter in {folder} has lora_alpha {alpha:g}{f' (by {how})' * bool(how)}, the run "
            f"{config.lora_alpha:g}; set model.lora_alpha to {float(alpha)!r}"
        )
