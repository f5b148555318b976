"""Tables and figures of finished runs, as S2 shows them (Tables 1 to 3, Figs. 2 to 4 and 6).

Everything here is a pure function of `Result` values; the caller decides which runs, which fold and where to write.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, cast

import numpy as np

from raypref.evaluation.curve import seen_and_unseen, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from rich.table import Table

Fold = Literal["test", "validation"]
NONE = "–"
UNSEEN = "unseen"
"""A row of the clients that the run of the row above never saw."""
# Okabe and Ito's palette (2008), told apart with any colour vision; black and its pale yellow are left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
MARKERS = "os^Dv<>"


class Curves(TypedDict):
    """What personalization measured on one fold, [C][M] each: a row a client, a column a mark; shares are in [0, 1]."""

    accuracy: list[list[float]]
    """Pair accuracy acc^t: the margin averaged over both orders is above 0."""
    order_accuracy: list[list[float]]
    """Accuracy over all 2N orderings."""
    agreement: list[list[float]]
    """Share of pairs on which both orders give the same answer."""
    loss: list[list[float]]
    """Mean cross-entropy of the choice, in nats."""


class Groups(TypedDict):
    """True preference groups; both empty where they are unknown."""

    names: list[str]
    of: list[int]
    """[C] indices into `names`."""


class Result(TypedDict):
    """One finished run: what was measured, and what it took (JSON-able)."""

    algorithm: str
    """Its name in tables and figures."""
    marks: list[int]
    """[M] local steps t at which the curves were read."""
    test: Curves
    validation: Curves
    groups: Groups
    unseen: NotRequired[list[int]]
    """Positions of the clients that took no part in the global phase; they are never among those averaged over."""
    rounds: int
    """Rounds executed, all phases together."""
    client_steps: int
    """Optimizer steps of all clients together, personalization left out."""
    bytes_up: int
    """From clients to server."""
    bytes_down: int
    """From server to clients."""
    weights: str
    """Aggregation weights, such as `by N_c`."""
    ari: float | None
    """Adjusted Rand index of found against true groups; None without either."""


class _Column(TypedDict):
    header: str
    cells: list[str]
    ranks: list[float | None]
    """What the best is judged by (highest wins); None: not in the running, as acc^0 never is (S2 Table 3)."""
    wide: bool
    """Only in the full table; the terminal's leaves it out."""


def columns(results: Sequence[Result], marks: Sequence[int], at: int, fold: Fold) -> list[_Column]:
    """The table by columns, without those that nobody fills: a row a run, and beneath it one of its unseen clients,
    where it has any. Arguments as in `markdown`."""
    results, apart = _rows(results)
    stats = [_statistics(r, fold) for r in results]
    names = list(dict.fromkeys(name for r in results for name in r["groups"]["names"]))

    def measured(header: str, value: Callable[[int, int], float | None], t: int, wide: bool = False) -> _Column:
        """A column of percentages; `value(run, position of mark t)`."""
        held = [value(i, r["marks"].index(t)) if t in r["marks"] else None for i, r in enumerate(results)]
        cells = [NONE if v is None else f"{100 * v:.1f}" for v in held]
        ranks = [None if alone or not t else v for v, alone in zip(held, apart, strict=True)]
        return _Column(header=header, cells=cells, ranks=ranks, wide=wide)

    def given(header: str, value: Callable[[Result], str], wide: bool = True) -> _Column:
        cells = [NONE if alone else value(r) for r, alone in zip(results, apart, strict=True)]
        return _Column(header=header, cells=cells, ranks=[None] * len(results), wide=wide)

    def mean(curve: Literal["order_accuracy", "agreement"]) -> Callable[[int, int], float]:
        return lambda i, m: float(np.nanmean(np.array(results[i][fold][curve])[:, m]))

    labels = [UNSEEN if alone else r["algorithm"] for r, alone in zip(results, apart, strict=True)]
    table = [_Column(header="algorithm", cells=labels, ranks=[None] * len(results), wide=False)]
    for t in marks:
        column = measured(f"acc^{t}", lambda i, m: stats[i]["mean"][m], t)
        column["cells"] = [
            cell if cell == NONE else f"{cell} ± {100 * s['std'][r['marks'].index(t)]:.1f}"
            for cell, r, s in zip(column["cells"], results, stats, strict=True)
        ]
        table.append(column)
    for name in names:

        def of_group(i: int, m: int, name: str = name) -> float | None:
            return stats[i]["groups"][name][m] if name in stats[i]["groups"] else None

        table.append(measured(name, of_group, at))
    return [
        column
        for column in (
            *table,
            measured("worst tenth", lambda i, m: stats[i]["worst_tenth"][m], at),
            measured("order acc", mean("order_accuracy"), at, wide=True),
            measured("agreement", mean("agreement"), at, wide=True),
            given("ARI", lambda r: NONE if r["ari"] is None else f"{r['ari']:.2f}"),
            given("rounds", lambda r: str(r["rounds"]), wide=False),
            given("client steps", lambda r: f"{r['client_steps']:,}", wide=False),
            given("MB up", lambda r: f"{r['bytes_up'] / 1e6:,.1f}"),
            given("MB down", lambda r: f"{r['bytes_down'] / 1e6:,.1f}"),
            given("weights", lambda r: r["weights"]),
        )
        if any(cell != NONE for cell in column["cells"])
    ]


