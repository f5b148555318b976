"""What a sweep can be asked for, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from raypref.config import RunConfig, UserError

PROPOSED = 24
"""Trials that `--search optuna` proposes where nobody says how many."""


@dataclass(frozen=True)
class Options:
    """Run every trial of tune_spaces/NAME.py as one Ray Tune sweep. A field given here is fixed, not searched."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    preset: str = ""
    """A preset of the space, such as `paper`; overrides here come on top. S2's `paper` needs --data.source."""
    card: str = ""
    """Fit it to one card, `24gb` or `80gb`, for the papers' bases; overrides here come on top."""
    smoke: bool = False
    """A few trials of seconds: whether everything works, not how well."""
    seeds: tuple[int, ...] = ()
    """In place of the space's seeds; trials that are finished already are not repeated."""
    search: Literal["grid", "optuna"] = "grid"
    """`optuna` proposes values from the space's ranges by what earlier trials came to, all at --seed; the grid is left
    aside. Needs `pip install raypref[optuna]`."""
    scheduler: Literal["all", "asha"] = "all"
    """`asha` stops trials that do badly beside others of the same data and seed, by validation between rounds. `all`
    runs every trial to its end, with --resume also those that were stopped."""
    grace: int = 0
    """Of asha: rounds that every trial runs before it is first compared; it is again at --reduction times as many, and
    so on. 0: a ninth of the rounds."""
    reduction: float = 3.0
    """Of asha: of the trials that have come as far, the best one in so many goes on."""
    report_every: int = 0
    """Rounds between two readings of validation; 0: none, or with asha as many as --grace. They cost time, and change
    nothing of any result."""
    report_clients: int = 10
    """Most clients that are read, drawn by the seed and the same each time."""
    max_trials: int = 0
    """Most trials, those that are there already included: the first of the grid; 0: all of it, or 24 of optuna's."""
    max_hours: float = 0.0
    """Hours after which this command stops all trials where they are, ranks what is finished and ends; 0: no limit."""
    concurrency: int = 0
    """Most trials at a time; 0: as many as fit."""
    dry_run: bool = False
    """Only say: trials, what each asks for, memory, bytes, and hours by timing a few steps here. Starts no Ray."""
    out: Path | None = None
    """The sweep goes into its folder NAME (NAME-smoke). Default: `runs` where the command is typed."""
    resume: bool = False
    """Also finish trials that an interrupted sweep left, or that failed, from where they stand."""
    track: bool = True
    """Log to MLflow (MLFLOW_TRACKING_URI, or mlflow.db where the command is typed)."""
    adapters: bool = False
    """Also write every trial's adapters as PEFT folders."""


def check_budget(options: Options) -> None:
    """`UserError` where what is said of readings, of asha or of budgets cannot be."""
    rounds, grace = options.config.federation.rounds, options.grace
    for name in ("grace", "report_every", "max_trials", "max_hours", "concurrency"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must not be negative")
    if options.report_clients < 1:
        raise UserError(f"--report-clients is {options.report_clients}; it must be at least 1")
    if options.reduction <= 1:
        raise UserError(f"--reduction is {options.reduction:g}; it must be above 1, such as 3: the best third goes on")
    if options.scheduler == "asha" and (first := max(grace, options.report_every)) >= rounds:
        raise UserError(
            f"asha compares trials after {max(first, 1)} rounds at the earliest, which is all that they have "
            f"(federation.rounds is {rounds}); lower --grace or --report-every, or give --scheduler all"
        )
    if options.search == "optuna" and options.seeds:
        raise UserError("--search optuna compares trials of one seed; give --seed in the place of --seeds")
