"""What left the clients, and who could read it."""

from __future__ import annotations

from raypref.evaluation.comparisons.privacy import secure_aggregation
from raypref.evaluation.pages.page import Hidden, Material, Section
from raypref.evaluation.tables import Column, Table


def section(material: Material) -> Section | None:
    """A table an entry, of its first run's ledger; `ledger.csv` in the run's folder has every round."""
    parts: list[Hidden | str] = []
    for entry in material.shown:
        if not (ledger := entry.first.result.get("ledger")):
            continue
        word, why = secure_aggregation(entry.first.config["algorithm"], ledger)
        parts.append(f"{entry.label}: secure aggregation {'would do' if word == 'yes' else word} ({why}).")
        columns = tuple(Column(head) for head in ("who could read it", "rounds", "times", "kB"))
        cells = tuple(
            (e["reader"], f"{e['rounds']:,}", f"{e['clients']:,}", f"{e['bytes'] / 1000:,.1f}") for e in ledger.values()
        )
        table = Table(f"ledger-{len(parts)}", "", "what a client sent", columns, tuple(ledger), cells)
        parts.append(Hidden(f"What left the clients of {entry.label}", table))
    pooled = any("training pairs" in entry.first.result.get("ledger", {}) for entry in material.shown)
    pairs = "Pairs leave clients only where a method pools them." if pooled else "Choices and texts are not among it."
    lead = f"Everything that came back from clients, counted at the one door that it passes. {pairs} {material.left}"
    return Section("ledger", "What left the clients", lead, parts) if parts else None
