"""What clients gave away: what the server read of them, and whether sums would have been enough for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raypref.config import registry
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Row, drawn, quantity
from raypref.evaluation.runs import FinishedRun, by_label, by_seed

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
