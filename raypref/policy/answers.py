"""What judges are shown (S1 D.2, steps 1 and 2): to each test prompt a response of the trained policy, given the
client's z, and one of the frozen base."""

from __future__ import annotations

import torch
from torch import Tensor

from raypref.models.policy import Policy, Sampling
from raypref.policy.task import Task
from raypref.tools.rng import stream

FILE = "responses.jsonl"


def answer(task: Task, policy: Policy, row: Tensor, together: bool = False) -> list[dict[str, object]]:
    """Answer every test prompt twice, by the trained policy (`ours`) and by the frozen base (`theirs`).

    One entry a prompt: `prompt`, `client`, `group`, `unseen`, `ours` and `theirs`. Both answers are drawn with the same
    `rlhf.temperature` and `rlhf.top_p`, each with a seed of its own.
    """
    r, sampling = task.config.rlhf, Sampling.of(task.config)
    entries: list[dict[str, object]] = []
    for start in range(0, len(task.test.texts), r.generation_batch):
        prompts = task.test.texts[start : start + r.generation_batch]
        clients = task.test.client[start : start + r.generation_batch]
        z = None if task.z is None else torch.from_numpy(task.z[clients]).to(row)
        texts = []
        for side, (which_row, which_z) in enumerate(((row, z), (None, None))):
            seed = int(stream(task.config.seed, "answer", side, start).integers(2**31))
            texts.append(policy.generate(which_row, prompts, which_z, sampling, seed, together).texts)
        for prompt, c, ours, theirs in zip(prompts, clients.tolist(), *texts, strict=True):
            entries.append(
                {
                    "prompt": prompt,
                    "client": task.ids[c],
                    "group": task.groups[c],
                    "unseen": c in task.unseen,
                    "ours": ours,
                    "theirs": theirs,
                }
            )
    return entries
