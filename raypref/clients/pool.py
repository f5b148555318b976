"""Clients over workers: cohorts are cut into stacks, sent to whoever holds them, and put back in client order.

`InProcess` calls its workers directly; `raypref.clients.actors` gives the same calls to Ray actors. Nothing else
differs, so both compute the same bits from the same stacks.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raypref.clients.half import Message
from raypref.clients.kept import Kept
from raypref.clients.ledger import Ledger
from raypref.clients.protocol import Placement, Trained, Usage
from raypref.clients.work import (
    Compose,
    Evaluate,
    Hold,
    Latents,
    Personalize,
    Personalized,
    Posteriors,
    Train,
    TrainedStack,
    TrainPooled,
    Validate,
    WeightNorms,
    Work,
)
from raypref.clients.worker import Worker
from raypref.config import RunConfig, registry
from raypref.data.encode import EncodedClient, EncodedFederation, concatenate
from raypref.models.layout import Layout
from raypref.models.selector import Selector
from raypref.rounds.sampling import answering
from raypref.tools.rng import stream


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
        self.pools: list[list[int]] = []
        """Whose data the workers hold as virtual clients."""
        self.sizes = inputs.sizes
        self.keys = np.arange(len(inputs.sizes))
        self.groups = inputs.data.groups
        self.group_of = inputs.data.group_of
        self.used = Usage()
        self.ledger = Ledger()
        """What has left the clients since it was last taken."""
        self.ledger.add("join/size", self.sizes, len(self.sizes))
        if self.groups:
            self.ledger.add("join/group", self.group_of, len(self.sizes))
        self.half = registry.algorithm(inputs.config.algorithm).client
        """What the algorithm does at its clients."""

    def ask(self, asked: Sequence[tuple[int, Work]]) -> list[Any]:
        """What workers compute: the one door through which anything comes back from clients, and is counted.

        asked: a worker and what it is to do, each. Results are in this order.
        """
        results = self.gather([self.call(worker, work) for worker, work in asked])
        for (_, work), result in zip(asked, results, strict=True):
            self.ledger.result(work, result)
        return results

    @abstractmethod
    def call(self, worker: int, work: Work) -> Any:
        """Start some work at a worker; what comes back goes to `gather`. Only `ask` calls it."""

    @abstractmethod
    def gather(self, calls: Sequence[Any]) -> list[Any]:
        """The results of calls, in their order. Only `ask` calls it."""

    def share(self, value: np.ndarray) -> Any:
        """Something that several calls take."""
        return value

    def close(self) -> None:  # noqa: B027 - nothing to release in process
        """Release the workers."""

    def start(self) -> Tensor:
        return registry.objective(self.config.objective).start(self.config, self.layout)  # type: ignore[no-any-return]

    def train(
        self,
        cohort: Sequence[int] | np.ndarray,
        rows: Tensor,
        round: int,
        message: Message | None = None,
        kept: Kept | None = None,
    ) -> Trained:
        chosen = np.asarray(cohort, dtype=np.int64)
        order = np.argsort(chosen)
        start = rows.expand(len(chosen), -1) if rows.dim() == 1 else rows
        matrix = np.ascontiguousarray(start.numpy()[order])
        chosen, message, kept = chosen[order], (message or Message()).of(order), kept or Kept()
        down, asked = matrix.nbytes + message.nbytes(len(chosen)), len(chosen)
        answers = np.flatnonzero(self.answering(chosen, round))
        chosen, matrix, message = chosen[answers], matrix[answers], message.of(answers)
        at, results = self._each(
            chosen, lambda members, i: Train(members, matrix[i], round, message.of(i), kept.of(members))
        )
        trained = _trained(at, results, matrix)
        self.used = self.used.add(
            Usage(
                client_steps=len(chosen) * self.config.federation.local_steps * self.half.passes,
                bytes_down=down,
                bytes_up=matrix.nbytes + sum(values.nbytes for values in trained.statistics.values()),
                rounds=1,
                dropped=asked - len(chosen),
            )
        )
        return Trained(
            chosen,
            torch.from_numpy(trained.rows),
            self.sizes[chosen],
            trained.loss,
            trained.parts,
            trained.statistics,
            kept.updated(chosen, trained.kept),
        )

    def answering(self, cohort: np.ndarray, round: int) -> np.ndarray:
        """Who of a cohort answers in a round: bool [n]."""
        f = self.config.federation
        if not f.dropout:
            return np.ones(len(cohort), dtype=bool)
        draws = np.array([stream(self.config.seed, "dropout of clients", round, c).random() for c in self.keys[cohort]])
        return answering(cohort, f.dropout, f.least_answers, draws)

    def compose(self, clients: Sequence[int] | np.ndarray, rows: Tensor, kept: Kept) -> Tensor:
        chosen = np.asarray(clients, dtype=np.int64)
        matrix = (rows.expand(len(chosen), -1) if rows.dim() == 1 else rows).numpy()
        at, parts = self._each(chosen, lambda members, i: Compose(members, matrix[i], kept.of(members)))
        return torch.from_numpy(_together(at, [{"rows": part} for part in parts])["rows"])

    def train_pooled(
        self, pools: Sequence[np.ndarray], rows: Tensor, moments: Tensor, begin: int, end: int
    ) -> tuple[Tensor, Tensor, np.ndarray]:
        self.used = self.used.add(Usage(client_steps=len(pools) * (end - begin)))
        if begin == 0:  # they are held from there on, also where a resumed run asks for them again
            for pool in pools:
                self.ledger.add("join/pairs", [self.inputs.data.clients[c].train.tokens for c in pool], len(pool))
        return self.run_pooled(pools, rows.numpy(), moments.numpy(), begin, end)

    def run_pooled(
        self, pools: Sequence[np.ndarray], rows: np.ndarray, moments: np.ndarray, begin: int, end: int
    ) -> tuple[Tensor, Tensor, np.ndarray]:
        """By the workers: pool k is the virtual client C + k of worker k, k + workers, …"""
        workers, first = min(self.placement.workers, len(pools)), self.placement.clients
        mine = [np.arange(w, len(pools), workers) for w in range(workers)]
        wanted = [pool.tolist() for pool in pools]
        if self.pools != wanted:
            virtual = pooled(self.inputs.data.clients, pools)
            self.ask([(w, Hold({first + k: virtual[k] for k in ks})) for w, ks in enumerate(mine)])
            self.pools = wanted
        width = self.placement.stack
        stacks = [(w, ks[i : i + width]) for w, ks in enumerate(mine) for i in range(0, len(ks), width)]
        results = self.ask([(w, TrainPooled(first + ks, rows[ks], moments[ks], begin, end)) for w, ks in stacks])
        out, state, loss = np.empty_like(rows), np.empty_like(moments), np.empty(len(pools))
        for (_, ks), result in zip(stacks, results, strict=True):
            out[ks], state[ks], loss[ks] = result.rows, result.moments, result.loss
        return torch.from_numpy(out), torch.from_numpy(state), loss

    def weight_norms(self) -> dict[str, float]:
        return self.ask([(0, WeightNorms())])[0]

    def evaluate(self, rows: Tensor, fold: str, clients: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """clients: ascending, whose columns are wanted and nobody else is asked; None: all."""
        matrix = np.ascontiguousarray(rows.numpy())
        shared = self.share(matrix)
        chosen = np.arange(self.placement.clients) if clients is None else clients
        parts = [np.intersect1d(self.placement.members(w), chosen) for w in range(self.placement.workers)]
        asked = [(w, part) for w, part in enumerate(parts) if len(part)]
        results = self.ask([(w, Evaluate(part, shared, fold)) for w, part in asked])
        count = len(chosen)
        out = {name: np.empty((len(matrix), count)) for name in results[0]}
        for (_, part), result in zip(asked, results, strict=True):
            for name, values in result.items():
                out[name][:, np.searchsorted(chosen, part)] = values
        self.used = self.used.add(Usage(0, matrix.nbytes * count, 8 * len(matrix) * count))
        return out

    def latents(self, row: Tensor, clients: np.ndarray | None = None) -> np.ndarray:
        """clients: ascending, who are asked; None: all."""
        chosen = np.arange(self.placement.clients) if clients is None else clients
        mu = _together(*self._each(chosen, lambda members, i: Latents(members, row.numpy())))["mu"]
        self.used = self.used.add(Usage(0, row.numpy().nbytes * len(chosen), mu.nbytes))
        return mu

    def posterior(self, clients: Sequence[int] | np.ndarray, rows: Tensor) -> dict[str, np.ndarray]:
        matrix = rows.numpy()
        at, results = self._each(np.asarray(clients, dtype=np.int64), lambda members, i: Posteriors(members, matrix[i]))
        return _together(at, results)

    def personalize(
        self, clients: Sequence[int] | np.ndarray, rows: Tensor, shared: Tensor | None = None
    ) -> Personalized:
        """Local fine-tuning of each from its row [n, D], read at the marks. shared: see `Personalize`."""
        chosen, matrix = np.asarray(clients, dtype=np.int64), rows.numpy()
        same = None if shared is None else shared.numpy()
        at, results = self._each(chosen, lambda members, i: Personalize(members, matrix[i], same))
        return _personalized(chosen, at, results)

    def validate(self, clients: np.ndarray, rows: Tensor, steps: int) -> dict[str, np.ndarray]:
        """The first `steps` steps of `personalize`, read on the validation fold: metric -> [n]. clients: ascending."""
        matrix = rows.numpy()
        return _together(*self._each(clients, lambda members, i: Validate(members, matrix[i], steps)))

    def stacks(self) -> list[np.ndarray]:
        """The parts in which all clients are personalized: one stack a worker at a time, so that all workers are busy
        and little is lost at an interruption."""
        by_worker: dict[int, list[np.ndarray]] = {}
        for worker, members in self.placement.stacks(range(self.placement.clients)):
            by_worker.setdefault(worker, []).append(members)
        waves = max(map(len, by_worker.values()))
        return [
            np.sort(np.concatenate([parts[i] for parts in by_worker.values() if i < len(parts)])) for i in range(waves)
        ]

    def _each(
        self, chosen: np.ndarray, work: Callable[[np.ndarray, np.ndarray], Work]
    ) -> tuple[list[np.ndarray], list[Any]]:
        """Work for `chosen`, ascending, stack by stack: which of them each stack had, and what came back.

        work: (the clients of a stack, their places among `chosen`) -> what is to be done for them.
        """
        stacks = self.placement.stacks(chosen)
        at = [np.searchsorted(chosen, members) for _, members in stacks]
        return at, self.ask([(w, work(m, i)) for (w, m), i in zip(stacks, at, strict=True)])


def _together(at: Sequence[np.ndarray], parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What stacks computed by name, n first: parts[i] is of the clients at positions at[i]."""
    count = sum(map(len, at))
    out: dict[str, np.ndarray] = {}
    for i, part in zip(at, parts, strict=True):
        for name, values in part.items():
            out.setdefault(name, np.empty((count, *values.shape[1:]), values.dtype))[i] = values
    return out


