"""Which runs a claim is judged by, and what they say of it; Holm's adjustment is within each paper.

Runs are those that are kept under the claim's spaces. Those that are compared have the same task: data, base, cohort,
steps of a round, batch, seeds, and of policies how they are asked; and the budget that the claim says. A method's own
parameters, its learning rate among them, may differ between methods; runs of one method agree in all that the claim
does not vary. Of several such families the one that fills most of the claim counts, then the one of most seeds, then
the newest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import numpy as np

from raypref.evaluation.claims.claim import Claim, Lacks, mean
from raypref.evaluation.claims.statistics import LEVEL, Estimate, Verdict, estimate, holm, smallest, verdict
from raypref.evaluation.drawings import Missing
from raypref.evaluation.runs import (
    ANSWERS,
    WORK,
    FinishedRun,
    Policy,
    Seeds,
    alike,
    by_seed,
    each,
    fullest,
    method_keys,
)

FEWEST = 3
"""Seeds without which nothing is judged."""
CHOOSING = 100
"""The first seed of those on which settings are chosen; no claim is judged on them."""
TASK = (*WORK, *(f"rlhf.{name}" for name in ANSWERS))
"""Prefixes of keys that make the task."""

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """A claim and what became of it."""

    claim: Claim
    runs: Mapping[str, Seeds] = field(default_factory=dict)
    """Those that were used, by what the claim calls them."""
    missing: tuple[Missing, ...] = ()
    """Empty where it was judged, or cannot be here."""
    values: Mapping[int, float] = field(default_factory=dict)
    """Seed -> its number."""
    left: Mapping[int, str] = field(default_factory=dict)
    """Seed that all of its runs have, and yet no number -> why."""
    estimate: Estimate | None = None
    adjusted: float = float("nan")
    """Its p-value by Holm among the paper's claims that were tested."""
    smallest: float = float("nan")
    """The smallest effect that its seeds could have shown (`raypref.evaluation.claims.statistics.smallest`)."""
    verdict: Verdict | None = None
    """None: runs are missing."""


def judge(claims: Sequence[Claim], runs: Sequence[FinishedRun]) -> list[Judged]:
    """Every claim by the runs that fit it, in the order of the claims."""
    judged = [_measured(claim, runs) for claim in claims]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        tested = [i for i, one in enumerate(judged) if one.estimate and one.claim.paper == paper]
        estimates = [of for i in tested if (of := judged[i].estimate)]
        for i, of, p in zip(tested, estimates, holm([of.p for of in estimates]), strict=True):
            claim, least = judged[i].claim, smallest(of.std, of.seeds, LEVEL / len(tested))
            word = verdict(of, p, claim.null, claim.direction, claim.margin)
            judged[i] = replace(judged[i], adjusted=p, smallest=least, verdict=word)
    return judged


def _measured(claim: Claim, runs: Sequence[FinishedRun]) -> Judged:
    """A claim with its numbers, before any verdict but `not testable here`."""
    if claim.statistic is None:
        return Judged(claim, verdict="not testable here")
    of = [run for run in runs if run.seed < CHOOSING and _is_of(run, claim)]
    chosen = choose(claim, of)
    command = f"python -m raypref.{f'rlhf {claim.space}' if claim.policies else f'results {claim.space} --make'}"
    if gone := [role for role in claim.runs if not chosen[role]]:
        words = ", ".join(f"{role}{_elsewhere(claim, role, chosen, of)}" for role in gone)
        return Judged(claim, chosen, (Missing(f"{'policies' if claim.policies else 'runs'} of {words}", command),))
    values: dict[int, float] = {}
    left: dict[int, str] = {}
    for seed in common(chosen):
        try:
            values[seed] = mean(claim.statistic.of({role: seeds[seed] for role, seeds in chosen.items()}))
        except Lacks as error:
            left[seed] = f"its runs have no {error}"
        else:
            if not np.isfinite(values[seed]):
                left[seed] = f"{values.pop(seed)} is no number"
    if len(values) < FEWEST:
        what = "; ".join(dict.fromkeys(left.values())) or f"all its runs have {len(values)} seeds of {FEWEST} at least"
        return Judged(claim, chosen, (Missing(what, command),), values, left)
    return Judged(claim, chosen, (), values, left, estimate([*values.values()], claim.null))


