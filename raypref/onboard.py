"""`python -m raypref.onboard RUN --name NAME --pairs FILE`: makes somebody new known to a finished run."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from raypref.config import UserError
from raypref.tools import checkpoint, console
from raypref.tools.cli import parse

if TYPE_CHECKING:
    from raypref.data.federation import Pair
    from raypref.data.places import Left
    from raypref.evaluation.expected import Expected
    from raypref.onboarding.interview import Chosen, Interview
    from raypref.onboarding.learner import Learner


@dataclass(frozen=True)
class Options:
    """Make a person whom a finished run never met known to it by a few choices: those of a file (--pairs), or of an
    interview in the terminal (--ask) or in a browser (--web) that shows the pairs expected to tell most. The choices
    become what the run's clients have: a z, weights of a basis, a head, or a few local steps. Nothing of the person
    leaves this machine."""

    run: tyro.conf.Positional[str] = ""
    """A stage-1 run: its folder, or its MLflow run id."""
    name: str = ""
    """What the person is called from now on: score, generate and rlhf know them by it. Choices add up; --anew begins
    again."""
    pairs: tuple[str, ...] = ()
    """Choices: JSONL, JSON, CSV or Parquet files, or folders of them."""
    ask: bool = False
    """Interview in the terminal, one key a choice."""
    web: bool = False
    """Interview as a page, on this machine alone (`pip install 'raypref[web]'`)."""
    candidates: str = ""
    """What the interview may show: a file as --pairs, whatever it says was chosen. Left out: pairs made anew, where the
    run's data were made here."""
    choices: int = 16
    """Most choices of an interview."""
    look: int = 200
    """Most pairs that the interview looks at to find those that tell most."""
    steps: int | None = None
    """Local steps, where the run's clients take some. Left out: those that did best for as many choices."""
    measure: bool = True
    """Measure what accuracy to expect, once a run, where it takes local steps and so has not read it out itself."""
    anew: bool = False
    """Forget what the person has chosen before."""
    prompt_column: str = "prompt"
    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    port: int = 0
    """Of the page; 0: any that is free."""
    base: str = ""
    """The base, where it does not lie where the run had it: a folder."""


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv or ["--help"], "python -m raypref.onboard")
    check(options)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the base is on this machine, and nobody need know who is asked

    from raypref.onboarding import interview
    from raypref.onboarding.learner import Learner
    from raypref.storage import locate, people

    folder = locate.stage1(options.run)
    result = checkpoint.read_json(folder / "result.json", "clients")
    if options.name in result["clients"]:
        raise UserError(f"{options.name} is a client of the run, which has a model already; choose another --name")
    learner = Learner(folder, options.base)
    if options.steps is not None:
        check_steps(options.steps, learner)
    earlier = [] if options.anew else people.choices_of(folder, options.name)
    pairs = list(dict.fromkeys([*earlier, *(chosen(options, learner) if options.pairs else [])]))
    expected = what_to_expect(learner, options)
    talk = interview.Interview(
        learner, options.name, candidates(options, learner), interview.usable(learner, pairs), expected, options.steps
    )
    if earlier:
        console.say(f"{options.name} is known by {len(earlier)} choices already, which count; --anew would forget them")
    if options.web:
        from raypref.onboarding import page

        page.serve(talk, options.choices, options.port, lambda: keep(talk, folder))
        return 0
    if options.ask:
        from raypref.onboarding import terminal

        terminal.ask(talk, options.choices)
    keep(talk, folder)
    say_answers(talk)
    return 0


def check(options: Options) -> None:
    """Raises `UserError` where the options do not go together."""
    if not options.run:
        raise UserError(
            "RUN comes first, a finished run's folder or MLflow run id: python -m raypref.onboard RUN --name NAME"
        )
    if not options.name.strip():
        raise UserError("--name is missing: what is the person called?")
    if options.ask and options.web:
        raise UserError("--ask and --web are the same interview; give one of the two")
    if not (options.pairs or options.ask or options.web):
        raise UserError("nothing says what the person prefers; give --pairs FILE, --ask or --web")
    if options.web and importlib.util.find_spec("nicegui") is None:
        raise UserError("--web draws its page with NiceGUI: pip install 'raypref[web]', or use --ask")
    for flag, value in (("choices", options.choices), ("look", options.look)):
        if value < 1:
            raise UserError(f"--{flag} is {value}; give at least 1")
    if not 0 <= options.port < 65536:
        raise UserError(f"--port is {options.port}; give 0 (any that is free) to 65535")


