"""Writes what people look at of a finished run: tables and figures in its folder, and all of it in MLflow."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raypref.config import flatten, from_dict
from raypref.config.spaces import command_words
from raypref.evaluation import calibration, diagnostics, drawings, latent_figures, report, tables
from raypref.evaluation.curve import seen_and_unseen
from raypref.evaluation.latent import Latent
from raypref.evaluation.runs import ALL, FinishedRun, context_marks, describe, run_name
from raypref.experiment import ledger, page
from raypref.storage import selectors
from raypref.storage.results import Store
from raypref.tools import checkpoint


def publish(store: Store, track: Any | None = None) -> None:
    """Write a finished run's tables and figures into its folder; track them, its metrics and its adapters.

    They are `table.md`, `results.csv`, `curve.png`, `ledger.csv` and `ledger.md`; for methods that group clients
    `groups.json` and `groups.png`; for those with a latent space `latent.png`; for all `report.html`, the page of all
    that is known of it.
    """
    result, folder = store.result(), store.folder
    seen, _ = seen_and_unseen(result)
    checkpoint.write_bytes(folder / "table.md", report.markdown([result]).encode())
    checkpoint.write_bytes(folder / "results.csv", report.to_csv([result]).encode())
    report.curve_figure([result], folder / "curve.png")
    checkpoint.write_bytes(folder / "ledger.csv", ledger.to_csv(store.left()).encode())
    checkpoint.write_bytes(folder / "ledger.md", ledger.markdown(result).encode())
    assigned = [(line["round"], line["assignment"]) for line in store.lines() if line.get("assignment")]
    if assigned:
        rounds, groups = zip(*assigned, strict=True)
        value = {"clients": seen["clients"], "true": seen["groups"], "rounds": rounds, "assignment": groups}
        checkpoint.write_bytes(folder / "groups.json", json.dumps(value).encode())
        report.groups_figure(rounds, groups, folder / "groups.png", seen["groups"], title=run_name(result))
    if (folder / "latent.npz").exists():
        run = Latent.load(folder / "latent.npz")
        latent_figures.latent_figure([(run_name(result), run)], seen["groups"], folder / "latent.png")
    page.write([folder], folder / page.PAGE)
    if track is None:
        return
    for step, values in [*mark_metrics(result), *calibration_metrics(result), *diagnostic_metrics(result)]:
        track.metrics(values, step=step)
    totals = {f"total/{words}": float(result[name]) for name, words in TOTALS.items()}
    if result["ari"] is not None:
        totals["groups/ari"] = float(result["ari"])
    parameters = result.get("parameters", {}).items()
    totals |= {f"total/{name} parameters of a client": float(count) for name, count in parameters}
    track.metrics(totals, step=0)
    for size, values in probe_metrics(seen):
        track.metrics(values, step=size)
    files = ("config.json", "result.json", "table.md", "results.csv", "curve.png", "groups.json", "groups.png")
    for name in (*files, "ledger.csv", "ledger.md", "latent.npz", "latent.png", page.PAGE):
        if (folder / name).exists():
            track.artifact(folder / name)
    if (folder / "adapters").exists():
        track.artifacts(folder / "adapters", "adapters")
        track.model(selectors.model(folder, result["clients"]))
    track.describe(description(result))


TOTALS = {"rounds": "rounds", "client_steps": "client steps", "bytes_up": "bytes up", "bytes_down": "bytes down"}
"""Of a result, and what its metrics are called."""


def description(result: dict[str, Any]) -> str:
    """What MLflow shows of a run before anything else: what it is, its table and where its figure is, in Markdown.

    The figure itself would make MLflow's page wider than a screen.
    """
    run = FinishedRun("", 0, flatten(result["config"]), result)
    table = report.main_columns(report.table([result]))
    again = shlex.join(command_words(from_dict(result["config"])))
    upright = replace(  # MLflow makes its page as wide as its widest table
        table,
        corner="",
        columns=(tables.Column(table.rows[0]), *map(tables.Column, table.rows[1:])),
        rows=tuple(column.head for column in table.columns),
        cells=tuple(
            tuple(tables.text(row[c], column) for row in table.cells) for c, column in enumerate(table.columns)
        ),
        apart=frozenset(),
    )
    return f"""**{run_name(result)}**, seed {result["seed"]}: {describe([run])}

