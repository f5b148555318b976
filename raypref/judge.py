"""`python -m raypref.judge RUN`: how a policy's responses compare with the frozen base's, by judges (S1 C.3)."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from raypref.config import RunConfig, UserError, read_config
from raypref.judges import prompts, responses
from raypref.judges.endpoint import TEMPERATURE, EndpointOptions, ask, cost
from raypref.judges.responses import Response, Section
from raypref.judges.reward import RewardOptions, named
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse
from raypref.tools.folders import working_folder

if TYPE_CHECKING:
    from raypref.evaluation.tables import Table
    from raypref.judges.win_rate import Verdict

FOLDER = "judgements"

SAMPLES = {"style": 0, "endpoint": 30, "reward": 100}
"""Comparisons a section unless --samples says otherwise (S1 C.3.1, C.3.2); counting styles costs nothing."""


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
    prompt: Literal["both", "helpful", "harmless"] | None = None
    """What an endpoint is asked about: both is S1 D.2; left out: the section's axis where it is helpful or harmless."""
    endpoint: Annotated[EndpointOptions, tyro.conf.arg(name="")] = field(default_factory=EndpointOptions)
    reward: Annotated[RewardOptions, tyro.conf.arg(name="")] = field(default_factory=RewardOptions)


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
    each = [options]
    if by == "reward":
        each = [
            dataclasses.replace(options, reward=dataclasses.replace(options.reward, reward_model=(word,)))
            for word in models(options.reward)
        ]
    incomplete, made = False, []
    for one in each:
        judgement = judged(folder, dataclasses.replace(one, by=by))
        if not judgement["sections"]:
            return 0  # a dry run
        kept = keep(folder, judgement)
        console.say(tables.terminal(table(judgement)))
        for line in remarks(judgement):
            console.warn(line)
        incomplete |= bool(judgement.get("failed")) or not kept
        if kept:
            made.append(judgement["judge"])
            console.say(f"{judgement['judge']}: {path_of(folder, judgement['judge'])}")
    if options.track and made:
        track(folder, options.run, made)
    return int(incomplete)


def check_options(by: str, options: Options) -> None:
    """`UserError` on an option that the judge has no use for."""
    own: dict[str, tuple[Any, Any]] = {
        "endpoint": (options.endpoint, EndpointOptions(dry_run=options.endpoint.dry_run)),
        "reward": (options.reward, RewardOptions()),
    }
    for name, (values, default) in own.items():
        given = [f.name for f in dataclasses.fields(values) if getattr(values, f.name) != getattr(default, f.name)]
        given += ["prompt"] * (name == "endpoint" and options.prompt is not None)
        if given and name != by:
            flag = "--" + given[0].replace("_", "-")
            raise UserError(f"{flag} is for --by {name}, and this judges by {by}; leave one out")


def track(folder: Path, run: str, made: Collection[str]) -> None:
    """Adds the judgements just made to the policy's run in MLflow, where it has one."""
    from raypref.experiment.publish import publish_judgements
    from raypref.storage import tracking

    known = checkpoint.read_json(folder / "mlflow.json") if (folder / "mlflow.json").exists() else {}
    id = known.get("run_id") or (run if re.fullmatch("[0-9a-f]{32}", run) else "")
    if id:
        with tracking.Run(known.get("uri") or tracking.tracking_uri(working_folder()), "", "", {}, run_id=id) as to:
            publish_judgements(folder, to, made)


def kind(folder: Path, options: Options) -> Literal["style", "endpoint", "reward"]:
    """The judge that a folder's comparisons go to by default."""
    if options.reward.reward_model:
        return "reward"
    return "style" if configuration(folder).data.source == "synthetic" else "endpoint"


