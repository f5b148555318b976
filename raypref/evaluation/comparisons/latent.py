"""The latent space over rounds as S1 shows it (5.3, Fig. 3), and its numbers, which S1 does not give: which runs are
shown, of those that recorded their clients' posteriors (`raypref.evaluation.latent`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, figure, table
from raypref.evaluation.latent import Latent, numbers
from raypref.evaluation.latent_figures import latent_panels, numbers_figure
from raypref.evaluation.rows import Measure, Reading, Row, at_one_place, by_method, drawn, lacking, shown
from raypref.evaluation.runs import FinishedRun, Seeds, describe, each, has_latent, of_methods, title
from raypref.evaluation.tables import Column

SHOWN = ("fedvpl", "fedvpa_gp")
"""The rows of S1 Fig. 3."""
COMMAND = SWEEP + "ablation"
COLUMNS: dict[str, dict[str, Any]] = {
    "silhouette": {"head": "silhouette", "best": 1},
    "ari": {"head": "ARI", "best": 1},
    "kl": {"head": "KL, nats"},
    "active_units": {"head": "active units", "digits": 1},
}
NOTE = (
    "Of every client's posterior given all its training pairs, in the last recorded round (± std over the n seeds). "
    "Silhouette: of z by true group. ARI: of k-means of z against the groups. KL: to N(0, I), all dimensions, mean "
    "over clients. Active units: dimensions whose mean varies over clients by more than 0.01. A collapsed latent space "
    "has no active units."
)


@table("latent")
def numbers_table(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """The latent space in numbers: silhouette, ARI, KL and active units in the last recorded round"""
    rows = _rows(runs)
    last = {run.id: _last(run) for run in shown(rows)}

    def column(place: str, key: str) -> Measure:
        def read(run: FinishedRun) -> Reading | None:
            return Reading(last[run.id][key]) if key in last[run.id] else None

        return Measure(place, Column(block=place, **COLUMNS[key]), read)

    there = list(dict.fromkeys(place for row in rows for place in row.runs))
    notes = [NOTE, *(f"{place}: {_described(each(row.runs.get(place, {}) for row in rows))}" for place in there)]
    measures = [column(place, key) for place in there for key in COLUMNS]
    words = "The latent space of variational selectors"
    return drawn(rows, measures, title=words, notes=notes, missing=[] if rows else _none(runs))


@figure("figure-latent")
def figure_latent(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """S1 Fig. 3: the latent space over rounds by t-SNE

    FedVPL above FedVPA-GP (of several forms or options each), or whichever methods there are, where neither is; of the
    lowest seed that all of them have."""
    place, rows = at_one_place(_rows(runs))
    if not rows:
        return Item(missing=_none(runs))
    of_paper = {a: [row for row in rows if _algorithm(row) == a] for a in SHOWN}
    labels: list[tuple[str, Seeds]] = [(title(a), of[0].runs[place] if of else {}) for a, of in of_paper.items()]
    missing = lacking(labels, place.lower(), COMMAND) if any(of_paper.values()) else []
    rows = [row for of in of_paper.values() for row in of] or rows
    common = set.intersection(*(set(row.runs[place]) for row in rows))
    first = {row.label: row.runs[place][min(common or row.runs[place])] for row in rows}
    panels = [(label if common else f"{label}, seed {run.seed}", _latent(run)) for label, run in first.items()]
    groups = next(iter(first.values())).result["groups"]
    caption = (
        "The latent space over rounds (as Figure 3 of FedVPA-GP): t-SNE of the posterior means, each panel by itself, "
        f"coloured by true group; stars: prototypes. {place}: {_described(list(first.values()))}"
    )
    return Item(latent_panels(panels, groups), caption, tuple(first.values()), missing)


@figure("figure-latent-numbers")
def figure_numbers(runs: Sequence[FinishedRun], fold: Fold) -> Item:
    """The latent space in numbers over rounds, all seeds"""
    place, rows = at_one_place(_rows(runs))
    if not rows:
        return Item(missing=_none(runs))
    lines = {
        row.label: [(_latent(run), run.result["groups"]["of"]) for run in row.runs[place].values()] for row in rows
    }
    used = shown(rows)
    caption = f"The latent space in numbers over rounds; bands: lowest to highest seed. {place}: {_described(used)}"
    return Item(numbers_figure(lines), caption, used)


def _rows(runs: Sequence[FinishedRun]) -> list[Row]:
    """Of the runs that recorded posteriors."""
    return by_method(of_methods(run for run in runs if run.latent is not None))


def _none(runs: Sequence[FinishedRun]) -> list[Missing]:
    if any(has_latent(run.config) for run in runs):
        return [Missing("posteriors: the runs recorded none", "the same with --variational.every 10")]
    return [Missing("variational runs", COMMAND)]


def _algorithm(row: Row) -> str:
    return str(shown([row])[0].config["algorithm"])


def _latent(run: FinishedRun) -> Latent:
    assert run.latent is not None
    return run.latent


def _last(run: FinishedRun) -> dict[str, float]:
    latent = _latent(run)
    return numbers(latent.mu[-1], latent.log_variance[-1], run.result["groups"]["of"])


def _described(runs: Sequence[FinishedRun]) -> str:
    rounds = sorted({int(_latent(run).rounds[-1]) for run in runs})
    return f"recorded up to round {', '.join(map(str, rounds))}; {describe(runs)}"