{tables.markdown(upright)}
[Its figure]({{curve.png}}), and [all that is known of it]({{{page.PAGE}}}), to be saved and opened. Again: `{again}`
"""


def publish_judgements(folder: Path, track: Any) -> None:
    """Track all judgements of a policy as one artifact, `judgements.json`, by judge.

    Win rates and reward scores become metrics, each judgement at a step of its own.
    """
    judgements = {path.stem: checkpoint.read_json(path) for path in sorted((folder / "judgements").glob("*.json"))}
    if not judgements:
        return
    checkpoint.write_json(folder / "judgements.json", judgements)
    for judge, judgement in judgements.items():
        values = {}
        for section in judgement["sections"]:
            where = f"{judge}/{'unseen ' * section['unseen']}{section['axis'] or ALL}"
            for key in ("win_rate", "difference"):
                if section.get(key) is not None:
                    values[metric_name(f"{key}/{where}")] = float(section[key])
        track.metrics(values, step=judgement.get("step", 0))  # earlier versions did not count
    track.artifact(folder / "judgements.json")


def metric_name(words: str) -> str:
    """The words with `_` for every character that MLflow does not allow in the name of a metric."""
    return re.sub(r"[^\w\-./ :]", "_", words)


def mark_metrics(result: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """(local steps t, means over clients of every metric on both held-out folds) at each mark; unseen clients apart."""
    return [
        (
            mark,
            {
                f"after local steps/{which}{fold} {name.replace('_', ' ')}": float(
                    np.mean([client[i] for client in values])
                )
                for which, part in zip(("", "unseen "), seen_and_unseen(result), strict=True)
                if part is not None
                for fold in ("validation", "test")
                for name, values in part[fold].items()
            },
        )
        for i, mark in enumerate(result["marks"])
    ]


def report_metrics(line: dict[str, Any]) -> dict[str, float]:
    """A reading of validation between rounds, by the names that it has in MLflow."""
    return {f"rounds/validation {name.replace('_', ' ')}": value for name, value in line["metrics"].items()}


def calibration_metrics(result: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """(local steps t, negative log-likelihood and expected calibration error on test pairs) at each mark
    (`raypref.evaluation.calibration`); unseen clients apart."""
    parts = zip(("", "unseen "), seen_and_unseen(result), strict=True)
    read = [
        (which, name, values) for which, part in parts if part for name, values in calibration.summary(part).items()
    ]
    return [
        (mark, {f"after local steps/{which}test {name.upper()}": values[i] for which, name, values in read})
        for i, mark in enumerate(result["marks"])
    ]


def probe_metrics(result: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """(context pairs, mean test accuracies over clients with z, or their own part of the model, inferred from so many,
    and of each client alone).

    All are before any step of personalization. Under 0: the accuracy that leaks where the printed form's z sees the
    test pair.
    """
    probes = result.get("probes", {})  # not in those of earlier versions
    values = []
    for i, size in enumerate(context_marks(flatten(result["config"])) if probes else ()):
        there = [name for name in ("context_accuracy", "linear_accuracy") if name in probes]
        shares = {name: np.array(probes[name])[:, i] for name in there}
        values.append(
            (size, {f"context pairs/{name.replace('_', ' ')}": float(np.mean(share)) for name, share in shares.items()})
        )
    if "leaked_accuracy" in probes:
        values.append((0, {"context pairs/leaked accuracy": float(np.mean(probes["leaked_accuracy"]))}))
    return values


def diagnostic_metrics(result: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """(local steps t, numbers of S2's diagnostics), without those that are nan.

    P^t on both sets at every mark where 0 is one of them; gradient quotient, margins, headroom at each diagnosed one.
    """
    result, _ = seen_and_unseen(result)
    at_marks: list[tuple[int, dict[str, float]]] = []
    if 0 in result["marks"]:
        curve = diagnostics.retention_curve(result)
        for i, mark in enumerate(curve.marks):
            at_marks.append(
                (mark, {"after local steps/P_R": float(curve.R[i]), "after local steps/P_W": float(curve.W[i])})
            )
    for mark in (line["mark"] for line in result["diagnostics"]):
        numbers = diagnostics.summary(result, mark)
        at_marks.append(
            (mark, {f"after local steps/{k}": float(v) for k, v in numbers.items() if not isinstance(v, list)})
        )
    return [(mark, {k: v for k, v in values.items() if not math.isnan(v)}) for mark, values in at_marks]


def tables_of(results: Sequence[dict[str, Any]]) -> list[tables.Table]:
    """The tables to show after these runs, beside that of their accuracies, as far as the runs fill them."""
    runs = [FinishedRun(str(i), 0, flatten(result["config"]), result) for i, result in enumerate(results)]
    items = [drawing(runs) for drawing in drawings.drawings().values() if drawing.after_run]
    return [item.content for item in items if isinstance(item.content, tables.Table)]


def write_comparison(results: Sequence[dict[str, Any]], folders: Sequence[Path]) -> tuple[Path, Path]:
    """Write `comparison.md`, `comparison.png` and, of several runs, `comparison.html` into the last one's folder;
    returns the figure's and the page's path."""
    folder = folders[-1]
    parts = [report.markdown(results), *map(tables.markdown, tables_of(results))]
    checkpoint.write_bytes(folder / "comparison.md", "\n".join(parts).encode())
    report.curve_figure(results, folder / "comparison.png")
    if len(folders) == 1:
        return folder / "comparison.png", folder / page.PAGE
    return folder / "comparison.png", page.write(folders, folder / "comparison.html")
