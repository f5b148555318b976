"""What clients gave away: what the server read of them, whether sums would have been enough, and what noise cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raypref.config import registry
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Measure, Reading, Row, accuracy, budgeted, drawn, quantity
from raypref.evaluation.runs import FinishedRun, alike, by_label, by_seed, fullest
from raypref.evaluation.tables import Column

JOINED = "number of pairs"
"""What a server knows of every client from the start; it takes its sums, as weights."""
NOTE = (
    "Secure aggregation gives a server one weighted sum over a cohort and nothing else. No: it reads each client's own "
    "of the kinds that are named. It hides single updates, not what the sum itself tells: that takes differential "
    "privacy."
)


def read_by_server(ledger: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The kinds that a method's server reads, of a result's `ledger`."""
    return [kind for kind, entry in ledger.items() if entry["reader"] == "server" and kind != JOINED]


def secure_aggregation(algorithm: str, ledger: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Whether a method whose runs leave this ledger could run under secure aggregation, and why: (`yes`, `no` or `not
    known`, a clause)."""
    needs = registry.algorithm(algorithm).needed() if algorithm in registry.algorithms() else None
    if needs is None:
        return "not known", "its file does not say what the server needs (`needs`)"
    reasons = {why: [kind for kind in ledger if needs.get(kind) == why] for why in dict.fromkeys(needs.values())}
    if said := [f"{', '.join(kinds)}: {why}" for why, kinds in reasons.items() if kinds]:
        return "no", "; ".join(said)
    return "yes", "it takes one weighted sum of each at most" if read_by_server(ledger) else "nothing is sent"


@table("secure-aggregation")
def secure(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Which methods could run under secure aggregation, which not and why, by the ledgers of their runs"""
    kept = [run for run in runs if run.result.get("ledger")]
    rows = [Row(label, {"": by_seed(of)}) for label, of in by_label(kept, lambda config: {}).items()]

    def verdict(run: FinishedRun) -> tuple[str, str]:
        return secure_aggregation(run.config["algorithm"], run.result["ledger"])

    def read(run: FinishedRun) -> str | None:
        kinds = read_by_server(run.result["ledger"])
        return ", ".join(dict.fromkeys(k.rpartition("/")[0] if k.startswith("readings") else k for k in kinds)) or None

    measures = [
        quantity("the server reads", read),
        quantity("secure aggregation", lambda run: verdict(run)[0]),
        quantity("why", lambda run: verdict(run)[1]),
    ]
    missing = [] if rows else [Missing("runs with a ledger", SWEEP + "graded_main")]
    words = "Which methods could run under secure aggregation"
    return drawn(rows, measures, title=words, notes=[NOTE], counted=False, missing=missing)


FEW = 1000
"""Clients below which an ε that means something leaves little of a model."""
EPSILON = (
    "ε at δ: of the models of all rounds, for one client more or less with all its pairs, clients drawn one by one; by "
    "Rényi divergences. acc^0 is of the model that ε is about; what a client trains from it stays with the client. "
    "Losses and accuracies that a study writes down are not part of it."
)


@table("privacy", after_run=True)
def privacy(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """Accuracy against ε: DP-FedAvg at every noise beside FL, by the number of clients"""
    every = [run for run in runs if run.result.get("privacy") or run.config["algorithm"] == "fedavg"]
    kept = fullest(alike(every, _task), lambda run: (len(run.result["clients"]), str(_options(run.config))))
    if not any(run.result.get("privacy") for run in kept):
        return Item(missing=[Missing("DP-FedAvg", SWEEP + "graded_privacy")])
    counts = sorted({len(run.result["clients"]) for run in kept})

    def of(runs: Sequence[FinishedRun], N: int) -> dict[int, FinishedRun]:
        return by_seed(run for run in runs if len(run.result["clients"]) == N)

    rows = [
        Row(name, {f"N = {N:,}": of(of_row, N) for N in counts}) for name, of_row in by_label(kept, _options).items()
    ]
    marks, measures = sorted({t for run in kept for t in run.result["marks"]}), []
    for place in (f"N = {N:,}" for N in counts):
        measures += [_spent("epsilon", "ε", place), _spent("delta", "δ", place)]
        measures += [accuracy(t, fold, block=place, best=0) for t in marks]
    demonstration = f"{FEW:,} clients are few for this: less of them is a demonstration." * (counts[0] < FEW)
    notes = [note for note in (EPSILON, demonstration) if note]
    return budgeted(rows, measures, fold, title="Accuracy against ε", apart=["FL"], notes=notes)


def _task(run: FinishedRun) -> str:
    """What runs of one table share: everything but the method, its noise, the seed and how many clients there are."""
    free = ("algorithm", "dp.", "seed", "data.group_sizes", "federation.cohort")
    return str({key: value for key, value in run.computed.items() if not key.startswith(free)})


def _options(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What tells the rows of DP-FedAvg apart."""
    dp = config["algorithm"] == "dp_fedavg"
    return {key.removeprefix("dp."): value for key, value in config.items() if dp and key.startswith("dp.")}


def _spent(key: str, head: str, place: str) -> Measure:
    def read(run: FinishedRun) -> Reading | None:
        value = run.result.get("privacy", {}).get(key)
        return Reading(value) if value is not None else Reading("∞") if key == "epsilon" else None

    return Measure(place, Column(head, block=place, significant=2, span=True), read)
