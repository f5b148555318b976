"""`Selector.states` written out for CPUs: the frozen base's passes, forward and back, without autograd.

On a CPU, a small base spends as much time on autograd's and transformers' bookkeeping, on copies and on products in
slow layouts as on arithmetic. Here each piece of a block returns what it computes and a function that takes a gradient
back through it; the weights are frozen, so that adapters alone collect any. It computes what the modules do, to
rounding, and only where all that they do is written here: elsewhere the modules themselves are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raypref.models.block import attended
from raypref.models.layout import Layout
from raypref.models.lora import Dropout, StackedLoRA, Together

ARCHITECTURES = ("qwen2", "llama", "gemma")
"""`model_type`s whose blocks are written here."""
FUSED = "_scaled_dot_product_flash_attention_for_cpu"
"""What torch's attention calls on a CPU; called by name it needs no graph for its way back."""

Back = Callable[[Tensor], Tensor]
"""From the gradient of what a piece has computed to that of what it was given."""


def covers(model: Any) -> bool:
    """Whether all that the base does is written here: in float32 on a CPU, whole sequences by fused attention, with all
    of its weights in place (ZeRO's third stage has a module's where it is called alone)."""
    config = model.config
    return (
        (model.device.type, model.dtype) == ("cpu", torch.float32)
        and config.model_type in ARCHITECTURES
        and config._attn_implementation == "sdpa"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and hasattr(torch.ops.aten, FUSED)
        and all(parameter.numel() for parameter in model.parameters())
    )


class Readers:
    """Modules that read the same tensor: their frozen weights, and which of them have adapters."""

    def __init__(self, modules: Sequence[Any], places: Mapping[Any, tuple[int, int]]) -> None:
        linears = [m.linear if m in places else m for m in modules]
        self.weights, self.biases = [m.weight for m in linears], [m.bias for m in linears]
        self.adapted = [j for j, m in enumerate(modules) if m in places]
        self.widths = [len(self.weights[j]) for j in self.adapted]
        self.A_at = [places[modules[j]][0] for j in self.adapted]
        self.B_at = [places[modules[j]][1] for j in self.adapted]


class Order:
    """The parts of a row in the order of their use: of modules that read the same tensor each one's A [r, d_in], then
    each one's B [d_out, r] transposed."""

    def __init__(self, layout: Layout, modules: Mapping[str, StackedLoRA]) -> None:
        index = layout.split(torch.arange(layout.width)[None])
        groups: dict[Together, list[str]] = {}
        for name, module in modules.items():
            groups.setdefault(module.together, []).append(name)
        self.places: dict[Any, tuple[int, int]] = {}
        """Where A and B of a module begin."""
        parts, scales, at = [], [], 0
        for names in groups.values():
            begins = []
            for kind in ("lora_A", "lora_B"):
                for name in names:
                    part = index[f"{name}.{kind}"][0]
                    parts.append((part.T if kind == "lora_B" else part).flatten())
                    scales.append(torch.full((part.numel(),), modules[name].scale if kind == "lora_B" else 0.0))
                    begins.append(at)
                    at += part.numel()
            self.places |= {modules[n]: (begins[i], begins[len(names) + i]) for i, n in enumerate(names)}
        self.order, self.scale = torch.cat(parts), torch.cat(scales)
        self.back = torch.argsort(self.order)
        self.r = len(index[next(f"{name}.lora_A" for name in modules)][0])
        self.readers: dict[tuple[Any, ...], Readers] = {}

    def of(self, *modules: Any) -> Readers:
        """These modules, which read the same tensor."""
        if modules not in self.readers:
            self.readers[modules] = Readers(modules, self.places)
        return self.readers[modules]

    def scales(self, dropout: Dropout | None) -> Tensor:
        """[D] by what each parameter is multiplied: B by α / r, and by how much what is kept is to be scaled up."""
        scale = self.scale * dropout.scale if dropout else self.scale
        return torch.where(self.scale == 0.0, 1.0, scale)