def _in_order(at: Sequence[np.ndarray], parts: Sequence[Sequence[Any]]) -> list[Any]:
    """The same of lists, an item a client."""
    items = {int(index): item for i, part in zip(at, parts, strict=True) for index, item in zip(i, part, strict=True)}
    return [items[index] for index in sorted(items)]


def _trained(at: Sequence[np.ndarray], stacks: Sequence[TrainedStack], start: np.ndarray) -> TrainedStack:
    """The stacks of one cohort as one."""
    rows, loss = np.empty_like(start), np.empty(len(start))
    for i, stack in zip(at, stacks, strict=True):
        rows[i], loss[i] = stack.rows, stack.loss
    return TrainedStack(
        rows,
        loss,
        _together(at, [stack.parts for stack in stacks]),
        _together(at, [stack.statistics for stack in stacks]),
        _in_order(at, [stack.kept for stack in stacks]),
    )


def _personalized(clients: np.ndarray, at: Sequence[np.ndarray], stacks: Sequence[Personalized]) -> Personalized:
    """The same after personalization."""
    return Personalized(
        clients,
        _together(at, [{"rows": stack.rows} for stack in stacks])["rows"],
        {fold: _together(at, [stack.curves[fold] for stack in stacks]) for fold in stacks[0].curves},
        _in_order(at, [stack.margins for stack in stacks]),
        {mark: _in_order(at, [stack.diagnoses[mark] for stack in stacks]) for mark in stacks[0].diagnoses},
        _together(at, [stack.probes for stack in stacks]),
    )


def pooled(clients: Sequence[EncodedClient], pools: Sequence[np.ndarray]) -> list[EncodedClient]:
    """One virtual client a pool: its members' training pairs, and nothing held out."""
    empty = concatenate([])
    return [EncodedClient(concatenate([clients[c].train for c in pool]), empty, empty) for pool in pools]


class InProcess(Pool):
    """All workers in this process, for debugging, small runs and tests."""

    def __init__(self, inputs: Inputs, selector: Selector | None = None) -> None:
        """selector: the base, where it is loaded already."""
        super().__init__(inputs)
        # One base serves all: which clients a worker holds decides the stacks, not who computes.
        clients = dict(enumerate(inputs.data.clients))
        self.worker = Worker(inputs.config, clients, inputs.choice_ids, inputs.pad, selector)

    def call(self, worker: int, work: Work) -> Any:
        return self.worker.do(work)

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        return list(calls)
