"""Which group each client was put to, round by round."""

from __future__ import annotations

import numpy as np

from raypref.evaluation.figures import settled
from raypref.evaluation.pages import charts
from raypref.evaluation.pages.page import Figure, Material, Section
from raypref.evaluation.pages.sections.common import texts
from raypref.evaluation.runs import ALL

MOST = 4
"""Entries that are drawn."""


def section(material: Material) -> Section | None:
    """A figure an entry whose method groups clients."""
    figures = []
    for entry in [entry for entry in material.shown if entry.first.groups][:MOST]:
        run = entry.first
        assert run.groups is not None
        rounds, true, ids = list(run.groups["rounds"]), run.groups["true"], run.groups["clients"]
        experts = np.asarray(run.groups["assignment"], dtype=np.int64)
        of = np.array(true["of"]) if true["names"] else np.zeros(len(ids), dtype=np.int64)
        names = true["names"] or [ALL]
        order = np.argsort(of, kind="stable")
        rows = [(ids[c], names[of[c]], experts[:, c].tolist()) for c in order]
        kinds = {int(k): f"group {k + 1}" if k >= 0 else "none yet" for k in np.unique(experts)}
        ari = run.result.get("ari")
        words = f"No client moves after round {settled(rounds, experts.tolist())}."
        if ari is not None:
            words += f" Adjusted Rand index against the true groups: {ari:.2f} (1: the same, 0: as by chance)."
        ends = [(c, (g, kinds[puts[0]], kinds[puts[-1]])) for c, g, puts in rows]
        figures.append(
            Figure(
                f"{entry.label}: groups over rounds",
                f"A line a client{', by true group' if true['names'] else ''}. {words}",
                charts.cells(
                    rounds, rows, says=f"{entry.label}: the group of each client over rounds. {words}", names=kinds
                ),
                texts("client", ("true group", "put to at first", "put to at the end"), ends),
            )
        )
    if not figures:
        return None
    lead = "Whether people of one taste are put together, without anybody naming the tastes."
    return Section("groups", "Groups over rounds", lead, figures)
