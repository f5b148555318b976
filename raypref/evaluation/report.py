"""Tables and figures of finished runs, as S2 shows them (Tables 1 to 3, Figs. 2 to 4 and 6).

Everything here is a pure function of `Result` values; the caller decides which runs, which fold and where to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from raypref.evaluation import calibration, tables
from raypref.evaluation.curve import Fold, Groups, seen_and_unseen, summary
from raypref.evaluation.figures import COLOURS, grid, group_cells, legend, look
from raypref.evaluation.rows import Measure, Row, accuracy, budgets, fill, quantity
from raypref.evaluation.runs import FinishedRun, run_name
from raypref.evaluation.tables import Table

UNSEEN = "unseen"
"""A row of the clients that the run of the row above never saw."""
WIDE = ("order acc", "agreement", "ARI", "MB up", "MB down", "weights")
"""Columns of the full table that a terminal's leaves out."""


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


def columns(marks: Sequence[int], at: int, groups: Sequence[str], fold: Fold) -> list[Measure]:
    """What a run's table shows of it. marks: read-outs acc^t; at: the one for groups, the worst tenth and the other
    shares; groups: names."""

    def share(head: str, read: Callable[[Mapping[str, Any], int], float | None]) -> Measure:
        def reading(run: FinishedRun) -> float | None:
            marks = run.result["marks"]
            return read(run.result, marks.index(at)) if at in marks else None

        return quantity(head, reading, scale=100, digits=1, best=int(at > 0))

    def of_group(group: str) -> Measure:
        return share(group, lambda result, m: statistics(result, fold)["groups"].get(group, {m: None})[m])

    def mean(curve: Literal["order_accuracy", "agreement"]) -> Callable[[Mapping[str, Any], int], float]:
        return lambda result, m: float(np.nanmean([line[m] for line in result[fold][curve]]))

    return [
        *(accuracy(t, fold) for t in marks),
        *map(of_group, groups),
        share("worst tenth", lambda result, m: statistics(result, fold)["worst_tenth"][m]),
        share("order acc", mean("order_accuracy")),
        share("agreement", mean("agreement")),
        quantity("ARI", lambda run: run.result.get("ari"), within=""),
        *budgets(),
        quantity("weights", lambda run: run.result.get("weights")),
    ]


def table(
    results: Sequence[Result], marks: Sequence[int] | None = None, at: int | None = None, fold: Fold = "test"
) -> Table:
    """The table of some runs: a row a run, and beneath it one of its unseen clients, where it has any.

    marks: read-outs shown as mean ± std; at: the one for groups, worst tenth and the like (`choose` by default).
    """
    marks, at = _defaults(results, marks, at)
    names = list(dict.fromkeys(name for r in results for name in r["groups"]["names"]))
    rows = []
    for result in results:
        seen, unseen = seen_and_unseen(result)
        rows.append(_row(run_name(result), seen))
        if unseen is not None:
            rows.append(_row(UNSEEN, {key: value for key, value in unseen.items() if key not in COSTS}))
    note = f"{caption(results, at, fold)} Bold: the best of a column once personalized."
    measures = columns(marks, at, names, fold)
    return fill(rows, measures, corner="algorithm", apart=[UNSEEN], notes=[note], counted=False)


COSTS = ("ari", "rounds", "client_steps", "bytes_up", "bytes_down", "weights")
"""What is a run's, not its clients'."""


def _row(label: str, result: Any) -> Row:
    return Row(label, {"": {0: FinishedRun("", 0, {}, result)}})


def choose(results: Sequence[Result]) -> tuple[tuple[int, ...], int]:
    """The marks that S2 tabulates, as far as they were read: 0, 10 and the last, and the one for the other columns."""
    read = sorted({t for r in results for t in r["marks"]})
    marks = tuple(t for t in read if t in (0, 10, read[-1]))
    return marks, 10 if 10 in read else read[-1]


def caption(results: Sequence[Result], at: int, fold: Fold) -> str:
    """What the numbers are, in one sentence."""

    def clients(parts: Sequence[Any]) -> str:
        return " or ".join(map(str, sorted({statistics(part, fold)["clients"] for part in parts})))

    seen, unseen = zip(*map(seen_and_unseen, results), strict=True)
    words = (
        f"Pair accuracy in % on the {fold} pairs after t local steps (acc^t), mean ± std over {clients(seen)} clients; "
        f"groups, worst tenth of clients and other shares at t = {at}."
    )
    others = [part for part in unseen if part is not None]
    return f"{words} {UNSEEN}: the {clients(others)} others, who took no part in training." if others else words


def markdown(
    results: Sequence[Result], marks: Sequence[int] | None = None, at: int | None = None, fold: Fold = "test"
) -> str:
    """`table` in Markdown, with its caption."""
    return tables.markdown(table(results, marks, at, fold))


def terminal(
    results: Sequence[Result], marks: Sequence[int] | None = None, at: int | None = None, fold: Fold = "test"
) -> tables.Fitting:
    """Its main columns."""
    main = main_columns(table(results, marks, at, fold))
    return tables.terminal(main, caption(results, _defaults(results, marks, at)[1], fold), narrow=True)


