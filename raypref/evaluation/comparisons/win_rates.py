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
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import numpy as np

from raypref.config import GENERATED
from raypref.evaluation import figures
from raypref.evaluation.curve import Fold
from raypref.evaluation.drawings import SWEEP, Item, Missing, figure, table
from raypref.evaluation.rows import Measure, Reading, Row, drawn, shown
from raypref.evaluation.runs import (
    ALL,
    FinishedRun,
    Policy,
    alike,
    by_label,
    by_seed,
    describe,
    fullest,
    has_latent,
    label,
    policy_method_keys,
    show,
    title,
)
from raypref.evaluation.tables import Column

METHODS = ("FedDPO", "FedBiscuit", "FedVPL", "FedVPA-GP")
"""The rows of S1 Tables 1 and 2."""
ABLATION = ("fedvpl", "fedvpl_ortho", "fedvpl_prior", "fedvpa_gp")
"""The bars of S1 Fig. 4."""
CHANCE = ("samples", "seed", "url")
"""Settings of a judge that change what it is asked, or where, but not who it is: those of other settings are never in
one table. Its wording, where one is asked for, is in its name."""
Kind = Literal["unseen", "uneven", "even"]
"""Which table shows a policy: of runs with unseen clients, with groups of unequal size, or neither."""


def by_one_judge(runs: Iterable[Policy]) -> list[Policy]:
    """Those that the judge of most of them has judged, with its judgement alone; of judges of equally many, win rates
    come before reward scores."""
    judged = list(runs)
    counts = Counter(judge for run in judged for judge in run.judgements)
    scores = {judge for run in judged for judge, judgement in run.judgements.items() if not _wins(judgement)}
    judge = min(counts, key=lambda judge: (-counts[judge], judge in scores, judge), default="")
    return [replace(run, judgements={judge: run.judgements[judge]}) for run in judged if judge in run.judgements]


def family(runs: Iterable[Policy], vary: Sequence[str] = ()) -> list[Policy]:
    """Runs, each judged by one, that agree in everything but what a table may compare: of several families the one of
    most methods at most values of the keys in `vary`. Policies that stage 2 trains in no way are of every family with
    which they agree."""

    def common(run: Policy) -> str:
        judge, judgement = run.judgement
        left = ("seed", *policy_method_keys(), *vary, *run.training)
        return run.identity(left) + json.dumps([judge, _who(judgement)], sort_keys=True)

    families: list[list[Policy]] = []
    for of in alike(runs, common):
        by_training = alike(of, lambda run: json.dumps(run.training, sort_keys=True))
        untrained = [run for run in of if not run.training]
        families += [[*same, *untrained] for same in by_training if same[0].training] or [untrained]
    return fullest(families, lambda run: (label(run.config), *(show(run.config[key]) for key in vary)))


