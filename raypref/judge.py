"""`python -m raypref.judge RUN`: how a policy's responses compare with the frozen base's, by judges (S1 C.3)."""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from raypref.config import UserError
from raypref.judges import JUDGES, responses
from raypref.judges.endpoint import Endpoint
from raypref.judges.judgement import judged, keep, path_of, remarks, table
from raypref.judges.reward import Reward
from raypref.judges.style import Style
from raypref.tools import console
from raypref.tools.cli import parse
from raypref.tools.folders import working_folder


@dataclass(frozen=True)
class Options:
    """Win rates and reward scores of a policy's responses against the frozen base's, on each axis."""

    run: tyro.conf.Positional[str] = ""
    """A policy of `python -m raypref.rlhf`: its folder, or its MLflow run id."""
    by: Literal["style", "endpoint", "reward"] | None = None
    """`style` counts the phrases of the embedded benchmark's styles, `endpoint` asks a language model, `reward` scores
    by classifiers. Left out: reward where one is named, else style on the embedded benchmark and endpoint elsewhere."""
    samples: int | None = None
    """Comparisons a section, drawn evenly over clients; 0: all. Left out: 30 by an endpoint, 100 by a reward model (S1
    C.3), all by style."""
    track: bool = True
    """Also add the judgement to the policy's run in MLflow, where it has one."""
    seed: int = 0
    """Of which comparisons are drawn, and of the intervals."""
    style: Annotated[Style, tyro.conf.arg(name="")] = field(default_factory=Style)
    endpoint: Annotated[Endpoint, tyro.conf.arg(name="")] = field(default_factory=Endpoint)
    reward: Annotated[Reward, tyro.conf.arg(name="")] = field(default_factory=Reward)


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv or ["--help"], "python -m raypref.judge")
    if not options.run:
        raise UserError("RUN comes first, the folder of a policy run: python -m raypref.judge RUN [--by endpoint …]")

    from raypref.evaluation import tables
    from raypref.storage import locate

    folder = locate.folder(options.run)
    if not (folder / responses.FILE).exists():
        locate.policy(options.run)  # which says what it is instead
    by = options.by or kind(folder, options)
    check_options(by, options)
    if options.endpoint.dry_run and by != "endpoint":
        console.say(f"judging by {by} asks nobody and costs nothing; the same words without --dry-run do it")
        return 0
    incomplete, made = False, False
    for judge in options.reward.each() if by == "reward" else [getattr(options, by)]:
        judgement = judged(folder, judge, options.samples, options.seed)
        if not judgement["sections"]:
            return 0  # a dry run
        kept = keep(folder, judgement)
        console.say(tables.terminal(table(judgement)))
        for line in remarks(judgement):
            console.warn(line)
        incomplete |= bool(judgement.get("failed")) or not kept
        if kept:
            made = True
            console.say(f"{judgement['judge']}: {path_of(folder, judgement['judge'])}")
    if options.track and made:
        track(folder, options.run)
    return int(incomplete)


def check_options(by: str, options: Options) -> None:
    """`UserError` on an option of another judge than the one that judges."""
    for name, judge in JUDGES.items():
        values, usual = getattr(options, name), judge()
        given = [f.name for f in dataclasses.fields(values) if getattr(values, f.name) != getattr(usual, f.name)]
        given = [name for name in given if name != "dry_run"]
        if given and name != by:
            flag = "--" + given[0].replace("_", "-")
            raise UserError(f"{flag} is for --by {name}, and this judges by {by}; leave one out")


def kind(folder: Path, options: Options) -> str:
    """The default judge of a folder's comparisons."""
    if options.reward.reward_model:
        return "reward"
    return "style" if responses.configuration(folder).data.generated else "endpoint"


def track(folder: Path, run: str) -> None:
    """Add the folder's judgements to the policy's run in MLflow, where it has one."""
    from raypref.experiment.publish import publish_judgements
    from raypref.experiment.tracked import mlflow_record
    from raypref.storage import tracking

    record = mlflow_record(folder)
    id = record.get("run_id") or (run if re.fullmatch("[0-9a-f]{32}", run) else "")
    if id:
        uri = tracking.revealed(record["uri"]) if "uri" in record else tracking.tracking_uri(working_folder())
        with tracking.Run(uri, "", "", {}, run_id=id) as to:
            publish_judgements(folder, to)
        if not to.delivered:
            console.warn(f"the judgement is in {folder}, but not in MLflow at {uri}; the same words again add it")


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
