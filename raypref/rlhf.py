"""`python -m raypref.rlhf NAME`: stage 2 of S1 after the finished stage-1 runs of NAME."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypref.config import RLHFConfig, RunConfig, UserError, flatten, read_config, to_dict, validate
from raypref.config.conditions import conditions, matches
from raypref.config.fields import of_part
from raypref.config.identity import policy_key
from raypref.config.spaces import listing, load_space
from raypref.experiment.tracked import Tracker, closing, mlflow_record, tracked_policy, tracker
from raypref.objectives.dpo import DPOConfig
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse
from raypref.tools.folders import working_folder

if TYPE_CHECKING:
    from raypref.policy.task import Task


@dataclass(frozen=True)
class Options:
    """Train a policy by each finished stage-1 run of experiment NAME (MLFLOW_TRACKING_URI, or mlflow.db where the
    command is typed), and have its answers judged. What is done is kept: the same words go on from there."""

    dpo: DPOConfig
    rlhf: RLHFConfig
    run: tuple[str, ...] = ()
    """Only these stage-1 runs: folders, or MLflow run ids."""
    person: str = ""
    """Train a policy for this person alone, whom `python -m raypref.onboard` made known to the runs: their selector
    labels. Nothing of it is tracked, and it stays on this machine, in the person's folder."""
    where: tuple[str, ...] = ()
    """Only runs with these fields, such as seed=0 algorithm=fedvpa_gp."""
    preset: str = ""
    """A preset of the space, such as `paper`; overrides here come on top."""
    card: str = ""
    """Fit it to one card, `24gb` or `80gb`, for the papers' bases; overrides here come on top."""
    smoke: bool = False
    """Seconds instead of minutes: whether everything works, not how well."""
    track: bool = True
    """Log to MLflow, each policy as a run beneath its stage-1 run."""
    judge: bool = True
    """On the embedded benchmark, also judge the answers by their styles; elsewhere `python -m raypref.judge` does."""


