"""S2's Tables 1 to 7, and its diagnostics of any runs: which rows and columns, and which runs fill them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from raypref.evaluation import runs
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import (
    Measure,
    Row,
    accuracy,
    at_one_place,
    budgeted,
    by_method,
    diagnostic_columns,
    lacking,
    shown,
    steps,
)
from raypref.evaluation.runs import FinishedRun, Key, Seeds, each, of_methods, title

DEPLOYABLE = ("local", "cl", "multi_cl", "fedavg", "fedbiscuit", "soft_fl", "fedgd")
"""The rows of S2 Table 3."""
DIAGNOSED = ("cl", "multi_cl", "fedavg", "fl_target")
"""Those of Tables 1 and 2, and of Figures 2 and 3."""
BALANCED_FL = "FL (balanced)"
START, K_ROW = ("continue", "random"), "FedGD (K={})"
REAL = SWEEP + "real_world"
KS = SWEEP + "k_robustness, and main_results for K = 4"


def choose(of: Iterable[FinishedRun], points: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Seeds]:
    """`raypref.evaluation.runs.choose` of runs with S2's objective."""
    return runs.choose(of, {key: {"objective": "choice", **point} for key, point in points.items()})


def by_algorithm(of: Iterable[FinishedRun], algorithms: Sequence[str], **point: Any) -> dict[str, Seeds]:
    """What rows are called -> the runs of each algorithm, which agree in a point."""
    return choose(of, {title(algorithm): {"algorithm": algorithm, **point} for algorithm in algorithms})


