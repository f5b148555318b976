"""Judged claims as people read them: a table a paper, a claim in full, and which runs are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raypref.evaluation.claims.claim import Claim
from raypref.evaluation.claims.judge import Judged, steps, varied
from raypref.evaluation.claims.statistics import LEVEL, POWER
from raypref.evaluation.runs import Seeds, describe, each, show
from raypref.evaluation.tables import NONE, Column, Table, csv_text

PAPERS = {"S1": "S1, FedVPA-GP's paper", "S2": "S2, FedGD's paper", "raypref": "raypref's own"}
NOTE = (
    f"Here: mean over n seeds with its {100 * (1 - LEVEL):.0f} % t interval. Smallest: the effect that these seeds "
    f"would have shown with probability {POWER}, whatever the other claims turn out (at the level of Holm's first "
    "step). Verdicts are by Holm within the paper."
)


def number(value: float, claim: Claim, signed: bool = False) -> str:
    """In the statistic's unit: points and percent to one digit, others to three."""
    unit = claim.statistic.unit if claim.statistic else ""
    form = ".1f" if unit in ("points", "%") else "#.3g"
    return f"{value + 0.0:{'+' if signed else ''}{form}}"


def here(of: Judged) -> str:
    """`+2.3 [+1.0, +3.6] points`, with what it is compared with where that is not 0."""
    claim, found = of.claim, of.estimate
    if found is None or claim.statistic is None:
        return NONE
    mean, low, high = (number(value, claim, signed=not claim.null) for value in found[:3])
    against = f" (claimed {claim.direction} {number(claim.null, claim)})" * bool(claim.null)
    return f"{mean} [{low}, {high}] {claim.statistic.unit}{against}"


def table(paper: str, judged: Sequence[Judged], statements: bool = False) -> Table:
    """The claims of a paper; `statements`: with what each says, for a page."""
    heads = ["place", *["claim in words"] * statements, "paper", "here", "smallest", "n", "verdict"]
    rows = []
    for of in judged:
        claim, n = of.claim, str(of.estimate.seeds) if of.estimate else NONE
        least = number(of.smallest, claim) if of.estimate else NONE
        word = of.verdict or f"{NONE} (runs are missing)"
        words = [claim.place.removeprefix(paper).strip(": "), *[claim.statement] * statements, claim.numbers]
        rows.append((*words, here(of), least, n, word))
    columns = tuple(Column(head) for head in heads)
    names = tuple(of.claim.name for of in judged)
    return Table(f"claims-{paper.lower()}", PAPERS[paper], "claim", columns, names, tuple(rows), notes=(NOTE,))


