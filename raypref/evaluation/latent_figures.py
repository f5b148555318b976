"""The latent space over rounds as S1 shows it (5.3, Fig. 3), and its numbers: figures of the posteriors that runs
recorded, see `raypref.evaluation.latent`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raypref.evaluation.curve import Groups
from raypref.evaluation.figures import band, grid, legend, look
from raypref.evaluation.latent import NUMBERS, Latent, kl_by_dimension, numbers
from raypref.evaluation.tables import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS, POINTS = 4, 300
"""Most rounds a method, and about the most points of clients' pairs a panel (t-SNE of twice as many takes twice as
long)."""
SEED = 0
STAR: Any = {"marker": "*", "color": "#F0E442", "edgecolors": "black", "linewidths": 0.8, "zorder": 3}


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
    figure, axes = grid(wide * len(runs), wide, size=size, share=False)
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
        style = look(g, linewidths=0, alpha=0.8)
        drawn.append(ax.scatter(mine[:, 0], mine[:, 1], s=12 if P else 30, label=name, **style))
    if len(stars):
        drawn.append(ax.scatter(xy[len(points) :, 0], xy[len(points) :, 1], s=170, label="prototype", **STAR))
    values = numbers(run.mu[i], run.log_variance[i], groups["of"])
    silhouette, ari = (f"{values[key]:.2f}" if key in values else NONE for key in ("silhouette", "ari"))
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
    values = [numbers(mu, log_variance, of) for mu, log_variance in zip(run.mu, run.log_variance, strict=True)]
    return {key: np.array([line.get(key, np.nan) for line in values]) for key in NUMBERS}


def numbers_figure(methods: Mapping[str, Sequence[tuple[Latent, Sequence[int]]]]) -> Figure:
    """A panel each for silhouette, ARI, KL and active units over rounds, and for the KL of the single dimensions in the
    last round, largest first; a line a method, with a band from the lowest seed to the highest.

    methods: name -> [seeds] of what a run recorded, and its clients' groups; seeds that recorded other rounds are read
    where all of a method did.
    """
    figure, axes = grid(len(NUMBERS) + 1, 3, share=False)
    for i, (name, seeds) in enumerate(methods.items()):
        style = look(i, ms=3, lw=1.5)
        rounds = sorted(set.intersection(*(set(run.rounds.tolist()) for run, _ in seeds)))
        values = [over_rounds(run, of) for run, of in seeds]
        kept = [np.isin(run.rounds, rounds) for run, _ in seeds]
        for ax, key in zip(axes, NUMBERS, strict=False):
            band(ax, rounds, [t[key][k].tolist() for t, k in zip(values, kept, strict=True)], name, style, scale=1)
        last = [np.sort(kl_by_dimension(run.mu[-1], run.log_variance[-1]))[::-1] for run, _ in seeds]
        band(axes[-1], range(1, len(last[0]) + 1), [kl.tolist() for kl in last], name, style, scale=1)
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