def _is_of(run: FinishedRun, claim: Claim) -> bool:
    """Whether it is a policy, or kept under one of the spaces, where the claim is about such."""
    if isinstance(run, Policy) or claim.policies:
        return isinstance(run, Policy) and claim.policies
    return PurePath(run.id).parent.name in claim.space.split()


def _elsewhere(claim: Claim, role: str, chosen: Mapping[str, Seeds], runs: Iterable[FinishedRun]) -> str:
    """What the runs of that name have otherwise than those that were chosen, in brackets; '' where there are none."""
    there = max((run for run in runs if run.fits(claim.runs[role])), key=lambda run: run.started, default=None)
    if there is None:
        return ""
    if not affordable(there, claim.runs[role], claim):
        return f" (there are some, of {steps(there):,} client steps)"
    a, b = (task(run, claim) for run in (there, next(iter(each(chosen.values())))))
    return f" (there are some, of other {', '.join(key for key in {**a, **b} if a.get(key) != b.get(key))})"


def common(chosen: Mapping[str, Seeds]) -> list[int]:
    """The seeds that all of a claim's runs have."""
    return sorted(set.intersection(*(set(seeds) for seeds in chosen.values()))) if chosen else []


def varied(claim: Claim) -> set[str]:
    """The keys of which the claim names several values. What it names for some runs alone, of what makes the task, the
    others must have, too."""
    points = [*claim.runs.values()]
    return {key for point in points for key in point if any(p.get(key, point[key]) != point[key] for p in points)}


def choose(claim: Claim, runs: Iterable[FinishedRun]) -> dict[str, Seeds]:
    """What the claim calls its runs -> these by seed, all of one family; an empty mapping: no such run."""
    fitting = [run for run in runs if any(suits(run, point, claim) for point in claim.runs.values())]
    families = [
        {role: seeds for points in _methods(claim) for role, seeds in _variant(of, points, claim).items()}
        for of in alike(fitting, lambda run: json.dumps(task(run, claim), sort_keys=True))
    ]

    def rank(family: Mapping[str, Seeds]) -> tuple[int, int, int]:
        return sum(map(bool, family.values())), len(common(family)), max(run.started for run in each(family.values()))

    return max(families, key=rank, default={role: {} for role in claim.runs})


def suits(run: FinishedRun, point: Point, claim: Claim) -> bool:
    """Whether it has these values, and its client steps are within the claim's budget."""
    return run.fits(point) and affordable(run, point, claim)


def affordable(run: FinishedRun, point: Point, claim: Claim) -> bool:
    if not isinstance(claim.budget, int) or "federation.rounds" in point:
        return True
    most = claim.budget * run.config["federation.cohort"]
    return not steps(run) or most / 2 < steps(run) <= most


def _variant(runs: Sequence[FinishedRun], points: Mapping[str, Point], claim: Claim) -> dict[str, Seeds]:
    """Runs of one method that agree in all but the seed and what the claim names of some of them."""
    of = {role: [run for run in runs if suits(run, point, claim)] for role, point in points.items()}
    named = {key for p in points.values() for key in p if any(q.get(key) != p[key] for q in points.values())}
    members = {run.id: run for suiting in of.values() for run in suiting}
    roles = {id: tuple(role for role in of if members[id] in of[role]) for id in members}
    best = fullest(alike(members.values(), lambda r: r.identity({*named, "seed"})), lambda r: (r.seed, roles[r.id]))
    return {role: by_seed(run for run in best if role in roles[run.id]) for role in points}


def _methods(claim: Claim) -> list[dict[str, Point]]:
    """The claim's runs that are of one method in one form, together."""
    keys, methods = method_keys(), dict[str, dict[str, Point]]()
    for role, point in claim.runs.items():
        own = {key: v for key, v in point.items() if key in keys or key[: key.find(".") + 1] in keys}
        methods.setdefault(repr(sorted(own.items())), {})[role] = point
    return [*methods.values()]


def steps(run: FinishedRun) -> int:
    return int(run.result.get("client_steps", 0))


def task(run: FinishedRun, claim: Claim) -> dict[str, Any]:
    """What must agree whatever the method; R only where the claim says so."""
    left = varied(claim) | ({"federation.rounds"} if claim.budget != "rounds" else set())
    return {key: value for key, value in run.computed.items() if key.startswith(TASK) and key not in left}