def check_steps(steps: int, learner: Learner) -> None:
    """Raises `UserError` where so many local steps cannot be taken."""
    if not learner.trains:
        raise UserError(f"--steps is for runs whose clients take local steps; here choices become {learner.became(0)}")
    if not 0 <= steps <= learner.most_steps:
        raise UserError(f"--steps is {steps}; give 0 to {learner.most_steps}, which is as far as the run went")


def chosen(options: Options, learner: Learner) -> list[Pair]:
    """The usable choices of --pairs; what is left out is said. Raises `UserError` where none is usable."""
    from raypref.data.places import by_reason

    every: list[Pair] = []
    for source in options.pairs:
        pairs, left, cut = read(source, options, learner)
        if not pairs:
            raise UserError(f"{source} holds no usable pair: {by_reason(left)}")
        console.say(f"{options.name}: {len(pairs)} choice{'s' * (len(pairs) > 1)} in {source}")
        if left:
            console.note(f"left out: {by_reason(left)}")
        if cut:
            console.note(f"note: {by_reason(cut)}")
        every += pairs
    return every


def read(source: str, options: Options, learner: Learner) -> tuple[list[Pair], Left, Left]:
    """The pairs of a file that the run's base can compare, the rows left out, and those that lost some of their
    prompt."""
    from raypref.data.places import pairs_of

    columns = {
        "--prompt-column": options.prompt_column,
        "--chosen-column": options.chosen_column,
        "--rejected-column": options.rejected_column,
    }
    there, left = pairs_of(source, columns)
    fits = learner.encoded([pair for _, pair in there])
    rows = list(zip(there, fits, strict=True))
    left += [(place, fit.why) for (place, _), fit in rows if not fit.fold]
    cut = [(place, fit.why) for (place, _), fit in rows if fit.fold and fit.why]
    return [pair for (_, pair), fit in rows if fit.fold], left, cut


def candidates(options: Options, learner: Learner) -> list[Chosen]:
    """What an interview may show; nothing without one."""
    from raypref.onboarding import interview
    from raypref.tools.rng import stream

    if not (options.ask or options.web):
        return []
    if not options.candidates:
        return interview.usable(learner, interview.generated(learner, options.look))
    pairs, left, _ = read(options.candidates, options, learner)
    order = stream(learner.config.seed, "candidates").permutation(len(pairs))[: options.look]
    if not len(order):
        raise UserError(f"{options.candidates} holds no pair to ask about ({len(left)} rows left out)")
    return interview.usable(learner, interview.shuffled(learner, [pairs[i] for i in order]))


def what_to_expect(learner: Learner, options: Options) -> Expected | None:
    """The accuracy by number of choices; where it cannot be known, a line says why."""
    from raypref.onboarding import expecting

    try:
        found = expecting.expected(learner, lambda total, label: console.Progress(total, label), options.measure)
    except UserError as error:
        console.note(f"note: what accuracy to expect is not known: {error}")
        return None
    if found is None:
        console.note("note: what accuracy to expect is not known; without --no-measure it would be measured")
    elif not found.unseen:
        console.note("note: the run trained on everybody; people it never met (--federation.unseen) would tell better")
    return found


def keep(talk: Interview, folder: Path) -> list[str]:
    """Write the person into the run's folder, and say who they have become; returns the same lines."""
    from raypref.models.peft_io import export_peft
    from raypref.storage import people

    person, learner = talk.person(), talk.learner
    with checkpoint.locked(people.folder_of(folder, person.name)):
        place = people.save(folder, person, [chosen.pair for chosen in talk.known()])
        export_peft(place / "adapter", person.row, learner.layout, learner.config.model, person.z)
    count = person.said["choices"]
    became = f"{person.name}: {count} choice{'s' * (count > 1)} became {person.said['became']}"
    lines = [f"{became}; {person.said['agreement']}"]
    lines += [person.said["expected"]] if person.said["expected"] else []
    there = f"; as a PEFT folder: {place / 'adapter'}" * (place / "adapter" / "adapter_config.json").exists()
    lines.append(f"kept in {place}, which nobody else on this machine can read{there}")
    score = shlex.join(["python", "-m", "raypref.score", str(folder), "PAIRS", "--client", person.name])
    lines.append(f"which answers {person.name} prefers: {score}")
    for line in lines:
        console.say(line)
    return lines


def say_answers(talk: Interview) -> None:
    """What the run's policy answers to the last prompt, before it knew the person and after; nothing without one."""
    from raypref.onboarding.answers import before_and_after

    person = talk.person()
    found = before_and_after(talk.learner, person.z, talk.known()[-1].pair.prompt)
    if found:
        console.say(f"{found.policy} is asked: {found.prompt}")
        console.say(f"  before it knew {person.name}: {found.before}")
        console.say(f"  after: {found.after}")


if __name__ == "__main__":
    sys.exit(console.main(command, sys.argv[1:]))
