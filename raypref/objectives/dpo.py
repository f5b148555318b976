"""Direct preference optimization (Rafailov et al., 2023; S1 4.4): the rows are a policy with an implicit reward.

With FedAvg it is FedDPO (S1 5.1). Stage 2 trains its conditional policy by the same loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from raypref.config.fields import setting
from raypref.data.encode import EncodedFold, Encoding, encode_responses
from raypref.data.templates import asked
from raypref.models.layout import Layout
from raypref.objectives.base import Batch, Loss, Objective, padded
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.models.reader import Reader


@dataclass(frozen=True)
class DPOConfig:
    """Direct preference optimization of a policy: FedDPO's, where `objective` is `dpo`, and that of conditional RLHF
    (S1 4.4)."""

    follows: ClassVar[bool] = True
    beta: float = setting(0.1, above=0)
    """β of the implicit reward (S1 Table 4: reward coefficient)."""
    start: str = ""
    """A PEFT folder that the policy starts from; the reference is then the base with it, otherwise the base."""
    template: Literal["", "conversation", "helpful", "harmless", "general", "tldr", "short"] = ""
    """How a policy is asked: `conversation` is the history as it is (S1 D.1.2), `helpful`, `harmless` and `general` are
    S1 D.3; empty: what goes with `data.template` (conversation, tldr or short)."""


class DPO(Objective):
    """-log σ of the implicit reward's margin, averaged over each client's own pairs.

    The reference is what every policy of the run starts from, the frozen base or the adapter in `dpo.start`, in all
    rounds and in personalization. A policy that has not moved from it has margins of 0 up to rounding.
    """

    parameters: ClassVar[Mapping[str, type]] = {"dpo": DPOConfig}
    is_policy: ClassVar[bool] = True

    def __init__(self, config: RunConfig, reader: Reader) -> None:
        super().__init__(config, reader)
        options = config.of(DPOConfig)
        self.beta = options.beta
        start = self.start(config, self.layout(config))[None].to(reader.device) if options.start else None
        self.reference: Tensor | None = start
        self.known: dict[tuple[int, str], Tensor] = {}

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        return "dpo"

    @classmethod
    def given_start(cls, config: RunConfig) -> str:
        return "dpo.start" if config.of(DPOConfig).start else ""

    @classmethod
    def encoding(cls, config: RunConfig) -> Encoding:
        return Encoding(encode_responses, asked(config), compares=False)

    @classmethod
    def layout(cls, config: RunConfig) -> Layout:
        from raypref.models.selector import base_layout

        return base_layout(config.model)

    @classmethod
    def start(cls, config: RunConfig, layout: Layout) -> Tensor:
        """The adapter in `dpo.start`, where one is named (errors as `raypref.models.peft_io.import_peft`)."""
        if not (folder := config.of(DPOConfig).start):
            return super().start(config, layout)
        from raypref.models.peft_io import import_peft

        return import_peft(Path(folder).expanduser(), layout, config.model)

    def sequences(self, comparisons: np.ndarray) -> np.ndarray:
        """Both responses of each pair, whichever order was drawn."""
        pairs = comparisons // 2
        return np.stack([2 * pairs, 2 * pairs + 1], axis=1).reshape(-1)

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        folds = self.reader.folds(batch.clients, "train")
        spans = self.reader.spans(folds, batch.parts, batch.ids)
        policy = self.reader.selector.log_probs(rows, batch.ids, spans, batch.dropout)
        known = padded([self.referred(c, "train")[p] for c, p in zip(batch.clients, batch.parts, strict=True)])
        return Loss({"dpo": dpo_loss(self._margins(policy - known))}, batch.valid[:, ::2])

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """Either order is the same margin: no response is shown beside the other."""
        policies = self.log_probs(rows, self.reader.folds(clients, fold))
        ratios = [policy - self.referred(c, fold) for c, policy in zip(clients, policies, strict=True)]
        return [self._margins(one)[:, None].expand(-1, 2) for one in ratios]

    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        (reference,) = self.log_probs(self.reference, [fold])
        policies = self.log_probs(rows, [fold] * len(rows))
        return torch.stack([self._margins(one - reference)[:, None].expand(-1, 2) for one in policies])

    def referred(self, client: int, fold: str) -> Tensor:
        """[2N] log-probabilities under the reference, computed once."""
        key = (client, fold)
        if key not in self.known:
            (self.known[key],) = self.log_probs(self.reference, self.reader.folds([client], fold))
        return self.known[key]

    def log_probs(self, rows: Tensor | None, folds: Sequence[EncodedFold]) -> list[Tensor]:
        """Row i on fold i -> log π of every response [2 N_i], without dropout; rows None: the frozen base."""
        out = [torch.empty(2 * fold.pairs, device=self.reader.device) for fold in folds]
        with torch.no_grad():
            for parts, ids, _, _ in self.reader.passes(folds):
                batch = self.reader.selector.log_probs(rows, ids, self.reader.spans(folds, parts, ids))
                for i, part in enumerate(parts):
                    out[i][part] = batch[i, : len(part)]
        return out

    def _margins(self, ratios: Tensor) -> Tensor:
        """Log-ratios of chosen and rejected responses in turn [..., 2N] -> [..., N]."""
        return margin(ratios[..., ::2], ratios[..., 1::2], self.beta)


def margin(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """β (log-ratio of the chosen - log-ratio of the rejected response), a log-ratio being log π(y | x) - log π_ref(y |
    x); above 0 where the policy's implicit reward prefers the chosen one. [...], [...] -> [...]."""
    return beta * (chosen - rejected)


def dpo_loss(m: Tensor) -> Tensor:
    """-log σ(margin) of each pair: [...] -> [...]."""
    return -torch.nn.functional.logsigmoid(m)
