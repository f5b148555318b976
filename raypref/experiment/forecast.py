"""Predicts a run's bytes, time and memory: the algorithm's own rounds, over clients that only count what they would do.

So a forecast repeats no method's arithmetic and is right for every algorithm. Only `measure` trains anything.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raypref.algorithms.base import starts
from raypref.algorithms.experts import ExpertsConfig
from raypref.clients.half import ClientHalf, Start
from raypref.clients.pool import Inputs, Pool
from raypref.clients.protocol import Usage
from raypref.clients.seen import parted
from raypref.clients.work import (
    Compose,
    Evaluate,
    Latents,
    Personalize,
    Personalized,
    PooledStack,
    Train,
    TrainedStack,
    TrainPooled,
    WeightNorms,
    Work,
)
from raypref.clients.worker import EVALUATED, LocalTraining, Stretch, Worker
from raypref.config import registry
from raypref.experiment.memory import Live, Memory, Shape, client_actor
from raypref.models.layout import Layout, Segment, initial_row
from raypref.objectives.base import Objective
from raypref.objectives.choice import metrics
from raypref.tools import checkpoint

STEPS = 3
"""Training steps that `measure` times."""
METRICS = tuple(metrics(torch.zeros(1, 2)))


@dataclass(frozen=True)
class Costs:
    """Times and sizes that `measure` measured on this machine."""

    step: float = 0.0
    """Seconds of one client's optimizer step, stacked as in a round."""
    comparison: float = 0.0
    """Seconds to evaluate one comparison with one row."""
    process: int = 0
    """Bytes of memory of a process with the libraries and the data, but no base: a server."""
    actor: int = 0
    """Bytes, at the most, of a process that trained and evaluated: a client actor."""


@dataclass(frozen=True)
class Forecast:
    """What a run will take."""

    width: int
    """D, trainable parameters."""
    rounds: int
    """Communication rounds executed."""
    used: Usage
    """Personalization left out, as in a result."""
    seconds: float
    """Of training and evaluation, actors side by side; without start-up, transfers and the server's own work."""
    state: int
    """Bytes of the algorithm's state, saved after every round."""
    rows: int
    """Bytes of the rows of the largest stack at its clients: as they came, as they are trained, their gradients, what a
    step computes with, and whatever else of their width the algorithm has there."""
    optimizer: int
    """Bytes of AdamW's state for them."""


