"""How much memory of a card a client actor and stage 2 take: their passes on tensors that have shapes and no data.

torch's meta device runs the very code of a run at the base's real width, in seconds, without weights or a card, and
what is alive at the fullest moment is counted. So no formula of an architecture stands here.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from raypref.config import ModelConfig, RunConfig, registry
from raypref.models.lora import Dropout
from raypref.models.policy import layout_of
from raypref.models.selector import Selector, load_architecture
from raypref.objectives.base import row_layout

GIB = 2**30
OVERHEAD, FRAGMENTS = 0.7 * GIB, 1.1
"""What libraries take on a card beside tensors, and what the allocator takes for each byte of them."""
COPIES = 5
"""Of stage 2's row: itself, its gradient, AdamW's two moments and what a step computes with."""


class Live(TorchDispatchMode):
    """While inside, counts the bytes of the tensors that are made and are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return True  # transformers asks whether a batch is without packed sequences
        if func is not torch.ops.aten.lift_fresh.default:  # which shows a tensor that was just made
            tree_map_only(Tensor, self._outside, (args, kwargs))
        out = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._add, out)
        return out

    def _outside(self, tensor: Tensor) -> Tensor:
        """What is first seen as an input was there before."""
        return self._add(tensor, there=True)

    def _add(self, tensor: Tensor, there: bool = False) -> Tensor:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, 0 if there else storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, key, size)
        return tensor

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@dataclass(frozen=True)
class Shape:
    """How much is read at once."""

    clients: int
    """Whose rows are in one stack."""
    batch: int
    """Pairs of each in a training step."""
    length: int
    """Tokens of the longest sequence."""
    pairs: int
    """Of all clients of an actor, all folds together."""
    largest: int
    """Training pairs of the client that has most."""


@dataclass(frozen=True)
class Memory:
    """What one process holds on its card at its fullest moment, in bytes."""

    parts: Mapping[str, float]
    """Name -> bytes, of which the sum is the peak of its tensors."""

    @property
    def total(self) -> float:
        """With what libraries and the allocator take beside them."""
        return sum(self.parts.values()) * FRAGMENTS + OVERHEAD

    def sentence(self, what: str, processes: int = 1, card: float = 0.0) -> str:
        """The parts in GiB, and whether so many processes fit a card of so many GiB (0: unknown)."""
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.parts.items() if size >= 0.005 * GIB)
        line = f"{what}: {parts}; {self.total / GIB:.1f} GiB with libraries and fragments"
        if processes > 1:
            line += f", {processes} on a card {processes * self.total / GIB:.1f}"
        if not card:
            return line
        return f"{line}: {'fits' if self.fits(card, processes) else 'DOES NOT FIT'} the card's {card:.0f} GiB"

    def fits(self, card: float, processes: int = 1) -> bool:
        return processes * self.total <= card * GIB


