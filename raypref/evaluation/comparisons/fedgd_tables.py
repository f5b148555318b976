"""S2's Tables 1 to 7, and its diagnostics of any runs: which rows and columns, and which runs fill them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from raypref.evaluation import rows, runs
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, table
from raypref.evaluation.rows import Row, accuracy, budgeted, diagnostic_columns, lacking, steps
from raypref.evaluation.runs import FinishedRun, Seeds, each, title

DEPLOYABLE = ("local", "cl", "multi_cl", "fedavg", "fedbiscuit", "soft_fl", "fedgd")
"""The rows of S2 Table 3."""
DIAGNOSED = ("cl", "multi_cl", "fedavg", "fl_target")
"""Those of Tables 1 and 2, and of Figures 2 and 3."""
BALANCED_FL = "FL (balanced)"
START, K_ROW = ("continue", "random"), "FedGD (K={})"
REAL = SWEEP + "real_world"
KS = SWEEP + "k_robustness, and main_results for K = 4"

Point = Mapping[str, Any]


def choose(of: Iterable[FinishedRun], points: Sequence[Point]) -> list[Seeds]:
    """`raypref.evaluation.runs.choose` of runs with S2's objective."""
    return runs.choose(of, [{"objective": "choice", **point} for point in points])


@table("table1")
def table1(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 1: diagnostics, balanced groups.

    FL_target, which the paper shows for imbalanced groups only, where it was run."""
    chosen = choose(of, [{"setting": "balanced", "algorithm": a} for a in DIAGNOSED])
    labels = [(title(a), seeds) for a, seeds in zip(DIAGNOSED, chosen, strict=True)]
    missing = lacking(labels[:3], "balanced", SWEEP + "imbalance")
    return _diagnostics("Table 1. Diagnostics", "Balanced", labels, chosen, missing, fold, reference="FL")


@table("table2")
def table2(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 2: diagnostics, imbalanced groups, beside balanced FL."""
    points = [{"setting": "balanced", "algorithm": "fedavg"}]
    balanced, *chosen = choose(of, points + [{"setting": "imbalanced", "algorithm": a} for a in DIAGNOSED])
    labels = [(BALANCED_FL, balanced), *((title(a), seeds) for a, seeds in zip(DIAGNOSED, chosen, strict=True))]
    missing = lacking(labels, "imbalanced", SWEEP + "imbalance")
    labels = labels if any(chosen) else []
    how = {"reference": "FL_target", "apart": [BALANCED_FL]}
    return _diagnostics("Table 2. Diagnostics", "Imbalanced", labels, chosen, missing, fold, **how)


def _diagnostics(
    words: str,
    place: str,
    labels: Sequence[tuple[str, Seeds]],
    chosen: Sequence[Seeds],
    missing: list[Missing],
    fold: Fold,
    **how: Any,
) -> Item:
    of = each(chosen)
    if of and not any(run.diagnosed for run in of):
        missing.append(Missing("GQ, margins and headroom: the runs have none", "the same with --diagnostics.marks 0"))
    at, _ = steps(of)
    how |= {"title": f"{words} and acc^{at}, {place.lower()} groups", "missing": missing}
    return budgeted(
        [Row(label, {place: seeds}) for label, seeds in labels], diagnostic_columns(place, at, fold), fold, **how
    )


@table("table3")
def table3(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 3: accuracy before and after personalization, balanced, imbalanced and real."""
    points = [{"setting": s, "algorithm": a} for s in ("balanced", "imbalanced") for a in DEPLOYABLE]
    synthetic = choose(of, points)
    chosen = {
        "Balanced": synthetic[: len(DEPLOYABLE)],
        "Imbalanced": synthetic[len(DEPLOYABLE) :],
        "Real": choose(of, [{"setting": "real", "algorithm": a} for a in DEPLOYABLE]),
    }
    measures, missing = [], []
    for place, seeds in chosen.items():
        at, last = steps(each(seeds), 80 if place == "Real" else 10)
        measures += [accuracy(t, fold, place) for t in dict.fromkeys((0, at, last))]
        labels = [(title(a), s) for a, s in zip(DEPLOYABLE, seeds, strict=True) if (place, a) != ("Real", "multi_cl")]
        missing += lacking(labels, place.lower(), REAL if place == "Real" else SWEEP + "main_results")
    how = {"title": "Table 3. Accuracy before and after personalization", "corner": "algorithm", "reference": "FedGD"}
    return budgeted(_by_algorithm(DEPLOYABLE, chosen), measures, fold, missing=missing, **how)


def _by_algorithm(algorithms: Sequence[str], chosen: Mapping[str, Sequence[Seeds]]) -> list[Row]:
    """chosen: place -> the runs of each algorithm."""
    return [Row(title(a), {place: seeds[i] for place, seeds in chosen.items()}) for i, a in enumerate(algorithms)]


@table("table4")
def table4(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 4: real data by base model."""
    algorithms = ("local", "cl", "fedavg", "fedgd")
    bases = sorted({run.config["model.base"] for run in of if run.setting == "real"})
    chosen, measures, missing = {}, [], []
    for base in bases:
        name, points = (
            PurePath(base).name,
            [{"setting": "real", "algorithm": a, "model.base": base} for a in algorithms],
        )
        seeds = chosen[name] = choose(of, points)
        _, last = steps(each(seeds))
        measures += [accuracy(t, fold, name) for t in dict.fromkeys((0, last))]
        missing += lacking([(title(a), s) for a, s in zip(algorithms, seeds, strict=True)], name, REAL)
    if len(bases) < 2:
        missing.append(Missing(f"real data on {'a second' if bases else 'any'} base", f"{REAL} --model.base BASE"))
    how: Any = {"title": "Table 4. Real data by base model", "reference": "FedGD", "missing": missing}
    return budgeted(_by_algorithm(algorithms, chosen), measures, fold, **how)


def by_K(
    of: Sequence[FinishedRun], setting: str, algorithms: Sequence[str]
) -> tuple[list[int], dict[str, list[Seeds]]]:
    """The numbers of experts that were tried (the paper: 2, 3, 4), and algorithm -> its runs for each."""
    tried = {r.config["experts.K"] for r in of if r.setting == setting and r.config["algorithm"] in algorithms}
    Ks = sorted({2, 3, 4, *tried})
    chosen = choose(of, [{"setting": setting, "algorithm": a, "experts.K": K} for a in algorithms for K in Ks])
    return Ks, {a: chosen[i * len(Ks) : (i + 1) * len(Ks)] for i, a in enumerate(algorithms)}


@table("table5")
def table5(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 5: FedGD by the number of clusters K, with diagnostics."""
    Ks, chosen = by_K(of, "imbalanced", ["fedgd"])
    labels = [(K_ROW.format(K), seeds) for K, seeds in zip(Ks, chosen["fedgd"], strict=True)]
    words = "Table 5. FedGD by the number of clusters K: diagnostics"
    missing = lacking(labels, "imbalanced", KS)
    return _diagnostics(words, "Imbalanced", labels, chosen["fedgd"], missing, fold, reference=K_ROW.format(4))


@table("table6")
def table6(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 6: the last accuracy by K of the methods that keep several models."""
    algorithms = ("fedbiscuit", "soft_fl", "fedgd")
    by_place: dict[str, list[Seeds]] = {}
    measures, missing = [], []
    for setting, command in (("imbalanced", KS), ("real", f"{REAL} --experts.K 2, then 3 and 4")):
        Ks, chosen = by_K(of, setting, algorithms)
        _, last = steps(each(seeds for seeds_of in chosen.values() for seeds in seeds_of))
        for i, K in enumerate(Ks):
            place = f"{setting.capitalize()} K={K}"
            measures.append(accuracy(last, fold, f"{setting.capitalize()} acc^{last}", place, head=f"K={K}"))
            by_place[place] = [chosen[a][i] for a in algorithms]
        labels = [(f"{title(a)} K={K}", s) for a in algorithms for K, s in zip(Ks, chosen[a], strict=True)]
        missing += lacking(labels, setting, command)
    how: Any = {"title": "Table 6. Accuracy by the number of clusters K", "reference": "FedGD", "missing": missing}
    return budgeted(_by_algorithm(algorithms, by_place), measures, fold, **how)


@table("table7", rows=tuple(map(str.capitalize, START)))
def table7(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Table 7: where phase 2 of FedGD starts."""
    settings = ("imbalanced", "balanced")
    points = [{"setting": s, "algorithm": "fedgd", "fedgd.phase2_start": start} for s in settings for start in START]
    chosen = choose(of, points)
    by_place = {"Imbalanced": chosen[:2], "Balanced": chosen[2:]}
    lines = [Row(start.capitalize(), {p: seeds[i] for p, seeds in by_place.items()}) for i, start in enumerate(START)]
    measures, missing = [], []
    for place, seeds in by_place.items():
        at, last = steps(each(seeds))
        measures += [accuracy(t, fold, place) for t in dict.fromkeys((0, at, last))]
    for line, start, space in zip(lines, START, ("phase2_start", "main_results"), strict=True):
        missing += lacking(line.runs.items(), f"phase 2 {start}", SWEEP + space)
    if not all(any(line.runs.values()) for line in lines):  # one start alone compares nothing
        return Item(missing=missing)
    how = {"title": "Table 7. Where phase 2 of FedGD starts", "corner": "phase 2", "reference": "Random"}
    return budgeted(lines, measures, fold, missing=missing, **how)


@table("diagnostics", after_run=True)
def diagnostics(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """The diagnostics of S2 Tables 1 and 2 of whatever runs have them"""
    place, lines = rows.at_one_place(rows.by_method(runs.of_methods(run for run in of if run.diagnosed)))
    if not lines:
        return Item(missing=[Missing("runs with diagnostics", "the same with --diagnostics.marks 0")])
    at, _ = steps(rows.shown(lines))
    return budgeted(lines, diagnostic_columns(place, at, fold), fold, title="Diagnostics")
