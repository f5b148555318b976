"""Validation while a run trains: read of a few clients at intervals, beside the run and without a trace in it.

A sweep reads from it which trials to stop early; no result of a run depends on whether it was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raypref.algorithms.base import Algorithm, State
from raypref.clients.ledger import Entries
from raypref.clients.pool import Pool
from raypref.clients.protocol import Clients
from raypref.config import RunConfig
from raypref.tools.rng import stream


@dataclass(frozen=True)
class Reports:
    """When validation is read, and of how many clients."""

    every: int
    """Rounds from one reading to the next; the last round has none, for the result follows it."""
    clients: int = 10
    """Most clients that are read, the same ones every time, drawn by the seed among those that train."""

    def due(self, round: int) -> bool:
        """Whether validation is read after so many rounds."""
        return round > 0 and round % self.every == 0


@dataclass(frozen=True)
class Reported:
    """What a run would come to, were it personalized after this round."""

    round: int
    metrics: dict[str, float]
    """Means over the clients that were read, on the validation fold."""
    report_steps: int
    """Optimizer steps that the reading took, summed over clients; they are not among the run's own."""
    left: Entries
    """What left clients for it (`raypref.clients.ledger`)."""


def steps(config: RunConfig) -> int:
    """Local steps before a client is read: the first of the run's own marks above 0, as a small taste of its
    personalization; 0 where there is none."""
    return min((mark for mark in config.personalization.marks if mark), default=0)


def report(reports: Reports, algorithm: Algorithm, state: State, clients: Clients, pool: Pool) -> Reported:
    """Personalize the sample from the current initialization and read it on the validation fold.

    Batches and masks are those of the run's own personalization, which they repeat up to the same step; what the
    reading sends is not counted as the run's. clients: those that the algorithm was shown, a part of the pool's.
    """
    used = pool.used
    rows, count = algorithm.initialization(state), len(clients.sizes)
    draw = stream(pool.config.seed, "clients of reports")
    chosen = np.sort(draw.permutation(count)[: reports.clients])
    rows = rows.expand(len(chosen), -1) if rows.dim() == 1 else rows[chosen]
    measures = pool.validate(clients.keys[chosen], rows, steps(pool.config))
    pool.used = used
    means = {name: float(values.mean()) for name, values in measures.items()}
    return Reported(state.round, means, len(chosen) * steps(pool.config), pool.ledger.take())
