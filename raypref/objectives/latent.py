"""The variational selector's modules beside the LoRA adapter (S1 4.1, 4.4), as segments of a row, stacked over clients.

Two forms, by `VariationalConfig.form`. `printed`: what S1 prints, Δh -> extractor -> encoder -> z, and a projection of
z that is *added* to the two choice logits (Eq. 2). It shifts both orders of a pair alike, so it cannot depend on the
responses. `conditioned`: the extractor reads each response, and the projection of z weighs the difference of their
features, w(z) · (e_A - e_B); z is inferred from the client's other pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raypref.models.layout import BESIDE, Segment
from raypref.objectives.base import Posterior
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.objectives.variational import VariationalConfig

PROTOTYPES = f"{BESIDE}prototypes"
PROJECTION = (64, 32)
"""Widths of f_θ, an MLP d -> 64 -> 32 -> out (S1 4.4, Table 4)."""


def latent_segments(hidden: int, config: VariationalConfig) -> tuple[Segment, ...]:
    """The segments for a base of width `hidden`: extractor H -> F -> F, encoder F -> E -> 2d, projection d -> 64 -> 32
    -> 2 (printed) or F (conditioned), prototypes [M, d]; with attention also its query [F], with `linear` also a linear
    path beside the extractor [F, H], and one [d, F] beside encoder and projection, which share it."""
    F, E, d = config.features, config.encoder, config.d
    out = 2 if config.form == "printed" else F
    widths = {"extractor": (hidden, F, F), "encoder": (F, E, 2 * d), "projection": (d, *PROJECTION, out)}
    segments = []
    for name, sizes in widths.items():
        for i, (wide, narrow) in enumerate(itertools.pairwise(sizes)):
            segments.append(Segment(f"{BESIDE}{name}.{i}.weight", (narrow, wide), "uniform"))
            segments.append(Segment(f"{BESIDE}{name}.{i}.bias", (narrow,)))
    if config.linear and config.form == "conditioned":
        segments.append(Segment(f"{BESIDE}extractor.linear", (F, hidden), "orthonormal" if hidden >= F else "uniform"))
        segments.append(Segment(f"{BESIDE}linear", (d, F), "orthonormal" if d <= F else "uniform"))
    if config.pooling == "attention":
        segments.append(Segment(f"{BESIDE}attention", (F,)))
    segments.append(Segment(PROTOTYPES, (config.M, d), "orthonormal", config.scale))
    return tuple(segments)


def mlp(parts: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """[n, S, in] -> [n, S, out] through n clients' layers, ReLU between them."""
    layer = 0
    while f"{BESIDE}{name}.{layer}.weight" in parts:
        x = torch.relu(x) if layer else x
        weight, bias = (parts[f"{BESIDE}{name}.{layer}.{kind}"] for kind in ("weight", "bias"))
        x = torch.baddbmm(bias[:, None], x, weight.mT)
        layer += 1
    return x


def normalized(h: Tensor) -> Tensor:
    """Hidden states [..., H] at mean 0 and variance 1 each."""
    return torch.nn.functional.layer_norm(h, h.shape[-1:])


def features(parts: Mapping[str, Tensor], h: Tensor) -> Tensor:
    """Responses' hidden states [n, ..., H] -> e [n, ..., F]: normalized (bases differ in scale by orders),
    extracted."""
    flat = normalized(h).flatten(1, -2)
    e = mlp(parts, "extractor", flat)
    if f"{BESIDE}extractor.linear" in parts:
        e = e + torch.bmm(flat, parts[f"{BESIDE}extractor.linear"].mT)
    return e.unflatten(1, h.shape[1:-1])


def encode(parts: Mapping[str, Tensor], f: Tensor, most: float) -> Posterior:
    """Features of differences [n, S, F] -> their posteriors, log σ² capped at `most` (S1 4.1)."""
    mu, log_variance = mlp(parts, "encoder", f).chunk(2, dim=-1)
    if f"{BESIDE}linear" in parts:
        mu = mu + torch.bmm(f, parts[f"{BESIDE}linear"].mT)
    return Posterior(mu, torch.clamp(log_variance, max=most))


def project(parts: Mapping[str, Tensor], z: Tensor) -> Tensor:
    """f_θ(z): [n, S, d] -> [n, S, 2] (printed) or w(z) [n, S, F] (conditioned)."""
    out = mlp(parts, "projection", z)
    return out + torch.bmm(z, parts[f"{BESIDE}linear"]) if f"{BESIDE}linear" in parts else out


def pool(parts: Mapping[str, Tensor], f: Tensor, mask: Tensor) -> Tensor:
    """Differences of context pairs [n, K, F] -> one summary [n, S, F] a target: the mean over those that `mask` [n, S,
    K] lets through, weighed by attention where the row has a query; zero where none is."""
    scores = torch.zeros_like(f[..., 0])
    if f"{BESIDE}attention" in parts:
        scores = torch.bmm(f, parts[f"{BESIDE}attention"][..., None])[..., 0] / math.sqrt(f.shape[-1])
    scores = scores[:, None].expand(mask.shape).masked_fill(~mask, -torch.inf)
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))  # nan: nothing to look at
    return torch.bmm(weights, f)
