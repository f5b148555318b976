"""The conditional policy of stage 2 (S1 4.4, Algorithm 1, lines 20-22): the frozen base, a LoRA row, and z.

    inputs_embeds <- base embeds + Z-TO-EMBEDDING(z)

at every position, those of the response included, in training and in generation alike. Z-TO-EMBEDDING is a linear map
that starts at zero, and so does LoRA's B: a new policy is the frozen base, whatever z is. Policy, reference and
selector share one frozen base.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raypref.config import RunConfig, registry
from raypref.data.templates import GENERATION, ask, asked
from raypref.models.layout import BESIDE, Layout, Segment
from raypref.models.lora import Dropout
from raypref.models.selector import Selector, base_layout, load_architecture

Z_TO_EMBEDDING = f"{BESIDE}z_to_embedding"


class ShiftedEmbedding(nn.Module):
    """A frozen input embedding that adds a vector to each sequence while `shift` is set."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.shift: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, L] -> [B, L, H]; the shift is [B, H]."""
        embedded = self.embedding(ids)
        return embedded if self.shift is None else embedded + self.shift[:, None].to(embedded.dtype)


@dataclass(frozen=True)
class Sampling:
    """How a response is drawn (S1 D.1.2)."""

    temperature: float
    top_p: float
    max_new_tokens: int

    @classmethod
    def of(cls, config: RunConfig) -> Sampling:
        return cls(config.rlhf.temperature, config.rlhf.top_p, config.rlhf.max_new_tokens)


@dataclass(frozen=True)
class Responses:
    """B sampled responses behind their prompts."""

    ids: Tensor
    """int64 [B, L], padded on the right."""
    spans: Tensor
    """int64 [B, 2] start and end of each response in tokens, its end token or stop word included."""
    texts: list[str]
    """[B] without end token and stop word."""


class Policy:
    """π(y | x, z): generates responses, and gives their log-probabilities, for any row of its layout."""

    def __init__(self, selector: Selector, tokenizer: Any, config: RunConfig, d: int) -> None:
        """d: the width of z; 0: a policy without one."""
        self.selector, self.tokenizer, self.d = selector, tokenizer, d
        self.template = asked(config)
        self.generation = GENERATION[self.template]
        self.max_length = config.data.max_length
        model = selector.model
        self.hidden = int(model.config.hidden_size)
        self.layout = policy_layout(selector.layout, self.hidden, d)
        embedding = model.get_input_embeddings()
        self.embedding = embedding if isinstance(embedding, ShiftedEmbedding) else ShiftedEmbedding(embedding)
        model.set_input_embeddings(self.embedding)

    @contextlib.contextmanager
    def bound(self, row: Tensor, z: Tensor | None, dropout: Dropout | None = None) -> Iterator[None]:
        """While inside, passes over B sequences go through the adapter of `row` [D], each with its z of [B, d]."""
        if (self.d > 0) != (z is not None):
            raise ValueError("z must be given where the policy is conditioned on it, and nowhere else")
        adapter = self.selector.layout.width
        with self.selector.bound(row[None, :adapter], dropout):
            if z is not None:
                self.embedding.shift = z.to(row) @ row[adapter:].view(self.hidden, self.d).T
            try:
                yield
            finally:
                self.embedding.shift = None

    def log_probs(
        self, row: Tensor | None, ids: Tensor, spans: Tensor, z: Tensor | None = None, dropout: Dropout | None = None
    ) -> Tensor:
        """[B] log-probabilities of responses by prompt and z: ids [B, L] padded on the right, spans [B, 2], z [B, d].

        row None: of the reference, the frozen base without adapter or z.
        """
        with contextlib.nullcontext() if row is None else self.bound(row, z, dropout):
            return self.selector.log_probs(None, ids[None], spans[None])[0]

    @torch.no_grad()
    def generate(
        self,
        row: Tensor | None,
        prompts: Sequence[str],
        z: Tensor | None,
        sampling: Sampling,
        seed: int,
        synced: bool = False,
    ) -> Responses:
        """Sample a response to each prompt; row None: by the frozen base. z: [B, d], or None.

        The draws depend on `seed` and on the other prompts of the batch. Prompts that leave no room for
        `max_new_tokens` lose text from the left. synced: all processes generate together, so that none stops before the
        others (ZeRO 3).
        """
        stems = [self.ask(prompt, sampling.max_new_tokens) for prompt in prompts]
        width, pad, device = max(map(len, stems)), self.selector.pad, self.selector.device
        ids = torch.full((len(stems), width), pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, stem in enumerate(stems):  # on the left, so that all responses begin at one place
            ids[i, width - len(stem) :], mask[i, width - len(stem) :] = torch.tensor(stem), 1
        devices = [torch.cuda.current_device()] if device == "cuda" else []
        stops = [text for text in (self.generation.end, self.generation.stop) if text]
        with contextlib.nullcontext() if row is None else self.bound(row, z), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            out = self.selector.model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                do_sample=True,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=0,
                max_new_tokens=sampling.max_new_tokens,
                pad_token_id=pad,
                synced_gpus=synced,
                **({"stop_strings": stops, "tokenizer": self.tokenizer} if stops else {}),
            )[:, width:].cpu()
        return self._responses(stems, out)

    def ask(self, prompt: str, room: int) -> list[int]:
        """The tokens of a prompt in its template, at most `max_length` less `room` for the response."""
        text, (start, end) = ask(self.template, prompt)
        encoding = self.tokenizer(text, return_offsets_mapping=True)
        ids, characters = encoding["input_ids"], encoding["offset_mapping"]
        excess = len(ids) - max(1, self.max_length - room)
        if excess > 0:
            inside = [i for i, (a, b) in enumerate(characters) if a >= start and b <= end and b > a][:excess]
            ids = [token for i, token in enumerate(ids) if i not in set(inside)]
        return ids

    def _responses(self, stems: Sequence[list[int]], out: Tensor) -> Responses:
        rows, spans, texts = [], [], []
        for stem, drawn in zip(stems, out.tolist(), strict=True):
            response, text = self._cut(drawn)
            rows.append(torch.tensor([*stem, *response]))
            spans.append((len(stem), len(stem) + len(response)))
            texts.append(text)
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.selector.pad)
        device = self.selector.device
        return Responses(ids.to(device), torch.tensor(spans, device=device), texts)

    def _cut(self, drawn: list[int]) -> tuple[list[int], str]:
        """A sampled response up to and with its end token or stop word, and its text."""
        end = self.tokenizer.eos_token_id
        if end is not None and end in drawn:
            drawn = drawn[: drawn.index(end) + 1]
        text = self.tokenizer.decode(drawn, skip_special_tokens=True)
        for stop in filter(None, (self.generation.end, self.generation.stop)):
            while stop in text:  # the shortest beginning that holds it
                shorter = self.tokenizer.decode(drawn[:-1], skip_special_tokens=True)
                if stop not in shorter:
                    text = text[: text.index(stop)]
                    break
                drawn, text = drawn[:-1], shorter
        return drawn, text.strip()


def layout_of(config: RunConfig) -> Layout:
    """The row layout of a policy that follows this run, from the architecture alone: no weight is read."""
    hidden = load_architecture(config.model.base).hidden_size
    return policy_layout(base_layout(config.model), hidden, registry.objective(config.objective).latent_width(config))


def policy_layout(adapter: Layout, hidden: int, d: int) -> Layout:
    """The adapter's segments and, for a z of d > 0 dimensions, Z-TO-EMBEDDING [H, d]."""
    return Layout((*adapter.segments, Segment(Z_TO_EMBEDDING, (hidden, d)))) if d else adapter
