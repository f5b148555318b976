"""S1's Tables 1 to 3 and Fig. 4: how often a judge prefers a policy's responses to the frozen base's (S1 5.1, C.3.1),
or by how much a reward model scores them higher (C.3.2).

Policies that are compared agree in stage 1, in stage 2 and in the judge; they differ in the seed, in the method with
its objective's own options, and in what the table varies.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from raypref.evaluation import mix
from raypref.evaluation.papers import (
    FEDDPO,
    NAMES,
    SWEEP,
    Found,
    Item,
    Measure,
    Missing,
    Reading,
    Row,
    describe,
    each,
    filled,
    label,
)
from raypref.evaluation.ranking import show, spread
from raypref.evaluation.report import COLOURS, Fold, _axes, legend
from raypref.evaluation.tables import Column, Table, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = (FEDDPO, "FedBiscuit", "FedVPL", "FedVPA-GP")
"""The rows of S1 Tables 1 and 2."""
ABLATION = ("fedvpl", "fedvpl_ortho", "fedvpl_prior", "fedvpa_gp")
"""The bars of S1 Fig. 4."""
WHERE = ("backend", "gpus_per_worker", "cpus_per_worker", "engine", "zero_stage")
"""Fields of `rlhf` that change where work runs, not what is computed beyond rounding."""
ANSWERS = ("temperature", "top_p", "max_new_tokens", "samples", "generation_batch")
"""Fields of `rlhf` that have a part in every policy; FedDPO's, which stage 1 trains, has no others."""
CHANCE = ("samples", "seed", "url")
"""Settings of a judge that change what it is asked, or where, but not who it is: those of other settings are never in
one table. Its wording, where one is asked for, is in its name."""
ALL = "all"
"""Head of the clients of no known group."""


@dataclass(frozen=True)
class Policy(Found):
    """The policy that followed a stage-1 run; `result` is its policy.json, `config` has stage 2's sections."""

    judgements: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Judge -> what it found (`raypref.judge.judge_folder`)."""

    @property
    def clients(self) -> int:
        """N, the unseen ones included."""
        return int(self.result["clients"])

    @property
    def setting(self) -> str:
        sizes = list(self.config["data.group_sizes"])
        if sum(sizes) != self.clients:
            return "real"
        return "balanced" if len(set(sizes)) == 1 else "imbalanced"

    @property
    def training(self) -> dict[str, Any]:
        """How stage 2 trained it; empty for FedDPO."""
        none = tuple(f"rlhf.{name}" for name in (*WHERE, *ANSWERS))
        rlhf = {k: v for k, v in self.config.items() if k.startswith("rlhf.") and k not in none}
        return {} if self.config["objective"] == "dpo" else rlhf

    @property
    def computed(self) -> dict[str, Any]:
        """What its responses depend on: as of any run, and how policies are trained and asked (`dpo.`, `rlhf.`)."""
        asked = tuple(f"rlhf.{name}" for name in ANSWERS)
        own = {k: v for k, v in self.config.items() if k.startswith(("dpo.", *asked))}
        return json.loads(super().identity()) | own | self.training

    def identity(self, leave: Iterable[str] = ()) -> str:
        left = set(leave)
        return json.dumps({key: value for key, value in self.computed.items() if key not in left}, sort_keys=True)

    @property
    def judge(self) -> tuple[str, Mapping[str, Any]]:
        """(its name, what it found) of the one that is left (`by_one_judge`)."""
        ((name, told),) = self.judgements.items()
        return name, told


def by_one_judge(runs: Iterable[Policy]) -> list[Policy]:
    """Those that the judge of most of them has judged, with its judgement alone; of judges of equally many, win rates
    come before reward scores."""
    judged = list(runs)
    counts = Counter(name for run in judged for name in run.judgements)
    scores = {name for run in judged for name, told in run.judgements.items() if not _wins(told)}
    name = min(counts, key=lambda judge: (-counts[judge], judge in scores, judge), default="")
    return [replace(run, judgements={name: run.judgements[name]}) for run in judged if name in run.judgements]


def family(runs: Iterable[Policy], vary: Sequence[str] = ()) -> list[Policy]:
    """Runs, each judged by one, that agree in everything but what a table may compare: of several families the
    `fullest`. FedDPO's policies, which stage 2 trains in no way, are of every family with which they agree."""
    families: dict[str, dict[str, list[Policy]]] = {}
    for run in runs:
        free = [key for key in run.config if key.startswith(("variational.", *vary))]
        name, told = run.judge
        common = run.identity(("seed", "algorithm", "objective", *free, *run.training))
        common += json.dumps([name, _who(told)], sort_keys=True)
        families.setdefault(common, {}).setdefault(json.dumps(run.training, sort_keys=True), []).append(run)
    found: list[list[Policy]] = []
    for by_training in families.values():
        untrained = by_training.pop("{}", [])
        found += [[*own, *untrained] for own in by_training.values() or [[]]]
    return fullest(found, vary)


