"""Accuracy against local steps: over all clients, and by true group."""

from __future__ import annotations

from raypref.evaluation.pages import charts
from raypref.evaluation.pages.page import Figure, Material, Section
from raypref.evaluation.pages.sections.common import Curve, curve, curve_table, group_curves, interval_words
from raypref.evaluation.report import UNSEEN

Y = "accuracy on test pairs, %"
X = "local steps t"


def section(material: Material) -> Section | None:
    """A figure of all entries, then one an entry by group; None where accuracy was read at one mark alone."""
    overall: dict[str, Curve] = {}
    for entry in material.shown:
        overall[entry.label] = curve([run.result for run in entry.runs])
        if away := [run.unseen for run in entry.runs if run.unseen is not None]:
            overall[f"{entry.label}, {UNSEEN}"] = curve(away)
    if all(len(of.marks) < 2 for of in overall.values()):
        return None
    words = interval_words(material.shown)
    ends = "; ".join(f"{name} ends at {of.mean[-1]:.1f} %" for name, of in overall.items())
    figures = [
        Figure(
            "Mean over clients",
            f"{words} Dotted: a coin. {ends}.",
            charts.lines(_lines(overall), X, Y, says=f"Accuracy over local steps. {ends}.", reference=50),
            curve_table(overall),
        )
    ]
    for entry in material.shown:
        groups = group_curves(entry.runs)
        if not groups:
            continue
        sizes = entry.first.result["groups"]
        named = {f"{name} ({sizes['of'].count(sizes['names'].index(name))})": of for name, of in groups.items()}
        worst = min(named, key=lambda name: named[name].mean[-1])
        says = f"Lowest at the end: {worst} with {named[worst].mean[-1]:.1f} %."
        figures.append(
            Figure(
                f"{entry.label}, by true group",
                f"{words} In brackets the number of clients. {says}",
                charts.lines(_lines(named), X, Y, says=f"{entry.label}: accuracy of each group. {says}", reference=50),
                curve_table(named),
            )
        )
    lead = (
        f"{material.left}How far training on a client's own pairs takes it, and whether some groups are left behind. "
        "The menu under a figure picks out one line."
    )
    return Section("accuracy", "Accuracy by local steps", lead, figures)


def _lines(curves: dict[str, Curve]) -> list[charts.Line]:
    return [charts.Line(name, of.marks, of.mean, of.low, of.high) for name, of in curves.items()]
