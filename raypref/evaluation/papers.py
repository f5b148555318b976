"""S2's Tables 1 to 7 and Figures 2 to 6 as data: which rows and columns, and which runs fill them.

What is compared must differ in what the table varies and in nothing else. So each table names its `points` (settings
of the keys that it varies), and `choose` takes, of all runs that fit, those that agree in every other key: the family
that fills most points, then the one with most seeds, then the newest.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raypref.config import UserError
from raypref.evaluation import diagnostics, figures
from raypref.evaluation.curve import seen_and_unseen, summary
from raypref.evaluation.ranking import show
from raypref.evaluation.report import Fold
from raypref.evaluation.tables import Cell, Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raypref.evaluation.latent import Latent

NAMES = {
    "local": "Local",
    "cl": "CL",
    "multi_cl": "Multi CL",
    "fedavg": "FL",
    "fl_target": "FL_target",
    "fedbiscuit": "FedBiscuit",
    "soft_fl": "Soft-FL",
    "fedgd": "FedGD",
    "feddpo": "FedDPO",
    "fedvpl": "FedVPL",
    "fedvpl_ortho": "FedVPL+Ortho",
    "fedvpl_prior": "FedVPL+GB Prior",
    "fedvpa_gp": "FedVPA-GP",
}
"""Algorithm -> the paper's name, in the papers' order (S2 Tables 2 and 3, S1 Fig. 4)."""
FEDDPO = "FedDPO"
"""FedAvg with DPO as its objective (S1 5.1)."""
FORMS = ("", "printed", "conditioned", "dpo")
"""What `form` can be, in the order in which tables show it."""
DEPLOYABLE = ("local", "cl", "multi_cl", "fedavg", "fedbiscuit", "soft_fl", "fedgd")
"""The rows of S2 Table 3."""
NOT_WHAT_IS_COMPUTED = ("clients.", "diagnostics.", "rlhf.")
"""Prefixes of keys that change no trained parameter beyond rounding."""
WANTED = 10
"""The paper's first read-out, acc^10."""

Point = Mapping[str, Any]
"""Dotted key -> value; `setting` is `Found.setting`."""
Seeds = Mapping[int, "Found"]
"""Seed -> the run."""


def form(config: Mapping[str, Any]) -> str:
    """Which objective a run has beside S2's choice, which is empty: the variational selector's form, or `dpo`."""
    told = {"choice": "", "variational": config["variational.form"]}
    return str(told.get(config["objective"], config["objective"]))


def label(config: Mapping[str, Any], more: Sequence[str] = ()) -> str:
    """What a run is called where objectives are mixed: its algorithm, and in brackets its form and `more` words."""
    name, words = NAMES.get(config["algorithm"], config["algorithm"]), [form(config), *more]
    if config["algorithm"] == "feddpo" and words[0] == "dpo":
        words[0] = ""
    told = ", ".join(filter(None, words))
    return f"{name} ({told})" if told else name


