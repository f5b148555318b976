"""What came of it, in a table and some sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raypref.evaluation import paired, ranking, report, seeds
from raypref.evaluation.pages.page import Material, Section
from raypref.evaluation.pages.sections.common import curve, one
from raypref.evaluation.runs import Config, describe
from raypref.evaluation.tables import Table

DIFFERENT = "These runs are of different data or seeds: what differs between them need not be the methods."


def section(material: Material) -> Section:
    """Each run's accuracies before and after personalization; of a sweep the ranking."""
    runs = [run for entry in material.entries for run in entry.runs]
    parts: list[Table | str] = [] if material.sweep else [_sentence(material)]
    if material.sweep:
        ranked = ranking.table(material.sweep.lines, material.sweep.metric)
        parts.append(replace(ranked, title="Configurations by rank"))
        both = zip(material.sweep.lines, material.entries, strict=True)
        pairs = [(line.settings, run.result) for line, entry in both for run in entry.runs]
        parts.append(replace(seeds.table(pairs), title="Configurations over their seeds"))
    else:
        table = report.main_columns(report.table([entry.whole for entry in material.entries]))
        table = replace(table, title="Accuracy on test pairs, %")
        if not _alike(material):
            parts.insert(0, DIFFERENT)
            table = replace(table, columns=tuple(replace(column, best=0) for column in table.columns))
        parts += [part for part in (table, _differences(material, table)) if part]
    parts.append(f"All of it: {describe(runs)}")
    parts += dict.fromkeys(note for run in runs for note in run.result.get("notes", ()))
    lead = (
        "Accuracy is the share of a client's held-out pairs on which its reward model prefers what the client chose; "
        "50 % is a coin. acc^t is read after t steps of training on the client's own pairs."
    )
    return Section("glance", "At a glance", lead, parts)


def _sentence(material: Material) -> str:
    words = []
    for entry in material.entries:
        of = curve([run.result for run in entry.runs])
        start = f"{one(of.mean[0])} % before any step of their own" if of.marks[0] == 0 else ""
        end = f"{one(of.mean[-1])} % after {of.marks[-1]}" if of.marks[-1] else ""
        words.append(f"{entry.label}: {of.clients} clients, {', '.join(filter(None, (start, end)))}.")
    return " ".join(words)


def _differences(material: Material, table: Table) -> Table | None:
    """Every other run minus the first, client by client, where all are of the same clients."""
    return paired.against(table, table.rows[0]) if _alike(material) else None


def _alike(material: Material) -> bool:
    configs = [entry.first.config for entry in material.entries]
    return all(c["seed"] == configs[0]["seed"] and _data(c) == _data(configs[0]) for c in configs)


def _data(config: Config) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key.startswith("data.")}