@dataclass(frozen=True)
class Stage1:
    """A finished stage-1 run."""

    folder: Path
    config: RunConfig
    id: str = ""
    """In MLflow; empty where it is not tracked."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    if not argv or argv[0].startswith("-"):
        return listing("rlhf", argv)
    name, *rest = argv
    base = load_space(name).typed(rest)
    options = parse(Options, rest, f"python -m raypref.rlhf {name}", Options(base.dpo, base.rlhf))
    where = conditions(options.where)
    runs = []
    for run in stage1_runs(name, options):
        flat = flatten(to_dict(run.config))
        if all(matches(flat[key], word) for key, word in where.items()):
            runs.append(run)
    if not runs:
        if where:
            raise UserError(f"no finished stage-1 run of {name} fits --where {' '.join(options.where)}")
        if other := elsewhere(base):
            how = f"experiment {other} holds one: python -m raypref.rlhf {other} --where algorithm={base.algorithm}"
        else:
            how = f"python -m raypref.run {name} makes one"
        raise UserError(f"no finished stage-1 run of {name}; {how}")

    from raypref.evaluation import tables
    from raypref.judges.judgement import remarks, table
    from raypref.policy.follow import configured, finished, lines
    from raypref.policy.task import gather
    from raypref.storage import people

    wanted = RunConfig(dpo=options.dpo, rlhf=options.rlhf)
    if options.person and options.rlhf.backend != "local":
        raise UserError(f"what {options.person} prefers stays on this machine; leave --rlhf.backend local")
    if options.person:
        runs = [run for run in runs if people.find(run.folder, options.person)] or runs
    todo: list[tuple[Stage1, Task, Path]] = []
    for run in runs:  # whatever any would refuse, before one starts
        config = configured(run.config, wanted)
        validate(config)
        person = people.needed(run.folder, options.person) if options.person else None
        place = run.folder / f"policy-{policy_key(config)}"
        if person:
            place = people.folder_of(run.folder, person.name) / f"{place.name}-{person.digest}"
        todo.append((run, gather(run.folder, config, person), place))
    to = tracker(name) if options.track and not options.person else None
    for i, (run, task, folder) in enumerate(todo):
        done, n = finished(folder), len(lines(folder))
        begun = f", from round {n + 1}" if 0 < n < task.config.rlhf.rounds else ""
        before = ", finished before" if done else begun
        console.say(f"{i + 1} of {len(todo)}, {run.config.method} seed {run.config.seed}{before}: {folder}")
        if done and task.trains:
            trained_with = read_config(folder).rlhf
            for name in of_part(RLHFConfig, "where"):
                if (then := getattr(trained_with, name)) != getattr(options.rlhf, name):
                    console.say(f"note: it was trained with rlhf.{name} {then}; another changes no more than rounding")
        with console.resumable("the same words go on from here"), checkpoint.locked(folder):
            for judgement in train_and_judge(run, task, folder, to, options):
                console.say(tables.terminal(table(judgement)))
                for line in remarks(judgement):
                    console.warn(line)
                console.say("")
    for _, task, folder in todo:
        if options.person:
            console.say(f"ask it: python -m raypref.generate {folder} --client {options.person} --prompt …")
        elif not task.config.data.generated:
            console.say(f"judge it: python -m raypref.judge {folder}")
    closing(to, [folder for _, _, folder in todo])
    return 0


def train_and_judge(
    run: Stage1, task: Task, folder: Path, to: Tracker | None, options: Options
) -> list[dict[str, Any]]:
    """Train one policy inside its MLflow run (none: untracked), which a repeat continues; returns its judgements."""
    from raypref.experiment.publish import publish_judgements
    from raypref.judges.judgement import judged, keep
    from raypref.judges.style import Style
    from raypref.policy.follow import follow, lines, publish

    config, total = task.config, task.config.rlhf.rounds if task.trains else 0
    with tracked_policy(config, folder, to, run.id) as track:
        with console.Progress(max(1, total), f"{config.method} policy rounds", len(lines(folder))) as progress:
            follow(task, folder, track=track, advance=lambda note: progress.advance(1, note))
        judgements = [judged(folder, Style())] if options.judge and config.data.generated and not options.person else []
        for judgement in judgements:
            keep(folder, judgement)
        if track is not None:
            publish(folder, track)
            publish_judgements(folder, track)
    return judgements


def stage1_runs(name: str, options: Options) -> Iterator[Stage1]:
    """The runs that are named, or else of each configuration the newest finished one of the experiment, oldest first.

    Raises `UserError` where one that is named is no finished stage-1 run.
    """
    from raypref.storage import locate, tracking

    if options.run:
        for word in options.run:
            folder = locate.stage1(word)
            yield Stage1(folder, read_config(folder), mlflow_record(folder).get("run_id", ""))
        return
    newest: dict[str, tuple[str, str]] = {}
    runs, _ = tracking.search(tracking.tracking_uri(working_folder()), [name])
    for run in runs:
        key = run.tags.get("raypref.key")
        if key and run.status == "FINISHED":
            newest.pop(key, None)
            newest[key] = (run.id, run.tags.get("raypref.folder", ""))
    for id, folder in newest.values():
        if not (Path(folder) / "result.json").exists():
            console.warn(f"the folder of run {id} is gone ({folder}); left out")
            continue
        yield Stage1(Path(folder), read_config(Path(folder)), id)


def elsewhere(base: RunConfig) -> str:
    """Another experiment with a finished run of this method, such as one that it was compared in; '' without any."""
    from raypref.storage import tracking

    uri = tracking.tracking_uri(working_folder())
    wanted = {"algorithm": base.algorithm, "objective": base.objective}
    for run in tracking.search(uri, tracking.search(uri, ())[1])[0]:
        if "raypref.key" in run.tags and run.status == "FINISHED" and wanted.items() <= run.params.items():
            return run.experiment
    return ""


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