def by_paper(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    return {
        paper: [of for of in judged if of.claim.paper == paper]
        for paper in dict.fromkeys(of.claim.paper for of in judged)
    }


def counts(judged: Sequence[Judged]) -> str:
    """`S2: 62 claims, 3 holds, …`"""
    lines = []
    for paper, of in by_paper(judged).items():
        words = [one.verdict or "without runs" for one in of]
        shares = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        lines.append(f"{paper}: {len(of)} claims: {shares}")
    return "\n".join(lines)


def wanting(judged: Sequence[Judged]) -> dict[str, str]:
    """Command -> what it would make, for which claims."""
    by_command: dict[str, dict[str, list[str]]] = {}
    for of in judged:
        for missing in of.missing:
            by_command.setdefault(missing.command, {}).setdefault(missing.what, []).append(of.claim.name)
    return {
        command: "; ".join(f"{what} ({', '.join(names)})" for what, names in wants.items())
        for command, wants in by_command.items()
    }


def left_out(judged: Sequence[Judged]) -> list[str]:
    """A line a claim that was judged without some seeds."""
    return [f"{of.claim.name}: without {_left(of)}" for of in judged if of.estimate and of.left]


def _left(of: Judged) -> str:
    """`seeds 3 4: its runs have no diagnostics`"""
    whys = dict.fromkeys(of.left.values())
    return "; ".join(f"seeds {' '.join(str(s) for s, w in of.left.items() if w == why)}: {why}" for why in whys)


def full(of: Judged) -> str:
    """Everything that is known of one claim."""
    claim, statistic = of.claim, of.claim.statistic
    lines = [f"{claim.name} ({claim.place})", claim.statement, f"paper: {claim.numbers}"]
    if statistic is None:
        return "\n".join([*lines, f"verdict: {of.verdict}; {claim.untestable}"])
    within = f"{number(claim.margin, claim)} {statistic.unit}"
    lines.append(f"statistic, a number a seed: {statistic.words} ({statistic.unit})")
    lines.append(
        f"claimed: {claim.direction} {number(claim.null, claim)}; no effect: the interval within {within} of it"
    )
    points = [*claim.runs.values()]
    alike = points[0].items() if len(points) > 1 else ()
    shared = {key: value for key, value in alike if all(point.get(key) == value for point in points)}
    lines.append(f"{'policies' if claim.policies else 'runs'} of one task, {_budget(claim)}: {_words(shared)}")
    lines += [f"  {describe(used)}" for used in [each(of.runs.values())] if used]
    for role, point in claim.runs.items():
        lines.append(f"  {role}: {_words({key: value for key, value in point.items() if key not in shared})}")
        lines += [f"    {line}" for line in _used(of.runs.get(role, {}))]
    lines += [f"  differ in {key}: {values}" for key, values in _differences(of).items()]
    lines += [f"missing: {missing.what}: {missing.command}" for missing in of.missing]
    if of.values:
        numbers = ", ".join(f"{seed}: {number(value, claim, signed=True)}" for seed, value in of.values.items())
        lines.append(f"by seed: {numbers}")
    lines += [f"left out: {_left(of)}"] * bool(of.left)
    if of.estimate:
        lines.append(f"here: {here(of)}, n = {of.estimate.seeds}, std over seeds {number(of.estimate.std, claim)}")
        lines.append(f"p = {of.estimate.p:.3g}, by Holm within {claim.paper} {of.adjusted:.3g}")
        lines.append(f"smallest effect that would have been shown: {number(of.smallest, claim)} {statistic.unit}")
        lines.append(f"verdict: {of.verdict}")
    return "\n".join(lines)


def _budget(claim: Claim) -> str:
    return "equal rounds" if claim.budget == "rounds" else f"at most {claim.budget} steps for each client of a cohort"


def _words(point: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={show(value) or NONE}" for key, value in point.items())


def _used(seeds: Seeds) -> list[str]:
    """What the runs of a name took, and where each is: its id holds its key."""
    if not seeds:
        return []
    run = next(iter(seeds.values()))
    done = f", {steps(run):,} client steps" * bool(steps(run))
    return [f"R = {run.config['federation.rounds']}{done}", *(f"seed {seed}: {run.id}" for seed, run in seeds.items())]


def _differences(of: Judged) -> Mapping[str, str]:
    """What the runs differ in that the claim does not name: a method's own parameters, such as its learning rate."""
    one = {role: next(iter(seeds.values())).computed for role, seeds in of.runs.items() if seeds}
    named = varied(of.claim) | {"seed", "federation.rounds"}
    keys = [key for key in dict.fromkeys(key for config in one.values() for key in config) if key not in named]
    values: dict[str, dict[str, Any]] = {key: {role: c[key] for role, c in one.items() if key in c} for key in keys}
    apart = {key: of for key, of in values.items() if len({repr(value) for value in of.values()}) > 1}
    return {key: ", ".join(f"{role} {show(value)}" for role, value in of.items()) for key, of in apart.items()}


def to_csv(judged: Sequence[Judged]) -> str:
    """A line a claim, unrounded."""
    lines = []
    for of in judged:
        claim, found = of.claim, of.estimate
        numbers = found._asdict() if found else dict.fromkeys(("mean", "low", "high", "p", "seeds", "std"), "")
        more = {"adjusted": of.adjusted, "smallest": of.smallest} if found else {"adjusted": "", "smallest": ""}
        unit = claim.statistic.unit if claim.statistic else ""
        fixed = {"unit": unit, "direction": claim.direction, "null": claim.null, "margin": claim.margin}
        told = {"claim": claim.name, "place": claim.place, "statement": claim.statement, "paper": claim.numbers}
        lines.append(told | fixed | numbers | more | {"verdict": of.verdict or ""})
    return csv_text(lines)