def idle(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Prefixes of the keys that have no part in a run: the sections of other objectives than its own."""
    return tuple(f"{section}." for section in ("variational", "dpo") if section != config["objective"])


@dataclass(frozen=True)
class Found:
    """A finished run, as it was read."""

    id: str
    started: int
    """Milliseconds since 1970, to tell the newest."""
    config: Mapping[str, Any]
    """Flat, dotted keys."""
    result: Mapping[str, Any]
    """Of the clients that trained, whatever was read (`raypref.evaluation.curve.seen_and_unseen`)."""
    groups: Mapping[str, Any] | None = None
    """Its groups.json, where the method groups clients."""
    latent: Latent | None = None
    """Its latent.npz, where it recorded its clients' posteriors."""
    unseen: Mapping[str, Any] | None = field(init=False)
    """The result of the others, who took no part in training; None without any."""

    def __post_init__(self) -> None:
        for name, part in zip(("result", "unseen"), seen_and_unseen(self.result), strict=True):
            object.__setattr__(self, name, part)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def setting(self) -> str:
        """`balanced` or `imbalanced`, by `data.group_sizes` (S2 2.3); `real` where the clients are not dealt so."""
        sizes = list(self.config["data.group_sizes"])
        of = [g for part in (self.result, self.unseen) if part for g in part["groups"]["of"]]
        dealt = [of.count(g) for g in range(len(self.result["groups"]["names"]))]
        if self.config["data.source"] != "synthetic" and dealt != sizes:
            return "real"
        return "balanced" if len(set(sizes)) == 1 else "imbalanced"

    @cached_property
    def diagnosed(self) -> dict[str, Any]:
        """`diagnostics.summary` at the initialization; empty without."""
        has = any(d["mark"] == 0 for d in self.result.get("diagnostics", ()))
        return diagnostics.summary(self.result) if has else {}

    def fits(self, point: Point) -> bool:
        return all((self.setting if key == "setting" else self.config[key]) == value for key, value in point.items())

    def identity(self, leave: Iterable[str] = ()) -> str:
        """What is computed, without the keys in `leave`: equal texts, equal configurations."""
        left = set(leave)
        none = (*NOT_WHAT_IS_COMPUTED, *idle(self.config))
        kept = {k: v for k, v in self.config.items() if k not in left and not k.startswith(none)}
        return json.dumps(kept, sort_keys=True)


def choose(runs: Iterable[Found], points: Sequence[Point]) -> list[Seeds]:
    """The runs of each point, all of one family (see above) with S2's objective; every point has a `setting`.

    Within the family each setting has one `data.group_sizes`, chosen the same way. An empty mapping: no such run.
    """
    axes = {"seed", "data.group_sizes", *(key for point in points for key in point)}
    families: dict[str, list[Found]] = {}
    for run in runs:
        if run.config["objective"] == "choice" and any(run.fits(point) for point in points):
            families.setdefault(run.identity(axes), []).append(run)
    filled = [_fill(family, points) for family in families.values()]
    return max(filled, key=_rank, default=[{} for _ in points])


def _fill(family: Sequence[Found], points: Sequence[Point]) -> list[Seeds]:
    sizes: dict[str, list[Found]] = {}
    for run in family:
        sizes.setdefault(f"{run.setting} {run.config['data.group_sizes']}", []).append(run)
    options = [[{r.seed: r for r in runs if r.fits(point)} for point in points] for runs in sizes.values()]
    best: list[Seeds] = [{} for _ in points]
    for setting in dict.fromkeys(point["setting"] for point in points):
        of = [i for i, point in enumerate(points) if point["setting"] == setting]
        chosen = max(options, key=lambda option: _rank([option[i] for i in of]))
        for i in of:
            best[i] = chosen[i]
    return best


def _rank(filled: Sequence[Seeds]) -> tuple[int, int, int]:
    """Points filled, runs, newest."""
    runs = [run for seeds in filled for run in seeds.values()]
    return sum(map(bool, filled)), len(runs), max((run.started for run in runs), default=0)


class Reading(NamedTuple):
    """What a measure reads of one run."""

    value: float
    within: float | None = None
    """Standard deviation within the run."""
    clients: np.ndarray | None = None
    """[C]"""


class Measure(NamedTuple):
    """A column, where its runs are, and what it reads of them."""

    place: str
    """The key of a row's runs; empty: all of them, for budgets."""
    column: Column
    read: Callable[[Found], Reading | None]


class Row(NamedTuple):
    label: str
    runs: Mapping[str, Seeds]
    """Place -> its runs."""
    block: str = ""
    """See `raypref.evaluation.tables.Table.blocks`."""


class Missing(NamedTuple):
    """What could not be filled, and the command that would make the runs."""

    what: str
    command: str


@dataclass(frozen=True)
class Item:
    """A table or a figure, drawn; `content` is None where nothing of it could be."""

    name: str
    content: Table | Figure | None
    caption: str = ""
    """Of a figure."""
    runs: tuple[Found, ...] = ()
    missing: tuple[Missing, ...] = ()
    reference: str = ""
    """The row that differences are taken to, where the one asked for is not there."""


def accuracy(t: int, fold: Fold, block: str = "", place: str = "", head: str = "") -> Measure:
    """acc^t; bold once personalized (S2 Table 3)."""

    def read(run: Found) -> Reading | None:
        if t not in run.result["marks"]:
            return None
        values = np.array(run.result[fold]["accuracy"], dtype=np.float64)[:, run.result["marks"].index(t)]
        told = values[~np.isnan(values)]
        return Reading(float(told.mean()), float(told.std()), values) if len(told) else None

    latex = head or rf"$\mathrm{{acc}}^{{{t}}}$"
    column = Column(head or f"acc^{t}", latex, block, scale=100, digits=1, best=int(t > 0))
    return Measure(place or block, column, read)


def diagnosed(key: str, head: str, latex: str, place: str, **how: Any) -> Measure:
    """A column of `diagnostics.summary`."""

    def read(run: Found) -> Reading | None:
        if not run.diagnosed or np.isnan(run.diagnosed[key]):
            return None
        return Reading(run.diagnosed[key], run.diagnosed[f"{key}_std"] if key == "gq" else None)

    return Measure(place, Column(head, latex, within="layers", **how), read)


def retained(name: str, t: int, place: str) -> Measure:
    """P^t of R (retention) or W (correction)."""

    def read(run: Found) -> Reading | None:
        if not run.result.get("margins") or not {0, t} <= set(run.result["marks"]):
            return None
        curve = diagnostics.retention_curve(run.result)
        value = float(getattr(curve, name)[curve.marks.index(t)])
        return None if np.isnan(value) else Reading(value)

    column = Column(f"P^{t}_{name}", rf"$P^{{{t}}}_{{\mathcal{{{name}}}}}$", scale=100, digits=1, best=1)
    return Measure(place, column, read)


def diagnostic_columns(place: str, t: int, fold: Fold) -> list[Measure]:
    """The columns of S2 Tables 1, 2 and 5: flatness, margin, retention, correction, accuracy; and mean headroom, which
    2.2 defines and the tables leave out, and GQ's median, for its ratios are heavy-tailed."""
    share = {"scale": 100, "digits": 1, "best": 1}
    told = [
        diagnosed("gq", "GQ(l)", "$GQ(l)$", place, significant=3, best=-1),
        diagnosed("gq_body", "GQ_B", r"$GQ_{\mathcal{B}}$", place, significant=3, best=-1),
        diagnosed("gq_head", "GQ_H", r"$GQ_{\mathcal{H}}$", place, significant=3, best=-1),
        diagnosed("gq_median", "GQ median", r"$GQ$ median", place, significant=3, best=-1),
    ]
    for name in "RW":
        told.append(diagnosed(f"m0_{name}", f"m0_{name}", rf"$m^0_{{\mathcal{{{name}}}}}$", place, signed=True))
    for name in "RW":
        low = rf"_{{\mathcal{{{name}}}}}"
        told.append(diagnosed(f"H0_{name}", f"H0_{name}", f"$H^0{low}$", place, signed=True, significant=3))
        told.append(diagnosed(f"Hplus_{name}", f"H+_{name}", f"$H^+{low}$", place, **share))
        told.append(retained(name, t, place))
    return [*told, accuracy(t, fold, place=place), accuracy(0, fold, place=place)]


def budgets() -> list[Measure]:
    """What each row took, so that a reader can match budgets; over all runs of the row."""

    def taken(head: str, key: str, scale: float, digits: int) -> Measure:
        column = Column(head, head, scale=scale, digits=digits, span=True)
        return Measure("", column, lambda run: Reading(float(run.result[key])))

    return [
        taken("rounds", "rounds", 1, 0),
        taken("client steps", "client_steps", 1, 0),
        taken("MB up", "bytes_up", 1e-6, 1),
        taken("MB down", "bytes_down", 1e-6, 1),
    ]


def table(
    name: str,
    title: str,
    corner: str,
    rows: Sequence[Row],
    measures: Sequence[Measure],
    missing: Sequence[Missing],
    fold: Fold,
    reference: str,
    apart: str = "",
) -> Item:
    """Rows without any run are left out. Ends with budgets and n, the number of seeds."""
    item = filled(name, title, corner, rows, (*measures, *budgets()), missing, reference, apart)
    if not isinstance(item.content, Table):
        return item
    held = [row for row in rows if any(row.runs.values())]
    legend = _legend(item.content.columns, item.runs, fold)
    return replace(item, content=replace(item.content, notes=(legend, *_settings(held), *_rounds(held))))


def filled(
    name: str,
    title: str,
    corner: str,
    rows: Sequence[Row],
    measures: Sequence[Measure],
    missing: Sequence[Missing],
    reference: str,
    apart: str = "",
) -> Item:
    """A table without notes, of the measures and n alone."""
    held = [row for row in rows if any(row.runs.values())]
    if not held:
        return Item(name, None, missing=tuple(missing))
    cells = [[_cell(row, measure) for measure in measures] for row in held]
    seeds = [Cell(tuple(float(len(runs)) for runs in row.runs.values() if runs)) for row in held]
    columns = [m.column for m in measures]
    kept = [c for c in range(len(columns)) if any(line[c] is not None for line in cells)]
    every = each(seeds_of for row in held for seeds_of in row.runs.values())
    content = Table(
        name,
        title,
        corner,
        columns=(*(columns[c] for c in kept), Column("n", "$n$", digits=0, span=True)),
        rows=tuple(row.label for row in held),
        cells=tuple((*(line[c] for c in kept), n) for line, n in zip(cells, seeds, strict=True)),
        apart=frozenset({apart} if apart else ()),
        blocks=tuple(row.block for row in held) if any(row.block for row in held) else (),
    )
    return Item(name, content, runs=tuple(every), missing=tuple(missing), reference=reference)


def _cell(row: Row, measure: Measure) -> Cell | None:
    places = [measure.place] if measure.place else list(row.runs)
    runs = [run for place in places for run in row.runs.get(place, {}).values()]
    told = [(run.seed, reading) for run in runs if (reading := measure.read(run)) is not None]
    if not told:
        return None
    return Cell(
        values=tuple(reading.value for _, reading in told),
        within=tuple(reading.within for _, reading in told if reading.within is not None),
        clients={seed: reading.clients for seed, reading in told if reading.clients is not None},
    )


def _legend(columns: Sequence[Column], runs: Sequence[Found], fold: Fold) -> str:
    """What the numbers are."""
    heads = [column.head for column in columns]
    counts = sorted({len(run.result["clients"]) for run in runs})
    layers = ", for GQ(l) over layers" if "GQ(l)" in heads else ""
    words = f"Mean ± std over {' or '.join(map(str, counts))} clients{layers} (± std over the n seeds). acc^t: pair "
    words += f"accuracy in % on the {fold} pairs after t local steps."
    if "GQ(l)" in heads:
        words += " GQ: gradient quotient, B the first two thirds of the layers, H the others."
    if "m0_R" in heads:
        words += " m0: mean margin at θ_0; H0, H+: mean headroom, % above 0."
    if any(head.startswith("P^") for head in heads):
        words += " R, W: test pairs right or wrong at θ_0; P^t: % of them right after t steps."
    return words + " Bold: the best of a column, of acc^t once personalized."


def _settings(rows: Sequence[Row]) -> list[str]:
    """A line a place: what all of its runs have in common."""
    lines: dict[str, list[str]] = {}
    for place in dict.fromkeys(place for row in rows for place in row.runs):
        runs = [run for row in rows for run in row.runs.get(place, {}).values()]
        if runs:
            lines.setdefault(describe(runs), []).append(place)
    return [f"{', '.join(places)}: {line}" for line, places in lines.items()]


def _rounds(rows: Sequence[Row]) -> list[str]:
    """How the rounds of some rows are not R rounds of training for the model that is judged."""
    runs = [run for row in rows for seeds in row.runs.values() for run in seeds.values()]
    other = {r.config["algorithm"] for r in runs if r.result["rounds"] != r.config["federation.rounds"]}
    words = []
    if "fedbiscuit" in other:
        words.append("FedBiscuit's include its warm-up (K·T + R - T)")
    if any(run.config["algorithm"] == "fedgd" for run in runs):
        words.append("FedGD's model gets R/2 of R, the others find the groups")
    pooled = " and ".join(NAMES[a] for a in ("cl", "multi_cl") if a in other)
    if pooled:
        words.append(f"{pooled} {'have' if ' and ' in pooled else 'has'} none (R·τ steps on pooled data)")
    return [f"Rounds: {'; '.join(words)}."] if words else []


def describe(runs: Sequence[Found]) -> str:
    """Base, data and budget of runs, in the paper's symbols; several values where they differ."""

    def values(key: str) -> str:
        return ", ".join(map(show, sorted({run.config[key] for run in runs})))

    seeds = sorted({run.seed for run in runs})
    data = ", ".join(dict.fromkeys(_data(run) for run in runs))
    return (
        f"{data}; base {values('model.base')}; R = {values('federation.rounds')}, "
        f"{values('federation.cohort')} clients a round, τ = {values('federation.local_steps')}, batch "
        f"{values('optim.batch_size')}, learning rate {values('optim.learning_rate')}, "
        f"seed{'s' * (len(seeds) > 1)} {' '.join(map(str, seeds))}."
    )


def _data(run: Found) -> str:
    data = PurePath(run.config["data.source"]).name
    if run.setting != "real":
        data = f"{'/'.join(map(str, run.config['data.group_sizes']))} clients ({run.config['data.source']})"
    if run.unseen is None:
        return data
    return f"{data}, of whom {run.config['federation.unseen']} of each group took no part in training"


def steps(runs: Iterable[Found], wanted: int = WANTED) -> tuple[int, int]:
    """(the mark nearest to `wanted`, the last mark) of runs that have the same marks; both `wanted` where there are
    none."""
    marks = next((run.result["marks"] for run in runs), [wanted])
    after = [t for t in marks if t > 0] or marks
    return min(after, key=lambda t: abs(t - wanted)), marks[-1]


def each(seeds: Iterable[Seeds]) -> list[Found]:
    return [run for one in seeds for run in one.values()]


def lacking(labels: Iterable[tuple[str, Seeds]], where: str, command: str) -> list[Missing]:
    """One line for all labels without runs."""
    of = list(labels)
    gone = [label for label, seeds in of if not seeds]
    what = ", ".join(gone) if len(gone) < len(of) else "every row"
    return [Missing(f"{where}: {what}", command)] if gone else []


BALANCED_FL = "FL (balanced)"
SWEEP = "python -m raypref.sweep "
REAL = SWEEP + "real_world"


def table1(runs: Sequence[Found], fold: Fold) -> Item:
    """Diagnostics, balanced. FL_target, which the paper shows for imbalanced groups only, where it was run."""
    algorithms = ("cl", "multi_cl", "fedavg", "fl_target")
    found = choose(runs, [{"setting": "balanced", "algorithm": a} for a in algorithms])
    rows = [Row(NAMES[a], {"Balanced": seeds}) for a, seeds in zip(algorithms, found, strict=True)]
    at, _ = steps(each(found))
    missing = lacking([(row.label, row.runs["Balanced"]) for row in rows[:3]], "balanced", SWEEP + "imbalance")
    missing += _undiagnosed(found)
    title = f"Table 1. Diagnostics and acc^{at}, balanced groups"
    columns = diagnostic_columns("Balanced", at, fold)
    return table("table1", title, "method", rows, columns, missing, fold, "FL")


def table2(runs: Sequence[Found], fold: Fold) -> Item:
    """Diagnostics, imbalanced; the first row repeats balanced FL."""
    algorithms = ("cl", "multi_cl", "fedavg", "fl_target")
    points = [{"setting": "balanced", "algorithm": "fedavg"}]
    points += [{"setting": "imbalanced", "algorithm": a} for a in algorithms]
    balanced, *found = choose(runs, points)
    rows = [Row(NAMES[a], {"Imbalanced": seeds}) for a, seeds in zip(algorithms, found, strict=True)]
    at, _ = steps(each(found))
    labels = [(BALANCED_FL, balanced), *((row.label, row.runs["Imbalanced"]) for row in rows)]
    missing = lacking(labels, "imbalanced", SWEEP + "imbalance") + _undiagnosed(found)
    if any(found):
        rows = [Row(BALANCED_FL, {"Imbalanced": balanced}), *rows]
    title = f"Table 2. Diagnostics and acc^{at}, imbalanced groups"
    columns = diagnostic_columns("Imbalanced", at, fold)
    return table("table2", title, "method", rows, columns, missing, fold, "FL_target", apart=BALANCED_FL)


def _undiagnosed(found: Sequence[Seeds]) -> list[Missing]:
    runs = each(found)
    if not runs or any(run.diagnosed for run in runs):
        return []
    return [Missing("GQ, margins and headroom: the runs have none", "the same with --diagnostics.marks 0")]


def table3(runs: Sequence[Found], fold: Fold) -> Item:
    """The main table: balanced, imbalanced, real."""
    points = [{"setting": s, "algorithm": a} for s in ("balanced", "imbalanced") for a in DEPLOYABLE]
    synthetic = choose(runs, points)
    real = choose(runs, [{"setting": "real", "algorithm": a} for a in DEPLOYABLE])
    found = {
        "Balanced": synthetic[: len(DEPLOYABLE)],
        "Imbalanced": synthetic[len(DEPLOYABLE) :],
        "Real": real,
    }
    rows = [Row(NAMES[a], {place: found[place][i] for place in found}) for i, a in enumerate(DEPLOYABLE)]
    measures, missing = [], []
    for place, seeds in found.items():
        at, last = steps(each(seeds), 80 if place == "Real" else WANTED)
        measures += [accuracy(t, fold, place) for t in dict.fromkeys((0, at, last))]
        labels = [(NAMES[a], s) for a, s in zip(DEPLOYABLE, seeds, strict=True) if (place, a) != ("Real", "multi_cl")]
        missing += lacking(labels, place.lower(), REAL if place == "Real" else SWEEP + "main_results")
    title = "Table 3. Accuracy before and after personalization"
    return table("table3", title, "algorithm", rows, measures, missing, fold, "FedGD")


def table4(runs: Sequence[Found], fold: Fold) -> Item:
    """Real data by base model."""
    algorithms = ("local", "cl", "fedavg", "fedgd")
    bases = sorted({run.config["model.base"] for run in runs if run.setting == "real"})
    found = {
        PurePath(base).name: choose(runs, [{"setting": "real", "algorithm": a, "model.base": base} for a in algorithms])
        for base in bases
    }
    rows = [Row(NAMES[a], {base: found[base][i] for base in found}) for i, a in enumerate(algorithms)]
    measures, missing = [], []
    for base, seeds in found.items():
        _, last = steps(each(seeds))
        measures += [accuracy(t, fold, base) for t in dict.fromkeys((0, last))]
        missing += lacking([(NAMES[a], s) for a, s in zip(algorithms, seeds, strict=True)], base, REAL)
    if len(bases) < 2:
        missing.append(Missing(f"real data on {'a second' if bases else 'any'} base", f"{REAL} --model.base BASE"))
    title = "Table 4. Real data by base model"
    return table("table4", title, "method", rows, measures, missing, fold, "FedGD")


def by_K(runs: Sequence[Found], setting: str, algorithms: Sequence[str]) -> tuple[list[int], dict[str, list[Seeds]]]:
    """The numbers of experts that were tried (the paper: 2, 3, 4), and algorithm -> its runs for each."""
    Ks = sorted({r.config["experts.K"] for r in runs if r.setting == setting and r.config["algorithm"] in algorithms})
    Ks = sorted({2, 3, 4, *Ks})
    found = choose(runs, [{"setting": setting, "algorithm": a, "experts.K": K} for a in algorithms for K in Ks])
    return Ks, {a: found[i * len(Ks) : (i + 1) * len(Ks)] for i, a in enumerate(algorithms)}


START, K_ROW = ("continue", "random"), "FedGD (K={})"
KS = SWEEP + "k_robustness, and main_results for K = 4"


def table5(runs: Sequence[Found], fold: Fold) -> Item:
    """FedGD by K, with diagnostics."""
    Ks, found = by_K(runs, "imbalanced", ["fedgd"])
    rows = [Row(K_ROW.format(K), {"Imbalanced": s}) for K, s in zip(Ks, found["fedgd"], strict=True)]
    at, _ = steps(each(found["fedgd"]))
    labels = [(row.label, row.runs["Imbalanced"]) for row in rows]
    missing = lacking(labels, "imbalanced", KS) + _undiagnosed(found["fedgd"])
    title = f"Table 5. FedGD by the number of clusters K: diagnostics and acc^{at}, imbalanced groups"
    columns = diagnostic_columns("Imbalanced", at, fold)
    return table("table5", title, "method", rows, columns, missing, fold, "FedGD (K=4)")


def table6(runs: Sequence[Found], fold: Fold) -> Item:
    """The last accuracy by K for the methods that keep several models."""
    algorithms = ("fedbiscuit", "soft_fl", "fedgd")
    runs_of: dict[str, dict[str, Seeds]] = {a: {} for a in algorithms}
    measures, missing = [], []
    for setting, command in (("imbalanced", KS), ("real", f"{REAL} --experts.K 2, then 3 and 4")):
        Ks, found = by_K(runs, setting, algorithms)
        _, last = steps(each(seeds for of in found.values() for seeds in of))
        for i, K in enumerate(Ks):
            place = f"{setting.capitalize()} K={K}"
            measures.append(accuracy(last, fold, f"{setting.capitalize()} acc^{last}", place, head=f"K={K}"))
            for a in algorithms:
                runs_of[a][place] = found[a][i]
        labels = [(f"{NAMES[a]} K={K}", s) for a in algorithms for K, s in zip(Ks, found[a], strict=True)]
        missing += lacking(labels, setting, command)
    rows = [Row(NAMES[a], runs_of[a]) for a in algorithms]
    return table(
        "table6", "Table 6. Accuracy by the number of clusters K", "method", rows, measures, missing, fold, "FedGD"
    )


def table7(runs: Sequence[Found], fold: Fold) -> Item:
    """Where phase 2 starts."""
    starts, settings = START, ("imbalanced", "balanced")
    points = [{"setting": s, "algorithm": "fedgd", "fedgd.phase2_start": start} for s in settings for start in starts]
    found = choose(runs, points)
    places = {"Imbalanced": found[:2], "Balanced": found[2:]}
    rows = [Row(start.capitalize(), {p: seeds[i] for p, seeds in places.items()}) for i, start in enumerate(starts)]
    measures = []
    for place, seeds in places.items():
        at, last = steps(each(seeds))
        measures += [accuracy(t, fold, place) for t in dict.fromkeys((0, at, last))]
    missing = []
    for i, (start, space) in enumerate(zip(starts, ("phase2_start", "main_results"), strict=True)):
        missing += lacking([(p, s[i]) for p, s in places.items()], f"phase 2 {start}", SWEEP + space)
    if not all(any(row.runs.values()) for row in rows):  # one start alone compares nothing
        return Item("table7", None, missing=tuple(missing))
    return table("table7", "Table 7. Where phase 2 of FedGD starts", "phase 2", rows, measures, missing, fold, "Random")


def _groups(name: str, number: int, setting: str, runs: Sequence[Found], fold: Fold) -> Item:
    """Figs. 2 and 3."""
    algorithms = ("cl", "multi_cl", "fedavg", "fl_target")
    found = choose(runs, [{"setting": setting, "algorithm": a} for a in algorithms])
    labels = [(NAMES[a], seeds) for a, seeds in zip(algorithms, found, strict=True)]
    missing = lacking(labels[: 3 if setting == "balanced" else 4], setting, SWEEP + "imbalance")
    if not any(found):
        return Item(name, None, missing=tuple(missing))
    figure = figures.group_curves({label: [r.result for r in s.values()] for label, s in labels if s}, fold)
    caption = (
        f"Figure {number}. Accuracy of each true group over local steps, {setting} groups; bands: lowest to highest "
        f"seed. {describe(each(found))}"
    )
    return Item(name, figure, caption, tuple(each(found)), tuple(missing))


def figure2(runs: Sequence[Found], fold: Fold) -> Item:
    return _groups("figure2", 2, "balanced", runs, fold)


def figure3(runs: Sequence[Found], fold: Fold) -> Item:
    return _groups("figure3", 3, "imbalanced", runs, fold)


def figure4(runs: Sequence[Found], fold: Fold) -> Item:
    """The groups that FedGD ends with, by K; of the lowest seed."""
    Ks, found = by_K(runs, "imbalanced", ["fedgd"])
    labels = [(f"K = {K}", seeds) for K, seeds in zip(Ks, found["fedgd"], strict=True)]
    missing = lacking(labels, "imbalanced FedGD", KS)
    shown = {label: seeds[min(seeds)] for label, seeds in labels if seeds}
    if not shown:
        return Item("figure4", None, missing=tuple(missing))
    told = "; ".join(f"{label}: {_ari(seeds)}" for label, seeds in labels if seeds)
    caption = (
        "Figure 4. Clients, by true group, coloured by the expert that FedGD assigns them at the end of phase 1 "
        f"(seed {', '.join(sorted({str(run.seed) for run in shown.values()}))}). Adjusted Rand index by seed: {told}."
    )
    figure = figures.clusters({label: run.result for label, run in shown.items()})
    return Item("figure4", figure, caption, tuple(each(found["fedgd"])), tuple(missing))


def _ari(seeds: Seeds) -> str:
    values = [seeds[s].result["ari"] for s in sorted(seeds)]
    return " ".join("–" if ari is None else f"{ari:.2f}" for ari in values)


def figure5(runs: Sequence[Found], fold: Fold) -> Item:
    """acc^0 and acc^10 over τ, for two learning rates."""
    methods = ("fedavg", "cl")
    key, rate = "federation.local_steps", "optim.learning_rate"
    fitting = [r for r in runs if r.setting == "balanced" and r.config["algorithm"] in methods]
    taus, rates = (sorted({r.config[k] for r in fitting}) for k in (key, rate))
    points = [
        {"setting": "balanced", "algorithm": a, key: tau, rate: lr} for lr in rates for a in methods for tau in taus
    ]
    found = choose(fitting, points)
    at, _ = steps(each(found))
    rows: dict[str, dict[str, dict[int, list[tuple[float, float]]]]] = {}
    for point, seeds in zip(points, found, strict=True):
        values = [(_mean(run, 0, fold), _mean(run, at, fold)) for run in seeds.values()]
        if values:
            rows.setdefault(show(point[rate]), {}).setdefault(NAMES[point["algorithm"]], {})[point[key]] = values
    curves = [curve for of in rows.values() for curve in of.values()]
    missing = []
    if len(rows) < 2 or any(len(curve) < 2 for curve in curves) or len(curves) < 4:
        missing.append(Missing("FL and CL at several τ and two learning rates", SWEEP + "local_steps"))
    if not any(len(curve) > 1 for curve in curves):  # one τ alone shows no sensitivity
        return Item("figure5", None, missing=tuple(missing))
    rows = dict(sorted(rows.items(), key=lambda row: -float(row[0])))
    caption = (
        "Figure 5. Accuracy before and after personalization over the local steps τ before aggregation, balanced "
        f"groups; bars: ± std over seeds. {describe(each(found))}"
    )
    return Item("figure5", figures.sensitivity(rows, at), caption, tuple(each(found)), tuple(missing))


def _mean(run: Found, t: int, fold: Fold) -> float:
    told = summary(np.array(run.result[fold]["accuracy"]))["mean"]
    return float(told[run.result["marks"].index(t)]) if t in run.result["marks"] else float("nan")


def figure6(runs: Sequence[Found], fold: Fold) -> Item:
    """How the groups come about in phase 1; of the lowest seed that both settings have."""
    settings = ("imbalanced", "balanced")
    grouped = [run for run in runs if run.groups is not None]
    found = choose(grouped, [{"setting": s, "algorithm": "fedgd"} for s in settings])
    missing = lacking(zip(settings, found, strict=True), "FedGD", SWEEP + "main_results")
    if not any(found):
        return Item("figure6", None, missing=tuple(missing))
    last = each(found)[0].config["federation.rounds"] // 2
    common = set.intersection(*(set(seeds) for seeds in found if seeds)) or {min(seeds) for seeds in found if seeds}
    panels, told = {}, []
    for setting, seeds in zip(settings, found, strict=True):
        if not seeds:
            continue
        shown = seeds[min(common)] if min(common) in seeds else seeds[min(seeds)]
        assert shown.groups is not None
        panels[f"{setting} (seed {shown.seed})"] = shown.groups
        when = [_settled(seeds[s], last) for s in sorted(seeds)]
        told.append(f"{setting} {', '.join(map(str, when))}")
    caption = (
        f"Figure 6. Experts of the clients over FedGD's phase 1 ({last} rounds). The groups settle (no client moves "
        f"afterwards) in round, by seed: {'; '.join(told)}. {describe(each(found))}"
    )
    return Item("figure6", figures.evolution(panels, last), caption, tuple(each(found)), tuple(missing))


def _settled(run: Found, last: int) -> int | None:
    assert run.groups is not None
    rounds, experts = figures.phase1(run.groups, last)
    return figures.settled(rounds, experts.tolist())


def figure_gq(runs: Sequence[Found], fold: Fold) -> Item:
    """GQ(l) layer by layer; not in the paper, whose text compares "every layer" (S2 3.1)."""
    told = [run for run in runs if run.diagnosed]
    for setting in ("imbalanced", "balanced"):
        found = choose(told, [{"setting": setting, "algorithm": a} for a in NAMES])
        if any(found):
            lines = {
                name: [run.diagnosed["gq_layers"] for run in seeds.values()]
                for name, seeds in zip(NAMES.values(), found, strict=True)
                if seeds
            }
            caption = f"GQ(l) layer by layer at the initialization, {setting} groups. {describe(each(found))}"
            return Item("figure-gq", figures.layers(lines), caption, tuple(each(found)))
    missing = Missing("runs with diagnostics", SWEEP + "imbalance")
    return Item("figure-gq", None, missing=(missing,))


TABLES = {1: table1, 2: table2, 3: table3, 4: table4, 5: table5, 6: table6, 7: table7}
FIGURES = {2: figure2, 3: figure3, 4: figure4, 5: figure5, 6: figure6, 0: figure_gq}
"""0: GQ(l) by layer, which the paper has no figure of."""


def reference(word: str) -> str:
    """A row that differences may be taken to, by its label or by the algorithm's name; `UserError` where no table has
    such a row."""
    known = {label.lower(): label for label in (*NAMES.values(), FEDDPO, BALANCED_FL, *map(str.capitalize, START))}
    if word.partition(" (")[0].lower() in known and word.endswith(")"):  # with its form or options
        return word
    known |= dict(NAMES) | {K_ROW.format(K).lower(): K_ROW.format(K) for K in range(1, 100)}
    if word.lower() not in known:
        close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
        hint = f"did you mean {known[close[0]]!r}?" if close else f"there are: {', '.join(NAMES.values())}"
        raise UserError(f"no table has a row {word!r} for --reference; {hint}")
    return known[word.lower()]
