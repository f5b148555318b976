"""A run without its work: what it will send, hold and take, by the algorithm's own rounds over clients that only count.

So a forecast repeats no method's arithmetic and holds for every algorithm. Only `measure` computes anything.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raypref.algorithms import ALGORITHMS
from raypref.algorithms.base import starts
from raypref.clients.pool import Inputs, Pool
from raypref.clients.protocol import Usage
from raypref.clients.seen import parted
from raypref.clients.worker import EVALUATED, LocalTraining, Worker
from raypref.config import DPOConfig
from raypref.models.layout import Layout, Segment
from raypref.models.peft_io import start_row
from raypref.objectives.choice import metrics
from raypref.tools import checkpoint

STEPS = 3
"""Training steps that `measure` times."""
METRICS = tuple(metrics(torch.zeros(1, 2)))


@dataclass(frozen=True)
class Costs:
    """What `measure` found on this machine."""

    step: float = 0.0
    """Seconds of one client's optimizer step, stacked as in a round."""
    comparison: float = 0.0
    """Seconds to judge one comparison with one row."""
    process: int = 0
    """Bytes of memory of a process with the libraries and the data, but no base: a server."""
    actor: int = 0
    """Bytes, at the most, of a process that trained and judged: a client actor."""


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


class Counting(Pool):
    """Clients that return their rows as they came, judge everything 0, and add up what the work would have cost."""

    def __init__(self, inputs: Inputs, costs: Costs) -> None:
        super().__init__(inputs)
        self.data, self.costs, self.seconds = inputs.data, costs, 0.0

    def call(self, worker: int, method: str, *args: Any) -> tuple[int, float, Any]:
        """(worker, seconds, result)"""
        if method == "hold":
            return worker, 0.0, None
        if method == "weight_norms":
            return worker, 0.0, {segment.name.rpartition(".")[0]: 1.0 for segment in self.layout.segments}
        clients, rows = args[0], args[1]
        n = len(clients)
        if method == "train":
            steps = n * self.config.federation.local_steps
            told: dict[str, np.ndarray] = {}
            if self.config.objective == "variational":
                d, context = self.config.variational.d, args[3]
                told = {"mu": np.ones((n, d), np.float32), "variance": np.ones((n, d), np.float32)}
                if context is not None and len(context.peers):
                    told["log_weights"] = context.log_weights
            return worker, steps * self.costs.step, (rows, np.zeros(n), told)
        if method == "train_pooled":
            return worker, n * (args[4] - args[3]) * self.costs.step, (rows, args[2], np.zeros(n))
        if method == "evaluate":
            judged = len(rows) * self._comparisons(clients, args[2])
            return worker, judged * self.costs.comparison, {name: np.zeros((len(rows), n)) for name in METRICS}
        marks = self.config.personalization.marks
        judged = len(marks) * sum(self._comparisons(clients, fold) for fold in EVALUATED)
        return worker, n * marks[-1] * self.costs.step + judged * self.costs.comparison, (rows, {}, [None] * n, {}, {})

    def gather(self, calls: Sequence[tuple[int, float, Any]]) -> list[Any]:
        busy = [0.0] * self.placement.workers
        for worker, seconds, _ in calls:
            busy[worker] += seconds
        self.seconds += max(busy)
        return [result for _, _, result in calls]

    def _comparisons(self, clients: Sequence[int], fold: str) -> int:
        return sum(2 * self.data.clients[c].fold(fold).pairs for c in clients)


def check(inputs: Inputs) -> None:
    """Raises `UserError` where the algorithm's configuration does not fit the clients, or a start the base."""
    start_row(inputs.config, inputs.layout)
    participants, _ = parted(Counting(inputs, Costs()))
    ALGORITHMS[inputs.config.algorithm](inputs.config, participants)


def rehearse(inputs: Inputs, costs: Costs) -> Forecast:
    """Go through the whole run; raises `UserError` as `check` does."""
    # Bytes are linear in the width of a row, so two narrow rows tell those of a wide one, and cost nothing. They are
    # wide enough for K orthogonal adapters (Soft-FL).
    r, side = inputs.config.model.lora_r, inputs.config.experts.K * inputs.config.model.lora_r
    one, two = (_narrow(inputs, costs, Segment("base.lora_A", (r, n * side))) for n in (1, 2))

    def at_width(a: int, b: int) -> int:
        return a + (b - a) * (inputs.layout.width - r * side) // (r * side)

    used = Usage(*map(at_width, dataclasses.astuple(one.used), dataclasses.astuple(two.used)))
    return dataclasses.replace(one, width=inputs.layout.width, used=used, state=at_width(one.state, two.state))


def _narrow(inputs: Inputs, costs: Costs, segment: Segment) -> Forecast:
    """The run with rows of one segment, step by step as in `raypref.experiment.loop.records`."""
    layout = Layout((segment,))
    config = dataclasses.replace(inputs.config, dpo=DPOConfig())  # without a start, which is as wide as the base wants
    clients = Counting(dataclasses.replace(inputs, config=config, layout=layout), costs)
    participants, newcomers = parted(clients)
    algorithm = ALGORITHMS[config.algorithm](config, participants)
    state = algorithm.init()
    while state.round < algorithm.rounds:
        state, _ = algorithm.round(state)
    used = clients.used  # what comes now is no communication
    starts(algorithm, state, newcomers)
    for stack in clients.stacks():
        clients.personalize(stack, torch.zeros(len(stack), layout.width))
    tensors, _ = checkpoint.take_apart(state)
    held = sum(t.nbytes for t in tensors.values())
    return Forecast(layout.width, used.rounds, used, clients.seconds, held)


def measure(inputs: Inputs) -> Costs:
    """Time a few training steps of a cohort's largest stack and one client's validation; some seconds."""
    config, process = inputs.config, _peak()
    worker = Worker(config, dict(enumerate(inputs.data.clients)), inputs.choice_ids, inputs.pad)
    cohort = range(min(config.federation.cohort, len(inputs.sizes)))
    stack = max((members for _, members in inputs.placement.stacks(cohort)), key=len)
    start = start_row(config, inputs.layout).repeat(len(stack), 1).numpy()
    local = LocalTraining(worker, stack.tolist(), start, "train", 0, 1 + STEPS, config.optim.learning_rate)
    local.advance(1)  # the first one also allocates
    began = time.perf_counter()
    local.advance(STEPS)
    step = (time.perf_counter() - began) / (STEPS * len(stack))
    began = time.perf_counter()
    worker.evaluate([0], start[:1], "validation")
    comparison = (time.perf_counter() - began) / (2 * inputs.data.clients[0].validation.pairs)
    return Costs(step, comparison, process, _peak())


def _peak() -> int:
    """Most bytes that this process has held so far."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held
