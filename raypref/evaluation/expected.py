"""The accuracy that somebody new can expect from so many choices, read off people whose answers are known.

Values are arrays [P, S]: one row a person, one column a number of choices. Where a run has them, these people took no
part in training (`federation.unseen`); else they are those that it trained on, judged on choices that were held out,
and whoever shows the numbers says so: what they share has been fitted to them, so it may flatter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from raypref.config import flatten
from raypref.evaluation.curve import interval, seen_and_unseen
from raypref.evaluation.runs import context_marks

FEW, NO_INTERVAL = 5, "too few people for an interval"
"""People from whom a bootstrap says how sure a mean is; redrawing fewer tells next to nothing."""
SIZES = (1, 2, 4, 8, 16, 64)
"""Numbers of choices that are measured where a run has none of its own."""


class Expectation(NamedTuple):
    """What to expect from a number of choices."""

    mean: float
    """Over people."""
    low: float
    high: float
    """95 % bootstrap interval of the mean over people."""
    least: float
    most: float
    """The lowest and the highest of these people: one person differs from the mean by more than the mean is unsure."""
    people: int

    @property
    def sure(self) -> bool:
        """Whether there are enough people for an interval to mean something."""
        return self.people >= FEW


@dataclass(frozen=True, eq=False)
class Expected:
    """Test accuracies of P people who were made known by S numbers of choices."""

    sizes: Sequence[int]
    """[S] rising."""
    accuracy: np.ndarray
    """float64 [P, S]; whoever has fewer choices than a size is there with all of them."""
    unseen: bool
    """Whether the run never trained on these people."""
    steps: Sequence[int] = ()
    """[S] local steps from the start, those of the best mean validation accuracy; empty where nothing is trained."""

    def after(self, choices: int) -> Expectation:
        """From so many choices, in a straight line over log2 between the sizes; beyond them as at their ends. Raises
        `ValueError` for none: what a run says of nobody is another number."""
        if choices < 1:
            raise ValueError(f"{choices} choices")
        at, known = math.log2(choices), np.log2(np.asarray(self.sizes, dtype=np.float64))
        values = np.array([np.interp(at, known, line) for line in self.accuracy])
        low, high = interval(values[:, None])
        return Expectation(
            float(values.mean()), float(low[0]), float(high[0]), float(values.min()), float(values.max()), len(values)
        )

    def steps_for(self, choices: int) -> int:
        """Local steps for so many choices: those of the largest size that is not above them, or of the first."""
        if not self.steps:
            return 0
        return self.steps[max(0, int(np.searchsorted(self.sizes, choices, side="right")) - 1)]

    def sentence(self, choices: int) -> str:
        """For people: `expect 71.2 % right after 8 choices (95 % interval of the mean 66.0 to 76.3; …)`."""
        e = self.after(choices)
        who = "that the run never trained on" if self.unseen else "that the run trained on, on choices held out"
        spread = f"; the lowest of them {100 * e.least:.1f}, the highest {100 * e.most:.1f}" if e.people > 1 else ""
        many = f"{e.people} people" if e.people > 1 else "one person"
        sure = f"95 % interval of the mean {100 * e.low:.1f} to {100 * e.high:.1f}" if e.sure else NO_INTERVAL
        return (
            f"expect {100 * e.mean:.1f} % right after {choices} choice{'s' * (choices > 1)} "
            f"({sure}, from {many} {who}{spread})"
        )


def from_result(result: Mapping[str, Any]) -> Expected | None:
    """What a finished run has read out itself: accuracies with z, or a client's own part of the model, inferred from so
    many of its choices at random (`context_accuracy`); None where it has none."""
    sizes = context_marks(flatten(result["config"]))
    seen, unseen = seen_and_unseen(result)
    values = (unseen or seen).get("probes", {}).get("context_accuracy")
    return Expected(sizes, np.asarray(values, dtype=np.float64), unseen is not None) if sizes and values else None
