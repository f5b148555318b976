"""What a method costs beside FedAvg (S1 5.5): parameters, bytes, and the time of a round on the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Row, drawn, quantity
from raypref.evaluation.runs import FinishedRun, alike, by_label, by_seed, costs, describe, fullest, title, work

BASE = {"algorithm": "fedavg", "objective": "choice"}
NOTE = (
    "kB: bytes a client of the cohort and round, all traffic of the global phase over rounds × cohort. s a round: "
    "median; × FL's: its ratio to FL's of the same seed (± std over the n seeds), where both ran alike; it means "
    "something where all ran on one machine with nothing beside them."
)


def bytes_a_round(run: FinishedRun, key: str) -> float | None:
    """Mean bytes a client of the cohort and executed round; all of the global phase's traffic counts, also what tells
    clients their expert. None for methods without rounds."""
    rounds = run.result["rounds"]
    return run.result[key] / (rounds * run.config["federation.cohort"]) if rounds else None


def seconds(run: FinishedRun) -> float | None:
    """Median seconds of a round; None where it was not taken."""
    value = run.result.get("seconds", {}).get("median_round")
    return float(value) if value and run.result["rounds"] else None


def latency(run: FinishedRun, bases: Sequence[FinishedRun]) -> float | None:
    """Ratio of the median round to that of the newest of `bases` (FedAvg's runs on the same work) of the same seed that
    ran in the same way (`clients.*`); None without one, or where either was not timed."""
    base = max((b for b in bases if b.seed == run.seed and _way(b) == _way(run)), key=lambda b: b.started, default=None)
    times = seconds(run), seconds(base) if base else None
    return times[0] / times[1] if times[0] and times[1] else None


def _way(run: FinishedRun) -> Mapping[str, Any]:
    return {key: value for key, value in run.config.items() if key.startswith("clients.")}


@table("overhead")
def overhead(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """What a client and round cost beside FL (S1 5.5): parameters, bytes, time

    A row a method, or where an experiment varied a method one for each variant, all of the same work."""
    family = fullest(alike(runs, lambda run: repr(work(run.config))), lambda run: run.config["algorithm"])
    if not family:
        return Item()
    rows = [Row(label, {"": by_seed(of)}) for label, of in by_label(family, costs).items()]
    bases = [run for run in family if run.fits(BASE)]

    def parameters(kind: str) -> Callable[[FinishedRun], int | None]:
        return lambda run: run.result.get("parameters", {}).get(kind)

    measures = [
        quantity("adapter parameters", parameters("adapter"), digits=0, span=True),
        quantity("latent parameters", parameters("latent"), digits=0, span=True),
        quantity("kB up", lambda run: bytes_a_round(run, "bytes_up"), scale=1e-3, digits=1, span=True),
        quantity("kB down", lambda run: bytes_a_round(run, "bytes_down"), scale=1e-3, digits=1, span=True),
        quantity("s a round", seconds, significant=3),
        quantity("× FL's", lambda run: latency(run, bases), r"$\times$ FL's"),
    ]
    base = title(BASE["algorithm"])
    missing = [] if bases else [Missing(f"{base} on the same work", SWEEP + BASE["algorithm"])]
    notes = [NOTE, describe(family)]
    return drawn(rows, measures, title="Overhead of a client and round", apart=[base], notes=notes, missing=missing)
