"""The last block, computed only where its output is read: keys and values everywhere, the rest at some positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def block_at(block: nn.Module, hidden: Tensor, at: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """What a block computes of `hidden` [N, L, H] at the positions `at` [N, P], exactly: [N, P, H].

    block: of one of `raypref.models.selector.ARCHITECTURES`, which differ here in Gemma 2's further norms and its cap
    of the scores. rotary: cosines and sines [1, L, d]. A position sees itself and those before it, within the block's
    sliding window if it has one.
    """
    attention, batch = block.self_attn, torch.arange(len(hidden), device=hidden.device)[:, None]
    x = block.input_layernorm(hidden)
    cos, sin = rotary
    q = _heads(attention.q_proj(x)[batch, at], attention.head_dim)
    k, v = (_heads(linear(x), attention.head_dim) for linear in (attention.k_proj, attention.v_proj))
    q, k = _rotated(q, cos[0, at][:, None], sin[0, at][:, None]), _rotated(k, cos[:, None], sin[:, None])
    out, residual = attention.o_proj(attended(attention, q, k, v, at)), hidden[batch, at]
    if hasattr(block, "pre_feedforward_layernorm"):
        residual = residual + block.post_attention_layernorm(out)
        return residual + block.post_feedforward_layernorm(block.mlp(block.pre_feedforward_layernorm(residual)))
    residual = residual + out
    return residual + block.mlp(block.post_attention_layernorm(residual))


def attended(attention: Any, q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
    """What queries q [N, heads, P, d] of the positions `at` [N, P] read of all keys and values [N, fewer, L, d]:
    [N, P, heads * d]."""
    q = q.unflatten(1, (k.shape[1], -1))  # [N, key heads, queries of each, P, d]
    scores = torch.einsum("nkqpd,nkld->nkqpl", q, k) * attention.scaling
    if (cap := getattr(attention, "attn_logit_softcapping", None)) is not None:
        scores = cap * torch.tanh(scores / cap)
    back = at[:, :, None] - torch.arange(k.shape[2], device=k.device)
    unseen = (back < 0) | (back >= (getattr(attention, "sliding_window", None) or k.shape[2]))
    scores = scores.masked_fill(unseen[:, None, None], -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
    return torch.einsum("nkqpl,nkld->npkqd", weights, v).flatten(2)


def _heads(x: Tensor, width: int) -> Tensor:
    """[N, P, heads * d] -> [N, heads, P, d]"""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