@table("table1")
def table1(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 1: diagnostics, balanced groups.

    FL_target, which the paper shows for imbalanced groups only, where it was run."""
    rows = by_algorithm(of, DIAGNOSED, setting="balanced")
    missing = lacking([*rows.items()][:3], "balanced", SWEEP + "imbalance")
    return _diagnostics("Table 1. Diagnostics", "Balanced", rows, rows, missing, fold, reference="FL")


@table("table2")
def table2(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 2: diagnostics, imbalanced groups, beside balanced FL."""
    points = {BALANCED_FL: {"setting": "balanced", "algorithm": "fedavg"}}
    points |= {title(a): {"setting": "imbalanced", "algorithm": a} for a in DIAGNOSED}
    rows = choose(of, points)
    missing = lacking(rows.items(), "imbalanced", SWEEP + "imbalance")
    imbalanced = {label: seeds for label, seeds in rows.items() if label != BALANCED_FL}
    rows = rows if any(imbalanced.values()) else {}
    how = {"reference": "FL_target", "apart": [BALANCED_FL]}
    return _diagnostics("Table 2. Diagnostics", "Imbalanced", rows, imbalanced, missing, fold, **how)


def _diagnostics(
    words: str,
    place: str,
    rows: Mapping[str, Seeds],
    diagnosed: Mapping[str, Seeds],
    missing: list[Missing],
    fold: Fold,
    **how: Any,
) -> Item:
    """diagnosed: the rows that the marks are read of, and that should have diagnostics."""
    of = each(diagnosed.values())
    if of and not any(run.diagnosed for run in of):
        missing.append(Missing("GQ, margins and headroom: the runs have none", "the same with --diagnostics.marks 0"))
    at, _ = steps(of)
    how |= {"title": f"{words} and acc^{at}, {place.lower()} groups", "missing": missing}
    lines = [Row(label, {place: seeds}) for label, seeds in rows.items()]
    return budgeted(lines, diagnostic_columns(place, at, fold), fold, **how)


@table("table3")
def table3(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 3: accuracy before and after personalization, balanced, imbalanced and real."""
    settings = ("balanced", "imbalanced", "real")
    points = {(s, title(a)): {"setting": s, "algorithm": a} for s in settings for a in DEPLOYABLE}
    real = {key: point for key, point in points.items() if key[0] == "real"}
    chosen = choose(of, {key: point for key, point in points.items() if key not in real}) | choose(of, real)
    rows = [Row(title(a), {s.capitalize(): chosen[s, title(a)] for s in settings}) for a in DEPLOYABLE]
    measures, missing = [], []
    for setting in settings:
        labels = [(label, seeds) for (s, label), seeds in chosen.items() if s == setting]
        at, last = steps(each(seeds for _, seeds in labels), 80 if setting == "real" else 10)
        measures += [accuracy(t, fold, setting.capitalize()) for t in dict.fromkeys((0, at, last))]
        labels = [pair for pair in labels if setting != "real" or pair[0] != title("multi_cl")]
        missing += lacking(labels, setting, REAL if setting == "real" else SWEEP + "main_results")
    how = {"title": "Table 3. Accuracy before and after personalization", "corner": "algorithm", "reference": "FedGD"}
    return budgeted(rows, measures, fold, missing=missing, **how)


@table("table4")
def table4(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 4: real data by base model."""
    algorithms = ("local", "cl", "fedavg", "fedgd")
    bases = sorted({run.config["model.base"] for run in of if run.setting == "real"})
    chosen, measures, missing = {}, [], []
    for base in bases:
        name, rows = PurePath(base).name, by_algorithm(of, algorithms, **{"setting": "real", "model.base": base})
        _, last = steps(each(rows.values()))
        measures += [accuracy(t, fold, name) for t in dict.fromkeys((0, last))]
        missing += lacking(rows.items(), name, REAL)
        chosen[name] = rows
    if len(bases) < 2:
        missing.append(Missing(f"real data on {'a second' if bases else 'any'} base", f"{REAL} --model.base BASE"))
    lines = [Row(title(a), {name: rows[title(a)] for name, rows in chosen.items()}) for a in algorithms]
    how: Any = {"title": "Table 4. Real data by base model", "reference": "FedGD", "missing": missing}
    return budgeted(lines, measures, fold, **how)


def by_K(of: Sequence[FinishedRun], setting: str, algorithms: Sequence[str]) -> dict[tuple[str, int], Seeds]:
    """(algorithm, K) -> its runs, for all numbers of experts that were tried (the paper: 2, 3, 4)."""
    tried = {r.config["experts.K"] for r in of if r.setting == setting and r.config["algorithm"] in algorithms}
    pairs = [(a, K) for a in algorithms for K in sorted({2, 3, 4, *tried})]
    return choose(of, {(a, K): {"setting": setting, "algorithm": a, "experts.K": K} for a, K in pairs})


@table("table5")
def table5(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 5: FedGD by the number of clusters K, with diagnostics."""
    rows = {K_ROW.format(K): seeds for (_, K), seeds in by_K(of, "imbalanced", ["fedgd"]).items()}
    missing = lacking(rows.items(), "imbalanced", KS)
    words = "Table 5. FedGD by the number of clusters K: diagnostics"
    return _diagnostics(words, "Imbalanced", rows, rows, missing, fold, reference=K_ROW.format(4))


@table("table6")
def table6(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 6: the last accuracy by K of the methods that keep several models."""
    algorithms = ("fedbiscuit", "soft_fl", "fedgd")
    rows: dict[str, dict[str, Seeds]] = {a: {} for a in algorithms}
    measures: dict[str, Measure] = {}
    missing = []
    for setting, command in (("imbalanced", KS), ("real", f"{REAL} --experts.K 2, then 3 and 4")):
        chosen, block = by_K(of, setting, algorithms), setting.capitalize()
        _, last = steps(each(chosen.values()))
        for (algorithm, K), seeds in chosen.items():
            place = f"{block} K={K}"
            measures[place] = accuracy(last, fold, f"{block} acc^{last}", place, head=f"K={K}")
            rows[algorithm][place] = seeds
        missing += lacking([(f"{title(a)} K={K}", seeds) for (a, K), seeds in chosen.items()], setting, command)
    how: Any = {"title": "Table 6. Accuracy by the number of clusters K", "reference": "FedGD", "missing": missing}
    return budgeted([Row(title(a), places) for a, places in rows.items()], [*measures.values()], fold, **how)


@table("table7", rows=tuple(map(str.capitalize, START)))
def table7(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 7: where phase 2 of FedGD starts."""
    key, settings = "fedgd.phase2_start", ("imbalanced", "balanced")
    points = {(s, start): {"setting": s, "algorithm": "fedgd", key: start} for s in settings for start in START}
    chosen = choose(of, points)
    rows = [Row(start.capitalize(), {s.capitalize(): chosen[s, start] for s in settings}) for start in START]
    measures, missing = [], []
    for setting in settings:
        at, last = steps(each(chosen[setting, start] for start in START))
        measures += [accuracy(t, fold, setting.capitalize()) for t in dict.fromkeys((0, at, last))]
    for row, start, space in zip(rows, START, ("phase2_start", "main_results"), strict=True):
        missing += lacking(row.runs.items(), f"phase 2 {start}", SWEEP + space)
    if not all(any(row.runs.values()) for row in rows):  # one start alone compares nothing
        return Item(missing=missing)
    how = {"title": "Table 7. Where phase 2 of FedGD starts", "corner": "phase 2", "reference": "Random"}
    return budgeted(rows, measures, fold, missing=missing, **how)


@table("diagnostics", after_run=True)
def diagnostics(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """The diagnostics of S2 Tables 1 and 2 of whatever runs have them"""
    place, rows = at_one_place(by_method(of_methods(run for run in of if run.diagnosed)))
    if not rows:
        return Item(missing=[Missing("runs with diagnostics", "the same with --diagnostics.marks 0")])
    at, _ = steps(shown(rows))
    return budgeted(rows, diagnostic_columns(place, at, fold), fold, title="Diagnostics")