def configuration(folder: Path) -> RunConfig:
    """The run's. Raises `UserError` where it is not there."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json; give the folder of a finished policy run")
    return read_config(folder)


def judge_folder(folder: Path, options: Options) -> dict[str, Any]:
    """Judge a run's comparisons and `keep` what comes of it as `judgements/NAME.json` beside them; returns it."""
    judgement = judged(folder, options)
    if judgement["sections"]:
        keep(folder, judgement)
    return judgement


def judged(folder: Path, options: Options) -> dict[str, Any]:
    """What a judge says of a run's comparisons.

    `sections` are those of `raypref.judges.win_rate.summary` (or `raypref.judges.reward.summary`) with the `axis`, the
    clients' true group, and `unseen`. `calls` are questions that were asked now, `cached` those answered before;
    `tokens` and `cost` (USD) are of both, whenever they were paid. Of reward models exactly one is named here. In a dry
    run there are no sections. Raises `UserError` for what a person can mend.
    """
    by = options.by or kind(folder, options)
    samples = SAMPLES[by] if options.samples is None else options.samples
    if samples < 0 or options.seed < 0:
        raise UserError(f"--samples is {samples} and --seed {options.seed}; neither may be negative")
    lines = responses.sections(responses.read(folder), samples, options.seed)
    judgement = JUDGES[by](folder, lines, options)
    judgement["settings"] |= {"samples": samples, "seed": options.seed}
    return judgement


def keep(folder: Path, judgement: Mapping[str, Any]) -> bool:
    """Write a judgement in place of the judge's earlier one, which is told of where it was another; whether it was.

    One that leaves comparisons out never takes the place of one that decided more, and one that leaves out all is none:
    `UserError`.
    """
    path = path_of(folder, judgement["judge"])
    old = checkpoint.read_json(path) if path.exists() else None
    there = "" if old is None else f"the earlier judgement of {comparisons(old):,} comparisons"
    if not decided(judgement):
        why = f"no comparison has two answers that can be read, such as {judgement['unread']!r}"
        if judgement.get("failed"):
            why = f"{judgement['failed']:,} questions were not answered ({judgement['why']})"
        raise UserError(f"{judgement['judge']}: {why}; nothing was written{there and f', {there} stands'}")
    if old is not None:
        if decided(judgement) < min(decided(old), comparisons(judgement)):
            console.warn(f"{judgement['judge']}: {there} stands: it left out fewer (delete {path} to drop it)")
            return False
        new, was = judgement["settings"], old["settings"]
        if new != was or comparisons(old) != comparisons(judgement):
            other = ", ".join(f"{name} {was[name]}" for name in was if was[name] != new.get(name))
            console.note(f"{judgement['judge']}: replaces {there}{other and f' ({other})'}")
    checkpoint.write_json(path, judgement)
    return True


def comparisons(judgement: Mapping[str, Any]) -> int:
    """How many a judgement was asked for."""
    return sum(section["prompts"] for section in judgement["sections"])


def decided(judgement: Mapping[str, Any]) -> int:
    """How many of them were not left out."""
    return sum(len(section["scores"]) for section in judgement["sections"])


def path_of(folder: Path, judge: str) -> Path:
    """The file of a judgement."""
    return folder / FOLDER / f"{judge}.json"