class CountingClients(Pool):
    """Clients that return their rows unchanged, evaluate everything as 0, and add up what the work would have cost."""

    def __init__(self, inputs: Inputs, costs: Costs) -> None:
        super().__init__(inputs)
        self.data, self.costs, self.seconds = inputs.data, costs, 0.0
        self.rows, self.optimizer = 0, 0
        self._measured: set[tuple[bool, int]] = set()
        self.objective = Objective(self.config, None)  # which starts from a row of this layout and reads nothing

    def start(self) -> Tensor:
        """A row of this layout, which is no real base's: what a run starts from would not fit it."""
        return initial_row(self.layout, self.config.seed)

    def call(self, worker: int, work: Work) -> tuple[int, float, Any]:
        """(worker, seconds that the work would take, result)."""
        match work:
            case Train():
                n, steps = len(work.clients), self.config.federation.local_steps
                reports = self.half.reports(self.config, self.layout)
                statistics = {name: np.ones((n, *shape), np.float32) for name, shape in reports.items()}
                rows = torch.from_numpy(work.rows)
                start = Start(work.clients, rows, work.message, work.kept, self.layout, steps, self.objective)
                kept = self.half(self.config, start).keep()  # as untrained as the rows
                self._weigh(n, lambda: self.half(self.config, dataclasses.replace(start, rows=rows.clone())))
                seconds = n * steps * self.half.passes * self.costs.step
                return worker, seconds, TrainedStack(work.rows, np.zeros(n), {}, statistics, kept)
            case Compose():
                new = work.clients[[not arrays for arrays in work.kept]]
                return worker, self._fitting(new, 1), np.zeros((len(work.clients), self.layout.width), np.float32)
            case TrainPooled():
                n = len(work.clients)
                self._weigh(n)
                pooled = PooledStack(work.rows, work.moments, np.zeros(n))
                return worker, n * (work.end - work.begin) * self.costs.step, pooled
            case Evaluate():
                comparisons = len(work.rows) * self._comparisons(work.clients, work.fold)
                values = {name: np.zeros((len(work.rows), len(work.clients))) for name in METRICS}
                return worker, comparisons * self.costs.comparison, values
            case Latents():
                comparisons = self._comparisons(work.clients, "train")
                d = registry.objective(self.config.objective).latent_width(self.config)
                mu = np.zeros((len(work.clients), d), np.float32)
                return worker, comparisons * self.costs.comparison, {"mu": mu}
            case Personalize():
                n, marks = len(work.clients), self.config.personalization.marks
                self._weigh(n)
                comparisons = len(marks) * sum(self._comparisons(work.clients, fold) for fold in EVALUATED)
                seconds = n * marks[-1] * self.costs.step + comparisons * self.costs.comparison
                if work.shared is not None and (sizes := len(self.half.context_marks(self.config))):
                    tested = sizes * self._comparisons(work.clients, "test")
                    seconds += self._fitting(work.clients, sizes) + tested * self.costs.comparison
                return worker, seconds, Personalized(work.clients, work.rows, {}, [np.zeros(0)] * n, {}, {})
            case WeightNorms():
                return worker, 0.0, {segment.name.rpartition(".")[0]: 1.0 for segment in self.layout.segments}
        return worker, 0.0, None

    def gather(self, calls: Sequence[tuple[int, float, Any]]) -> list[Any]:
        busy = [0.0] * self.placement.workers
        for worker, seconds, _ in calls:
            busy[worker] += seconds
        self.seconds += max(busy)
        return [result for _, _, result in calls]

    def _weigh(self, n: int, make: Callable[[], ClientHalf] | None = None) -> None:
        """Take the bytes of one optimizer step of n clients, if it is the largest yet. make: the algorithm's half, in a
        round; its rows may be wider than the layout."""
        if (make is not None, n) in self._measured:
            return
        self._measured.add((make is not None, n))
        with Live() as live:
            half = make() if make else None
            sent = half.start.rows if half else torch.empty(n, self.layout.width)
            rows = sent.clone().requires_grad_()
            read = half.model(rows, half.start.steps - 1) if half else rows
            trained = [rows] if read.requires_grad and _reaches(read, rows) else []
            del read
            optimizer = torch.optim.AdamW([*trained] or [torch.zeros(0)])
            for group in half.trained() if half else ():
                optimizer.add_param_group(group)
                trained += group["params"]
            for tensor in trained:
                tensor.grad = torch.zeros_like(tensor)
            optimizer.step()
            state = sum(t.nbytes for of in optimizer.state.values() for t in of.values() if t.dim())
        if live.peak > self.rows + self.optimizer:
            self.rows, self.optimizer = live.peak - state, state

    def _fitting(self, clients: np.ndarray, sizes: int) -> float:
        """Seconds in which these clients fit what is their own, to so many choices of pairs."""
        steps = len(clients) * sizes * self.half.fit_steps(self.config)
        read = self.half.fit_rows(self.config) * self._comparisons(clients, "train")
        return steps * self.costs.step + read * self.costs.comparison

    def _comparisons(self, clients: Sequence[int] | np.ndarray, fold: str) -> int:
        return sum(2 * self.data.clients[c].fold(fold).pairs for c in clients)


def _reaches(read: Tensor, rows: Tensor) -> bool:
    """Whether what is read has a gradient with respect to the rows."""
    return read is rows or torch.autograd.grad(read.sum(), rows, allow_unused=True)[0] is not None


def check(inputs: Inputs) -> None:
    """Raises `UserError` where the algorithm's configuration does not fit the clients, or a start the base."""
    clients = CountingClients(inputs, Costs())
    Pool.start(clients)
    participants, _ = parted(clients)
    registry.algorithm(inputs.config.algorithm)(inputs.config, participants)


