"""The selector: a frozen causal LM that reads a comparison and answers A or B, with n LoRA rows in one pass.

The frozen part is shared by all clients of a stack, the adapters are batched products (`raypref.models.lora`). Since
the loss is summed over clients, every client's gradient is exactly its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raypref.config import ModelConfig, UserError
from raypref.data.readers import KINDS, LFS
from raypref.models import quick
from raypref.models.block import block_at
from raypref.models.layout import Layout, lora_layout
from raypref.models.lora import TOGETHER, Dropout, StackedLoRA, Together, as_bound

LOGITS = 1 << 28
"""Most logits over the whole vocabulary in memory at once: 1 GiB. A large vocabulary has as many in 1,800 tokens."""

ARCHITECTURES = ("qwen2", "llama", "gemma", "gemma2")
"""`model_type`s whose head `choice_logits` computes as the model itself does, as tests say."""


class Selector:
    """A frozen base with its choice tokens and row layout."""

    def __init__(self, model: Any, choice_ids: tuple[int, ...], pad: int, config: ModelConfig, device: str) -> None:
        self.device = device
        self.pad = pad
        self.model = model.to(device).requires_grad_(False).eval()
        ids, head = torch.tensor(choice_ids, dtype=torch.int64, device=device), self.model.get_output_embeddings()
        # Copies: where ZeRO 3 partitions the base, a parameter is there only inside its own module's call.
        self.choice_weight = head.weight[ids].clone()
        self.choice_bias = None if head.bias is None else head.bias[ids].clone()
        self.modules: dict[str, StackedLoRA] = {}
        self.groups: dict[tuple[nn.Module, tuple[str, ...]], Together] = {}
        for name, parent, child, linear in _targets(self.model.model, config.lora_targets):
            siblings = next((names for names in TOGETHER if child in names), (child,))
            group = self.groups.setdefault((parent, siblings), Together())
            self.modules[name] = wrapped = StackedLoRA(linear, config.lora_alpha / config.lora_r, group)
            setattr(parent, child, wrapped)
        self.at: Tensor | None = None
        """[N, P] the positions of each sequence at which a pass under way is read; None: all."""
        self.recompute = False
        """Whether each block keeps its input alone and is run again in the backward pass."""
        for block in self.model.model.layers:
            block.forward = self._forward_of(block)
        sizes = ((name, m.linear.in_features, m.linear.out_features) for name, m in self.modules.items())
        self.layout: Layout = lora_layout(sizes, config.lora_r)

    @functools.cached_property
    def order(self) -> quick.Order:
        """Of what passes read of a row."""
        with torch.inference_mode(False):  # whatever the first pass is for
            return quick.Order(self.layout, self.modules)

    @contextlib.contextmanager
    def bound(self, rows: Tensor, dropout: Dropout | None = None, merge: bool = False) -> Iterator[None]:
        """While inside, passes go through the adapters of `rows` [n, D]; merge: see `raypref.models.lora.Bound`."""
        tensors = self.layout.split(rows)
        adapters = {m: (tensors[f"{name}.lora_A"], tensors[f"{name}.lora_B"]) for name, m in self.modules.items()}
        for group in self.groups.values():
            group.bind([adapters[module] for module in group.modules], dropout, merge)
        try:
            yield
        finally:
            for group in self.groups.values():
                group.release()

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """While inside, attention is computed step by step: fused attention has no forward-mode derivative."""
        fused, recompute = self.model.config._attn_implementation, self.recompute
        self.model.set_attn_implementation("eager")
        self.recompute = False
        try:
            yield
        finally:
            self.recompute = recompute
            self.model.set_attn_implementation(fused)

    def _forward_of(self, block: nn.Module) -> Callable[..., Tensor]:
        """What a block computes in a pass of ours: the last one only what is read; and where `recompute` is on, it
        keeps nothing else for the backward pass than its input, where it runs again with the adapters and dropout masks
        that it had, to the same bits."""
        whole, last = block.forward, block is self.model.model.layers[-1]
        groups = list({m.together: None for m in block.modules() if isinstance(m, StackedLoRA)})

        def forward(hidden: Tensor, **rest: Any) -> Tensor:
            compute = partial(whole, **rest)
            if last and self.at is not None:
                compute = partial(block_at, block, at=self.at, rotary=rest["position_embeddings"])
            if self.recompute and torch.is_grad_enabled():
                again = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
                return again(hidden, context_fn=lambda: (contextlib.nullcontext(), as_bound(groups)))
            return compute(hidden)

        return forward

    def choice_logits(self, rows: Tensor, ids: Tensor, lengths: Tensor, dropout: Dropout | None = None) -> Tensor:
        """The two choice logits at each comparison's last token.

        rows [n, D] float32; ids [n, b, L] padded on the right; lengths [n, b] -> [n, b, 2] float32 (A, B), with what
        the architecture does after its head. No attention mask is needed: a causal model's position never sees the
        padding behind it.
        """
        return self._choice(self.states(rows, ids, lengths[..., None] - 1, dropout)[:, :, 0])

    def read(
        self, rows: Tensor | None, ids: Tensor, lengths: Tensor, spans: Tensor, dropout: Dropout | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choice logits [n, b, 2] and each response's last state [n, b, 2, H] float32 (S1 4.1), in one pass.

        rows: None for the frozen base. spans [n, b, 4]: start and end of A, then of B, in tokens; otherwise as
        `choice_logits`.
        """
        ends = (spans[..., 1::2].long() - 1).clamp(min=0)
        states = self.states(rows, ids, torch.cat([ends, lengths[..., None] - 1], dim=-1), dropout)
        return self._choice(states[:, :, 2]), states[:, :, :2].float()

    def states(self, rows: Tensor | None, ids: Tensor, at: Tensor, dropout: Dropout | None = None) -> Tensor:
        """[n, b, L] -> last hidden states [n, b, P, H] at the positions `at` [n, b, P] alone, which is quicker than
        `hidden`; rows None: the frozen base."""
        if rows is not None and quick.covers(self.model):
            passed = quick.Pass(self.model, self.order, rows, dropout, self.recompute)
            return quick.States.apply(rows, passed, ids, at)
        alone = rows is not None and len(rows) == 1 and dropout is None and self.model.dtype == torch.float32
        self.at = at.flatten(0, 1)
        try:  # In half precision a small adapter would be lost in the weights; with gradients it must stay apart.
            return self._passed(rows, ids, dropout, merge=alone and not torch.is_grad_enabled())
        finally:
            self.at = None

    def hidden(self, rows: Tensor | None, ids: Tensor, dropout: Dropout | None = None) -> Tensor:
        """[n, b, L] -> last hidden states [n, b, L, H]; rows None: the frozen base."""
        return self._passed(rows, ids, dropout)

    def _passed(self, rows: Tensor | None, ids: Tensor, dropout: Dropout | None, merge: bool = False) -> Tensor:
        with contextlib.nullcontext() if rows is None else self.bound(rows, dropout, merge):
            out = self.model.model(input_ids=ids.flatten(0, 1), use_cache=False).last_hidden_state
        return out.unflatten(0, ids.shape[:2])

    def log_probs(self, rows: Tensor | None, ids: Tensor, spans: Tensor, dropout: Dropout | None = None) -> Tensor:
        """[n, b] float32 log-probabilities of one response a sequence, given the tokens before it.

        ids [n, b, L] padded on the right; spans [n, b, 2] start (at least 1) and end in tokens, empty ones give 0;
        rows: None for the frozen base.
        """
        hidden = self.hidden(rows, ids, dropout)[:, :, :-1].flatten(0, 1)
        targets, limits = ids[:, :, 1:].flatten(0, 1), spans.flatten(0, 1)
        at = torch.arange(1, ids.shape[-1], device=ids.device)
        inside = (at >= limits[:, :1]) & (at < limits[:, 1:])
        log_probs = self.token_log_probs(hidden[inside], targets[inside])
        sums = log_probs.new_zeros(len(limits)).index_add(0, inside.nonzero()[:, 0], log_probs)
        return sums.view(ids.shape[:2])

    def token_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[T, H], [T] -> [T] each target's log-probability, with the logits of at most `LOGITS` in memory at once."""
        most = max(1, LOGITS // int(self.model.config.vocab_size))
        parts = list(zip(hidden.split(most), targets.split(most), strict=True))
        if len(parts) == 1:
            return self._token_log_probs(*parts[0])
        # Each part's logits are made again in the backward pass.
        return torch.cat([checkpoint(self._token_log_probs, *part, use_reentrant=False) for part in parts])

    def _token_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The same of one part."""
        return torch.log_softmax(self.full_head(hidden), dim=-1).gather(-1, targets[:, None])[:, 0]

    def full_head(self, hidden: Tensor) -> Tensor:
        """[T, H] last hidden states -> [T, V] logits float32, with what the architecture does after its head."""
        return self._capped(self.model.get_output_embeddings()(hidden).float())

    def _choice(self, last: Tensor) -> Tensor:
        """[n, b, H] -> [n, b, 2]"""
        return self.head(last.flatten(0, 1)).unflatten(0, last.shape[:2])

    def head(self, hidden: Tensor) -> Tensor:
        """[m, H] last hidden states -> [m, 2] logits of A and B: two rows of the LM head, its bias, Gemma 2's cap."""
        weight, bias = (None if part is None else part.to(hidden) for part in (self.choice_weight, self.choice_bias))
        return self._capped(nn.functional.linear(hidden, weight, bias).float())

    def _capped(self, logits: Tensor) -> Tensor:
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)


