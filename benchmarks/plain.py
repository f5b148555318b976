"""The loop that people write with PEFT: one client after another, an adapter and an AdamW each.

What raypref is compared with. It needs torch, transformers and peft alone, so that Flower's workers run the same. It is
no straw man: the base is loaded once for all clients, and the head is computed at the choice mark for the two choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Batch = tuple[Tensor, Tensor, Tensor]
"""ids [b, L], padded on the right; lengths [b]; slots [b], 0 where the chosen response is in slot A."""


def choice_loss(last: Tensor, head: Tensor, slots: Tensor) -> Tensor:
    """-log σ of the chosen slot's logit minus the other's, a mean over the batch. last [b, H], head [2, H]."""
    logits = last @ head.T
    difference = (logits[:, 0] - logits[:, 1]).float()
    return -logsigmoid(torch.where(slots == 0, difference, -difference)).mean()


class Plain:
    """PEFT's LoRA on a base; rows of `segments` (name, shape) are what raypref calls a row."""

    def __init__(
        self,
        base: str,
        segments: Sequence[tuple[str, Sequence[int]]],
        choices: Sequence[int],
        lora: Mapping[str, Any],
        optimizer: Mapping[str, Any],
    ) -> None:
        """lora: of `peft.LoraConfig`; optimizer: of `torch.optim.AdamW`."""
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.head = model.get_output_embeddings().weight[list(choices)].detach().clone()
        self.model = get_peft_model(model, LoraConfig(**lora)).train()
        named = dict(self.model.named_parameters())
        self.parameters = [named[f"base_model.model.model.{name}.default.weight"] for name, _ in segments]
        self.made = optimizer
        self.optimizer = torch.optim.AdamW(self.parameters, **self.made)

    def step(self, batch: Batch) -> None:
        """One AdamW step."""
        ids, lengths, slots = batch
        hidden = self.model.base_model.model.model(input_ids=ids, use_cache=False).last_hidden_state
        loss = choice_loss(hidden[torch.arange(len(ids)), lengths - 1], self.head, slots)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def trained(self, row: Tensor, batches: Sequence[Batch]) -> Tensor:
        """A client's row [D] after a step on each of its batches, with a fresh AdamW."""
        with torch.no_grad():
            for parameter, part in zip(self.parameters, row.split([p.numel() for p in self.parameters]), strict=True):
                parameter.copy_(part.view_as(parameter))
        self.optimizer = torch.optim.AdamW(self.parameters, **self.made)
        for batch in batches:
            self.step(batch)
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])
