"""The papers' claims that the runs bear on, and what they say of those that they can judge."""

from __future__ import annotations

from raypref.evaluation import claims
from raypref.evaluation.claims import judge, report
from raypref.evaluation.pages.page import Hidden, Material, Section
from raypref.evaluation.pages.sections.common import texts
from raypref.evaluation.tables import NONE, Table


def section(material: Material) -> Section | None:
    """Verdicts of these runs alone, then the claims that one of them could be a part of; None where there are none."""
    runs = [run for entry in material.entries for run in entry.runs]
    judged = judge.judge(claims.every(), runs)
    done = [of for of in judged if of.estimate is not None]
    parts: list[Table | Hidden | str] = [report.table(paper, of, True) for paper, of in report.by_paper(done).items()]
    rows = []
    for of in judged:
        roles = [
            role for role, point in of.claim.runs.items()
            if not of.claim.policies and of.estimate is None and any(judge.suits(run, point, of.claim) for run in runs)
        ]  # fmt: skip
        if roles:
            rest = ", ".join(role for role in of.claim.runs if role not in roles) or NONE
            rows.append((of.claim.name, (of.claim.place, of.claim.statement, of.claim.numbers, ", ".join(roles), rest)))
    if rows:
        heads = ("place", "claim in words", "paper", "these runs are its", "also needs")
        parts.append(
            Hidden(f"{len(rows)} claims that these runs bear on and do not decide", texts("claim", heads, rows))
        )
    if not parts:
        return None
    lead = (
        "What the two papers claim of runs such as these. A claim is judged by three seeds or more of the runs that "
        "its own search space makes; python -m raypref.claims NAME shows one in full, by the kept results."
    )
    return Section("claims", "Claims of the papers", lead, parts)
