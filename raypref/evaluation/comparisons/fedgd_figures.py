"""S2's Figures 2 to 6, and its gradient quotient by layer: which runs they show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raypref.evaluation import figures
from raypref.evaluation.comparisons.fedgd_tables import DIAGNOSED, KS, by_algorithm, by_K, choose
from raypref.evaluation.curve import Fold, summary
from raypref.evaluation.drawings import SWEEP, Item, Missing, figure
from raypref.evaluation.rows import lacking, steps
from raypref.evaluation.runs import FinishedRun, Seeds, describe, each, show, title, titles


def _groups(number: int, setting: str, rows: int, of: Sequence[FinishedRun], fold: Fold) -> Item:
    """Figs. 2 and 3. rows: how many of the methods the paper shows."""
    chosen = by_algorithm(of, DIAGNOSED, setting=setting)
    missing = lacking([*chosen.items()][:rows], setting, SWEEP + "imbalance")
    if not any(chosen.values()):
        return Item(missing=missing)
    drawn = figures.group_curves({label: [r.result for r in s.values()] for label, s in chosen.items() if s}, fold)
    caption = (
        f"Figure {number}. Accuracy of each true group over local steps, {setting} groups; bands: lowest to highest "
        f"seed. {describe(each(chosen.values()))}"
    )
    return Item(drawn, caption, each(chosen.values()), missing)


@figure("figure2")
def figure2(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Fig. 2: accuracy of each true group over local steps, balanced"""
    return _groups(2, "balanced", 3, of, fold)


@figure("figure3")
def figure3(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Fig. 3: accuracy of each true group over local steps, imbalanced"""
    return _groups(3, "imbalanced", 4, of, fold)


@figure("figure4")
def figure4(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Fig. 4: the groups that FedGD ends with, by K; of the lowest seed"""
    chosen = {f"K = {K}": seeds for (_, K), seeds in by_K(of, "imbalanced", ["fedgd"]).items()}
    missing = lacking(chosen.items(), "imbalanced FedGD", KS)
    shown = {label: seeds[min(seeds)] for label, seeds in chosen.items() if seeds}
    if not shown:
        return Item(missing=missing)
    indices = "; ".join(f"{label}: {_ari(seeds)}" for label, seeds in chosen.items() if seeds)
    caption = (
        "Figure 4. Clients, by true group, coloured by the expert that FedGD assigns them at the end of phase 1 "
        f"(seed {', '.join(sorted({str(run.seed) for run in shown.values()}))}). Adjusted Rand index by seed: "
        f"{indices}."
    )
    drawn = figures.clusters({label: run.result for label, run in shown.items()})
    return Item(drawn, caption, each(chosen.values()), missing)


def _ari(seeds: Seeds) -> str:
    values = [seeds[s].result["ari"] for s in sorted(seeds)]
    return " ".join("–" if ari is None else f"{ari:.2f}" for ari in values)


@figure("figure5")
def figure5(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Fig. 5: acc^0 and acc^10 over the local steps τ, for two learning rates"""
    methods = ("fedavg", "cl")
    key, rate = "federation.local_steps", "optim.learning_rate"
    fitting = [r for r in of if r.setting == "balanced" and r.config["algorithm"] in methods]
    taus, rates = (sorted({r.config[k] for r in fitting}) for k in (key, rate))
    points = [(lr, a, tau) for lr in rates for a in methods for tau in taus]
    chosen = choose(
        fitting, {(lr, a, tau): {"setting": "balanced", "algorithm": a, key: tau, rate: lr} for lr, a, tau in points}
    )
    used = each(chosen.values())
    at, _ = steps(used)
    rows: dict[str, dict[str, dict[int, list[tuple[float, float]]]]] = {}
    for (lr, algorithm, tau), seeds in chosen.items():
        values = [(_mean(run, 0, fold), _mean(run, at, fold)) for run in seeds.values()]
        if values:
            rows.setdefault(show(lr), {}).setdefault(title(algorithm), {})[tau] = values
    curves = [curve for lines in rows.values() for curve in lines.values()]
    missing = []
    if len(rows) < 2 or any(len(curve) < 2 for curve in curves) or len(curves) < 4:
        missing.append(Missing("FL and CL at several τ and two learning rates", SWEEP + "local_steps"))
    if not any(len(curve) > 1 for curve in curves):  # one τ alone shows no sensitivity
        return Item(missing=missing)
    rows = dict(sorted(rows.items(), key=lambda row: -float(row[0])))
    caption = (
        "Figure 5. Accuracy before and after personalization over the local steps τ before aggregation, balanced "
        f"groups; bars: ± std over seeds. {describe(used)}"
    )
    return Item(figures.sensitivity(rows, at), caption, used, missing)


def _mean(run: FinishedRun, t: int, fold: Fold) -> float:
    means = summary(np.array(run.result[fold]["accuracy"]))["mean"]
    return float(means[run.result["marks"].index(t)]) if t in run.result["marks"] else float("nan")


@figure("figure6")
def figure6(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """S2 Fig. 6: how the groups come about in phase 1; of the lowest seed that both settings have"""
    settings = ("imbalanced", "balanced")
    grouped = [run for run in of if run.groups is not None]
    chosen = choose(grouped, {s: {"setting": s, "algorithm": "fedgd"} for s in settings})
    missing = lacking(chosen.items(), "FedGD", SWEEP + "main_results")
    there, used = {s: seeds for s, seeds in chosen.items() if seeds}, each(chosen.values())
    if not there:
        return Item(missing=missing)
    last = used[0].config["federation.rounds"] // 2
    common = set.intersection(*map(set, there.values())) or {min(seeds) for seeds in there.values()}
    panels, settled = {}, []
    for setting, seeds in there.items():
        shown = seeds[min(common)] if min(common) in seeds else seeds[min(seeds)]
        assert shown.groups is not None
        panels[f"{setting} (seed {shown.seed})"] = shown.groups
        settled.append(f"{setting} {', '.join(str(_settled(run, last)) for run in seeds.values())}")
    caption = (
        f"Figure 6. Experts of the clients over FedGD's phase 1 ({last} rounds). The groups settle (no client moves "
        f"afterwards) in round, by seed: {'; '.join(settled)}. {describe(used)}"
    )
    return Item(figures.evolution(panels, last), caption, used, missing)


def _settled(run: FinishedRun, last: int) -> int | None:
    assert run.groups is not None
    rounds, experts = figures.phase1(run.groups, last)
    return figures.settled(rounds, experts.tolist())


@figure("figure-gq")
def figure_gq(of: Sequence[FinishedRun], fold: Fold) -> Item:
    """GQ(l) layer by layer; not in S2, whose text compares "every layer" (3.1)"""
    for setting in ("imbalanced", "balanced"):
        chosen = by_algorithm((run for run in of if run.diagnosed), tuple(titles()), setting=setting)
        if used := each(chosen.values()):
            lines = {
                name: [r.diagnosed["gq_layers"] for r in seeds.values()] for name, seeds in chosen.items() if seeds
            }
            caption = f"GQ(l) layer by layer at the initialization, {setting} groups. {describe(used)}"
            return Item(figures.layers(lines), caption, used)
    return Item(missing=[Missing("runs with diagnostics", SWEEP + "imbalance")])
