"""Writes the page of a run, of several beside each other, or of a sweep: `report.html` in its folder."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import raypref
from raypref.config import from_dict
from raypref.config.spaces import command_words
from raypref.evaluation import pages, ranking
from raypref.evaluation.pages.page import Entry, Material, Sweep
from raypref.evaluation.runs import FinishedRun, run_name, show
from raypref.storage.results import finished_run
from raypref.tools import checkpoint

PAGE = "report.html"
COMMAND = "command.txt"
"""In a sweep's folder: the words that were typed."""


def write(folders: Sequence[Path], to: Path) -> Path:
    """Write the page of these runs' folders, of which the first is what the others are compared with, to a file."""
    results = [checkpoint.read_json(folder / "result.json", "algorithm", "clients") for folder in folders]
    entries = [
        _entry(name, [finished_run(folder)], folder, result)
        for name, folder, result in zip(_names(results), folders, results, strict=True)
    ]
    first, *others = (from_dict(result["config"]) for result in results)
    title = f"{', '.join(entry.label for entry in entries)}: " + (
        f"seed {results[0]['seed']}, {results[0]['key']}" if not others else f"{len(entries)} runs beside each other"
    )
    commands = [shlex.join(command_words(config)) for config in (first, *others)]
    return _written(Material(title, entries, commands, version=raypref.__version__), to)


def write_sweep(folder: Path, to: Path | None = None) -> Path | None:
    """Write the page of a sweep's folder, of what `trials.csv` says of it; None where no trial is finished."""
    path = folder / "trials.csv"
    with checkpoint.reading(path):
        ends = list(csv.DictReader(io.StringIO(path.read_text())))
    done = [end for end in ends if end["fate"] == "finished" and (folder / end["trial"] / "result.json").exists()]
    if not done:
        return None
    heads = list(ends[0])
    keys, metric = heads[1 : heads.index("seed")], _metric(folder)
    runs = {end["trial"]: finished_run(folder / end["trial"]) for end in done}
    scores = [ranking.Score({k: run.config[k] for k in keys}, run.seed, *_last(run, metric)) for run in runs.values()]
    lines = ranking.ranking(scores, metric)
    entries = []
    for line in lines:
        of = {name: run for name, run in runs.items() if all(run.config[k] == v for k, v in line.settings.items())}
        first = folder / next(iter(of))
        result = checkpoint.read_json(first / "result.json", "algorithm", "clients")
        label = " ".join(f"{key.rsplit('.', 1)[-1]} {show(value)}" for key, value in line.settings.items())
        entries.append(_entry(label or run_name(result), list(of.values()), first, result))
    typed = folder / COMMAND
    commands = typed.read_text().splitlines() if typed.exists() else [f"python -m raypref.sweep {folder.name}"]
    sweep = Sweep(lines, metric, ends)
    title = f"Sweep {folder.name}: {len(done)} of {len(ends)} trials"
    return _written(Material(title, entries, commands, sweep, raypref.__version__), to or folder / PAGE)


def _written(material: Material, to: Path) -> Path:
    checkpoint.write_bytes(to, pages.render(material, pages.written(material)).encode())
    return to


def _entry(label: str, runs: Sequence[FinishedRun], folder: Path, result: Any) -> Entry:
    return Entry(label, tuple(runs), result, checkpoint.read_lines(folder / "records.jsonl"))


def _names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each is called, by its seed where several are called alike, by its key where those have one seed."""
    names = [run_name(result) for result in results]
    for key in ("seed", "key"):
        if len(set(names)) < len(names):
            names = [f"{name}, {key} {result[key]}" for name, result in zip(names, results, strict=True)]
    return names


def _metric(folder: Path) -> str:
    """What the sweep ranked by: `sweep.csv` names it."""
    heads = (folder / "sweep.csv").read_text().partition("\n")[0].split(",")
    known = [head.removeprefix("validation_") for head in heads if head.startswith("validation_")]
    return next((name for name in known if name in ranking.BEST), "accuracy")


def _last(run: FinishedRun, metric: str) -> tuple[float, float]:
    return ranking.last(run.result, "validation", metric), ranking.last(run.result, "test", metric)
