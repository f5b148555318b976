"""The runs that claims need, as conditions on their configuration, and the spaces that make them: in one place."""

from __future__ import annotations

from typing import Any

Point = dict[str, Any]

HALF = 30
"""Rounds of S2's section 3, where it has 200, and of FedGD's model; the main table's budget is twice that."""
FIRST, LAST = 10, 40
"""Local steps: S2's acc^10, and the last mark here in the place of its acc^80."""

GRADED: Point = {"data.source": "graded", "data.graded.wishes": [], "federation.unseen": 0}
EVEN: Point = GRADED | {"data.group_sizes": [10, 10, 10, 10]}
UNEVEN: Point = GRADED | {"data.group_sizes": [15, 15, 5, 5]}
SHARED: Point = {"data.source": "graded", "data.graded.wishes": ["11", "12"], "federation.unseen": 0}
"""Two groups that agree on one axis and not on the other: in the place of helpful and harmless (S1 5.1), so that one
model for all can serve both in part."""

ONE_ALIKE: Point = {"data.source": "graded", "data.graded.wishes": ["101", "201", "011", "021"], "federation.unseen": 0}
"""Four groups that all want one thing alike, and each one thing more."""
AWAY: Point = EVEN | {"federation.unseen": 5}
"""Five of each group take no part."""


def points(setting: Point, runs: dict[str, Point]) -> dict[str, Point]:
    """Runs that have a setting in common, by what the claim calls them."""
    return {name: setting | run for name, run in runs.items()}


def selector(algorithm: str, rounds: int = 0, **more: Any) -> Point:
    """S2's selector by a method, with so many rounds where they are given."""
    return {"algorithm": algorithm, "objective": "choice"} | ({"federation.rounds": rounds} if rounds else {}) | more


FL, FL_TARGET, FEDGD = selector("fedavg"), selector("fl_target"), selector("fedgd")
LOCAL, CL, MULTI_CL = selector("local"), selector("cl"), selector("multi_cl")
FEDBISCUIT, SOFT_FL = selector("fedbiscuit"), selector("soft_fl")


def reward(algorithm: str, K: int) -> Point:
    """A linear reward head on frozen features, by a method with K models."""
    return {"algorithm": algorithm, "objective": "reward", "reward.features": "frozen", "experts.K": K}


def adapted(algorithm: str, objective: str = "reward") -> Point:
    """A reward model with LoRA by a method."""
    return {"algorithm": algorithm, "objective": objective, "reward.features": "adapted"}


def variational(algorithm: str, form: str = "conditioned", lora: bool = False) -> Point:
    """S1's selector in a form; `printed` always has LoRA, the conditioned one frozen features unless it has."""
    lora = lora or form == "printed"
    return {"algorithm": algorithm, "objective": "variational", "variational.form": form, "variational.lora": lora}


ETA: Point = {"diagnostics.eta": 1e-3}
"""Diagnostics are compared at one step size, whatever learning rate a method has."""
FEDDPO: Point = {"algorithm": "feddpo", "objective": "dpo"}

MAIN, HALVES, NUMBERS, DIAGNOSED = "graded_main", "graded_half graded_main", "graded_K", "graded_diagnostics"
STARTS, STEPS, ABLATION, UNSEEN = "graded_phase2", "graded_steps", "graded_ablation", "graded_unseen"
COUNTS, RATIOS, PEOPLE, WISHES = "graded_counts", "graded_ratios", "graded_people", "graded_shared"
"""Search spaces."""