def predict(inputs: Inputs, costs: Costs) -> Forecast:
    """What a run will take, by going through all of it; raises `UserError` as `check` does."""
    # Bytes are linear in the widths of a row's body and head, so narrow rows tell those of a wide one, and cost
    # nothing. They are wide enough for K orthogonal adapters (Soft-FL), and named as the parts of the wide one.
    config, layout = inputs.config, inputs.layout
    r = config.model.lora_r
    side = config.of(ExpertsConfig).K * r
    starts_at = np.cumsum([0, *(segment.size for segment in layout.segments[:-1])])
    in_head = registry.objective(config.objective).head(config, layout)[starts_at].tolist()
    segments = [[s for s, one in zip(layout.segments, in_head, strict=True) if one is which] for which in (False, True)]
    parts = [(of[-1].name, sum(s.size for s in of)) for of in segments if of]

    def narrow(widened: int = -1) -> Forecast:
        """Of a row with each part as narrow as can be, or with one of them twice as wide."""
        sides = [side * (1 + (i == widened)) for i in range(len(parts))]
        wide = zip(parts, sides, strict=True)
        return _narrow(inputs, costs, Layout(tuple(Segment(f"{name}.lora_A", (r, n)) for (name, _), n in wide)))

    one, *others = map(narrow, range(-1, len(parts)))

    def at_width(a: int, *b: int) -> int:
        return a + sum((n - a) * (wide - r * side) // (r * side) for n, (_, wide) in zip(b, parts, strict=True))

    used = Usage(*map(at_width, *(dataclasses.astuple(each.used) for each in (one, *others))))
    state, rows, optimizer = (
        at_width(*(getattr(each, name) for each in (one, *others))) for name in ("state", "rows", "optimizer")
    )
    return dataclasses.replace(one, width=layout.width, used=used, state=state, rows=rows, optimizer=optimizer)


def actor_memory(inputs: Inputs, forecast: Forecast) -> Memory:
    """What one client actor takes of its card, with the data's own lengths."""
    config, clients = inputs.config, inputs.data.clients
    placement = inputs.placement
    folds = [client.fold(name) for client in clients for name in ("train", *EVALUATED)]
    members = max((placement.members(w) for w in range(placement.workers)), key=len)
    shape = Shape(
        clients=min(placement.stack, len(members)),
        batch=min(config.optim.batch_size, int(inputs.sizes.max())),
        length=max(int(fold.lengths.max()) for fold in folds if len(fold.lengths)),
        pairs=sum(clients[c].fold(name).pairs for c in members for name in ("train", *EVALUATED)),
        largest=int(inputs.sizes.max()),
    )
    return client_actor(config, shape, forecast.rows, forecast.optimizer)


def _narrow(inputs: Inputs, costs: Costs, layout: Layout) -> Forecast:
    """The run with rows of another layout, step by step as in `raypref.experiment.loop.records`."""
    clients = CountingClients(dataclasses.replace(inputs, layout=layout), costs)
    participants, newcomers = parted(clients)
    algorithm = registry.algorithm(inputs.config.algorithm)(inputs.config, participants)
    state = algorithm.init()
    while state.round < algorithm.rounds:
        state, _ = algorithm.round(state)
    used = clients.used  # what comes now is no communication
    starts(algorithm, state, newcomers)
    shared = algorithm.shared(state)
    for stack in clients.stacks():
        clients.personalize(stack, torch.zeros(len(stack), layout.width), shared)
    tensors, _ = checkpoint.take_apart(state)
    size = sum(t.nbytes for t in tensors.values())
    return Forecast(layout.width, used.rounds, used, clients.seconds, size, clients.rows, clients.optimizer)


def measure(inputs: Inputs) -> Costs:
    """Time a few training steps of a cohort's largest stack and one client's validation; some seconds."""
    config, process = inputs.config, _peak()
    worker = Worker(config, dict(enumerate(inputs.data.clients)), inputs.choice_ids, inputs.pad)
    cohort = range(min(config.federation.cohort, len(inputs.sizes)))
    stack = max((members for _, members in inputs.placement.stacks(cohort)), key=len)
    start = worker.objective.start(config, inputs.layout).repeat(len(stack), 1)
    stretch = Stretch("train", 0, 1 + STEPS, config.optim.learning_rate)
    local = LocalTraining(worker, stack.tolist(), start.to(worker.device), stretch)
    local.advance(1)  # the first one also allocates
    began = time.perf_counter()
    local.advance(STEPS)
    step = (time.perf_counter() - began) / (STEPS * len(stack))
    began = time.perf_counter()
    worker.evaluate(Evaluate(np.array([0]), start[:1].numpy(), "validation"))
    comparison = (time.perf_counter() - began) / (2 * inputs.data.clients[0].validation.pairs)
    return Costs(step, comparison, process, _peak())


def _peak() -> int:
    """Most bytes of memory that this process has had so far."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size
