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
        r = self.of_batch(rows, batch)[..., 0]
        return Loss({"reward": -torch.nn.functional.logsigmoid(r[:, ::2] - r[:, 1::2])}, batch.valid[:, ::2])

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """Either order is the same margin: no response is shown beside the other."""
        return [both_orders(r[::2, 0] - r[1::2, 0]) for r in self.of_clients(rows, clients, fold)]

    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        return torch.stack([both_orders(r[::2, 0] - r[1::2, 0]) for r in self.of_fold(rows, fold)])

    # --- what the head says of responses, chosen and rejected in turn: k numbers each, of which a reward is one ---

    def outputs(self, rows: Tensor, states: Tensor) -> Tensor:
        """The head on states as the base gives them: rows [n, D], [n, S, H] -> [n, S, k]."""
        from raypref.models.head import score

        return score(self.scorer.split(rows[:, self.adapter :]), self.scale * states)[..., None]

    def of_batch(self, rows: Tensor, batch: Batch) -> Tensor:
        """[n, 2b, k] of a step's pairs."""
        if self.adapter:
            return self.outputs(rows, self._states(rows, batch.ids, batch.lengths, batch.dropout))
        at = np.zeros(batch.valid.shape, dtype=np.int64)
        for i, (places, part) in enumerate(zip(self.places(batch.clients, "train"), batch.parts, strict=True)):
            at[i, : len(part)] = places[part]
        return self.outputs(rows, self.features.table[self.reader.tensor(at)])

    def of_clients(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """[2N_i, k] of client i's fold by row i."""
        if self.adapter:
            return self._adapted(rows, self.reader.folds(clients, fold))
        out = []
        for row, places in zip(rows, self.places(clients, fold), strict=True):
            distinct, at = np.unique(places, return_inverse=True)
            r = self.outputs(row[None], self.features.table[self.reader.tensor(distinct)][None])[0]
            out.append(r[self.reader.tensor(at)])
        return out

    def of_fold(self, rows: Tensor, fold: EncodedFold) -> Sequence[Tensor]:
        """[2N, k] of any pairs, by each of rows [U, D]."""
        if self.adapter:
            return self._adapted(rows, [fold] * len(rows))
        states = self.features.states(sequences_of(fold))[None].expand(len(rows), -1, -1)
        return list(self.outputs(rows, states))

    def places(self, clients: Sequence[int], fold: str) -> list[np.ndarray]:
        """[2N_i] where the responses of each client's fold lie in the features' table."""
        now = [(c, self.reader.clients[c].fold(fold)) for c in clients]
        if new := {c: data for c, data in now if self.known.get((c, fold), (None,))[0] is not data}:
            lengths = [2 * data.pairs for data in new.values()]
            places = self.features.places(tokens for data in new.values() for tokens in sequences_of(data))
            for (c, data), part in zip(new.items(), np.split(places, np.cumsum(lengths)[:-1]), strict=True):
                self.known[c, fold] = data, part
        return [self.known[c, fold][1] for c in clients]

    def _states(self, rows: Tensor, ids: Tensor, lengths: Tensor, dropout: Any = None) -> Tensor:
        """[n, b, H] float32 the last state of each sequence, through the adapters of rows."""
        return self.reader.selector.states(rows[:, : self.adapter], ids, lengths[..., None] - 1, dropout)[
            :, :, 0
        ].float()

    def _adapted(self, rows: Tensor, folds: Sequence[EncodedFold]) -> list[Tensor]:
        """Row i on fold i -> [2 N_i, k], without dropout."""
        out: list[list[tuple[np.ndarray, Tensor]]] = [[] for _ in folds]
        with torch.no_grad():
            for parts, ids, lengths, _ in self.reader.passes(folds):
                r = self.outputs(rows, self._states(rows, ids, lengths))
                for i, part in enumerate(parts):
                    out[i].append((part, r[i, : len(part)]))
        return [_in_order(parts) for parts in out]


def _in_order(parts: Sequence[tuple[np.ndarray, Tensor]]) -> Tensor:
    """What passes gave of a fold's sequences, those at each [b] and theirs [b, k], in the fold's order."""
    at = np.concatenate([at for at, _ in parts])
    return torch.cat([of_pass for _, of_pass in parts])[torch.from_numpy(np.argsort(at))]


def both_orders(m: Tensor) -> Tensor:
    """Margins [N], whichever response is shown first -> order margins [N, 2]."""
    return m[..., None].expand(*m.shape, 2)
