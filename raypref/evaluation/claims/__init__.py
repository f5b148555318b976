"""The papers' empirical claims, and raypref's, as values that compute their own verdict (docs/claims.md)."""

from __future__ import annotations

from raypref.evaluation.claims.claim import Claim


def every() -> list[Claim]:
    """All claims, S2's first."""
    from raypref.evaluation.claims import bayes, s1_policies, s1_selectors, s2_accuracy, s2_diagnostics, s2_groups

    files = (s2_accuracy, s2_groups, s2_diagnostics, s1_selectors, s1_policies, bayes)
    return [claim for file in files for claim in file.CLAIMS]
