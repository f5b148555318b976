"""What a run's policy answers somebody before it knows them and after: before, it is given the mean z of everybody whom
it was trained for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from raypref.config import read_config
from raypref.models.policy import Policy, Sampling, layout_of
from raypref.onboarding.learner import Learner
from raypref.tools import checkpoint


class Answers(NamedTuple):
    """Both answers to one prompt, drawn with the same seed."""

    policy: Path
    prompt: str
    before: str
    after: str


def policy_of(run: Path) -> Path | None:
    """The newest finished policy that followed the run and answers by z; None where there is none."""
    files = sorted(run.glob("policy-*/policy.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return next((file.parent for file in files if "z" in checkpoint.load(file.parent / "row.safetensors")[0]), None)


def before_and_after(learner: Learner, z: Tensor | None, prompt: str, seed: int = 0) -> Answers | None:
    """z: the person's [d]. None where the run has no policy that answers by z, or the person none."""
    folder = policy_of(learner.folder)
    if folder is None or z is None:
        return None
    config, (tensors, _) = read_config(folder), checkpoint.load(folder / "row.safetensors")
    if tensors["row"].shape[-1] != layout_of(config).width or tensors["z"].shape[1] != len(z):
        return None
    policy = Policy(learner.selector, learner.tokenizer, config, len(z))
    each = (tensors["z"].mean(dim=0), z)
    texts = [policy.generate(tensors["row"], [prompt], one[None], Sampling.of(config), seed).texts[0] for one in each]
    learner.selector.model.set_input_embeddings(policy.embedding.embedding)  # as the selector has it
    return Answers(folder, prompt, *texts)
