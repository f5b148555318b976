"""The papers' figures from finished runs, and what all figures are made of: panels, legends, colours. Each function
returns a matplotlib figure; which runs, and where to, others decide.

`seeds` arguments are the runs of one method, one a seed. Bands go from the lowest seed to the highest; bars are mean ±
standard deviation over seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raypref.evaluation.calibration import BINS, Reliability
from raypref.evaluation.curve import Fold, Groups, summary
from raypref.evaluation.tables import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

Run = Mapping[str, Any]
"""A result, see `raypref.evaluation.report.Result`."""
# Okabe and Ito's palette (2008), told apart with any colour vision; black and its pale yellow are left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
MARKERS = "os^Dv<>"

BLACK = {"color": "black", "lw": 2.5}


def look(i: int, **more: Any) -> dict[str, Any]:
    """Colour and marker of the i-th line or kind of point."""
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], **more}


def settled(rounds: Sequence[int], assignments: Sequence[Sequence[int]]) -> int | None:
    """The last of `rounds` in which any client moved (S2 C.3); the first round where none ever did; None without any.

    rounds: [N] rising; assignments: [N][C] experts. Experts that are only renumbered, as when an empty one is
    discarded, move nobody.
    """
    parts = [_partition(a) for a in assignments]
    moved = [r for r, before, after in zip(rounds[1:], parts, parts[1:], strict=False) if before != after]
    return moved[-1] if moved else (rounds[0] if len(rounds) else None)


def _partition(labels: Sequence[int]) -> list[int]:
    """Labels by first appearance: two assignments agree where they group the same clients."""
    names: dict[int, int] = {}
    return [names.setdefault(label, len(names)) for label in labels]


def group_curves(methods: Mapping[str, Sequence[Run]], fold: Fold) -> Figure:
    """A panel a method: accuracy over local steps, each true group thin, their clients' mean thick (S2 Figs. 2, 3)."""
    figure, axes = grid(len(methods), min(len(methods), 4))
    for ax, (name, seeds) in zip(axes, methods.items(), strict=True):
        marks = seeds[0]["marks"]
        statistics = [summary(np.array(r[fold]["accuracy"]), r["groups"]["of"], r["groups"]["names"]) for r in seeds]
        groups = seeds[0]["groups"]
        for g, group in enumerate(groups["names"]):
            size = groups["of"].count(g)
            values = [s["groups"][group] for s in statistics if group in s["groups"]]
            band(ax, marks, values, f"{group} ({size})", look(g, lw=1, ms=3))
        band(ax, marks, [s["mean"] for s in statistics], "all clients", BLACK)
        ax.axhline(50, color="0.6", lw=0.8, ls=":")
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("local steps t")
        ax.tick_params(labelbottom=True)
    axes[0].set_ylabel(f"pair accuracy on {fold} pairs, %")
    legend(figure, axes)
    return figure


