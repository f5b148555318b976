"""Objectives and algorithms mixed freely: accuracy by local steps of every combination that was run, and of variational
ones by the number of pairs that z was inferred from.

Rows are combinations of algorithm, objective and the objective's options; everything else agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raypref.evaluation import papers
from raypref.evaluation.papers import SWEEP, Found, Item, Measure, Missing, Reading, Row, Seeds
from raypref.evaluation.ranking import show, varying
from raypref.evaluation.report import Fold
from raypref.evaluation.tables import Column, Table

FREE = ("algorithm", "objective", "variational.", "dpo.", "seed", "data.group_sizes")
"""Prefixes of keys in which runs may differ."""
ALONE = "Alone: logistic regression"
"""What a client reaches by itself on the frozen base's features (`raypref.clients.losses.Variational.probe`)."""
NO_PART = ("variational.every", "variational.context_marks")
"""Options that change only what is shown."""
PLACES = {"balanced": "Balanced", "imbalanced": "Imbalanced", "real": "Real"}


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of its objective that a run's training used; the choice objective has none."""
    own = f"{config['objective']}."
    return {k: v for k, v in config.items() if k.startswith(own) and not k.startswith(NO_PART)}


def family(runs: Iterable[Found]) -> list[Found]:
    """Those that agree in everything but `FREE`: the largest such family, then the newest."""
    families: dict[str, list[Found]] = {}
    for run in runs:
        leave = [k for k in run.config if k.startswith(FREE)]
        families.setdefault(run.identity(leave), []).append(run)
    return max(families.values(), key=lambda f: (len(f), max(r.started for r in f)), default=[])


def labels(
    runs: Sequence[Found], told: Callable[[Found], Mapping[str, Any]] = lambda run: options(run.config)
) -> dict[str, list[Found]]:
    """Runs by what their row is called, in the papers' order: the algorithm, its form (`papers.form`),
    and whatever differs of what is `told` of the runs of that algorithm and form."""
    kinds: dict[tuple[str, str], list[Found]] = {}
    for run in runs:
        kinds.setdefault((run.config["algorithm"], papers.form(run.config)), []).append(run)
    order = [*papers.NAMES, *sorted({algorithm for algorithm, _ in kinds} - set(papers.NAMES))]
    rows: dict[str, list[Found]] = {}
    for _, kind in sorted(kinds.items(), key=lambda k: (order.index(k[0][0]), papers.FORMS.index(k[0][1]))):
        own = [told(run) for run in kind]
        differ = varying(own)
        for run, values in sorted(zip(kind, own, strict=True), key=lambda each: [show(each[1][k]) for k in differ]):
            words = [f"{k.removeprefix('variational.').removeprefix('dpo.')} {show(values[k])}" for k in differ]
            rows.setdefault(papers.label(run.config, words), []).append(run)
    return rows


def rows_of(runs: Sequence[Found]) -> list[Row]:
    """A row a label, its runs by setting; of several group sizes of one setting the one with most runs."""
    made = []
    for label, own in labels(runs).items():
        places: dict[str, Seeds] = {}
        for setting, place in PLACES.items():
            sizes: dict[str, dict[int, Found]] = {}
            for run in sorted(own, key=lambda r: r.started):
                if run.setting == setting:
                    sizes.setdefault(show(run.config["data.group_sizes"]), {})[run.seed] = run
            if sizes:
                places[place] = max(sizes.values(), key=len)
        made.append(Row(label, places))
    return made


def _there(rows: Sequence[Row]) -> list[str]:
    return [place for place in PLACES.values() if any(row.runs.get(place) for row in rows)]


def mixed(runs: Sequence[Found], fold: Fold) -> Item:
    """acc^t at every mark, for objectives that were combined with algorithms."""
    kept = family(runs)
    if len({run.config["objective"] for run in kept}) < 2:
        return Item("mix", None, missing=(Missing("both objectives on the same data", SWEEP + "mix"),))
    rows = rows_of(kept)
    marks = sorted({t for run in kept for t in run.result["marks"]})
    measures = [papers.accuracy(t, fold, block=place) for place in _there(rows) for t in marks]
    title = "Algorithms and objectives: accuracy after t local steps"
    return papers.table("mix", title, "method", rows, measures, (), fold, papers.NAMES["fedavg"])


def by_context(runs: Sequence[Found], fold: Fold) -> Item:
    """Test accuracy before any local step, by the number of the client's training pairs that z was inferred from; for
    the printed form also what it seems to reach when z sees the judged pair."""
    kept = family(run for run in runs if run.result.get("probes", {}).get("context_accuracy"))
    if not kept:
        return Item("context", None, missing=(Missing("variational runs", SWEEP + "variants"),))
    rows = [Row(ALONE, _alone(kept)), *rows_of(kept)]
    sizes = sorted({size for run in kept for size in run.config["variational.context_marks"]})
    measures = []
    for place in _there(rows):
        measures += [_with(size, place) for size in sizes]
        measures += [_every(place), _leaked(place)]
    title = "Accuracy without any local step, by the pairs that z is inferred from"
    item = papers.table("context", title, "method", rows, measures, (), "test", ALONE, apart=ALONE)
    assert isinstance(item.content, Table)
    pairs = sorted({size for run in kept for size in run.result.get("sizes", ())})
    few = f" Clients have {pairs[0]} to {pairs[-1]} training pairs: one with fewer uses all." if pairs else ""
    note = f"Columns: pairs that z is inferred from, drawn once a client and seed.{few} leak: see docs/differences.md."
    return replace(item, content=replace(item.content, notes=(note, *item.content.notes)))


def _alone(runs: Sequence[Found]) -> dict[str, Seeds]:
    """What each client could do alone, as runs without rounds: the newest's of each setting and seed."""
    places: dict[str, dict[int, Found]] = {}
    for run in sorted(runs, key=lambda r: r.started):
        told = run.result["probes"].get("linear_accuracy")
        if told:
            *few, every = np.array(told).T
            marks = [0]
            nothing = {key: 0 for key in ("rounds", "client_steps", "bytes_up", "bytes_down")}
            probes = {"context_accuracy": np.array(few).T.tolist()}
            test = {"accuracy": every[:, None].tolist()}
            result = {**run.result, **nothing, "probes": probes, "marks": marks, "test": test}
            places.setdefault(PLACES[run.setting], {})[run.seed] = replace(run, result=result)
    return dict(places)


def _with(size: int, place: str) -> Measure:
    def read(run: Found) -> Reading | None:
        marks = list(run.config["variational.context_marks"])
        return (
            _over_clients(np.array(run.result["probes"]["context_accuracy"])[:, marks.index(size)])
            if size in marks
            else None
        )

    return Measure(place, Column(str(size), f"${size}$", place, scale=100, digits=1, best=1), read)


def _every(place: str) -> Measure:
    """acc^0, with all of a client's training pairs."""
    made = papers.accuracy(0, "test", block=place, head="all")
    return made._replace(column=replace(made.column, best=1))


def _leaked(place: str) -> Measure:
    def read(run: Found) -> Reading | None:
        told = run.result["probes"].get("leaked_accuracy")
        return _over_clients(np.array(told)) if told else None

    return Measure(place, Column("leak", "leak", place, scale=100, digits=1), read)


def _over_clients(values: np.ndarray) -> Reading:
    return Reading(float(np.nanmean(values)), float(np.nanstd(values)), values)


TABLES = {"mix": mixed, "context": by_context}
"""--table NAME -> what makes it."""
