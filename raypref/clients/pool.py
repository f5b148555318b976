"""Clients over workers: cohorts are cut into stacks, sent to whoever holds them, and put back in client order.

`InProcess` calls its workers directly; `raypref.clients.actors` gives the same calls to Ray actors. Nothing else
differs, so both compute the same bits from the same stacks.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raypref.clients.protocol import Context, Personalized, Placement, Trained, Usage
from raypref.clients.worker import Worker
from raypref.config import RunConfig
from raypref.data.encode import EncodedClient, EncodedFederation, concatenate
from raypref.models.layout import Layout

REPORTED = ("mu", "variance")
"""The statistics that a client sends to the server (S1 Algorithm 2); others stay, or are for people to see."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """All that clients are made from. Plain arrays, so that it crosses processes at once."""

    config: RunConfig
    data: EncodedFederation
    choice_ids: tuple[int, ...]
    """Of A and B; none where no comparison is read."""
    pad: int
    layout: Layout

    @property
    def sizes(self) -> np.ndarray:
        """int64 [C] training pairs, N_c."""
        return self.data.sizes()

    @property
    def placement(self) -> Placement:
        c = self.config.clients
        return Placement(len(self.data.clients), c.clients_per_actor, c.stack)


class Pool(ABC):
    """The protocol of `raypref.clients.protocol.Clients` over workers."""

    def __init__(self, inputs: Inputs) -> None:
        self.config = inputs.config
        self.placement = inputs.placement
        self.layout = inputs.layout
        self.inputs = inputs
        self.held: list[list[int]] = []
        self.sizes = inputs.sizes
        self.groups = inputs.data.groups
        self.group_of = inputs.data.group_of
        self.used = Usage()

    @abstractmethod
    def call(self, worker: int, method: str, *args: Any) -> Any:
        """Start a worker's method; what comes back goes to `gather`."""

    @abstractmethod
    def gather(self, calls: Sequence[Any]) -> list[Any]:
        """The results of calls, in their order."""

    def share(self, value: np.ndarray) -> Any:
        """Something that several calls take."""
        return value

    def close(self) -> None:  # noqa: B027 - nothing to release in process
        """Release the workers."""

    def train(
        self, cohort: Sequence[int] | np.ndarray, rows: Tensor, round: int, context: Context | None = None
    ) -> Trained:
        chosen = np.asarray(cohort, dtype=np.int64)
        order = np.argsort(chosen)
        start = rows.expand(len(chosen), -1) if rows.dim() == 1 else rows
        matrix = np.ascontiguousarray(start.numpy()[order])
        chosen = chosen[order]
        stacks = self.placement.stacks(chosen)
        at = [np.searchsorted(chosen, members) for _, members in stacks]
        results = self.gather(
            [
                self.call(w, "train", members, matrix[i], round, context and context.of(order[i]))
                for (w, members), i in zip(stacks, at, strict=True)
            ]
        )
        out, loss = np.empty_like(matrix), np.empty(len(chosen))
        for i, (trained, losses, _) in zip(at, results, strict=True):
            out[i], loss[i] = trained, losses
        statistics = _together(at, [told for *_, told in results])
        up = matrix.nbytes + sum(values.nbytes for name, values in statistics.items() if name in REPORTED)
        down = matrix.nbytes + (context.nbytes if context else 0)
        steps = len(chosen) * self.config.federation.local_steps
        self.used = self.used.add(Usage(steps, down, up, rounds=1))
        return Trained(chosen, torch.from_numpy(out), self.sizes[chosen], loss, statistics)

    def train_pooled(
        self, pools: Sequence[np.ndarray], rows: Tensor, moments: Tensor, begin: int, end: int
    ) -> tuple[Tensor, Tensor, np.ndarray]:
        self.used = self.used.add(Usage(client_steps=len(pools) * (end - begin)))
        return self.run_pooled(pools, rows.numpy(), moments.numpy(), begin, end)

    def run_pooled(
        self, pools: Sequence[np.ndarray], rows: np.ndarray, moments: np.ndarray, begin: int, end: int
    ) -> tuple[Tensor, Tensor, np.ndarray]:
        """By the workers: pool k is the virtual client C + k of worker k, k + workers, …"""
        workers, first = min(self.placement.workers, len(pools)), self.placement.clients
        mine = [np.arange(w, len(pools), workers) for w in range(workers)]
        wanted = [pool.tolist() for pool in pools]
        if self.held != wanted:
            virtual = pooled(self.inputs.data.clients, pools)
            self.gather([self.call(w, "hold", {first + k: virtual[k] for k in ks}) for w, ks in enumerate(mine)])
            self.held = wanted
        width = self.placement.stack
        stacks = [(w, ks[i : i + width]) for w, ks in enumerate(mine) for i in range(0, len(ks), width)]
        results = self.gather(
            [self.call(w, "train_pooled", first + ks, rows[ks], moments[ks], begin, end) for w, ks in stacks]
        )
        out, state, loss = np.empty_like(rows), np.empty_like(moments), np.empty(len(pools))
        for (_, ks), (trained, after, losses) in zip(stacks, results, strict=True):
            out[ks], state[ks], loss[ks] = trained, after, losses
        return torch.from_numpy(out), torch.from_numpy(state), loss

    def weight_norms(self) -> dict[str, float]:
        return self.gather([self.call(0, "weight_norms")])[0]

    def evaluate(self, rows: Tensor, fold: str, clients: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """clients: ascending, whose columns are wanted and nobody else is asked; None: all."""
        matrix = np.ascontiguousarray(rows.numpy())
        shared = self.share(matrix)
        chosen = np.arange(self.placement.clients) if clients is None else clients
        parts = [np.intersect1d(self.placement.members(w), chosen) for w in range(self.placement.workers)]
        asked = [(w, part) for w, part in enumerate(parts) if len(part)]
        results = self.gather([self.call(w, "evaluate", part, shared, fold) for w, part in asked])
        count = len(chosen)
        out = {name: np.empty((len(matrix), count)) for name in results[0]}
        for (_, part), result in zip(asked, results, strict=True):
            for name, values in result.items():
                out[name][:, np.searchsorted(chosen, part)] = values
        self.used = self.used.add(Usage(0, matrix.nbytes * count, 8 * len(matrix) * count))
        return out

    def posterior(self, clients: Sequence[int] | np.ndarray, rows: Tensor) -> dict[str, np.ndarray]:
        at, results = self._each("posterior", np.asarray(clients, dtype=np.int64), rows.numpy())
        return _together(at, results)

    def _each(self, method: str, chosen: np.ndarray, matrix: np.ndarray) -> tuple[list[np.ndarray], list[Any]]:
        """A worker's method on `chosen`, in ascending order, with rows [n, D]: which of them each stack had, and what
        came back."""
        stacks = self.placement.stacks(chosen)
        at = [np.searchsorted(chosen, members) for _, members in stacks]
        return at, self.gather([self.call(w, method, m, matrix[i]) for (w, m), i in zip(stacks, at, strict=True)])

    def personalize(self, clients: Sequence[int] | np.ndarray, rows: Tensor) -> Personalized:
        chosen = np.asarray(clients, dtype=np.int64)
        matrix = rows.numpy()
        at, results = self._each("personalize", chosen, matrix)
        out = np.empty_like(matrix)
        curves: dict[str, dict[str, np.ndarray]] = {}
        margins: list[Any] = [None] * len(chosen)
        diagnoses: dict[int, list[Any]] = {}
        for i, (trained, read, told, found, _) in zip(at, results, strict=True):
            out[i] = trained
            for position, (index, own) in enumerate(zip(i, told, strict=True)):
                margins[index] = own
                for mark, each in found.items():
                    diagnoses.setdefault(mark, [None] * len(chosen))[index] = each[position]
            for fold, metrics in read.items():
                for name, values in metrics.items():
                    target = curves.setdefault(fold, {}).setdefault(name, np.empty((len(chosen), values.shape[1])))
                    target[i] = values
        probes = _together(at, [probe for *_, probe in results])
        return Personalized(chosen, torch.from_numpy(out), curves, margins, diagnoses, probes)

    def stacks(self) -> list[np.ndarray]:
        """One stack a worker at a time, so that all workers are busy and little is lost at an interruption."""
        by_worker: dict[int, list[np.ndarray]] = {}
        for worker, members in self.placement.stacks(range(self.placement.clients)):
            by_worker.setdefault(worker, []).append(members)
        waves = max(map(len, by_worker.values()))
        return [
            np.sort(np.concatenate([parts[i] for parts in by_worker.values() if i < len(parts)])) for i in range(waves)
        ]


def _together(at: Sequence[np.ndarray], parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What stacks told by name, n first: parts[i] is of the clients at positions at[i]."""
    count = sum(map(len, at))
    out: dict[str, np.ndarray] = {}
    for i, part in zip(at, parts, strict=True):
        for name, values in part.items():
            out.setdefault(name, np.empty((count, *values.shape[1:]), values.dtype))[i] = values
    return out


def pooled(clients: Sequence[EncodedClient], pools: Sequence[np.ndarray]) -> list[EncodedClient]:
    """One virtual client a pool: its members' training pairs, and nothing held out."""
    empty = concatenate([])
    return [EncodedClient(concatenate([clients[c].train for c in pool]), empty, empty) for pool in pools]


class InProcess(Pool):
    """All workers in this process, for debugging, small runs and tests."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        # One base serves all: which clients a worker holds decides the stacks, not who computes.
        clients = dict(enumerate(inputs.data.clients))
        self.worker = Worker(inputs.config, clients, inputs.choice_ids, inputs.pad)

    def call(self, worker: int, method: str, *args: Any) -> Any:
        return getattr(self.worker, method)(*args)

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        return list(calls)
