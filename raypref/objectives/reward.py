"""A reward model of each client (Bradley and Terry, 1952; Ouyang et al., 2022): every response gets a number by itself.

`frozen` trains a head alone, on features of the frozen base that are read once for all runs; `adapted` trains LoRA with
it, which is what the field calls a reward model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from raypref.config.fields import setting
from raypref.data.encode import EncodedFold, Encoding, encode_responses, sequences_of
from raypref.data.templates import ANSWERED_BY
from raypref.models.layout import HEAD, Layout
from raypref.objectives.base import Batch, Loss, Objective
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.models.reader import Reader


@dataclass(frozen=True)
class RewardConfig:
    """A reward model (Bradley-Terry), where `objective` is `reward`."""

    features: Literal["frozen", "adapted"] = "frozen"
    """`frozen`: a head on the frozen base's last state of each response, read once; `adapted`: LoRA and a head."""
    hidden: int = setting(0, least=0)
    """Width of an MLP head; 0: a linear head, which transformers and PEFT load as a sequence classifier."""


class Reward(Objective):
    """-log σ(r(chosen) - r(rejected)), averaged over each client's own pairs."""

    parameters: ClassVar[Mapping[str, type]] = {"reward": RewardConfig}

    def __init__(self, config: RunConfig, reader: Reader) -> None:
        from raypref.models.features import Features
        from raypref.models.head import state_scale

        super().__init__(config, reader)
        layout = self.layout(config)
        self.scorer = Layout(tuple(s for s in layout.segments if s.name.startswith(HEAD)))
        self.adapter = layout.width - self.scorer.width
        """Parameters of a row that are the adapter's; the head's follow."""
        self.scale = 1.0 / state_scale(config.model.base)
        self.features = Features(reader.selector, config)
        self.known: dict[tuple[int, str], tuple[EncodedFold, np.ndarray]] = {}

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        adapted = ", adapted" * (config["reward.features"] == "adapted")
        return f"reward{adapted}{', MLP ' * bool(config['reward.hidden'])}{config['reward.hidden'] or ''}"

    @classmethod
    def encoding(cls, config: RunConfig) -> Encoding:
        return Encoding(encode_responses, ANSWERED_BY[config.data.template], compares=False)

    @classmethod
    def layout(cls, config: RunConfig) -> Layout:
        """The head and, where features are adapted, LoRA before it."""
        from raypref.models.head import head_segments
        from raypref.models.selector import base_layout, load_architecture

        options = config.of(RewardConfig)
        head = head_segments(load_architecture(config.model.base).hidden_size, options.hidden)
        return Layout((*base_layout(config.model).segments, *head) if options.features == "adapted" else head)

    @classmethod
    def head(cls, config: RunConfig, layout: Layout) -> Tensor:
        """The last layer of the head."""
        return layout.mask(segment is layout.segments[-1] for segment in layout.segments)

    @classmethod
    def read_once(cls, config: RunConfig, folds: Sequence[EncodedFold]) -> Iterator[np.ndarray]:
        if config.of(RewardConfig).features == "frozen":
            for fold in folds:
                yield from sequences_of(fold)

    @classmethod
    def kept_bytes(cls, config: RunConfig, pairs: int, context: int) -> int:
        from raypref.models.selector import load_architecture

        if config.of(RewardConfig).features != "frozen":
            return 0
        return pairs * 4 * 2 * 2 * int(load_architecture(config.model.base).hidden_size)  # with a copy as it grows

    def sequences(self, comparisons: np.ndarray) -> np.ndarray:
        """Both responses of each pair, whichever order was drawn."""
        pairs = comparisons // 2
        return np.stack([2 * pairs, 2 * pairs + 1], axis=1).reshape(-1)

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        if self.adapter:
            states = self._states(rows, batch.ids, batch.lengths, batch.dropout)
        else:
            at = np.zeros(batch.valid.shape, dtype=np.int64)
            for i, (places, part) in enumerate(zip(self.places(batch.clients, "train"), batch.parts, strict=True)):
                at[i, : len(part)] = places[part]
            states = self.features.table[self.reader.tensor(at)]
        r = self._rewards(rows, states)
        return Loss({"reward": -torch.nn.functional.logsigmoid(r[:, ::2] - r[:, 1::2])}, batch.valid[:, ::2])

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """Either order is the same margin: no response is shown beside the other."""
        if self.adapter:
            return [_order_margins(r) for r in self._adapted(rows, self.reader.folds(clients, fold))]
        margins = []
        for row, places in zip(rows, self.places(clients, fold), strict=True):
            distinct, at = np.unique(places, return_inverse=True)
            r = self._rewards(row[None], self.features.table[self.reader.tensor(distinct)][None])[0]
            margins.append(_order_margins(r[self.reader.tensor(at)]))
        return margins

    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        if self.adapter:
            return torch.stack([_order_margins(r) for r in self._adapted(rows, [fold] * len(rows))])
        states = self.features.states(sequences_of(fold))[None].expand(len(rows), -1, -1)
        return _order_margins(self._rewards(rows, states))

    def places(self, clients: Sequence[int], fold: str) -> list[np.ndarray]:
        """[2N_i] where the responses of each client's fold lie in the features' table."""
        now = [(c, self.reader.clients[c].fold(fold)) for c in clients]
        if new := {c: data for c, data in now if self.known.get((c, fold), (None,))[0] is not data}:
            lengths = [2 * data.pairs for data in new.values()]
            places = self.features.places(tokens for data in new.values() for tokens in sequences_of(data))
            for (c, data), part in zip(new.items(), np.split(places, np.cumsum(lengths)[:-1]), strict=True):
                self.known[c, fold] = data, part
        return [self.known[c, fold][1] for c in clients]

    def _rewards(self, rows: Tensor, states: Tensor) -> Tensor:
        """Rows [n, D], states [n, S, H] -> [n, S]."""
        from raypref.models.head import score

        return score(self.scorer.split(rows[:, self.adapter :]), self.scale * states)

    def _states(self, rows: Tensor, ids: Tensor, lengths: Tensor, dropout: Any = None) -> Tensor:
        """[n, b, H] float32 the last state of each sequence, through the adapters of rows."""
        return self.reader.selector.states(rows[:, : self.adapter], ids, lengths[..., None] - 1, dropout)[
            :, :, 0
        ].float()

    def _adapted(self, rows: Tensor, folds: Sequence[EncodedFold]) -> list[Tensor]:
        """Row i on fold i -> the reward of every response [2 N_i], without dropout."""
        out = [torch.empty(2 * fold.pairs, device=self.reader.device) for fold in folds]
        with torch.no_grad():
            for parts, ids, lengths, _ in self.reader.passes(folds):
                r = self._rewards(rows, self._states(rows, ids, lengths))
                for i, part in enumerate(parts):
                    out[i][part] = r[i, : len(part)]
        return out


def _order_margins(r: Tensor) -> Tensor:
    """Rewards of chosen and rejected responses in turn [..., 2N] -> [..., N, 2], both orders alike."""
    m = r[..., ::2] - r[..., 1::2]
    return m[..., None].expand(*m.shape, 2)
