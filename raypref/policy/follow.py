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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raypref.config import RunConfig, registry, to_dict
from raypref.config.identity import policy_key
from raypref.models.peft_io import export_peft
from raypref.models.policy import Z_TO_EMBEDDING, layout_of
from raypref.policy import job
from raypref.policy.answers import FILE as RESPONSES
from raypref.policy.task import Task
from raypref.tools import checkpoint


def follow(
    task: Task,
    folder: Path,
    *,
    track: Any | None = None,
    advance: Callable[[str], None] = lambda note: None,
) -> dict[str, Any]:
    """Train the policy, or finish what `folder` holds of it, and answer the test prompts.

    Returns the result, which is also in `folder/policy.json`. advance: called after each round with a short note.
    """
    if finished(folder):
        return checkpoint.read_json(folder / "policy.json")
    checkpoint.write_json(folder / "config.json", to_dict(task.config))
    began = last = time.monotonic()

    def record(round: int, metrics: dict[str, float]) -> None:
        nonlocal last
        seconds, last = time.monotonic() - last, time.monotonic()
        records = [line for line in lines(folder) if line["round"] < round]  # a round that ran again is written again
        records.append({"round": round, "metrics": metrics, "seconds": milliseconds(seconds)})
        checkpoint.write_lines(folder / "rounds.jsonl", records)
        if track is not None:
            track.metrics(metrics, step=round)
        advance(f"loss {metrics['train/loss']:.3f}")

    job.run(task, folder, record)
    records = lines(folder)
    layout = layout_of(task.config)
    row = checkpoint.load(folder / "row.safetensors")[0]["row"]
    export_peft(folder / "adapter", row, layout, task.config.model)
    z = sum(s.size for s in layout.segments if s.name == Z_TO_EMBEDDING)
    result = {
        "algorithm": task.config.algorithm,
        "key": policy_key(task.config),
        "seed": task.config.seed,
        "config": to_dict(task.config),
        "prompts": {"train": len(task.train.texts), "test": len(task.test.texts)},
        "clients": len(task.ids),
        "parameters": {"adapter": layout.width - z, "z_to_embedding": z},
        "rounds": len(records),
        "steps": len(records) * task.config.rlhf.local_steps,
        "metrics": records[-1]["metrics"] if records else {},
        "seconds": {
            "rounds": sum(line["seconds"] for line in records),
            "last_start": milliseconds(time.monotonic() - began),
        },
    }
    checkpoint.write_json(folder / "policy.json", result)
    return result


def publish(folder: Path, track: Any) -> None:
    """Track a finished policy: its rounds, as far as they are not tracked yet, and its files."""
    for line in lines(folder):
        track.metrics(line["metrics"], step=line["round"])
    for name in ("config.json", "policy.json", "row.safetensors", RESPONSES):
        track.artifact(folder / name)
    track.artifacts(folder / "adapter", "adapter")


def finished(folder: Path) -> bool:
    """Whether stage 2 is done in this folder: the result and the answers are there."""
    return (folder / "policy.json").exists() and (folder / RESPONSES).exists()


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records of the rounds so far."""
    return checkpoint.read_lines(folder / "rounds.jsonl")


def milliseconds(seconds: float) -> float:
    """Rounded to the third decimal (`round` is a number of rounds here)."""
    return float(f"{seconds:.3f}")


def configured(config: RunConfig, wanted: RunConfig) -> RunConfig:
    """The stage-1 run's configuration with stage 2's sections `dpo` and `rlhf` of `wanted`.

    Where stage 1 trained the policy itself (FedDPO), its own `dpo` stays.
    """
    trained = registry.objective(config.objective).is_policy
    return dataclasses.replace(config, dpo=config.dpo if trained else wanted.dpo, rlhf=wanted.rlhf)