def choose(results: Sequence[Result]) -> tuple[tuple[int, ...], int]:
    """The marks that S2 tabulates, as far as they were read: 0, 10 and the last, and the one for the other columns."""
    read = sorted({t for r in results for t in r["marks"]})
    marks = tuple(t for t in read if t in (0, 10, read[-1]))
    return marks, 10 if 10 in read else read[-1]


def caption(results: Sequence[Result], at: int, fold: Fold) -> str:
    """What the numbers are, in one sentence."""
    rows, apart = _rows(results)
    counts = [_statistics(r, fold)["clients"] for r in rows]

    def told(alone: bool) -> str:
        return " or ".join(map(str, sorted({n for n, own in zip(counts, apart, strict=True) if own == alone})))

    words = (
        f"Pair accuracy in % on the {fold} pairs after t local steps (acc^t), mean ± std over {told(False)} clients; "
        f"groups, worst tenth of clients and other shares at t = {at}."
    )
    return f"{words} {UNSEEN}: the {told(True)} others, who took no part in training." if any(apart) else words


def markdown(
    results: Sequence[Result], marks: Sequence[int] | None = None, at: int | None = None, fold: Fold = "test"
) -> str:
    """The full table in Markdown, rows in the order given, with its caption.

    marks: read-outs shown as mean ± std; at: the one for groups, worst tenth and the like (`choose` by default).
    """
    marks, at = _defaults(results, marks, at)
    table = columns(results, marks, at, fold)
    cells = [[f"**{cell}**" if best else cell for cell, best in zip(c["cells"], _best(c), strict=True)] for c in table]
    lines = [
        [c["header"].replace("_", "\\_") for c in table],
        ["---"] + ["---:"] * (len(table) - 1),
        *map(list, zip(*cells, strict=True)),
    ]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{body}\n\n{caption(results, at, fold)} Bold: the best of a column once personalized.\n"


