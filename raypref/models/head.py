"""A reward head: a number for a response, read off the base's last state at the response's end.

The state is the final normalization's output, which a sequence classifier of transformers reads, too. Bases differ in
its size by orders, so it is divided by one constant of the base, the root mean square of that normalization's gain: its
entries are then about 1 in size, and a learning rate means the same on every base. A constant, and not each state's own
size, so that a linear head stays one on the state itself.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from safetensors import safe_open
from torch import Tensor

from raypref.config import UserError
from raypref.models.identity import base_files
from raypref.models.layout import HEAD, Segment
from raypref.models.selector import base_path, load_architecture

SCORE = f"{HEAD}score.weight"
HIDDEN = f"{HEAD}hidden"
BASIS = f"{HEAD}basis"
"""[d, X] the directions in which clients' last layers differ, where each has a z (`raypref.objectives.bayes`)."""
SMALL = 0.01
"""How much smaller the last layer starts than PyTorch would start it: a reward begins at about 0, yet without ties,
which would count as wrong."""


def head_segments(width: int, hidden: int) -> tuple[Segment, ...]:
    """A linear head [1, H] of states of this width; with `hidden` above 0 an MLP H -> hidden -> 1. No last bias: it
    would cancel in every margin."""
    if not hidden:
        return (Segment(SCORE, (1, width), "uniform", SMALL),)
    return (
        Segment(f"{HIDDEN}.weight", (hidden, width), "uniform"),
        Segment(f"{HIDDEN}.bias", (hidden,)),
        Segment(SCORE, (1, hidden), "uniform", SMALL),
    )


def penultimate(head: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What the last layer sees of scaled states [n, S, H]: themselves, or [n, S, hidden] behind an MLP's first layer.
    GELU: states have so much in common that most units of a ReLU would be on for all responses, or off for all, and
    then never learn."""
    if f"{HIDDEN}.weight" in head:
        x = torch.nn.functional.gelu(torch.baddbmm(head[f"{HIDDEN}.bias"][:, None], x, head[f"{HIDDEN}.weight"].mT))
    return x


def score(head: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """n heads, scaled states [n, S, H] -> rewards [n, S]."""
    return torch.bmm(penultimate(head, x), head[SCORE].mT)[..., 0]


@functools.lru_cache(maxsize=8)
def state_scale(base: str) -> float:
    """What states of this base are divided by. Raises `UserError` where its weights lack the final normalization."""
    for path in base_files(base_path(base)):
        if path.suffix != ".safetensors":
            continue
        with safe_open(path, framework="pt") as file:
            for name in {"model.norm.weight", "norm.weight"} & set(file.keys()):
                gain = file.get_tensor(name).float()
                gain = gain + 1 if load_architecture(base).model_type.startswith("gemma") else gain
                return float(gain.square().mean().sqrt())
    raise UserError(f"model.base={base!r} has no model.norm.weight in safetensors, by which rewards are scaled")