def main_columns(whole: Table) -> Table:
    """The table without the columns that a narrow place leaves out."""
    kept = [c for c, column in enumerate(whole.columns) if column.head not in WIDE]
    return replace(
        whole,
        columns=tuple(whole.columns[c] for c in kept),
        cells=tuple(tuple(row[c] for c in kept) for row in whole.cells),
    )


def to_csv(results: Sequence[Result], fold: Fold = "test") -> str:
    """Every number behind the tables, unrounded: one line a run and mark, shares in [0, 1], columns `group:…`; of a
    run's unseen clients lines of their own, by a column `clients_are` that is there where any are. Of test pairs, where
    margins are there, also `nll` and `ece` (`raypref.evaluation.calibration`)."""
    names = list(dict.fromkeys(name for r in results for name in r["groups"]["names"]))
    both = [(result, seen_and_unseen(result)) for result in results]
    any_unseen = any(unseen is not None for _, (_, unseen) in both)
    more = ("nll", "ece") if fold == "test" and any(map(calibration.margins_of, results)) else ()
    lines: list[dict[str, Any]] = []
    for result, parts in both:
        for part, which in zip(parts, ("seen", "unseen"), strict=True):
            if part is None:
                continue
            s, calibrated = statistics(part, fold), calibration.summary(part)
            for m, t in enumerate(part["marks"]):
                line: dict[str, Any] = {"algorithm": run_name(result), "fold": fold, "local_steps": t}
                line |= {"clients_are": which} if any_unseen else {}
                line["clients"] = s["clients"]
                line |= {key: s[key][m] for key in ("mean", "std", "low", "high", "worst_tenth")}
                line |= {f"group:{group}": s["groups"][group][m] if group in s["groups"] else "" for group in names}
                for curve in ("order_accuracy", "agreement", "loss"):
                    line[curve] = float(np.nanmean(np.array(part[fold][curve])[:, m]))
                line |= {name: calibrated[name][m] if calibrated else "" for name in more}
                line |= {key: part[key] for key in ("rounds", "client_steps", "bytes_up", "bytes_down", "weights")}
                lines.append(line | {"ari": "" if part["ari"] is None else part["ari"]})
    return tables.csv_text(lines)


def curve_figure(results: Sequence[Result], path: Path, fold: Fold = "test") -> None:
    """Accuracy against local steps, a PNG (S2 Figs. 2, 3).

    First panel: every run's mean over clients with its 95 % interval, dashed that of its unseen ones. Then a panel a
    run: the mean, thick, and each true group, thin; left out where groups are unknown. The runs' legend is above, the
    groups' below the panels.
    """
    runs = [(run_name(result), *seen_and_unseen(result)) for result in results]
    grouped = [(label, seen) for label, seen, _ in runs if len(seen["groups"]["names"]) > 1]
    panels = 1 + len(grouped)
    wide = min(panels, 4)
    figure, axes = grid(panels, wide)
    for i, (label, seen, unseen) in enumerate(runs):
        s, marks, colour = statistics(seen, fold), seen["marks"], look(i)["color"]
        style = {"color": colour, "marker": look(i + i // len(COLOURS))["marker"], "ms": 4}
        axes[0].plot(marks, _percent(s["mean"]), label=label, lw=2, **style)
        axes[0].fill_between(marks, _percent(s["low"]), _percent(s["high"]), color=colour, alpha=0.15, lw=0)
        if unseen is not None:
            mean = _percent(statistics(unseen, fold)["mean"])
            axes[0].plot(marks, mean, label=f"{label}, unseen", ls="--", **style)
    axes[0].set_title("mean over clients, 95 % interval", fontsize=9)
    for ax, (label, seen) in zip(axes[1:], grouped, strict=False):
        s, names = statistics(seen, fold), seen["groups"]["names"]
        for g, (group, values) in enumerate(s["groups"].items()):
            size = seen["groups"]["of"].count(names.index(group))
            ax.plot(seen["marks"], _percent(values), label=f"{group} ({size})", **look(g, lw=1, ms=3))
        ax.plot(seen["marks"], _percent(s["mean"]), color="black", lw=2.5, label="mean")
        ax.set_title(label, fontsize=9)
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
    figure, (ax,) = grid(1, 1, size=(7.0, 1.6 + 0.085 * experts.shape[1]))
    patches = group_cells(ax, rounds, experts, groups)
    ax.set_title(title)
    ax.legend(handles=patches, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)


def statistics(result: Mapping[str, Any], fold: Fold) -> dict[str, Any]:
    """`summary` of a result's accuracies, with its groups."""
    return summary(np.array(result[fold]["accuracy"]), result["groups"]["of"], result["groups"]["names"])


def _defaults(results: Sequence[Result], marks: Sequence[int] | None, at: int | None) -> tuple[Sequence[int], int]:
    chosen = choose(results)
    return chosen[0] if marks is None else marks, chosen[1] if at is None else at


def _percent(values: Sequence[float]) -> list[float]:
    return [100 * v for v in values]