def _targets(body: nn.Module, targets: tuple[str, ...]) -> list[tuple[str, nn.Module, str, nn.Linear]]:
    """(name, parent, child, linear) of every adapted module in the model's order; `UserError` where one is missing."""
    modules = []
    for name, module in body.named_modules():
        parent, _, child = name.rpartition(".")
        if child in targets and isinstance(module, nn.Linear):
            modules.append((name, body.get_submodule(parent), child, module))
    missing = [t for t in targets if not any(child == t for _, _, child, _ in modules)]
    if missing:
        raise UserError(f"the base has no linear modules named {', '.join(missing)}; set model.lora-targets to its own")
    return modules


def base_path(base: str) -> str:
    """The folder or hub id of `model.base`; see `model_path`."""
    if base == "embedded":
        from raypref.models.embedded import PATH

        return str(PATH)
    return model_path(base, "model.base=")


def model_path(word: str, field: str) -> str:
    """The folder or hub id that a person has typed; `UserError`, which begins with `field`, for a missing folder."""
    if not word.startswith((".", "/", "~")) and word.count("/") < 2:
        return word
    path = Path(word).expanduser()
    if not path.is_dir():
        raise UserError(f"{field}{word!r}: there is no such folder; give a local folder or a hub id (OWNER/NAME)")
    return str(path)


