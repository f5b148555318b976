"""What a method costs beside FedAvg (S1 5.5): parameters, bytes, and the time of a round on the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raypref.evaluation import mix
from raypref.evaluation.papers import NAMES, SWEEP, Found, Item, Missing, describe, idle
from raypref.evaluation.report import Fold
from raypref.evaluation.tables import Cell, Column, Table

WORK = ("data.", "model.", "federation.", "optim.batch_size")
"""Prefixes of keys that make the work of a round, whatever the method."""
NOT_ITS_COST = (
    "seed",
    "optim.",
    "personalization.",
    "diagnostics.",
    "clients.",
    "rlhf.",
    "variational.every",
    "variational.context_marks",
)
"""Prefixes of keys that change nothing in a round's cost, or only where it is run."""
BASE = "fedavg"

Read = Callable[[Found], float | None]


def bytes_a_round(run: Found, key: str) -> float | None:
    """Mean bytes a client of the cohort and executed round; all of the global phase's traffic counts, also what tells
    clients their expert. None for methods without rounds."""
    rounds = run.result["rounds"]
    return run.result[key] / (rounds * run.config["federation.cohort"]) if rounds else None


def seconds(run: Found) -> float | None:
    """Median seconds of a round; None where it was not taken."""
    value = run.result.get("seconds", {}).get("median_round")
    return float(value) if value and run.result["rounds"] else None


def latency(run: Found, bases: Sequence[Found]) -> float | None:
    """Ratio of the median round to that of the newest of `bases` (FedAvg's runs on the same work) of the same seed that
    ran in the same way (`clients.*`); None without one, or where either was not timed."""
    alike = [b for b in bases if b.seed == run.seed and _under(b, ("clients.",)) == _under(run, ("clients.",))]
    mine = seconds(run)
    other = seconds(max(alike, key=lambda b: b.started)) if alike else None
    return mine / other if mine and other else None


def overhead(runs: Sequence[Found], fold: Fold) -> Item:
    """A row a method, or where an experiment varied a method one for each variant, all of the same work: that of the
    family with most methods, then most runs, then the newest."""
    families: dict[str, list[Found]] = {}
    for run in runs:
        families.setdefault(repr(_under(run, WORK)), []).append(run)
    if not families:
        return Item("overhead", None)
    family = max(families.values(), key=_rank)
    rows = _rows(family)
    bases = [run for run in family if run.config["algorithm"] == BASE and run.config["objective"] == "choice"]

    def parameters(kind: str) -> Read:
        return lambda run: run.result.get("parameters", {}).get(kind)

    measures: list[tuple[Column, Read]] = [
        (Column("adapter parameters", "adapter parameters", digits=0, span=True), parameters("adapter")),
        (Column("latent parameters", "latent parameters", digits=0, span=True), parameters("latent")),
        (Column("kB up", "kB up", scale=1e-3, digits=1, span=True), lambda run: bytes_a_round(run, "bytes_up")),
        (Column("kB down", "kB down", scale=1e-3, digits=1, span=True), lambda run: bytes_a_round(run, "bytes_down")),
        (Column("s a round", "s a round", significant=3), seconds),
        (Column("× FL's", r"$\times$ FL's"), lambda run: latency(run, bases)),
    ]
    cells = []
    for held in rows.values():
        read = [[value for run in held if (value := take(run)) is not None] for _, take in measures]
        cells.append([Cell(tuple(map(float, values))) if values else None for values in read])
    kept = [c for c in range(len(measures)) if any(line[c] is not None for line in cells)]
    note = (
        "kB: bytes a client of the cohort and round, all traffic of the global phase over rounds × cohort. s a round: "
        "median; × FL's: its ratio to FL's of the same seed (± std over the n seeds), where both ran alike; it means "
        "something where all ran on one machine with nothing beside them."
    )
    content = Table(
        "overhead",
        "Overhead of a client and round",
        "method",
        columns=(*(measures[c][0] for c in kept), Column("n", "$n$", digits=0, span=True)),
        rows=tuple(rows),
        cells=tuple(
            (*(line[c] for c in kept), Cell((float(len(held)),)))
            for line, held in zip(cells, rows.values(), strict=True)
        ),
        apart=frozenset({NAMES[BASE]}),
        notes=(note, describe(family)),
    )
    used = tuple(run for held in rows.values() for run in held)
    missing = () if bases else (Missing(f"{NAMES[BASE]} on the same work", SWEEP + BASE),)
    return Item("overhead", content, runs=used, missing=missing)


def _rows(family: Sequence[Found]) -> dict[str, list[Found]]:
    """Label -> its runs, one a seed (the newest)."""

    def told(run: Found) -> Mapping[str, object]:
        return _without(run, (*WORK, *NOT_ITS_COST, *idle(run.config)))

    return {label: _a_seed(held) for label, held in mix.labels(family, told).items()}


def _a_seed(runs: Sequence[Found]) -> list[Found]:
    newest = {run.seed: run for run in sorted(runs, key=lambda r: r.started)}
    return [newest[seed] for seed in sorted(newest)]


def _rank(family: Sequence[Found]) -> tuple[int, int, int]:
    return len({run.config["algorithm"] for run in family}), len(family), max(run.started for run in family)


def _under(run: Found, prefixes: tuple[str, ...]) -> Mapping[str, object]:
    return {key: value for key, value in run.config.items() if key.startswith(prefixes)}


def _without(run: Found, prefixes: tuple[str, ...]) -> Mapping[str, object]:
    return {key: value for key, value in run.config.items() if not key.startswith(prefixes)}


TABLES = {"overhead": overhead}