def _who(judgement: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that tell judges of one name apart."""
    return {key: value for key, value in judgement["settings"].items() if key not in CHANCE}


def fullest(families: Iterable[list[Policy]], vary: Sequence[str] = ()) -> list[Policy]:
    """The one with most methods at most values of the keys in `vary`, then most runs, then the newest; [] of none."""

    def rank(runs: list[Policy]) -> tuple[int, int, int]:
        points = {(label(run.config), *(show(run.config[key]) for key in vary)) for run in runs}
        return len(points), len(runs), max(run.started for run in runs)

    return max(families, key=rank, default=[])


def by_base(runs: Iterable[Policy]) -> dict[str, list[Policy]]:
    """Base model -> the runs on it, all by one judge; the only one has no name, for it is told beneath the table."""
    judged = sorted(by_one_judge(runs), key=lambda run: str(run.config["model.base"]))
    several = len({run.config["model.base"] for run in judged}) > 1
    of: dict[str, list[Policy]] = {}
    for run in judged:
        of.setdefault(PurePath(run.config["model.base"]).name if several else "", []).append(run)
    return of


def rows_of(runs: Sequence[Policy], place: Callable[[Policy], str], block: str = "") -> list[Row]:
    """A row a label, its runs by place, one a seed: the newest."""
    rows = []
    for name, own in mix.labels(runs).items():
        places: dict[str, dict[int, Found]] = {}
        for run in sorted(own, key=lambda run: run.started):
            assert isinstance(run, Policy)
            places.setdefault(place(run), {})[run.seed] = run
        rows.append(Row(name, places, block))
    return rows


class Part(NamedTuple):
    """What a column shows."""

    groups: tuple[str, ...]
    """Whose sections; the mean over those of several."""
    unseen: bool = False
    block: str = ""
    place: str = ""


COUNT = ("data.group_sizes", "federation.cohort")
"""What S1 Table 1 varies beside the method (C.1.1)."""


def by_count(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Table 1: a block of columns a number of clients, a block of rows a base model."""
    rows: list[Row] = []
    for base, own in by_base(run for run in runs if _kind(run) == "even").items():
        dealt: dict[int, dict[str, list[Policy]]] = {}
        for run in family(own, COUNT):
            dealt.setdefault(run.clients, {}).setdefault(str([run.config[key] for key in COUNT]), []).append(run)
        chosen = [run for of in dealt.values() for run in fullest(of.values())]
        rows += rows_of(chosen, lambda run: f"{run.clients} clients", base)
    parts = []
    for place in (f"{count} clients" for count in sorted({run.clients for run in _policies(rows)})):
        groups = _groups_of(rows, place)
        means = [tuple(groups)] if len(groups) > 1 else []
        parts += [Part(of, block=place, place=place) for of in (*((group,) for group in groups), *means)]
    missing = _lacking(rows, METHODS, "client_count")
    return _table("win-rates", "by the number of clients", "method", rows, parts, missing)


def of_unseen(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Table 2: clients that trained, and clients that took no part and only inferred their z."""
    rows: list[Row] = []
    for base, own in by_base(run for run in runs if _kind(run) == "unseen").items():
        rows += rows_of(family(own), lambda run: "", base)
    groups = _groups_of(rows)
    parts = [Part((g,), unseen, block) for unseen, block in ((False, "Seen"), (True, "Unseen")) for g in groups]
    missing = _lacking(rows, METHODS, "unseen")
    return _table("win-rates-unseen", "on seen and unseen clients", "method", rows, parts, missing)


def by_ratio(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Table 3: a block of rows a division of the clients into groups of unequal size."""
    rows: list[Row] = []
    for base, own in by_base(run for run in runs if _kind(run) == "uneven").items():
        kept = family(own, ("data.group_sizes",))
        for sizes in sorted({tuple(run.config["data.group_sizes"]) for run in kept}, reverse=True):
            of = [run for run in kept if tuple(run.config["data.group_sizes"]) == sizes]
            rows += rows_of(of, lambda run: "", f"{base} {'/'.join(map(str, sizes))}".strip())
    parts = [Part((group,)) for group in _groups_of(rows)]
    missing = _lacking(rows, METHODS[1::2], "client_ratio")
    return _table("win-rates-ratio", "by how many clients each group has", "clients, method", rows, parts, missing)


def ablation(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Fig. 4: FedVPL, with either of FedVPA-GP's parts, and with both."""
    fitting = [run for run in runs if _of_ablation(run)]
    rows: list[Row] = []
    for base, own in by_base(run for run in fitting if _kind(run) == "even").items():
        rows += rows_of(family(own), lambda run: "", base)
    missing = _lacking(rows, [NAMES[algorithm] for algorithm in ABLATION], "ablation")
    if len({row.label for row in rows}) < 2:  # one alone compares nothing
        return Item("figure-win-rates", None, missing=tuple(missing))
    panels = {}
    for base in dict.fromkeys(row.block for row in rows):
        held = [row for row in rows if row.block == base]
        panels[base] = {
            group or ALL: {row.label: _values(row, Part((group,))) for row in held} for group in _groups_of(held)
        }
    shown = _policies(rows)
    words = "What the parts of FedVPA-GP do (as its Figure 4); bars: mean ± std over seeds."
    figure = bars(panels, _wins(shown[0].judge[1]))
    return Item("figure-win-rates", figure, " ".join([words, *_notes(rows)]), tuple(shown), tuple(missing))


def score(part: Part, run: Found, ids: Sequence[str] = ()) -> Reading | None:
    """The win rate of a section, over all comparisons that could be read, or the mean of reward scores' differences.

    ids: whom rows are paired by; `clients` of the reading are each one's own mean, nan where it has none.
    """
    assert isinstance(run, Policy)
    own = [s for s in run.judge[1]["sections"] if s["unseen"] == part.unseen and s["axis"] in part.groups]
    told = [value for s in own if (value := s["win_rate"] if "win_rate" in s else s["difference"]) is not None]
    if len(told) < len(part.groups):
        return None
    of: dict[str, list[float]] = {}
    for section in own:
        for client, value in zip(section["client_of"], section["scores"], strict=True):
            of.setdefault(client, []).append(value)
    clients = np.array([np.mean(of[client]) if client in of else np.nan for client in ids])
    return Reading(float(np.mean(told)), clients=clients if ids else None)


def bars(panels: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], wins: bool) -> Figure:
    """A panel a base: a block of bars a group, a bar a method, its height the mean over seeds, with ± std over them.

    panels: title -> group -> method -> a value a seed, shares where `wins`, which are drawn in %.
    """
    figure, axs = _axes(len(panels), len(panels), size=(1 + 4.2 * len(panels), 3.6))
    methods = list(dict.fromkeys(name for groups in panels.values() for of in groups.values() for name in of))
    wide, scale, handles = 0.8 / len(methods), 100 if wins else 1, {}
    for ax, (base, groups) in zip(axs, panels.items(), strict=True):
        for i, name in enumerate(methods):
            held = [(x, of[name]) for x, of in enumerate(groups.values()) if of.get(name)]
            x = [at + (i - (len(methods) - 1) / 2) * wide for at, _ in held]
            mean = [scale * float(np.mean(values)) for _, values in held]
            std = [scale * spread(values) if len(values) > 1 else 0.0 for _, values in held]
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


def _table(
    name: str, title: str, corner: str, rows: Sequence[Row], parts: Sequence[Part], missing: Sequence[Missing]
) -> Item:
    runs = _policies(rows)
    if not runs:
        return Item(name, None, missing=tuple(missing))
    ids = sorted({client for run in runs for s in run.judge[1]["sections"] for client in s["client_of"]})
    wins = _wins(runs[0].judge[1])
    measures = [Measure(part.place, _column(part, wins), partial(score, part, ids=ids)) for part in parts]
    title = f"{'Win rates' if wins else 'Reward scores'} by {runs[0].judge[0]}, {title}"
    item = filled(name, title, corner, rows, measures, missing, rows[-1].label)
    assert isinstance(item.content, Table)
    unit = "win rates in points" if wins else "reward scores"
    told, *settings = _notes(rows)
    notes = (f"{told} In brackets std over the n seeds. Bold: the best of a column.", *settings)
    return replace(item, content=replace(item.content, notes=notes, unit=unit))


def _column(part: Part, wins: bool) -> Column:
    head = "mean" if len(part.groups) > 1 else part.groups[0] or ALL
    if not wins:
        head += ", ours - theirs"
    how: Any = {"scale": 100, "digits": 1} if wins else {"digits": 3, "signed": True}
    return Column(head, escape(head), part.block, best=1, **how)


def _values(row: Row, part: Part) -> list[float]:
    """A value a seed."""
    return [reading.value for run in _policies([row]) if (reading := score(part, run)) is not None]


def _notes(rows: Sequence[Row]) -> list[str]:
    """What the numbers are and who says so; then what the runs of each base have in common."""
    runs = _policies(rows)
    name, told = runs[0].judge
    model = told["settings"].get("model", name)
    who = name if model == name else f"{name} ({model})"
    sections = [section for run in runs for section in run.judge[1]["sections"]]
    prompts = dict.fromkeys((min(s["prompts"] for s in sections), max(s["prompts"] for s in sections)))
    on = f"policies against their frozen base by {who}, on {' to '.join(map(str, prompts))} test prompts of each group"
    words = f"Mean difference of the scores of {on} and seed."
    if _wins(told):
        words = f"Win rate in % of {on} and seed; a tie counts half."
        unread = sum(section["unparseable"] for section in sections)
        words += f" {unread:,} answers are missing or could not be read." * bool(unread)
    lines = [words]
    for base in sorted({run.config["model.base"] for run in runs}):
        own = [run for run in runs if run.config["model.base"] == base]
        lines.append(f"Stage 1: {describe(own)} {_stage2(own)}")
    return lines


def remarks(item: Item, policies: Iterable[Policy]) -> Iterator[str]:
    """What a reader of a table or figure must know: which policies were chosen, where there was a choice (`policies`
    are all that it was made of), and where they were not judged on the same comparisons."""
    shown = [run for run in item.runs if isinstance(run, Policy)]
    if shown:
        yield from _chosen(item, shown, policies)
        yield from _unlike(item, shown)


def _chosen(item: Item, shown: Sequence[Policy], policies: Iterable[Policy]) -> Iterator[str]:
    judge, ids = shown[0].judge[0], {run.id for run in shown}
    could = [run for run in policies if run.id not in ids and _kind(run) == _kind(shown[0])]
    if item.name == "figure-win-rates":
        could = [run for run in could if _of_ablation(run)]
    here, there = ([_told_apart(run, judge) for run in runs] for runs in (shown, could))
    chosen, left = [], []
    for key in sorted({key for told in there for key in told}):
        values, others = ({show(told[key]) for told in of if key in told} for of in (here, there))
        if values and others - values:
            chosen.append(f"{key} {' or '.join(sorted(values))}")
            left.append(f"{key} {' or '.join(sorted(others - values))}")
    if unjudged := sum(judge not in run.judgements for run in could):
        left.append(f"{unjudged} not judged by {judge}")
    if left:
        words = f"{item.name} shows {len(shown)} of {len(shown) + len(could)} policies, judged by {judge}"
        yield f"{', '.join([words, *chosen])} (the fullest, of equals the newest); left out: {', '.join(left)}"


def _unlike(item: Item, shown: Sequence[Policy]) -> Iterator[str]:
    counts: dict[tuple[str, bool, str], dict[int, dict[str, None]]] = {}
    seeds: set[int] = set()
    for run in shown:
        told = run.judge[1]
        seeds |= {told["settings"]["seed"]} if told["settings"]["samples"] else set()
        for section in told["sections"]:
            prompts = str((run.clients, run.config["data.group_sizes"], run.seed))  # which have others to test on
            of = counts.setdefault((section["axis"], section["unseen"], prompts), {})
            of.setdefault(section["prompts"], {})[label(run.config)] = None
    if uneven := [of for of in counts.values() if len(of) > 1]:
        on = "; ".join(f"{prompts}: {', '.join(names)}" for prompts, names in sorted(uneven[0].items()))
        yield f"{item.name}: policies were judged on different numbers of comparisons, such as of one group {on}"
    if len(seeds) > 1:
        drawn = ", ".join(map(str, sorted(seeds)))
        yield f"{item.name}: policies were judged on comparisons that different seeds drew: {drawn}"


def _told_apart(run: Policy, judge: str) -> dict[str, Any]:
    """What may tell it from policies of another family, without what differs within one."""
    within = ("seed", "algorithm", "objective", "variational.")
    told = {key: value for key, value in run.computed.items() if not key.startswith(within)}
    found = run.judgements.get(judge)
    return told | ({f"judge's {key}": value for key, value in _who(found).items()} if found else {})


def _stage2(runs: Sequence[Policy]) -> str:
    """How the policies of one family were trained and asked."""
    first, *_ = sorted(runs, key=lambda run: not run.training)
    rlhf = {key.removeprefix("rlhf."): show(value) for key, value in first.config.items() if key.startswith("rlhf.")}
    told = [f"β = {show(first.config['dpo.beta'])}", f"temperature {rlhf['temperature']}"]
    if first.training:
        batch = first.config["rlhf.batch_size"] * first.config["rlhf.accumulation"]
        steps = f"{rlhf['rounds']} rounds of {rlhf['local_steps']} steps on {batch} prompts"
        told = [steps, f"learning rate {rlhf['learning_rate']}", *told]
    untrained = "" if all(run.training for run in runs) else f"; {FEDDPO}'s policies are stage 1's"
    return f"Stage 2: {', '.join(told)}{untrained}."


def _lacking(rows: Sequence[Row], methods: Sequence[str], space: str) -> list[Missing]:
    """One line for all methods without a policy, with the commands that make them."""
    there = {label(run.config).partition(" (")[0] for run in _policies(rows)}
    gone = [method for method in methods if method not in there]
    what = f"policies by {', '.join(gone)}" if there else "judged policies"
    return [Missing(what, f"{SWEEP}{space}, then python -m raypref.rlhf {space}")] if gone else []


def _policies(rows: Iterable[Row]) -> list[Policy]:
    return [run for run in each(seeds for row in rows for seeds in row.runs.values()) if isinstance(run, Policy)]


def _groups_of(rows: Sequence[Row], place: str = "") -> list[str]:
    """The groups that were judged in a place (empty: anywhere)."""
    runs = _policies([row._replace(runs={place: row.runs.get(place, {})}) for row in rows] if place else rows)
    return sorted({section["axis"] for run in runs for section in run.judge[1]["sections"]})


def _kind(run: Policy) -> Literal["unseen", "uneven", "even"]:
    """Which table shows it: with unseen clients, with groups of unequal size, or neither."""
    if run.config["federation.unseen"]:
        return "unseen"
    return "uneven" if run.setting == "imbalanced" else "even"


def _of_ablation(run: Policy) -> bool:
    return run.config["objective"] == "variational" and run.config["algorithm"] in ABLATION


def method(params: Mapping[str, str]) -> str:
    """What `Missing` calls the method of a policy of which nothing but its parameters is known."""
    return label({"objective": "", **params, "variational.form": ""})


def shows(name: str, params: Mapping[str, str]) -> bool:
    """Whether a policy of these parameters would be in the item of this name."""
    sizes = set(re.findall(r"\d+", params.get("data.group_sizes", "")))
    uneven = len(sizes) > 1 and params.get("data.source", "synthetic") == "synthetic"
    kind = "unseen" if params.get("federation.unseen", "0") != "0" else "uneven" if uneven else "even"
    if name == "figure-win-rates" and params.get("algorithm") not in ABLATION:
        return False
    return kind == {"win-rates-unseen": "unseen", "win-rates-ratio": "uneven"}.get(name, "even")


def _wins(judgement: Mapping[str, Any]) -> bool:
    """Whether it says who wins, not only by how much."""
    return "win_rate" in judgement["sections"][0]


TABLES = {"win-rates": by_count, "win-rates-unseen": of_unseen, "win-rates-ratio": by_ratio}
FIGURES = {"win-rates": ablation}
"""--table NAME and --figure NAME -> what makes it of policies."""
