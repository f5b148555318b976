"""The latent space over rounds as S1 shows it (5.3, Fig. 3), and its numbers, which S1 does not give, as a figure and a
table: from the posteriors that runs recorded, see `raypref.evaluation.latent`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raypref.evaluation import mix
from raypref.evaluation.figures import _band
from raypref.evaluation.latent import NUMBERS, Latent, kl_by_dimension, numbers
from raypref.evaluation.papers import NAMES, SWEEP, Found, Item, Missing, Row, Seeds, describe, each, lacking
from raypref.evaluation.report import COLOURS, MARKERS, NONE, Fold, Groups, _axes, legend
from raypref.evaluation.tables import Cell, Column, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("fedvpl", "fedvpa_gp")
"""The rows of S1 Fig. 3."""
COMMAND = SWEEP + "ablation"
PANELS, POINTS = 4, 300
"""Most rounds a method, and about the most points of clients' pairs a panel (t-SNE of twice as many takes twice as
long)."""
SEED = 0
STAR: Any = {"marker": "*", "color": "#F0E442", "edgecolors": "black", "linewidths": 0.8, "zorder": 3}
COLUMNS = {
    "silhouette": Column("silhouette", "silhouette", best=1),
    "ari": Column("ARI", "ARI", best=1),
    "kl": Column("KL, nats", "KL, nats"),
    "active_units": Column("active units", "active units", digits=1),
}


def latent_figure(runs: Sequence[tuple[str, Latent]], groups: Groups, path: Path) -> None:
    """`latent_panels` as a PNG."""
    latent_panels(runs, groups).savefig(path, dpi=150)


def latent_panels(runs: Sequence[tuple[str, Latent]], groups: Groups) -> Figure:
    """A row a run, a panel for each of up to four of its recorded rounds from the first to the last: z of all clients'
    pairs (of the clients, where no pairs were recorded) by t-SNE, coloured by true group, prototypes as stars embedded
    with them (S1 Fig. 3). The titles' silhouette and ARI are those of `numbers`, of the clients.

    runs: (title, what was recorded) of the same clients; groups: both lists empty where unknown. Panels have no axes:
    t-SNE keeps neighbours, not distances or directions, and each panel is embedded by itself.
    """
    at = [np.unique(np.linspace(0, len(run.rounds) - 1, PANELS).round().astype(int)) for _, run in runs]
    wide = max(map(len, at))
    size = (0.5 + 2.4 * wide, 0.8 + 2.7 * len(runs))
    figure, axes = _axes(wide * len(runs), wide, size=size, share=False)
    handles: dict[str, Any] = {}
    for row, ((title, run), indices) in enumerate(zip(runs, at, strict=True)):
        line = axes[row * wide : (row + 1) * wide]
        for ax, i in zip(line, indices, strict=False):
            handles |= {str(drawn.get_label()): drawn for drawn in _panel(ax, run, int(i), groups)}
        line[0].set_ylabel(textwrap.fill(title, 36), fontsize=9)
        for ax in line[len(indices) :]:
            ax.remove()
    legend(figure, (), extra=[handles[label] for label in sorted(handles, key=lambda label: label == "prototype")])
    return figure


def _panel(ax: Axes, run: Latent, i: int, groups: Groups) -> list[Any]:
    """The i-th recorded round; returns what was drawn, with labels."""
    C, P, d = run.pair_mu.shape[1:]
    names = groups["names"] or ["clients"]
    of = np.asarray(groups["of"], dtype=np.int64) if groups["names"] else np.zeros(C, dtype=np.int64)
    each_of = min(P, max(1, POINTS // C))
    points = run.pair_mu[i, :, :each_of].reshape(-1, d) if P else run.mu[i]
    of_point = np.repeat(of, each_of) if P else of
    there = np.isfinite(points).all(axis=1)
    points, of_point = points[there], of_point[there]
    stars = run.prototypes[i][np.isfinite(run.prototypes[i]).all(axis=1)]
    xy, how = embed(np.concatenate([points, stars]))
    drawn = []
    for g, name in enumerate(names):
        mine = xy[: len(points)][of_point == g]
        style: Any = {"color": COLOURS[g % len(COLOURS)], "marker": MARKERS[g % len(MARKERS)], "linewidths": 0}
        drawn.append(ax.scatter(mine[:, 0], mine[:, 1], s=12 if P else 30, alpha=0.8, label=name, **style))
    if len(stars):
        drawn.append(ax.scatter(xy[len(points) :, 0], xy[len(points) :, 1], s=170, label="prototype", **STAR))
    told = numbers(run.mu[i], run.log_variance[i], groups["of"])
    silhouette, ari = (f"{told[key]:.2f}" if key in told else NONE for key in ("silhouette", "ari"))
    ax.set_title(f"round {run.rounds[i]}{how}\nsilhouette {silhouette}, ARI {ari}", fontsize=8)
    ax.set(xticks=[], yticks=[])
    ax.margins(0.08)
    ax.spines[["top", "right"]].set_visible(True)
    return drawn


def embed(z: np.ndarray) -> tuple[np.ndarray, str]:
    """z [n, d] in the plane: [n, 2], and how, where not by t-SNE.

    t-SNE (van der Maaten and Hinton 2008) needs at least four points, two dimensions, and not all points in one place;
    otherwise the first two principal components.
    """
    n, d = z.shape
    if n < 4 or d < 2 or len(np.unique(z, axis=0)) < 2:
        centred = z - z.mean(axis=0) if n else z
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        flat = centred @ axes[:2].T
        return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1]))), ", principal components"
    from sklearn.manifold import TSNE

    return TSNE(init="pca", perplexity=min(30.0, (n - 1) / 3), random_state=SEED).fit_transform(z), ""


def over_rounds(run: Latent, of: Sequence[int]) -> dict[str, np.ndarray]:
    """`numbers` in every recorded round: key -> [T], nan where it has none."""
    told = [numbers(mu, log_variance, of) for mu, log_variance in zip(run.mu, run.log_variance, strict=True)]
    return {key: np.array([line.get(key, np.nan) for line in told]) for key in NUMBERS}


def numbers_figure(methods: Mapping[str, Sequence[tuple[Latent, Sequence[int]]]]) -> Figure:
    """A panel each for silhouette, ARI, KL and active units over rounds, and for the KL of the single dimensions in the
    last round, largest first; a line a method, with a band from the lowest seed to the highest.

    methods: name -> [seeds] of what a run recorded, and its clients' groups; seeds that recorded other rounds are read
    where all of a method did.
    """
    figure, axes = _axes(len(NUMBERS) + 1, 3, share=False)
    for i, (name, seeds) in enumerate(methods.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "ms": 3, "lw": 1.5}
        rounds = sorted(set.intersection(*(set(run.rounds.tolist()) for run, _ in seeds)))
        told = [over_rounds(run, of) for run, of in seeds]
        kept = [np.isin(run.rounds, rounds) for run, _ in seeds]
        for ax, key in zip(axes, NUMBERS, strict=False):
            _band(ax, rounds, [t[key][k].tolist() for t, k in zip(told, kept, strict=True)], name, style, scale=1)
        last = [np.sort(kl_by_dimension(run.mu[-1], run.log_variance[-1]))[::-1] for run, _ in seeds]
        _band(axes[-1], range(1, len(last[0]) + 1), [kl.tolist() for kl in last], name, style, scale=1)
    titles = {"silhouette": "silhouette by true group", "ari": "ARI of k-means", "kl": "KL to N(0, I), nats"}
    for ax, key in zip(axes, NUMBERS, strict=False):
        ax.set_title(titles.get(key, "active units"), fontsize=9)
        ax.set_xlabel("round")
        if key in ("silhouette", "ari"):
            ax.axhline(0, color="0.6", lw=0.8, ls=":")
        else:
            ax.set_ylim(bottom=0)
    axes[-1].set_title("KL by dimension, last round, nats", fontsize=9)
    axes[-1].set_xlabel("dimension, largest first")
    axes[-1].set_ylim(bottom=0)
    for ax in axes:
        ax.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, axes[:1])
    return figure


def numbers_table(runs: Sequence[Found], fold: Fold) -> Item:
    """The numbers in the last recorded round by method; a block a setting."""
    rows = _rows(runs)
    if not rows:
        return Item("latent", None, missing=_none(runs))
    used = each(seeds for row in rows for seeds in row.runs.values())
    told = {run.id: _last(run) for run in used}
    places = list(dict.fromkeys(place for row in rows for place in row.runs))
    columns = [(place, key, replace(how, block=place)) for place in places for key, how in COLUMNS.items()]

    def cell(row: Row, place: str, key: str) -> Cell | None:
        values = [told[run.id][key] for run in row.runs.get(place, {}).values() if key in told[run.id]]
        return Cell(tuple(values)) if values else None

    cells = [[cell(row, place, key) for place, key, _ in columns] for row in rows]
    kept = [c for c in range(len(columns)) if any(line[c] is not None for line in cells)]
    n = [Cell(tuple(float(len(seeds)) for seeds in row.runs.values())) for row in rows]
    note = (
        "Of every client's posterior given all its training pairs, in the last recorded round (± std over the n "
        "seeds). Silhouette: of z by true group. ARI: of k-means of z against the groups. KL: to N(0, I), all "
        "dimensions, mean over clients. Active units: dimensions whose mean varies over clients by more than 0.01. A "
        "collapsed latent space has no active units."
    )
    content = Table(
        "latent",
        "The latent space of variational selectors",
        "method",
        columns=(*(columns[c][2] for c in kept), Column("n", "$n$", digits=0, span=True)),
        rows=tuple(row.label for row in rows),
        cells=tuple((*(line[c] for c in kept), of) for line, of in zip(cells, n, strict=True)),
        notes=(note, *(f"{place}: {_described(each(row.runs.get(place, {}) for row in rows))}" for place in places)),
    )
    return Item("latent", content, runs=tuple(used))


def figure_latent(runs: Sequence[Found], fold: Fold) -> Item:
    """S1 Fig. 3: FedVPL above FedVPA-GP (of several forms or options each), or whichever methods there are, where
    neither is; of the lowest seed that all of them have."""
    place, held = _fullest(_rows(runs))
    if not held:
        return Item("figure-latent", None, missing=_none(runs))
    of_paper = {a: {name: s for name, s in held.items() if _algorithm(s) == a} for a in SHOWN}
    labels = [(NAMES[a], next(iter(rows.values()), {})) for a, rows in of_paper.items()]
    missing = lacking(labels, place.lower(), COMMAND) if any(of_paper.values()) else []
    wanted = {name: seeds for rows in of_paper.values() for name, seeds in rows.items()} or held
    common = set.intersection(*(set(seeds) for seeds in wanted.values()))
    shown = {name: seeds[min(common or seeds)] for name, seeds in wanted.items()}
    panels = [(name if common else f"{name}, seed {run.seed}", _latent(run)) for name, run in shown.items()]
    groups = next(iter(shown.values())).result["groups"]
    caption = (
        "The latent space over rounds (as Figure 3 of FedVPA-GP): t-SNE of the posterior means, each panel by itself, "
        f"coloured by true group; stars: prototypes. {place}: {_described(list(shown.values()))}"
    )
    return Item("figure-latent", latent_panels(panels, groups), caption, tuple(shown.values()), tuple(missing))


def figure_numbers(runs: Sequence[Found], fold: Fold) -> Item:
    """The numbers over rounds, all seeds."""
    place, held = _fullest(_rows(runs))
    if not held:
        return Item("figure-latent-numbers", None, missing=_none(runs))
    lines = {name: [(_latent(r), r.result["groups"]["of"]) for r in seeds.values()] for name, seeds in held.items()}
    used = each(held.values())
    caption = f"The latent space in numbers over rounds; bands: lowest to highest seed. {place}: {_described(used)}"
    return Item("figure-latent-numbers", numbers_figure(lines), caption, tuple(used))


def _rows(runs: Iterable[Found]) -> list[Row]:
    """Of the runs that recorded posteriors."""
    return mix.rows_of(mix.family(run for run in runs if run.latent is not None))


def _fullest(rows: Sequence[Row]) -> tuple[str, dict[str, Seeds]]:
    """The setting that most rows have, balanced (S1's) where several have as many, and these rows."""
    held = {place: {row.label: row.runs[place] for row in rows if place in row.runs} for place in mix.PLACES.values()}
    place = max(held, key=lambda p: len(held[p]))
    return place, held[place]


def _none(runs: Sequence[Found]) -> tuple[Missing, ...]:
    if any(run.config["objective"] == "variational" for run in runs):
        return (Missing("posteriors: the runs recorded none", "the same with --variational.every 10"),)
    return (Missing("variational runs", COMMAND),)


def _algorithm(seeds: Seeds) -> str:
    return str(next(iter(seeds.values())).config["algorithm"])


def _latent(run: Found) -> Latent:
    assert run.latent is not None
    return run.latent


def _last(run: Found) -> dict[str, float]:
    latent = _latent(run)
    return numbers(latent.mu[-1], latent.log_variance[-1], run.result["groups"]["of"])


def _described(runs: Sequence[Found]) -> str:
    rounds = sorted({int(_latent(run).rounds[-1]) for run in runs})
    return f"recorded up to round {', '.join(map(str, rounds))}; {describe(runs)}"


TABLES = {"latent": numbers_table}
FIGURES = {"latent": figure_latent, "latent-numbers": figure_numbers}