def _who(judgement: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that tell judges of one name apart."""
    return {key: value for key, value in judgement["settings"].items() if key not in CHANCE}


def by_base(runs: Iterable[Policy], kind: Kind) -> dict[str, list[Policy]]:
    """Base model -> the runs of a kind on it, all by one judge; the only one has no name, for the table's notes tell
    it."""
    judged = sorted(by_one_judge(run for run in runs if _kind(run) == kind), key=lambda run: run.config["model.base"])
    several = len({run.config["model.base"] for run in judged}) > 1
    of: dict[str, list[Policy]] = {}
    for run in judged:
        of.setdefault(PurePath(run.config["model.base"]).name if several else "", []).append(run)
    return of


def rows_of(runs: Sequence[Policy], place: Callable[[Policy], str] = lambda run: "", block: str = "") -> list[Row]:
    """A row a label, its runs by place, one a seed: the newest."""
    return [
        Row(name, {place(same[0]): by_seed(same) for same in alike(of, place)}, block)
        for name, of in by_label(runs).items()
    ]


class Part(NamedTuple):
    """What a column shows."""

    groups: tuple[str, ...]
    """Whose sections; the mean over those of several."""
    unseen: bool = False
    block: str = ""
    place: str = ""


COUNT = ("data.group_sizes", "federation.cohort")
"""What S1 Table 1 varies beside the method (C.1.1)."""


def _of_kind(kind: Kind, algorithms: Sequence[str] = ()) -> Callable[[Mapping[str, str]], bool]:
    """Whether a policy of these parameters, which is not finished, would be in an item of this kind."""

    def fits(parameters: Mapping[str, str]) -> bool:
        sizes = set(re.findall(r"\d+", parameters.get("data.group_sizes", "")))
        uneven = len(sizes) > 1 and parameters.get("data.source", "synthetic") in GENERATED
        there = "unseen" if parameters.get("federation.unseen", "0") != "0" else "uneven" if uneven else "even"
        return there == kind and (not algorithms or parameters.get("algorithm") in algorithms)

    return fits


@table("win-rates", of="policies", waits_for=_of_kind("even"))
def by_count(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Table 1: win rates of policies by the number of clients

    A block of columns a number of clients, a block of rows a base model."""
    rows: list[Row] = []
    for base, of in by_base(runs, "even").items():
        chosen: list[Policy] = []
        for count in alike(family(of, COUNT), lambda run: str(run.clients)):
            dealt = alike(count, lambda run: str([run.config[key] for key in COUNT]))
            chosen += fullest(dealt, lambda run: label(run.config))
        rows += rows_of(chosen, lambda run: f"{run.clients} clients", base)
    parts = []
    for place in (f"{count} clients" for count in sorted({run.clients for run in _policies(rows)})):
        groups = _groups_of(rows, place)
        means = [tuple(groups)] if len(groups) > 1 else []
        parts += [Part(of_mean, block=place, place=place) for of_mean in (*((group,) for group in groups), *means)]
    return _table("win-rates", "by the number of clients", rows, parts, _lacking(rows, METHODS, "client_count"), runs)


@table("win-rates-unseen", of="policies", waits_for=_of_kind("unseen"))
def of_unseen(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Table 2: win rates on clients that trained, and on clients that took no part and only inferred their z"""
    rows = [row for base, of in by_base(runs, "unseen").items() for row in rows_of(family(of), block=base)]
    groups = _groups_of(rows)
    parts = [Part((g,), unseen, block) for unseen, block in ((False, "Seen"), (True, "Unseen")) for g in groups]
    missing = _lacking(rows, METHODS, "unseen")
    return _table("win-rates-unseen", "on seen and unseen clients", rows, parts, missing, runs)


@table("win-rates-ratio", of="policies", waits_for=_of_kind("uneven"))
def by_ratio(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Table 3: win rates by how many clients each group has

    A block of rows a division of the clients into groups of unequal size."""
    rows: list[Row] = []
    for base, of in by_base(runs, "uneven").items():
        dealt = alike(family(of, ("data.group_sizes",)), lambda run: str(run.sizes))
        for same in sorted(dealt, key=lambda same: same[0].sizes, reverse=True):
            rows += rows_of(same, block=f"{base} {'/'.join(map(str, same[0].sizes))}".strip())
    parts = [Part((group,)) for group in _groups_of(rows)]
    missing = _lacking(rows, METHODS[1::2], "client_ratio")
    words = "by how many clients each group has"
    return _table("win-rates-ratio", words, rows, parts, missing, runs, "clients, method")


@figure("figure-win-rates", of="policies", waits_for=_of_kind("even", ABLATION))
def ablation(runs: Sequence[Policy], fold: Fold) -> Item:
    """S1 Fig. 4: win rates of FedVPL, with either of FedVPA-GP's parts, and with both"""
    fitting = [run for run in runs if has_latent(run.config) and run.config["algorithm"] in ABLATION]
    rows = [row for base, of in by_base(fitting, "even").items() for row in rows_of(family(of), block=base)]
    missing = _lacking(rows, [title(algorithm) for algorithm in ABLATION], "ablation")
    if len({row.label for row in rows}) < 2:  # one alone compares nothing
        return Item(missing=missing)
    panels = {}
    for base in dict.fromkeys(row.block for row in rows):
        of_base = [row for row in rows if row.block == base]
        panels[base] = {
            group or ALL: {row.label: _values(row, Part((group,))) for row in of_base} for group in _groups_of(of_base)
        }
    used = _policies(rows)
    words = "What the parts of FedVPA-GP do (as its Figure 4); bars: mean ± std over seeds."
    drawing = figures.bars(panels, _wins(used[0].judgement[1]))
    item = Item(drawing, " ".join([words, *_notes(rows)]), used, missing)
    return replace(item, remarks=tuple(remarks("figure-win-rates", used, fitting)))


def score(part: Part, run: FinishedRun, ids: Sequence[str] = ()) -> Reading | None:
    """The win rate of a section, over all comparisons that could be read, or the mean of reward scores' differences.

    ids: whom rows are paired by; `clients` of the reading are each one's mean, nan where it has none.
    """
    assert isinstance(run, Policy)
    sections = [s for s in run.judgement[1]["sections"] if s["unseen"] == part.unseen and s["axis"] in part.groups]
    means = [mean for s in sections if (mean := s["win_rate"] if "win_rate" in s else s["difference"]) is not None]
    if len(means) < len(part.groups):
        return None
    of: dict[str, list[float]] = {}
    for section in sections:
        for client, value in zip(section["client_of"], section["scores"], strict=True):
            of.setdefault(client, []).append(value)
    clients = np.array([np.mean(of[client]) if client in of else np.nan for client in ids])
    return Reading(float(np.mean(means)), clients=clients if ids else None)


def _table(
    name: str,
    words: str,
    rows: Sequence[Row],
    parts: Sequence[Part],
    missing: Sequence[Missing],
    material: Sequence[Policy],
    corner: str = "method",
) -> Item:
    """material: what the rows were chosen from."""
    runs = _policies(rows)
    if not runs:
        return Item(missing=missing)
    judge, judgement = runs[0].judgement
    wins = _wins(judgement)
    ids = sorted({client for run in runs for s in run.judgement[1]["sections"] for client in s["client_of"]})
    said, *settings = _notes(rows)
    item = drawn(
        rows,
        [Measure(part.place, _column(part, wins), partial(score, part, ids=ids)) for part in parts],
        title=f"{'Win rates' if wins else 'Reward scores'} by {judge}, {words}",
        corner=corner,
        missing=missing,
        reference=rows[-1].label,
        notes=(f"{said} In brackets std over the n seeds. Bold: the best of a column.", *settings),
        unit="win rates in points" if wins else "reward scores",
    )
    return replace(item, remarks=tuple(remarks(name, runs, material)))


def _column(part: Part, wins: bool) -> Column:
    head = "mean" if len(part.groups) > 1 else part.groups[0] or ALL
    if wins:
        return Column(head, block=part.block, best=1, scale=100, digits=1)
    return Column(f"{head}, ours - theirs", block=part.block, best=1, digits=3, signed=True)


def _values(row: Row, part: Part) -> list[float]:
    """A value a seed."""
    return [float(reading.value) for run in _policies([row]) if (reading := score(part, run)) is not None]


def _notes(rows: Sequence[Row]) -> list[str]:
    """What the numbers are and who says so; then what the runs of each base have in common."""
    runs = _policies(rows)
    judge, judgement = runs[0].judgement
    model = judgement["settings"].get("model", judge)
    who = judge if model == judge else f"{judge} ({model})"
    sections = [section for run in runs for section in run.judgement[1]["sections"]]
    prompts = dict.fromkeys((min(s["prompts"] for s in sections), max(s["prompts"] for s in sections)))
    on = f"policies against their frozen base by {who}, on {' to '.join(map(str, prompts))} test prompts of each group"
    words = f"Mean difference of the scores of {on} and seed."
    if _wins(judgement):
        words = f"Win rate in % of {on} and seed; a tie counts half."
        unread = sum(section["unparseable"] for section in sections)
        words += f" {unread:,} answers are missing or could not be read." * bool(unread)
    bases = sorted(alike(runs, lambda run: run.config["model.base"]), key=lambda of: str(of[0].config["model.base"]))
    return [words, *(f"Stage 1: {describe(of)} {_stage2(of)}" for of in bases)]


def remarks(name: str, used: Sequence[Policy], material: Iterable[Policy]) -> Iterator[str]:
    """What a reader of an item must know: which policies were chosen, where there was a choice (`material` are all that
    it was made of), and where those used were not judged on the same comparisons."""
    if used:
        yield from _chosen(name, used, material)
        yield from _unlike(name, used)


def _chosen(name: str, used: Sequence[Policy], material: Iterable[Policy]) -> Iterator[str]:
    judge, ids = used[0].judgement[0], {run.id for run in used}
    left_out = [run for run in material if run.id not in ids and _kind(run) == _kind(used[0])]
    here, there = ([_apart(run, judge) for run in runs] for runs in (used, left_out))
    chosen, left = [], []
    for key in sorted({key for values in there for key in values}):
        values, others = ({show(line[key]) for line in of if key in line} for of in (here, there))
        if values and others - values:
            chosen.append(f"{key} {' or '.join(sorted(values))}")
            left.append(f"{key} {' or '.join(sorted(others - values))}")
    if unjudged := sum(judge not in run.judgements for run in left_out):
        left.append(f"{unjudged} not judged by {judge}")
    if left:
        words = f"{name} shows {len(used)} of {len(used) + len(left_out)} policies, judged by {judge}"
        yield f"{', '.join([words, *chosen])} (the fullest, of equals the newest); left out: {', '.join(left)}"


def _unlike(name: str, used: Sequence[Policy]) -> Iterator[str]:
    counts: dict[tuple[str, bool, str], dict[int, dict[str, None]]] = {}
    seeds: set[int] = set()
    for run in used:
        judgement = run.judgement[1]
        seeds |= {judgement["settings"]["seed"]} if judgement["settings"]["samples"] else set()
        for section in judgement["sections"]:
            prompts = str((run.clients, run.sizes, run.seed))  # which have others to test on
            of = counts.setdefault((section["axis"], section["unseen"], prompts), {})
            of.setdefault(section["prompts"], {})[label(run.config)] = None
    if uneven := [of for of in counts.values() if len(of) > 1]:
        on = "; ".join(f"{prompts}: {', '.join(names)}" for prompts, names in sorted(uneven[0].items()))
        yield f"{name}: policies were judged on different numbers of comparisons, such as of one group {on}"
    if len(seeds) > 1:
        drawn_by = ", ".join(map(str, sorted(seeds)))
        yield f"{name}: policies were judged on comparisons that different seeds drew: {drawn_by}"


def _apart(run: Policy, judge: str) -> dict[str, Any]:
    """What may tell it from policies of another family, without what differs within one."""
    values = {key: value for key, value in run.computed.items() if not key.startswith(("seed", *policy_method_keys()))}
    judgement = run.judgements.get(judge)
    return values | ({f"judge's {key}": value for key, value in _who(judgement).items()} if judgement else {})


def _stage2(runs: Sequence[Policy]) -> str:
    """How the policies of one family were trained and asked."""
    first, *_ = sorted(runs, key=lambda run: not run.training)
    rlhf = {key.removeprefix("rlhf."): show(value) for key, value in first.config.items() if key.startswith("rlhf.")}
    words = [f"β = {show(first.config['dpo.beta'])}", f"temperature {rlhf['temperature']}"]
    if first.training:
        batch = first.config["rlhf.batch_size"] * first.config["rlhf.accumulation"]
        steps = f"{rlhf['rounds']} rounds of {rlhf['local_steps']} steps on {batch} prompts"
        words = [steps, f"learning rate {rlhf['learning_rate']}", *words]
    untrained = "" if all(run.training for run in runs) else "; FedDPO's policies are stage 1's"
    return f"Stage 2: {', '.join(words)}{untrained}."


def _lacking(rows: Sequence[Row], methods: Sequence[str], space: str) -> list[Missing]:
    """One line for all methods without a policy, with the commands that make them."""
    there = {label(run.config).partition(" (")[0] for run in _policies(rows)}
    gone = [method for method in methods if method not in there]
    what = f"policies by {', '.join(gone)}" if there else "judged policies"
    return [Missing(what, f"{SWEEP}{space}, then python -m raypref.rlhf {space}")] if gone else []


def _policies(rows: Sequence[Row]) -> list[Policy]:
    return [run for run in shown(rows) if isinstance(run, Policy)]


def _groups_of(rows: Sequence[Row], place: str = "") -> list[str]:
    """The groups that were judged in a place (empty: anywhere)."""
    runs = _policies([row._replace(runs={place: row.runs.get(place, {})}) for row in rows] if place else rows)
    return sorted({section["axis"] for run in runs for section in run.judgement[1]["sections"]})


def _kind(run: Policy) -> Kind:
    if run.config["federation.unseen"]:
        return "unseen"
    return "uneven" if run.setting == "imbalanced" else "even"


def _wins(judgement: Mapping[str, Any]) -> bool:
    """Whether it says who wins, not only by how much."""
    return "win_rate" in judgement["sections"][0]