def terminal(
    results: Sequence[Result], marks: Sequence[int] | None = None, at: int | None = None, fold: Fold = "test"
) -> Table:
    """The table's main columns, within 80 characters for four groups; arguments as in `markdown`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    marks, at = _defaults(results, marks, at)
    shown = [c for c in columns(results, marks, at, fold) if not c["wide"]]
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=0, caption=caption(results, at, fold), caption_justify="left"
    )
    for i, column in enumerate(shown):
        table.add_column(Text(column["header"].replace(" ", "\n", 1)), justify="right" if i else "left", no_wrap=True)
    for row in range(len(shown[0]["cells"])):
        table.add_row(*(Text(c["cells"][row].replace(" ", ""), "bold" if _best(c)[row] else "") for c in shown))
    return table


def to_csv(results: Sequence[Result], fold: Fold = "test") -> str:
    """Every number behind the tables, unrounded: one line a run and mark, shares in [0, 1], columns `group:…`; of a
    run's unseen clients lines of their own, by a column `clients_are` that is there where any are."""
    results, apart = _rows(results)
    names = list(dict.fromkeys(name for r in results for name in r["groups"]["names"]))
    lines: list[dict[str, Any]] = []
    for r, alone in zip(results, apart, strict=True):
        stats = _statistics(r, fold)
        for m, t in enumerate(r["marks"]):
            line: dict[str, Any] = {"algorithm": r["algorithm"], "fold": fold, "local_steps": t}
            line |= {"clients_are": "unseen" if alone else "seen"} if any(apart) else {}
            line["clients"] = stats["clients"]
            line |= {key: stats[key][m] for key in ("mean", "std", "low", "high", "worst_tenth")}
            line |= {f"group:{name}": stats["groups"][name][m] if name in stats["groups"] else "" for name in names}
            for curve in ("order_accuracy", "agreement", "loss"):
                line[curve] = float(np.nanmean(np.array(r[fold][curve])[:, m]))
            for key in ("rounds", "client_steps", "bytes_up", "bytes_down", "weights"):
                line[key] = r[key]
            line["ari"] = "" if r["ari"] is None else r["ari"]
            lines.append(line)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def curve_figure(results: Sequence[Result], path: Path, fold: Fold = "test") -> None:
    """Accuracy against local steps, a PNG (S2 Figs. 2, 3).

    First panel: every run's mean over clients with its 95 % interval, dashed that of its unseen ones. Then a panel a
    run: the mean, thick, and each true group, thin; left out where groups are unknown. The runs' legend is above, the
    groups' below the panels.
    """
    both = [seen_and_unseen(r) for r in results]
    results = [cast(Result, seen) for seen, _ in both]
    grouped = [r for r in results if len(r["groups"]["names"]) > 1]
    panels = 1 + len(grouped)
    wide = min(panels, 4)
    figure, axes = _axes(panels, wide)
    for i, r in enumerate(results):
        s = _statistics(r, fold)
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]
        axes[0].plot(r["marks"], _percent(s["mean"]), color=colour, marker=marker, label=r["algorithm"], lw=2, ms=4)
        axes[0].fill_between(r["marks"], _percent(s["low"]), _percent(s["high"]), color=colour, alpha=0.15, lw=0)
        if (others := both[i][1]) is not None:
            mean = _percent(_statistics(cast(Result, others), fold)["mean"])
            style = {"color": colour, "marker": marker, "ls": "--", "ms": 4}
            axes[0].plot(r["marks"], mean, label=f"{r['algorithm']}, unseen", **style)
    axes[0].set_title("mean over clients, 95 % interval", fontsize=9)
    for ax, r in zip(axes[1:], grouped, strict=False):
        s = _statistics(r, fold)
        for g, (name, values) in enumerate(s["groups"].items()):
            size = r["groups"]["of"].count(r["groups"]["names"].index(name))
            style = {"color": COLOURS[g % len(COLOURS)], "marker": MARKERS[g % len(MARKERS)]}
            ax.plot(r["marks"], _percent(values), lw=1, ms=3, label=f"{name} ({size})", **style)
        ax.plot(r["marks"], _percent(s["mean"]), color="black", lw=2.5, label="mean")
        ax.set_title(r["algorithm"], fontsize=9)
    for i, ax in enumerate(axes):
        ax.axhline(50, color="0.6", lw=0.8, ls=":")
        if i + wide >= panels:  # nothing beneath
            ax.set_xlabel("local steps t")
            ax.tick_params(labelbottom=True)
    for ax in axes[::wide]:
        ax.set_ylabel(f"pair accuracy on {fold} pairs, %")
    legend(figure, axes[:1], "upper")
    if grouped:
        legend(figure, axes[1:])
    figure.savefig(path, dpi=150)


