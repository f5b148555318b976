"""What a sweep leaves when it ends: the ranking of its finished trials, and how each of them ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raypref.evaluation import ranking, seeds, tables
from raypref.evaluation.runs import show
from raypref.experiment import page
from raypref.experiment.sweeping.trials import Search, Trial, finished
from raypref.tools import checkpoint, console


def conclude(search: Search, failures: Mapping[str, str], run: Any | None) -> None:
    """Write, show and track `sweep.md`, `sweep.csv` and `table.md` of the finished trials, `trials.csv` of all, and
    `report.html`; then say which trials are in no table."""
    folder, metric, trials = search.folder, search.rank, search.trials
    scores, runs = [], []
    for trial in finished(trials, folder):
        result = checkpoint.read_json(trial.folder / "result.json")
        runs.append((trial.settings, result))
        values = (ranking.last(result, fold, metric) for fold in ("validation", "test"))
        scores.append(ranking.Score(trial.settings, trial.config.seed, *values))
    lines = ranking.ranking(scores, metric)
    ends = [end_of(trial, failures, metric) for trial in trials]
    written = {"trials.csv": tables.csv_text(ends)} if ends else {}
    if lines:
        written |= {
            "sweep.md": ranking.markdown(lines, metric),
            "sweep.csv": ranking.to_csv(lines, metric),
            "table.md": seeds.markdown(runs),
        }
    for name, text in written.items():
        checkpoint.write_bytes(folder / name, text.encode())
    names = [*written, *([page.PAGE] if lines and page.write_sweep(folder) else [])]
    for name in names if run else ():
        run.artifact(folder / name)
    if run and lines:
        keys = ", ".join(lines[0].settings) or "the seed alone"
        count = f"{len(lines)} configuration{'s' * (len(lines) > 1)}"
        run.describe(
            f"A sweep over {keys}: {count}, the best first.\n\n{written['sweep.md']}\n"
            f"[All that is known of it]({{{page.PAGE}}}), to be saved and opened. Trials are the runs inside this one."
        )
    if lines:
        console.say(f"\n{written['sweep.md']}")
    for trial in trials:
        if trial.folder.name in failures:
            console.say(f"FAILED {trial.label}: {failures[trial.folder.name]} ({trial.folder}/error.txt)")
    if stopped := [end for end in ends if end["fate"] == "stopped"]:
        spent, all_spent = (sum(end["client_steps"] or 0 for end in of) for of in (stopped, ends))
        console.say(
            f"stopped early and in no table: {len(stopped)} of {len(ends)} trials, with {spent:,} of all "
            f"{all_spent:,} client steps ({folder}/trials.csv)"
        )
    if waiting := sum(end["fate"] == "unfinished" for end in ends):
        console.say(f"not finished: {waiting} trials; the same words with --resume go on")


def end_of(trial: Trial, failures: Mapping[str, str], metric: str) -> dict[str, Any]:
    """How a trial ended, as a line of `trials.csv`: its fate, rounds, the last validation number, optimizer steps over
    clients, and beside them those of the readings between rounds."""
    end, fate = {"round": None, "validation": None, "client_steps": None}, "unfinished"
    if trial.stopped:
        end, fate = trial.stopped, "stopped"
    elif (trial.folder / "result.json").exists():
        result = checkpoint.read_json(trial.folder / "result.json")
        value = ranking.last(result, "validation", metric)
        end, fate = {"round": result["rounds"], "validation": value, "client_steps": result["client_steps"]}, "finished"
    settings = {key: show(v) if isinstance(v, list) else v for key, v in trial.settings.items()}
    read = checkpoint.read_lines(trial.folder / "reports.jsonl")
    return {
        "trial": trial.folder.name, **settings, "seed": trial.config.seed,
        "fate": "failed" if trial.folder.name in failures else fate,
        **end, "report_steps": sum(line["report_steps"] for line in read),
    }  # fmt: skip