def client_actor(config: RunConfig, shape: Shape, rows: float, optimizer: float) -> Memory:
    """Of a client actor at its fullest moment. rows, optimizer: bytes of `raypref.experiment.forecast.Forecast`."""
    objective = registry.objective(config.objective)
    adapted = bool(row_layout(config).sides)
    n, c = shape.clients, config.clients
    size = (n, shape.batch * (1 if objective.encoding(config).compares else 2), shape.length)
    words = shape.length // 2 if objective.is_policy else 0
    passes = registry.algorithm(config.algorithm).client.passes  # all are kept until the way back
    training = _peak(config.model, size, c.recompute, 0, passes) if adapted else 0
    logits = max(0, _peak(config.model, size, c.recompute, words, passes) - training) if adapted and words else 0
    evaluation = _peak(config.model, (n, max(1, c.eval_batch // n), shape.length), None, words)
    parts = {
        "base weights": float(base_bytes(config.model)),
        "rows": rows,
        "optimizer": optimizer,
        "features of the frozen base": float(objective.kept_bytes(config, shape.pairs, n * shape.largest)),
        "activations": float(training),
        "vocabulary logits": float(logits),
    }
    parts["evaluation's more"] = float(max(0, evaluation - training - logits))
    if config.diagnostics.marks:  # in float32, whatever the base is in
        wide = replace(config.model, dtype="float32", lora_dropout=0.0)
        more = base_bytes(wide) + _peak(wide, size, c.recompute, 0)
        parts["diagnostics' more"] = float(max(0, more - parts["base weights"] - max(training + logits, evaluation)))
    return Memory(parts)


def policy_worker(config: RunConfig) -> Memory:
    """Of a process of stage 2 at its fullest moment, with responses as long as they may be."""
    r, length = config.rlhf, config.data.max_length
    own = row_layout(config)
    voting = 1 if registry.objective(config.objective).has_latent else config.clients.stack
    row = COPIES * 4 * layout_of(config).width
    sequences = 2 * max(1, r.batch_size // r.workers)
    training = _peak(config.model, (1, sequences, length), r.recompute, 0)
    full = _peak(config.model, (1, sequences, length), r.recompute, r.max_new_tokens)
    labels = _peak(config.model, (1, config.clients.eval_batch, length), None, 0)
    generation = _generation(config, 2 * min(r.generation_batch, sequences // 2), length)
    parts = {
        "base weights": float(base_bytes(config.model)),
        "rows of selectors": float(4 * voting * own.width),
        "row and optimizer": float(row),
        "activations": float(training),
        "vocabulary logits": float(max(0, full - training)),
    }
    return Memory(parts | {"generation's and labels' more": float(max(0, labels - full, generation - full))})


@functools.lru_cache(maxsize=8)
def base_bytes(config: ModelConfig) -> int:
    """Of the frozen base's weights, each once."""
    model = _model(config)
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def _generation(config: RunConfig, sequences: int, length: int) -> int:
    """Of generating: the prompts' pass, keys and values of all tokens, and the last token's probabilities, sorted."""
    a, size = load_architecture(config.model.base), getattr(torch, config.model.dtype).itemsize
    width = getattr(a, "head_dim", None) or a.hidden_size // a.num_attention_heads
    kept = 2 * sequences * length * a.num_hidden_layers * a.num_key_value_heads * width * size
    prompts = _peak(config.model, (1, sequences, max(1, length - config.rlhf.max_new_tokens)), None, 0)
    return prompts + kept + 32 * sequences * int(a.vocab_size)


def _model(config: ModelConfig, blocks: int = 0) -> Any:
    """The base without data; blocks: only its first ones."""
    from transformers import AutoModelForCausalLM

    architecture = load_architecture(config.base)
    if blocks:
        architecture.num_hidden_layers = blocks
        if getattr(architecture, "layer_types", None):
            architecture.layer_types = architecture.layer_types[:blocks]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(architecture, dtype=getattr(torch, config.dtype))


def _peak(
    config: ModelConfig, shape: tuple[int, int, int], recompute: bool | None, words: int, passes: int = 1
) -> float:
    """Bytes beside base and rows, at most, of passes of `shape` [n, b, L] through the base with n adapters, and their
    way back; recompute None: no way back. words: response tokens of a sequence whose probabilities are read off the
    whole vocabulary; 0: the choice alone.

    Every block adds as much as another, so that a few of them tell of all; of Gemma 2's two kinds as many of each. The
    first, below which nothing is derived, and the last, which is computed at few positions, are among the four."""
    blocks = int(load_architecture(config.base).num_hidden_layers)
    of = [_read(config, shape, recompute, words, passes, k) for k in sorted({min(k, blocks) for k in (4, 6)})]
    return of[-1] + (of[-1] - of[0]) / 2 * max(0, blocks - 6)


@functools.lru_cache(maxsize=256)
def _read(
    config: ModelConfig, shape: tuple[int, int, int], recompute: bool | None, words: int, passes: int, blocks: int
) -> int:
    """`_peak` of a base of so many blocks."""
    n, b, length = shape
    selector = Selector(_model(config, blocks), (0, 1), 0, config, "meta")
    selector.recompute = bool(recompute)
    rows = torch.empty(n, selector.layout.width, device="meta", requires_grad=recompute is not None)
    ids = torch.empty(shape, dtype=torch.int64, device="meta")
    lengths = torch.empty((n, b), dtype=torch.int64, device="meta")
    masks = [torch.Generator() for _ in range(n)]  # nothing is drawn; a block that runs again asks for their state
    dropping = recompute is not None and config.lora_dropout
    dropout = Dropout(config.lora_dropout, masks, [(b, length)] * n) if dropping else None

    def read() -> Tensor:
        if not words:
            return selector.choice_logits(rows, ids, lengths, dropout).sum()
        hidden = selector.hidden(rows, ids, dropout)[:, :, : min(words, length)].flatten(0, 2)
        return selector.token_log_probs(hidden, hidden.new_empty(len(hidden), dtype=torch.int64)).sum()

    with _fused(selector.model), torch.set_grad_enabled(recompute is not None), Live() as live:
        outs = [read() for _ in range(passes)]
        if recompute is not None:
            torch.autograd.grad(torch.stack(outs).sum(), rows)
    return live.peak


class _Fused(torch.autograd.Function):
    """What fused attention keeps: queries, keys, values, its output and a number a query."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))


@contextmanager
def _fused(model: Any) -> Iterator[None]:
    """While inside, attention takes what a card's fused kernel does, where the base's is one: the meta device has none.
    Gemma 2's is computed step by step there, too."""
    from transformers import AttentionInterface, AttentionMaskInterface

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return _Fused.apply(q, k, v).transpose(1, 2).contiguous(), None  # type: ignore[no-untyped-call]

    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register("without_data", attend)
        AttentionMaskInterface.register("without_data", lambda *args, **kwargs: None)
        model.set_attn_implementation("without_data")
    yield


def here() -> float:
    """GiB of the card that is here; 0: there is none."""
    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else 0.0


def on_a_card(config: RunConfig) -> int:
    """Client actors that share a card."""
    share = config.clients.gpus_per_actor
    return max(1, math.floor(1 / share + 1e-9)) if 0 < share <= 1 else 1
