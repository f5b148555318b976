"""S2's figures from finished runs. Each function returns a matplotlib figure; which runs, and where to, others decide.

`seeds` arguments are the runs of one method, one a seed. Bands go from the lowest seed to the highest; bars are mean ±
standard deviation over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raypref.evaluation.curve import summary
from raypref.evaluation.report import COLOURS, MARKERS, Fold, _axes, group_cells, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = Mapping[str, Any]
"""A result, see `raypref.evaluation.report.Result`."""
BLACK = {"color": "black", "lw": 2.5}


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
    figure, axes = _axes(len(methods), min(len(methods), 4))
    for ax, (name, seeds) in zip(axes, methods.items(), strict=True):
        marks = seeds[0]["marks"]
        told = [summary(np.array(r[fold]["accuracy"]), r["groups"]["of"], r["groups"]["names"]) for r in seeds]
        groups = seeds[0]["groups"]
        for g, group in enumerate(groups["names"]):
            size = groups["of"].count(g)
            style = {"color": COLOURS[g % len(COLOURS)], "marker": MARKERS[g % len(MARKERS)], "lw": 1, "ms": 3}
            _band(ax, marks, [s["groups"][group] for s in told if group in s["groups"]], f"{group} ({size})", style)
        _band(ax, marks, [s["mean"] for s in told], "all clients", BLACK)
        ax.axhline(50, color="0.6", lw=0.8, ls=":")
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("local steps t")
        ax.tick_params(labelbottom=True)
    axes[0].set_ylabel(f"pair accuracy on {fold} pairs, %")
    legend(figure, axes)
    return figure


def layers(methods: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """GQ(l) over the layers, a line a method; `methods`: name -> [seeds][L] (beside S2 Tables 1, 2, 5)."""
    figure, (ax,) = _axes(1, 1, size=(5.0, 3.4))
    for i, (name, seeds) in enumerate(methods.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "ms": 4}
        _band(ax, range(1, len(seeds[0]) + 1), seeds, name, style, scale=1)
    ax.set(xlabel="layer l", ylabel="GQ(l)", yscale="log")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def clusters(panels: Mapping[str, Run]) -> Figure:
    """A panel a run: clients by true group, coloured by the expert that they end with (S2 Fig. 4)."""
    figure, axes = _axes(len(panels), len(panels))
    handles = {}
    for ax, (title, run) in zip(axes, panels.items(), strict=True):
        of, experts = np.asarray(run["groups"]["of"]), np.asarray(run["assignment"])
        names = run["groups"]["names"] or ["clients"]
        of = of if run["groups"]["names"] else np.zeros(len(experts), dtype=np.int64)
        place = np.array([int(np.sum(of[:c] == of[c])) for c in range(len(of))])
        lines = 1 + int(place.max()) // 5  # five clients a line
        x, y = place % 5, of + 0.8 * (place // 5) / lines
        for k in np.unique(experts):
            style = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
            handles[int(k)] = ax.scatter(x[experts == k], y[experts == k], s=40, label=f"expert {k + 1}", **style)
        middle = [float(y[of == g].min() + y[of == g].max()) / 2 if g in of else g for g in range(len(names))]
        ax.set_yticks(middle, [name.split()[0] for name in names])
        ax.set(title=title, xticks=[], ylim=(len(names) - 0.2, -0.4), xlim=(-0.6, 4.6))
        ax.grid(False)
    axes[0].set_ylabel("clients by true group")
    legend(figure, (), extra=[handles[k] for k in sorted(handles)])
    return figure


def sensitivity(rows: Mapping[str, Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]], at: int) -> Figure:
    """acc^0 (left) and acc^at (right) over τ, a row a learning rate, a line a method (S2 Fig. 5).

    rows: learning rate -> method -> τ -> [seeds] of (acc^0, acc^at), shares.
    """
    figure, axes = _axes(2 * len(rows), 2, size=(6.6, 0.4 + 2.6 * len(rows)))
    for r, (rate, methods) in enumerate(rows.items()):
        for c, t in enumerate((0, at)):
            ax = axes[2 * r + c]
            for i, (name, curve) in enumerate(methods.items()):
                style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "ms": 4}
                taus = sorted(curve)
                values = [[seed[c] for seed in curve[tau]] for tau in taus]
                mean = [100 * float(np.mean(v)) for v in values]
                std = [100 * float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
                ax.errorbar(taus, mean, std, label=name, capsize=2, **style)
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
    figure, axes = _axes(len(panels), len(panels), size=(0.8 + 4.2 * len(panels), 4.4), share=False)
    told = {title: phase1(held, last) for title, held in panels.items()}
    K = max(int(experts.max()) + 1 for _, experts in told.values())
    handles: dict[str, Any] = {}
    for ax, (title, held) in zip(axes, panels.items(), strict=True):
        rounds, experts = told[title]
        handles |= {str(patch.get_label()): patch for patch in group_cells(ax, rounds, experts, held["true"], K)}
        if held["true"]["names"]:
            ax.set_yticks(ax.get_yticks(), [name.split()[0] for name in held["true"]["names"]])
        when = settled(rounds, experts.tolist())
        assert when is not None  # a run has a first assignment
        ax.axvline(when - 0.5, color="black", lw=1.6, ls="--")  # where that round's cells begin
        ax.set_title(f"{title}: settled in round {when}", fontsize=10)
        if ax is not axes[0]:
            ax.set_ylabel("")
    legend(figure, (), extra=[handles[label] for label in sorted(handles)])
    return figure


def phase1(held: Mapping[str, Any], last: int) -> tuple[list[int], np.ndarray]:
    """(rounds up to `last`, experts [N, C] there) of a run's `groups.json`."""
    rounds = [r for r in held["rounds"] if r <= last]
    return rounds, np.asarray(held["assignment"][: len(rounds)], dtype=np.int64)


def _band(
    ax: Axes, x: Sequence[int], seeds: Sequence[Sequence[float]], label: str, style: Mapping[str, Any], scale: int = 100
) -> None:
    """Mean over seeds as a line, with a band from the lowest seed to the highest where there are several."""
    values = scale * np.asarray(seeds, dtype=np.float64)
    mean = values.mean(axis=0)
    ax.plot(x, mean, label=label, **style)
    if len(values) > 1:
        ax.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0)