def layers(methods: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """GQ(l) over the layers, a line a method; `methods`: name -> [seeds][L] (beside S2 Tables 1, 2, 5)."""
    figure, (ax,) = grid(1, 1, size=(5.0, 3.4))
    for i, (name, seeds) in enumerate(methods.items()):
        band(ax, range(1, len(seeds[0]) + 1), seeds, name, look(i, ms=4), scale=1)
    ax.set(xlabel="layer l", ylabel="GQ(l)", yscale="log")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def clusters(panels: Mapping[str, Run]) -> Figure:
    """A panel a run: clients by true group, coloured by the expert that they end with (S2 Fig. 4)."""
    figure, axes = grid(len(panels), len(panels))
    handles = {}
    for ax, (title, run) in zip(axes, panels.items(), strict=True):
        of, experts = np.asarray(run["groups"]["of"]), np.asarray(run["assignment"])
        names = run["groups"]["names"] or ["clients"]
        of = of if run["groups"]["names"] else np.zeros(len(experts), dtype=np.int64)
        place = np.array([int(np.sum(of[:c] == of[c])) for c in range(len(of))])
        lines = 1 + int(place.max()) // 5  # five clients a line
        x, y = place % 5, of + 0.8 * (place // 5) / lines
        for k in np.unique(experts):
            handles[int(k)] = ax.scatter(x[experts == k], y[experts == k], s=40, label=f"expert {k + 1}", **look(k))
        middle = [float(y[of == g].min() + y[of == g].max()) / 2 if g in of else g for g in range(len(names))]
        ax.set_yticks(middle, [name.split()[0] for name in names])
        ax.set(title=title, xticks=[], ylim=(len(names) - 0.2, -0.4), xlim=(-0.6, 4.6))
        ax.grid(False)
    axes[0].set_ylabel("clients by true group")
    legend(figure, (), extra=[handles[k] for k in sorted(handles)])
    return figure


def reliabilities(methods: Mapping[str, Mapping[str, Reliability]]) -> Figure:
    """A panel a method, a line a mark: how often pairs are right by how sure the selector is, with two standard errors
    that a calibrated one would have there; areas: the share of pairs in each bin; the diagonal is what calibration
    promises (Guo et al. 2017, Fig. 1). methods: name -> mark -> pairs."""
    figure, axes = grid(len(methods), min(len(methods), 4))
    width = 0.5 / BINS
    for ax, (name, marks) in zip(axes, methods.items(), strict=True):
        ax.plot([0.5, 1], [0.5, 1], color="0.6", lw=0.8, ls=":", label="as often right as sure")
        for i, (mark, bins) in enumerate(marks.items()):
            style = look(i, ms=4)
            share = bins.pairs / bins.pairs.sum()
            ax.stairs(share, 0.5 + width * np.arange(BINS + 1), fill=True, color=style["color"], alpha=0.2)
            there = bins.pairs > 0
            sure, right, pairs = bins.confidence[there], bins.right[there], bins.pairs[there]
            ax.plot(sure, right, label=mark, **style)
            ax.errorbar(sure, right, 2 * np.sqrt(sure * (1 - sure) / pairs), fmt="none", lw=0.8, ecolor=style["color"])
        ax.set(xlim=(0.49, 1), ylim=(0, 1.02), xlabel="confidence")
        errors = " → ".join(f"{100 * bins.ece:.1f}" for bins in marks.values())
        ax.set_title(f"{name}\nECE {errors} %", fontsize=9)
        ax.tick_params(labelbottom=True)
    axes[0].set_ylabel("share of pairs that are right\n(areas: share of all pairs)")
    legend(figure, axes)
    return figure


def sensitivity(rows: Mapping[str, Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]], at: int) -> Figure:
    """acc^0 (left) and acc^at (right) over τ, a row a learning rate, a line a method (S2 Fig. 5).

    rows: learning rate -> method -> τ -> [seeds] of (acc^0, acc^at), shares.
    """
    figure, axes = grid(2 * len(rows), 2, size=(6.6, 0.4 + 2.6 * len(rows)))
    for r, (rate, methods) in enumerate(rows.items()):
        for c, t in enumerate((0, at)):
            ax = axes[2 * r + c]
            for i, (name, curve) in enumerate(methods.items()):
                taus = sorted(curve)
                values = [[seed[c] for seed in curve[tau]] for tau in taus]
                mean = [100 * float(np.mean(v)) for v in values]
                std = [100 * float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
                ax.errorbar(taus, mean, std, label=name, capsize=2, **look(i, ms=4))
            ax.set_title(f"acc^{t}, learning rate {rate}", fontsize=9)
            ax.axhline(50, color="0.6", lw=0.8, ls=":")
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("local steps before aggregation τ")
        axes[2 * r].set_ylabel("pair accuracy, %")
    axes[0].legend(fontsize=8, frameon=False)
    return figure


def evolution(panels: Mapping[str, Mapping[str, Any]], last: int) -> Figure:
    """A panel a setting: the expert of every client over the rounds of phase 1, clients by true group; a dashed line
    where the round begins in which they settle (S2 Fig. 6).

    panels: title -> what a run's `groups.json` holds; last: phase 1's last round.
    """
    figure, axes = grid(len(panels), len(panels), size=(0.8 + 4.2 * len(panels), 4.4), share=False)
    phases = {title: phase1(groups, last) for title, groups in panels.items()}
    K = max(int(experts.max()) + 1 for _, experts in phases.values())
    handles: dict[str, Any] = {}
    for ax, (title, groups) in zip(axes, panels.items(), strict=True):
        (rounds, experts), true = phases[title], groups["true"]
        handles |= {str(patch.get_label()): patch for patch in group_cells(ax, rounds, experts, true, K)}
        if true["names"]:
            ax.set_yticks(ax.get_yticks(), [name.split()[0] for name in true["names"]])
        when = settled(rounds, experts.tolist())
        assert when is not None  # a run has a first assignment
        ax.axvline(when - 0.5, color="black", lw=1.6, ls="--")  # where that round's cells begin
        ax.set_title(f"{title}: settled in round {when}", fontsize=10)
        if ax is not axes[0]:
            ax.set_ylabel("")
    legend(figure, (), extra=[handles[label] for label in sorted(handles)])
    return figure


def phase1(groups: Mapping[str, Any], last: int) -> tuple[list[int], np.ndarray]:
    """(rounds up to `last`, experts [N, C] there) of a run's `groups.json`."""
    rounds = [r for r in groups["rounds"] if r <= last]
    return rounds, np.asarray(groups["assignment"][: len(rounds)], dtype=np.int64)


def grid(
    count: int, wide: int, size: tuple[float, float] | None = None, share: bool = True
) -> tuple[Figure, list[Any]]:
    """(a figure, its panels), without pyplot, so that no window system and no global state are touched."""
    os.environ["MPLBACKEND"] = "agg"  # figures are files; a notebook's, inherited, may not be installed here
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tall = -(-count // wide)
    figure = Figure(figsize=size or (0.6 + 3.2 * wide, 0.7 + 2.9 * tall), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(tall, wide, sharex=share, sharey=share, squeeze=False).ravel()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    for ax in axes[count:]:
        ax.remove()
    return figure, list(axes[:count])


def legend(figure: Figure, axes: Iterable[Axes], side: Literal["lower", "upper"] = "lower", extra: Any = ()) -> None:
    """One legend of all lines on `axes`, beneath or above the panels: as many columns as the figure is wide enough
    for, and a wider figure where not even one fits. extra: handles that no panel holds."""
    known = {(str(handle.get_label()), ""): handle for handle in extra}
    for ax in axes:
        lines: Any = ax.get_legend_handles_labels()
        for line, label in zip(*lines, strict=True):
            known.setdefault((label, line.get_color()), line)
    handles, labels = list(known.values()), [label for label, _ in known]
    place: Any = f"outside {side} center"
    for columns in range(min(len(known), 6), 0, -1):
        drawn = figure.legend(handles, labels, fontsize=7, loc=place, ncols=columns, frameon=False)
        width = drawn.get_window_extent().width
        if width <= figure.bbox.width:
            return
        if columns > 1:
            drawn.remove()
    figure.set_figwidth(width / figure.dpi)


def group_cells(
    ax: Axes, rounds: Sequence[int], experts: np.ndarray, groups: Groups | None = None, K: int = 0
) -> list[Patch]:
    """`groups_figure`'s cells on one panel, and what its legend holds: experts 1 to K, as the paper counts them.

    The cell of round r is centred on r and ends where the next assignment begins, the last one after its own round.
    K: experts that colours are made for, where other panels have more than these.
    """
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    C, K = experts.shape[1], max(K, int(experts.max()) + 1)
    of = np.asarray(groups["of"]) if groups and groups["names"] else np.zeros(C, dtype=np.int64)
    colours = COLOURS[:K] if len(COLOURS) >= K else colormaps["viridis"].resampled(K)(range(K))
    palette = ["#E8E8E8", *colours]
    ax.pcolormesh(
        np.array([*rounds, rounds[-1] + 1]) - 0.5,
        np.arange(C + 1),
        experts[:, np.argsort(of, kind="stable")].T,
        cmap=ListedColormap(palette),
        norm=BoundaryNorm(np.arange(-1, K + 1) - 0.5, K + 1),
    )
    ax.set(xlabel="round", ylabel="client", xlim=(rounds[0] - 0.5, rounds[-1] + 0.5), ylim=(C, 0))
    ax.locator_params(axis="x", integer=True)
    ax.grid(False)
    if groups and groups["names"]:
        sizes = np.bincount(of, minlength=len(groups["names"]))
        ends = np.cumsum(sizes)
        ax.hlines(ends[:-1], *ax.get_xlim(), color="white", lw=2)
        ax.set_yticks(ends - sizes / 2, [f"{n} ({c})" for n, c in zip(groups["names"], sizes, strict=True)])
        ax.set_ylabel("clients by true group")
    return [Patch(color=palette[k + 1], label=f"expert {k + 1}" if k >= 0 else "none") for k in np.unique(experts)]


def bars(panels: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], wins: bool) -> Figure:
    """A panel a base: a block of bars a group, a bar a method, its height the mean over seeds, with ± std over them.

    panels: title -> group -> method -> a value a seed, shares where `wins`, which are drawn in %.
    """
    figure, axs = grid(len(panels), len(panels), size=(1 + 4.2 * len(panels), 3.6))
    methods = list(dict.fromkeys(name for groups in panels.values() for of in groups.values() for name in of))
    wide, scale, handles = 0.8 / len(methods), 100 if wins else 1, {}
    for ax, (base, groups) in zip(axs, panels.items(), strict=True):
        for i, name in enumerate(methods):
            blocks = [(x, of[name]) for x, of in enumerate(groups.values()) if of.get(name)]
            x = [at + (i - (len(methods) - 1) / 2) * wide for at, _ in blocks]
            mean = [scale * float(np.mean(values)) for _, values in blocks]
            std = [scale * spread(values) if len(values) > 1 else 0.0 for _, values in blocks]
            style: Any = {"color": COLOURS[i % len(COLOURS)], "error_kw": {"capsize": 2, "lw": 1}}
            handles[name] = ax.bar(x, mean, wide, yerr=std if any(std) else None, label=name, **style)
        ax.axhline(50 if wins else 0, color="0.6", lw=0.8, ls=":")
        ax.set_xticks(range(len(groups)), list(groups))
        ax.grid(False, axis="x")
        ax.set_axisbelow(True)
        ax.set_title(base, fontsize=9)
    axs[0].set_ylabel("win rate, %" if wins else "reward score, ours - theirs")
    legend(figure, (), extra=list(handles.values()))
    return figure


def band(
    ax: Axes, x: Sequence[int], seeds: Sequence[Sequence[float]], label: str, style: Mapping[str, Any], scale: int = 100
) -> None:
    """Mean over seeds as a line, with a band from the lowest seed to the highest where there are several."""
    values = scale * np.asarray(seeds, dtype=np.float64)
    mean = values.mean(axis=0)
    ax.plot(x, mean, label=label, **style)
    if len(values) > 1:
        ax.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0)
