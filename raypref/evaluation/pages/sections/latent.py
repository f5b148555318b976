"""The latent map: where each client's z lies, round by round, and the numbers of the space."""

from __future__ import annotations

import numpy as np

from raypref.evaluation.latent import NUMBERS
from raypref.evaluation.latent_figures import embed, over_rounds
from raypref.evaluation.pages import charts
from raypref.evaluation.pages.page import Figure, Material, Section
from raypref.evaluation.pages.sections.common import texts
from raypref.evaluation.runs import ALL, FinishedRun
from raypref.evaluation.tables import NONE

MOST, ROUNDS = 3, 4
"""Entries that are drawn, and rounds of each, from the first to the last."""
STAR = "prototype"
TITLES = {
    "silhouette": "silhouette",
    "ari": "ARI of k-means",
    "kl": "KL to N(0, I), nats",
    "active_units": "active units",
}


def section(material: Material) -> Section | None:
    """A map an entry that recorded its clients' posteriors."""
    figures = [_map(entry.label, entry.first) for entry in material.shown if entry.first.latent is not None]
    if not figures:
        return None
    lead = (
        "Each client's place in the space that its choices are summed up in, as the plane holds it best: neighbours "
        "mean something, distances and directions do not, and each round is laid out by itself."
    )
    return Section("latent", "Latent map", lead, figures[:MOST])


def _map(label: str, run: FinishedRun) -> Figure:
    latent, groups, ids = run.latent, run.result["groups"], run.result["clients"]
    assert latent is not None
    names = groups["names"] or [ALL]
    of = [names[g] for g in groups["of"]] if groups["names"] else [ALL] * len(ids)
    at = np.unique(np.linspace(0, len(latent.rounds) - 1, ROUNDS).round().astype(int))
    panels = {}
    for i in at:
        there = np.isfinite(latent.mu[i]).all(axis=1)
        stars = latent.prototypes[i][np.isfinite(latent.prototypes[i]).all(axis=1)]
        plane, _ = embed(np.concatenate([latent.mu[i][there], stars]))
        who = [(of[c], ids[c]) for c in np.flatnonzero(there)] + [(STAR, f"{STAR} {s + 1}") for s in range(len(stars))]
        panels[int(latent.rounds[i])] = [(float(x), float(y), *one) for (x, y), one in zip(plane, who, strict=True)]
    values = over_rounds(latent, groups["of"])
    rows = [
        (str(r), [NONE if np.isnan(values[key][i]) else f"{values[key][i]:.3g}" for key in NUMBERS])
        for i, r in enumerate(latent.rounds)
    ]
    words = f"Silhouette by true group in the last round: {rows[-1][1][0]} (1: groups far apart, 0: entangled)."
    return Figure(
        f"{label}: clients in the latent space",
        f"A point a client, by true group; crosses are prototypes. {words}",
        charts.plane(panels, names, STAR, says=f"{label}: the clients' z in the plane. {words}"),
        texts("round", [TITLES[key] for key in NUMBERS], rows),
    )
