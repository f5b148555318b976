"""`python benchmarks/asking.py RUN …`: what choosing the pairs of an interview gains over pairs at random.

People of finished runs, those that a run never trained on where there are some, are asked about their own training
pairs: so many that are chosen as `python -m raypref.onboard --ask` chooses them, or as many at random. What they
answer becomes what it would of a new person, and is judged on their test pairs. Local steps, where a run takes some,
are those of the best mean validation accuracy, for either way by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as `python benchmarks/asking.py` finds the package where it is not installed

from benchmarks.measuring import Lines, conclude, main, table  # noqa: E402
from raypref.config import UserError  # noqa: E402
from raypref.tools import console  # noqa: E402
from raypref.tools.cli import parse  # noqa: E402


@dataclass(frozen=True)
class Options:
    """Measure, run by run, the accuracy after so many chosen and so many random choices."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Folders of finished runs, such as one a seed."""
    sizes: tuple[int, ...] = (2, 4, 8, 16)
    """Numbers of choices."""
    people: int = 16
    """Most people a run."""
    draws: int = 4
    """Times that random pairs are drawn."""
    out: Path = Path("runs/asking")
    """Where lines and table go."""


def measured(run: str, options: Options) -> Iterator[dict[str, Any]]:
    """A line a size and way of one run."""
    from raypref.data.federation import Pair
    from raypref.onboarding import expecting, interview
    from raypref.onboarding.learner import Learner
    from raypref.storage import locate
    from raypref.tools.rng import stream

    learner = Learner(locate.stage1(run))
    config, most = learner.config, max(options.sizes)
    chosen, unseen = expecting.people_of(learner, options.people)
    clients = expecting.data_of(learner)
    folds = [clients[c].train for c in chosen]
    few = [learner.result["clients"][c] for c, fold in zip(chosen, folds, strict=True) if fold.pairs < most]
    if few:
        console.note(
            f"{run}: {len(few)} of {len(chosen)} people have fewer than {most} choices, and give all they have"
        )
    orders: dict[str, list[list[list[int]]]] = {"at random": [], "chosen": []}
    for c, fold in zip(chosen, folds, strict=True):
        pairs = [interview.Chosen(Pair("", "", ""), expecting.some_of(fold, [i])) for i in range(fold.pairs)]
        talk = interview.Interview(learner, "", pairs)
        talk.committee = [other for other in talk.committee if other != c]
        while len(talk.answers) < most and (shown := talk.next()) is not None:
            talk.answer(shown, True)  # its first response is the one that was chosen
        orders["chosen"].append([list(talk.answers)])
        drawn = [stream(config.seed, "asked at random", c, d).permutation(fold.pairs) for d in range(options.draws)]
        orders["at random"].append([order.tolist() for order in drawn])
    marks = config.personalization.marks if learner.trains else (0,)
    for size in options.sizes:
        for way, of_people in orders.items():
            accuracy = np.mean([
                best(*expecting.accuracies(learner, known, [clients[c] for c in chosen], marks))
                for known in (
                    [expecting.some_of(fold, each[d][:size]) for fold, each in zip(folds, of_people, strict=True)]
                    for d in range(len(of_people[0]))
                )
            ], axis=0)  # fmt: skip
            yield {
                "run": run,
                "method": config.method,
                "seed": config.seed,
                "unseen": unseen,
                "choices": size,
                "pairs": way,
                "people": len(chosen),
                "accuracy": [round(float(value), 4) for value in accuracy],
            }


def best(validation: np.ndarray, test: np.ndarray) -> np.ndarray:
    """[P] test accuracies at the mark of the best mean validation accuracy; both [P, marks]."""
    return test[:, int(validation.mean(axis=0).argmax())]


def summary(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row a method and size: both means over people and runs, and their difference with its 95 % interval: Student's
    t over runs, one a seed, or of a single one a bootstrap over people."""
    from raypref.evaluation.claims.statistics import estimate
    from raypref.evaluation.curve import interval

    rows = []
    for method, size in dict.fromkeys((line["method"], line["choices"]) for line in lines):
        of = [line for line in lines if (line["method"], line["choices"]) == (method, size)]
        random, chosen = ([line["accuracy"] for line in of if line["pairs"] == way] for way in ("at random", "chosen"))
        gains = [np.subtract(a, b) for a, b in zip(chosen, random, strict=True)]
        mean = np.mean([each.mean() for each in gains])
        if len(gains) > 1:
            low, high = estimate([each.mean() for each in gains])[1:3]
        else:
            low, high = (float(end[0]) for end in interval(gains[0][:, None]))
        gain = f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        means = (f"{100 * np.mean([np.mean(each) for each in values]):.1f}" for values in (random, chosen))
        rows.append((method, str(size), *means, gain, f"{len(gains)} x {len(gains[0])}"))
    return rows


HEAD = ("method", "choices", "at random", "chosen", "gain (95 % interval)", "runs x people")


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv or ["--help"], "python benchmarks/asking.py")
    if not options.runs:
        raise UserError("name finished runs: python benchmarks/asking.py runs/…")
    lines = Lines(options.out / "lines.jsonl")
    for run in options.runs:
        for line in measured(run, options):
            lines.add(**line)
    text = f"{table(HEAD, summary(lines.all))}\n\n{len(options.runs)} run{'s' * (len(options.runs) > 1)}"
    conclude(options.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(command))