class States(torch.autograd.Function):
    """Rows [n, D] -> last states [n, b, P, H]: a pass, and its way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, passed: Pass, ids: Tensor, at: Tensor) -> Tensor:
        ctx.passed = passed
        return passed.forward(ids, at)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.passed.backward(gradient), None, None, None


class Pass:
    """One pass of n clients' sequences through the base with their adapters. Tokens are flat, [N * L, width]: of client
    after client, sequence after sequence."""

    def __init__(self, model: Any, order: Order, rows: Tensor, dropout: Dropout | None, recompute: bool) -> None:
        """recompute: whether each block keeps its input alone, and runs again on the way back."""
        self.block = self._block_again if recompute else self._block
        self.model, self.order, self.dropout, self.n = model.model, order, dropout, len(rows)
        self.merges = self.n == 1 and not torch.is_grad_enabled()
        self.scales = order.scales(dropout)
        self.row = rows.detach().index_select(1, order.order).mul_(self.scales)
        self.learns = rows.requires_grad and torch.is_grad_enabled()
        self.gradient = torch.zeros_like(self.row) if self.learns else self.row
        self.backs: list[Back] = []

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        """ids [n, b, L], at [n, b, P] -> last states [n, b, P, H]."""
        embedded = self.model.embed_tokens(ids.flatten(0, 1))
        self.N, L, _ = embedded.shape
        cos, sin = self.model.rotary_emb(embedded, torch.arange(L)[None])
        heads, d = self.model.config.num_attention_heads, cos.shape[-1]
        self.turn = cos[0].repeat(1, heads), sin[0].repeat(1, heads)
        self.swap = torch.eye(d).roll(d // 2, 0)
        self.swap[d // 2 :] *= -1  # a head (a, b) @ this is (-b, a)
        hidden = embedded.flatten(0, 1)
        *blocks, last = self.model.layers
        for block in blocks:
            hidden = self._then(*self.block(block, hidden))
        hidden = self._then(*self.block(last, hidden, at.flatten(0, 1)))
        return self._then(*norm(self.model.norm, hidden)).view(*at.shape, -1)

    def _then(self, out: Tensor, back: Back) -> Tensor:
        if self.learns:
            self.backs.append(back)
        return out

    def backward(self, gradient: Tensor) -> Tensor:
        """From the gradient of the states to that of the rows [n, D]."""
        gradient = gradient.flatten(0, 2)
        while self.backs:
            gradient = self.backs.pop()(gradient)
        return self.gradient.mul_(self.scales).index_select(1, self.order.back)

    def _block(self, block: Any, hidden: Tensor, at: Tensor | None = None) -> tuple[Tensor, Back]:
        """[N * L, H] -> the same; with `at` [N, P], at those positions alone: [N * P, H]."""
        attention, mlp, of = block.self_attn, block.mlp, self.order.of
        q_proj, k_proj, v_proj, o_proj = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        x, x_back = norm(block.input_layernorm, hidden)
        kept = self._kept(x, of(q_proj, k_proj, v_proj))
        if at is None:
            (q, k, v), qkv_back = self._linears(x, kept, of(q_proj, k_proj, v_proj))
            read, read_back = self._attended(attention, q, k, v)
            residual = hidden
        else:
            L = len(hidden) // self.N
            where = (at + L * torch.arange(self.N)[:, None]).flatten()
            (q,), q_back = self._linears(x[where], None if kept is None else kept[where], of(q_proj))
            (k, v), kv_back = self._linears(x, kept, of(k_proj, v_proj))
            read, read_back = self._attended_at(attention, q, k, v, at)
            residual = hidden[where]
        (out,), o_back = self._linears(read, self._kept(read, of(o_proj)), of(o_proj))
        middle = out.add_(residual)
        y, y_back = norm(block.post_attention_layernorm, middle)
        read_too = of(mlp.gate_proj, mlp.up_proj)
        (gate, up), gate_back = self._linears(y, self._kept(y, read_too), read_too)
        inner = mlp.act_fn(gate).mul_(up)
        (out,), down_back = self._linears(inner, self._kept(inner, of(mlp.down_proj)), of(mlp.down_proj))

        def back(gradient: Tensor) -> Tensor:
            of_inner = down_back([gradient])
            active, act_back = by_autograd(mlp.act_fn, gate)  # again, since memory is slower
            of_up = active * of_inner
            (of_gate,) = act_back(of_inner.mul_(up))
            of_middle = y_back(gate_back([of_gate, of_up])).add_(gradient)
            of_q, of_k, of_v = read_back(o_back([of_middle]))
            if at is None:
                of_x = qkv_back([of_q, of_k, of_v], block is not self.model.layers[0])
                return of_middle if of_x is None else x_back(of_x).add_(of_middle)
            of_x = kv_back([of_k, of_v]).index_add_(0, where, q_back([of_q]))
            return x_back(of_x).index_add_(0, where, of_middle)

        return out.add_(middle), back

    def _block_again(self, block: Any, hidden: Tensor, at: Tensor | None = None) -> tuple[Tensor, Back]:
        generators = self.dropout.generators if self.dropout else []
        drawn = [g.get_state() for g in generators]

        def back(gradient: Tensor) -> Tensor:
            now = [g.get_state() for g in generators]
            for g, state in zip(generators, drawn, strict=True):
                g.set_state(state)
            _, again = self._block(block, hidden, at)
            for g, state in zip(generators, now, strict=True):
                g.set_state(state)
            return again(gradient)

        return self._block(block, hidden, at)[0], back

    def _attended(self, attention: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """What each position reads of those up to it, heads side by side; k and v may have fewer heads."""
        (q, q_back), (k, k_back) = self._turned(q, *self.turn), self._turned(k, *self.turn)
        q, k, v = (self._heads(x) for x in (q, k, v))
        out, sums = getattr(torch.ops.aten, FUSED)(q, k, v, 0.0, True, scale=attention.scaling)

        def back(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            backward = getattr(torch.ops.aten, f"{FUSED}_backward")
            of = backward(self._heads(gradient), q, k, v, out, sums, 0.0, True, scale=attention.scaling)
            of_q, of_k, of_v = (g.transpose(1, 2).reshape(-1, g.shape[1] * g.shape[3]) for g in of)
            return q_back(of_q), k_back(of_k), of_v

        return out.transpose(1, 2).reshape(-1, out.shape[1] * out.shape[3]), back

    def _attended_at(
        self, attention: Any, q: Tensor, k: Tensor, v: Tensor, at: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """The same of queries [N * P, heads * d] at the positions `at` [N, P]."""
        cos, sin = self.turn
        (q, q_back), (k, k_back) = self._turned(q, cos[at], sin[at]), self._turned(k, cos, sin)
        leaves = [self._heads(x) for x in (q, k, v)]
        out, read_back = by_autograd(lambda *parts: attended(attention, *parts, at=at), *leaves)

        def back(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            of_q, of_k, of_v = (
                g.transpose(1, 2).reshape(-1, g.shape[1] * g.shape[3]) for g in read_back(gradient.view(out.shape))
            )
            return q_back(of_q), k_back(of_k), of_v

        return out.flatten(0, 1), back

    def _heads(self, x: Tensor) -> Tensor:
        """[N * L, heads * d] -> [N, heads, L, d]"""
        d = len(self.swap)
        return x.view(self.N, -1, x.shape[-1] // d, d).transpose(1, 2)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Back]:
        """Rotary embedding of x [N * P, heads * d] at cosines and sines [.., P, at least as many]. A head's halves
        change places by a product, as many short copies take longer."""
        d, width = len(self.swap), x.shape[-1]
        cos, sin, shape = cos[..., :width], sin[..., :width], (self.N, -1, width)

        def back(gradient: Tensor) -> Tensor:
            g = gradient.contiguous().view(shape)
            return (g * cos).view(-1, d).addmm_((g * sin).view(-1, d), self.swap.T).view(-1, width)

        swapped = torch.mm(x.view(-1, d), self.swap).view(shape)
        return (x.view(shape) * cos).addcmul_(swapped, sin).view(-1, width), back

    def _kept(self, x: Tensor, readers: Readers) -> Tensor | None:
        """Dropout's mask of what these modules read: numbers, as a CPU is slow to multiply two types."""
        if self.dropout is None or not readers.adapted:
            return None
        return self.dropout.kept(x.view(self.N, -1, x.shape[-1]), x.dtype).view(x.shape)

    def _linears(self, x: Tensor, kept: Tensor | None, readers: Readers) -> tuple[list[Tensor], Callable[..., Any]]:
        """What modules that read the same x make of it. Products with a side of r are quick where tokens come last, [n,
        r, T], or that side comes first, in both directions."""
        n, r, d, weights, adapted = self.n, self.order.r, x.shape[-1], readers.weights, readers.adapted
        if adapted:
            count, widths = len(adapted) * r, readers.widths
            A = self._part(self.row, readers.A_at[0], count, d)
            B = [self._part(self.row, b, r, width) for b, width in zip(readers.B_at, widths, strict=True)]
        if self.merges and adapted:
            weights = list(weights)
            for j, a, b in zip(adapted, A[0].split(r), B, strict=True):
                weights[j] = weights[j].addmm(b[0].T, a)
        ys = [nn.functional.linear(x, w, bias) for w, bias in zip(weights, readers.biases, strict=True)]
        if adapted and not self.merges:
            h = (x if kept is None else x * kept).view(n, -1, d)
            first = torch.bmm(A, h.mT).split(r, 1)
            for j, one, b in zip(adapted, first, B, strict=True):
                ys[j].view(n, -1, b.shape[-1]).baddbmm_(one.mT, b)

        def back(gradients: Sequence[Tensor], further: bool = True) -> Any:
            """further: whether the gradient of x is wanted, below which there may be nothing to learn."""
            if adapted:
                of_y = [gradients[j].view(n, -1, width) for j, width in zip(adapted, widths, strict=True)]
                for g, one, at, width in zip(of_y, first, readers.B_at, widths, strict=True):
                    self._part(self.gradient, at, r, width).copy_(torch.bmm(one, g))
                of_first = torch.cat([torch.bmm(b, g.mT) for b, g in zip(B, of_y, strict=True)], 1)
                self._part(self.gradient, readers.A_at[0], count, d).copy_(torch.bmm(of_first, h))
            if not further:
                return None
            of_x = torch.mm(gradients[0], weights[0])
            for g, w in zip(gradients[1:], weights[1:], strict=True):
                of_x.addmm_(g, w)
            if adapted and kept is None:
                of_x.view(n, -1, d).baddbmm_(of_first.mT, A)
            elif kept is not None:
                of_x.addcmul_(torch.bmm(of_first.mT, A).view(-1, d), kept)
            return of_x

        return ys, back

    def _part(self, matrix: Tensor, begin: int, rows: int, width: int) -> Tensor:
        """[n, rows, width] of a matrix [n, D] in the order of use."""
        return matrix[:, begin : begin + rows * width].view(self.n, rows, width)


def by_autograd(compute: Callable[..., Tensor], *given: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """What has no shorter way back than autograd's own."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in given]
        out = compute(*leaves)
    return out.detach(), lambda gradient: torch.autograd.grad(out, leaves, gradient)


def norm(module: Any, x: Tensor) -> tuple[Tensor, Back]:
    """x / rms(x) · w; Gemma's w is 1 more than its parameter."""
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    weight = module.weight + 1.0 if type(module).__name__ == "GemmaRMSNorm" else module.weight
    inverse = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()

    def back(gradient: Tensor) -> Tensor:
        g = gradient * weight
        along = (g * x).sum(-1, keepdim=True).mul_(inverse.pow(3)).div_(-x.shape[-1])
        return g.mul_(inverse).addcmul_(x, along)

    return (x * inverse).mul_(weight), back
