"""Accuracy by number of choices: how many a client has, and how many its own part of the model was inferred from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raypref.evaluation.curve import summary
from raypref.evaluation.pages import charts
from raypref.evaluation.pages.page import Figure, Material, Section
from raypref.evaluation.pages.sections.common import Curve, curve_table, one, over_seeds, texts
from raypref.evaluation.runs import FinishedRun, context_marks

PROBES = {"context_accuracy": "own part of the model", "linear_accuracy": "logistic regression alone"}


def section(material: Material) -> Section | None:
    """Points of clients by their training pairs, and curves over the pairs that were used, where the runs have them."""
    figures = []
    probed: dict[str, Curve] = {}
    for entry in material.shown:
        for name, words in PROBES.items():
            if of := _probed(entry.runs, name):
                several = len(material.shown) > 1
                probed[f"{entry.label}, {words}" if several else words] = of
    if probed:
        lines = [charts.Line(name, c.marks, c.mean, c.low, c.high) for name, c in probed.items()]
        x = "pairs of a client that are used"
        figures.append(
            Figure(
                "By the pairs that a client's own part is inferred from",
                "Before any local step. Bands: 95 % intervals of the mean over clients; of several seeds the lowest "
                "and the highest.",
                charts.lines(lines, x, "accuracy on test pairs, %", says=f"Accuracy by {x}.", reference=50),
                curve_table(probed),
            )
        )
    points = [
        row for entry in material.shown if "sizes" in entry.whole for row in _points(entry.first.result, entry.label)
    ]
    if len({pairs for _, pairs, _, _ in points}) > 1:
        figures.append(
            Figure(
                "By the pairs that a client has to train on",
                "A point a client, after its last local step.",
                charts.points(
                    points,
                    "training pairs",
                    "accuracy on test pairs, %",
                    says="Accuracy of each client by the number of its training pairs.",
                ),
                texts(
                    "client",
                    ("of", "training pairs", "accuracy, %"),
                    [(c, (kind, f"{n:.0f}", one(a))) for c, n, a, kind in points],
                ),
            )
        )
    if not figures:
        return None
    lead = "How many choices a person has to make until the model is theirs."
    return Section("choices", "Accuracy by number of choices", lead, figures)


def _probed(runs: Sequence[FinishedRun], name: str) -> Curve | None:
    of = [run for run in runs if run.result.get("probes", {}).get(name)]
    marks = context_marks(of[0].config) if of else []
    if not marks:
        return None
    seen = [summary(np.array(run.result["probes"][name])[:, : len(marks)]) for run in of]
    return over_seeds([(marks, s) for s in seen])


def _points(result: Mapping[str, Any], label: str) -> list[tuple[str, float, float, str]]:
    """(client, training pairs, accuracy in %, entry) of those that have held-out pairs."""
    accuracies = np.array(result["test"]["accuracy"], dtype=np.float64)[:, -1]
    rows = zip(result["clients"], result["sizes"], accuracies.tolist(), strict=True)
    return [(c, float(n), 100 * a, label) for c, n, a in rows if np.isfinite(a)]