def groups_figure(
    rounds: Sequence[int],
    assigned: Sequence[Sequence[int]] | np.ndarray,
    path: Path,
    groups: Groups | None = None,
    title: str = "",
) -> None:
    """Which expert each client was assigned to over the rounds, a PNG (S2 Figs. 4, 6).

    rounds: [N] rising, the rounds of the assignments; assigned: [N, C] experts, -1: none. An assignment is drawn until
    the next one. Clients go by true group and within it by position; without `groups` by position alone.
    """
    experts = np.asarray(assigned, dtype=np.int64)
    figure, (ax,) = _axes(1, 1, size=(7.0, 1.6 + 0.085 * experts.shape[1]))
    patches = group_cells(ax, rounds, experts, groups)
    ax.set_title(title)
    ax.legend(handles=patches, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)


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


def legend(figure: Figure, axes: Iterable[Axes], side: Literal["lower", "upper"] = "lower", extra: Any = ()) -> None:
    """One legend of all lines on `axes`, beneath or above the panels: as many columns as the figure is wide enough
    for, and a wider figure where not even one fits. extra: handles that no panel holds."""
    told = {(str(handle.get_label()), ""): handle for handle in extra}
    for ax in axes:
        lines: Any = ax.get_legend_handles_labels()
        for line, label in zip(*lines, strict=True):
            told.setdefault((label, line.get_color()), line)
    handles, labels = list(told.values()), [label for label, _ in told]
    place: Any = f"outside {side} center"
    for columns in range(min(len(told), 6), 0, -1):
        drawn = figure.legend(handles, labels, fontsize=7, loc=place, ncols=columns, frameon=False)
        width = drawn.get_window_extent().width
        if width <= figure.bbox.width:
            return
        if columns > 1:
            drawn.remove()
    figure.set_figwidth(width / figure.dpi)


def _rows(results: Sequence[Result]) -> tuple[list[Result], list[bool]]:
    """Each run's clients that trained, then its unseen ones, where it has any; and which of the two a row is."""
    parts = [(part, i > 0) for r in results for i, part in enumerate(seen_and_unseen(r)) if part is not None]
    return [cast(Result, part) for part, _ in parts], [alone for _, alone in parts]


def _statistics(result: Result, fold: Fold) -> dict[str, Any]:
    return summary(np.array(result[fold]["accuracy"]), result["groups"]["of"], result["groups"]["names"])


def _defaults(results: Sequence[Result], marks: Sequence[int] | None, at: int | None) -> tuple[Sequence[int], int]:
    chosen = choose(results)
    return chosen[0] if marks is None else marks, chosen[1] if at is None else at


def _best(column: _Column) -> list[bool]:
    """Which cells hold the column's best, as it reads when rounded; none in a table of one run."""
    held = [round(v, 3) for v in column["ranks"] if v is not None]
    return [v is not None and len(held) > 1 and round(v, 3) == max(held) for v in column["ranks"]]


def _percent(values: Sequence[float]) -> list[float]:
    return [100 * v for v in values]


def _axes(
    panels: int, wide: int, size: tuple[float, float] | None = None, share: bool = True
) -> tuple[Figure, list[Any]]:
    """A figure without pyplot, so that no window system and no global state are touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tall = -(-panels // wide)
    figure = Figure(figsize=size or (0.6 + 3.2 * wide, 0.7 + 2.9 * tall), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(tall, wide, sharex=share, sharey=share, squeeze=False).ravel()
    for ax in grid:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    for ax in grid[panels:]:
        ax.remove()
    return figure, list(grid[:panels])