def file_name(name: str) -> str:
    """`meta-llama/Llama-3:8b` -> `meta-llama-Llama-3-8b`."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "judge"


def by_style(folder: Path, lines: Mapping[Section, Sequence[Response]], options: Options) -> dict[str, Any]:
    """The exact judge of the embedded benchmark; `ours` and `theirs` are the mean scores of `raypref.judges.style`."""
    import numpy as np

    from raypref.judges import style, win_rate

    axes = configuration(folder).data.axes
    told = []
    for (group, unseen), section in lines.items():
        wish = style.wish(group, axes)
        scores = [(style.score(line.ours, wish), style.score(line.theirs, wish)) for line in section]
        verdicts = [(style.prefer(ours, theirs),) for ours, theirs in scores]
        ours, theirs = np.mean(scores, axis=0)
        found = win_rate.summary(verdicts, [line.client for line in section], options.seed, f"{group} {unseen}")
        told.append({"axis": group, "unseen": unseen, **found, "ours": float(ours), "theirs": float(theirs)})
    return {"judge": "style", "settings": {"axes": list(axes)}, "sections": told, **spent()}


def by_endpoint(folder: Path, lines: Mapping[Section, Sequence[Response]], options: Options) -> dict[str, Any]:
    """A language model, in both orders; a question that failed is `failed` and counts as an answer that cannot be
    read. Equal responses are a tie that nobody is asked for: both orders would be one question."""
    from raypref.judges import win_rate

    wording = {key: options.prompt or prompts.variant(key[0]) for key in lines}
    questions = {
        key: [
            (
                prompts.fill(wording[key], line.prompt, line.ours, line.theirs),
                prompts.fill(wording[key], line.prompt, line.theirs, line.ours),
            )
            for line in section
        ]
        for key, section in lines.items()
    }
    asked = ask(
        [question for section in questions.values() for both in section if len(set(both)) == 2 for question in both],
        options.endpoint,
        readable=lambda text: prompts.parse(text) != "unparseable",
    )
    said = {question: prompts.parse(answer.text) for question, answer in asked.answers.items()}

    def verdict(question: str, ours: str, theirs: str) -> Verdict:
        which = said.get(question, "unparseable")
        return "ours" if which == ours else "theirs" if which == theirs else "tie" if which == "tie" else "unparseable"

    told = []
    for (group, unseen), section in lines.items() if not options.endpoint.dry_run else ():
        verdicts: list[tuple[Verdict, ...]] = [
            ("tie",) if a == b else (verdict(a, "A", "B"), verdict(b, "B", "A")) for a, b in questions[group, unseen]
        ]
        found = win_rate.summary(verdicts, [line.client for line in section], options.seed, f"{group} {unseen}")
        told.append({"axis": group, "unseen": unseen, "prompt": wording[group, unseen], **found})
    settings = {"model": options.endpoint.model, "url": asked.url, "temperature": TEMPERATURE}
    unread = [answer.text for question, answer in asked.answers.items() if said[question] == "unparseable"]
    return {
        "judge": file_name(f"{options.endpoint.model}-{options.prompt}" if options.prompt else options.endpoint.model),
        "settings": settings | {"max_tokens": options.endpoint.max_tokens},
        "sections": told,
        "failed": len(asked.failed),
        "why": next(iter(asked.failed.values()), ""),
        "unreadable": len(unread),
        "unread": next(iter(unread), ""),
        **spent(asked.calls, asked.cached, *asked.tokens, cost(*asked.tokens, options.endpoint)),
    }


def by_reward(folder: Path, lines: Mapping[Section, Sequence[Response]], options: Options) -> dict[str, Any]:
    """One reward model."""
    from raypref.judges import reward

    (word,) = models(options.reward)
    name, identity = named(word)
    scorer = reward.Scorer(identity, options.reward)
    told = []
    with console.Progress(sum(map(len, lines.values())), name) as progress:
        for (group, unseen), section in lines.items():
            ours, theirs = (
                scorer([reward.dialogue(line.prompt, text) for line, text in zip(section, texts, strict=True)])
                for texts in zip(*((line.ours, line.theirs) for line in section), strict=True)
            )
            found = reward.summary(section, ours, theirs, options.seed, f"{group} {unseen}")
            told.append({"axis": group, "unseen": unseen, **found})
            progress.advance(len(section))
    settings = {"model": identity, "label": options.reward.label, "max_length": scorer.max_length}
    return {"judge": file_name(f"reward-{name}"), "settings": settings, "sections": told, **spent()}


JUDGES: dict[str, Callable[[Path, Mapping[Section, Sequence[Response]], Options], dict[str, Any]]] = {
    "style": by_style,
    "endpoint": by_endpoint,
    "reward": by_reward,
}


def models(options: RewardOptions) -> tuple[str, ...]:
    """The reward models, at least one, each with a name of its own; else `UserError`."""
    names = [named(word)[0] for word in options.reward_model]
    if not names:
        raise UserError("--by reward needs --reward-model: a folder or a hub id, such as helpful=OWNER/NAME")
    if len(set(names)) < len(names):
        raise UserError(f"--reward-model: several are called {max(names, key=names.count)}; name them, as a=ID b=ID")
    return options.reward_model


def spent(calls: int = 0, cached: int = 0, read: int = 0, written: int = 0, dollars: float = 0.0) -> dict[str, Any]:
    """What a judgement took."""
    return {"calls": calls, "cached": cached, "tokens": {"in": read, "out": written}, "cost": dollars}


def remarks(judgement: Mapping[str, Any]) -> Iterable[str]:
    """A sentence for whatever makes the numbers less than they look."""
    sections = judgement["sections"]
    if failed := judgement.get("failed", 0):
        yield (
            f"{failed:,} questions were not answered ({judgement['why']}) and count as unread; type the same words "
            "again to ask for them alone"
        )
    if unread := judgement.get("unreadable", 0):
        yield (
            f"{unread:,} answers say neither A, B nor tie, such as {judgement['unread']!r}; the same words ask for "
            "them again"
        )
    both = sum(section.get("both_read", 0) for section in sections)
    for position in "AB":
        always = sum(section.get(f"always_{position}", 0) for section in sections)
        if 2 * always > both:
            yield (
                f"in {always:,} of {both:,} comparisons the judge prefers response {position} in both orders, whosever "
                "it is: they count as ties and say nothing of the responses"
            )
    if without := sum(section["interval"] is None for section in sections):
        yield (
            f"{without} of {len(sections)} sections have no interval: with fewer than two clients, or scores that are "
            "all equal, redrawing them shows no spread"
        )


def table(judgement: Mapping[str, Any]) -> Table:
    """A row a section: win rate, or difference of reward scores, with its 95 % interval, and what it came from.

    Wins, losses, ties and what is left out add up to the prompts. Of a judge that is asked in two orders, also how many
    of its answers could not be read (or did not come), and on which share of the others its orders agree."""
    from raypref.evaluation.runs import ALL
    from raypref.evaluation.tables import Cell, Column
    from raypref.evaluation.tables import Table as Made

    win = "win_rate" in judgement["sections"][0]
    shown = {
        "win_rate": Column("win rate %", "win rate \\%", scale=100, digits=1),
        "difference": Column("ours - theirs", "", digits=3),
        "ours": Column("ours", "ours", digits=3),
        "theirs": Column("theirs", "theirs", digits=3),
    }
    counts = (*(("wins", "losses", "ties", "left_out") if win else ()), "prompts", "clients")
    shown |= {name: Column(name.replace("_", " "), name.replace("_", " "), digits=0) for name in counts}
    if "failed" in judgement:
        shown["unparseable"] = Column("unread answers", "unread answers", digits=0)
        shown["agreement"] = Column("orders agree %", "orders agree \\%", scale=100, digits=1)
    shown = {name: column for name, column in shown.items() if name in judgement["sections"][0]}
    rows = []
    for section in judgement["sections"]:
        cells = [None if section[name] is None else Cell((float(section[name]),)) for name in shown]
        if cells[0] is not None and section["interval"] is not None:
            cells[0] = dataclasses.replace(cells[0], interval=tuple(section["interval"]))
        rows.append(tuple(cells))
    return Made(
        name=judgement["judge"],
        title=f"Fine-tuned against frozen, by {judgement['judge']}",
        corner="axis",
        columns=tuple(shown.values()),
        rows=tuple((s["axis"] or ALL) + ", unseen" * s["unseen"] for s in judgement["sections"]),
        cells=tuple(rows),
    )


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
