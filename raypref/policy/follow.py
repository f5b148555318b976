"""Stage 2 after a finished stage-1 run: the policy's folder, what it leaves for people, and MLflow.

config.json          the stage-1 run's configuration with the sections `dpo` and `rlhf` of stage 2
rounds.jsonl         a line a round
policy.safetensors   the policy after the last round, with its optimizer, whatever the engine
row.safetensors      the finished policy, and its clients' z
responses.jsonl      its answers and the frozen base's, for judges
policy.json          the result; stage 2 is finished when it is there
adapter/             the same policy as a PEFT folder, Z-TO-EMBEDDING beside it
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from raypref.config import RunConfig, to_dict
from raypref.evaluation.runs import ANSWERS, WHERE
from raypref.models.peft_io import export_peft
from raypref.models.policy import Z_TO_EMBEDDING, layout_of
from raypref.policy import job
from raypref.policy.answers import FILE as RESPONSES
from raypref.policy.task import Task
from raypref.tools import checkpoint


def policy_key(config: RunConfig) -> str:
    """Eight hex digits that name what stage 2 computes after a stage-1 run of this configuration."""
    value = to_dict(config)
    rlhf = {name: v for name, v in value["rlhf"].items() if name not in WHERE}
    if config.objective == "dpo":  # nothing left to train
        rlhf = {name: rlhf[name] for name in ANSWERS}
    text = json.dumps([config.key, value["dpo"], rlhf], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def follow(
    task: Task,
    folder: Path,
    *,
    track: Any | None = None,
    advance: Callable[[str], None] = lambda note: None,
) -> dict[str, Any]:
    """Train the policy, or finish what `folder` holds of it, and answer the test prompts; returns the result, which is
    also in `folder/policy.json`. advance: called after each round with something short to show."""
    if finished(folder):
        return checkpoint.read_json(folder / "policy.json")
    checkpoint.write_json(folder / "config.json", to_dict(task.config))
    began = last = time.monotonic()

    def told(round: int, metrics: dict[str, float]) -> None:
        nonlocal last
        seconds, last = time.monotonic() - last, time.monotonic()
        known = [line for line in lines(folder) if line["round"] < round]  # a round that ran again is written again
        known.append({"round": round, "metrics": metrics, "seconds": round_to(seconds)})
        checkpoint.write_bytes(folder / "rounds.jsonl", "".join(json.dumps(line) + "\n" for line in known).encode())
        if track is not None:
            track.metrics(metrics, step=round)
        advance(f"loss {metrics['train/loss']:.3f}")

    job.run(task, folder, told)
    held = lines(folder)
    layout = layout_of(task.config)
    export_peft(folder / "adapter", row_of(folder), layout, task.config.model)
    z = sum(s.size for s in layout.segments if s.name == Z_TO_EMBEDDING)
    result = {
        "algorithm": task.config.algorithm,
        "key": policy_key(task.config),
        "seed": task.config.seed,
        "config": to_dict(task.config),
        "prompts": {"train": len(task.train.texts), "test": len(task.test.texts)},
        "clients": len(task.ids),
        "parameters": {"adapter": layout.width - z, "z_to_embedding": z},
        "rounds": len(held),
        "steps": len(held) * task.config.rlhf.local_steps,
        "metrics": held[-1]["metrics"] if held else {},
        "seconds": {"rounds": sum(line["seconds"] for line in held), "last_start": round_to(time.monotonic() - began)},
    }
    checkpoint.write_json(folder / "policy.json", result)
    if track is not None:
        for name in ("config.json", "policy.json", "row.safetensors", RESPONSES):
            track.artifact(folder / name)
        track.artifacts(folder / "adapter", "adapter")
    return result


def finished(folder: Path) -> bool:
    """Whether stage 2 is done there; answers that are gone are written again."""
    return (folder / "policy.json").exists() and (folder / RESPONSES).exists()


def lines(folder: Path) -> list[dict[str, Any]]:
    """A line a round so far."""
    return checkpoint.read_lines(folder / "rounds.jsonl")


def row_of(folder: Path) -> torch.Tensor:
    """[D] a finished policy."""
    return checkpoint.load(folder / "row.safetensors")[0]["row"]


def round_to(seconds: float) -> float:
    return float(f"{seconds:.3f}")


def configured(config: RunConfig, wanted: RunConfig) -> RunConfig:
    """A stage-1 run's configuration with the sections of stage 2 that are wanted; how FedDPO's policy was trained
    stands."""
    dpo = config.dpo if config.objective == "dpo" else wanted.dpo
    return dataclasses.replace(config, dpo=dpo, rlhf=wanted.rlhf)
