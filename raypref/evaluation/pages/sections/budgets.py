"""What it took: rounds, steps, bytes and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raypref.evaluation import rows
from raypref.evaluation.pages.page import Material, Section
from raypref.evaluation.rows import Measure, Row, fill, quantity
from raypref.evaluation.runs import FinishedRun, rounds_note


def section(material: Material) -> Section:
    """A row an entry: what its training took, personalization left out, and the time of both."""
    lines = [Row(entry.label, {"": dict(enumerate(entry.runs))}) for entry in material.entries]
    measures = [
        *rows.budgets(),
        _taken("parameters a client", lambda r: sum(r.get("parameters", {}).values()) or None),
        _taken("seconds of rounds", lambda r: r.get("seconds", {}).get("rounds"), 1),
        _taken("seconds of personalization", lambda r: r.get("seconds", {}).get("personalization"), 1),
        _taken("CPU seconds", lambda r: r.get("cpu_seconds"), 1),
        _taken("clients that did not answer", lambda r: r.get("dropped") or None),
        _taken("restarts", lambda r: r.get("restarts") or None),
    ]
    note = rounds_note({run.config["algorithm"] for entry in material.entries for run in entry.runs})
    table = fill(lines, measures, title="What it took", corner="of", notes=[note] if note else [])
    lead = (
        "Client steps are optimizer steps of all clients together, up is from clients to the server; both without "
        "personalization, which sends nothing. Seconds are the clock's on the machine that it ran on."
    )
    return Section("budgets", "Budgets", lead, [table])


def _taken(head: str, read: Callable[[Any], Any], digits: int = 0) -> Measure:
    def of(run: FinishedRun) -> Any:
        return read(run.result)

    return quantity(head, of, digits=digits, span=True)