def load_tokenizer(base: str) -> Any:
    """The base's fast tokenizer. Raises `UserError` with one line where there is none."""
    from transformers import AutoTokenizer

    path = base_path(base)
    files = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if Path(path).is_dir() and not any((Path(path) / name).exists() for name in files):
        raise UserError(f"model folder {base!r} has no tokenizer; save the base's tokenizer there (save_pretrained)")
    with _loading("no tokenizer for", base):
        tokenizer = AutoTokenizer.from_pretrained(path)
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer of {base!r} has no fast version, which is needed for token offsets")
    return tokenizer


def load_architecture(base: str) -> Any:
    """The base's Hugging Face config. Raises `UserError` where its architecture is not one of `ARCHITECTURES`."""
    from transformers import AutoConfig

    with _loading("cannot load", base):
        architecture = AutoConfig.from_pretrained(base_path(base))
    if architecture.model_type not in ARCHITECTURES:
        raise UserError(
            f"model.base={base!r} is a {architecture.model_type!r} model; supported are {', '.join(ARCHITECTURES)}"
        )
    return architecture


@functools.lru_cache(maxsize=8)  # a sweep asks for each trial
def base_layout(config: ModelConfig) -> Layout:
    """The row layout of LoRA on this base, from its architecture alone: no weight is read."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(load_architecture(config.base))
    linears = _targets(model.model, config.lora_targets)
    return lora_layout(((name, m.in_features, m.out_features) for name, _, _, m in linears), config.lora_r)


def load_selector(config: ModelConfig, choice_ids: tuple[int, ...], pad: int, device: str = "cpu") -> Selector:
    """A selector of the base, ready on `device`. Raises `UserError` on an unknown architecture or a missing model."""
    from transformers import AutoModelForCausalLM

    load_architecture(config.base)
    with _loading("cannot load", config.base):
        model = AutoModelForCausalLM.from_pretrained(  # no pickles, which could run anything
            base_path(config.base), dtype=getattr(torch, config.dtype), use_safetensors=True
        )
    return Selector(model, choice_ids, pad, config, device)


def check_tokens(base: str, largest: int) -> None:
    """`UserError` where a token id of the data is beyond the base's embedding."""
    size = load_architecture(base).vocab_size
    if largest >= size:
        raise UserError(
            f"the tokenizer of model.base={base!r} gives token {largest}, and the model has {size}: they do not belong "
            "together; save the base's own tokenizer there"
        )


def pad_id(tokenizer: Any) -> int:
    """The token id to pad with on the right: the tokenizer's own where it has one, else any that is valid."""
    return next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)


@contextlib.contextmanager
def _loading(what: str, base: str) -> Iterator[None]:
    """Makes one line of whatever transformers, tokenizers and safetensors raise: errors of any type, bare ones too."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        for path in Path(base_path(base)).glob("*"):
            if path.is_file() and path.stat().st_size < 1000 and path.read_bytes().startswith(LFS):
                raise UserError(f"{what} model.base={base!r}: {path.name} {KINDS[LFS]}") from error
        if isinstance(error, OSError) and next(Path(base_path(base)).glob("pytorch_model*.bin"), None):
            raise UserError(
                f"{what} model.base={base!r}: its weights are a pickle, which could run anything; save them as "
                "safetensors (save_pretrained)"
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"{what} model.base={base!r}: {reason}; give a local folder or a hub id") from error
