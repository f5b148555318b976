"""Finished runs by hand: four clients in two groups by default, accuracies as a test says them; and judged policies."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raypref.config import RunConfig, flatten, override, to_dict
from raypref.evaluation.runs import FinishedRun, Policy
from raypref.evaluation.tables import Table, text

IMBALANCED, BALANCED = (3, 1), (2, 2)
MARKS = (0, 10, 40)
NAMES = ["G1 a", "G2 b", "G3 c", "G4 d"]


def result(accuracy: Any, margins: Any = None, headroom: Any = None, **settings: Any) -> dict[str, Any]:
    """accuracy: [C][M]; margins: [C][M][N]; headroom: [C][N], with it diagnostics of two layers, GQ 1 and 3."""
    config = override(
        RunConfig(), {"data.group_sizes": IMBALANCED, "personalization.marks": MARKS[: len(accuracy[0])]} | settings
    )
    C = len(accuracy)
    curves = dict.fromkeys(("accuracy", "order_accuracy", "agreement", "loss"), np.asarray(accuracy).tolist())
    gq = [[1.0, 3.0]] * C
    sizes = config.data.group_sizes
    of = [g for g, size in enumerate(sizes) for _ in range(size)]
    real = not config.data.generated
    return {
        "algorithm": config.algorithm,
        "key": config.key,
        "seed": config.seed,
        "config": to_dict(config),
        "clients": [f"c{i}" for i in range(C)],
        "groups": {"names": [], "of": []} if real else {"names": NAMES[: len(sizes)], "of": of},
        "assignment": [0, 0, 0, 1],
        "ari": 1.0,
        "rounds": config.federation.rounds,
        "client_steps": 3000,
        "bytes_up": 2_000_000,
        "bytes_down": 4_000_000,
        "marks": list(config.personalization.marks),
        "test": curves,
        "validation": curves,
        "margins": {"test": margins} if margins is not None else {},
        "diagnostics": []
        if headroom is None
        else [{"mark": 0, "gq": gq, "gq_median": gq, "gq_excluded": gq, "headroom": headroom}],
    }


def finished(accuracy: Any, id: str = "", started: int = 0, groups: Any = None, **how: Any) -> FinishedRun:
    made = result(accuracy, **how)
    return FinishedRun(id, started, flatten(made["config"]), made, groups)


def cells(table: Table) -> dict[str, dict[str, str]]:
    """{row: {"block head": cell}}."""
    heads = [f"{c.block} {c.head}".strip() for c in table.columns]
    return {
        label: dict(zip(heads, (text(*pair) for pair in zip(row, table.columns, strict=True)), strict=True))
        for label, row in zip(table.rows, table.cells, strict=True)
    }


def flat(*values: float, C: int = 4) -> list[list[float]]:
    """C clients of the same curve."""
    return [list(values)] * C


def section(axis: str, scores: Sequence[float], unseen: bool = False, wins: bool = True) -> dict[str, Any]:
    """Comparisons of one axis, in turn of its two clients; `wins`: scores are 1, 0 or 1/2, not differences."""
    told: dict[str, Any] = {"axis": axis, "unseen": unseen, "prompts": len(scores), "clients": 2, "scores": [*scores]}
    told["client_of"] = [f"{axis}{i % 2}{' away' * unseen}" for i in range(len(scores))]
    mean = float(np.mean(scores)) if len(scores) else None
    return told | ({"win_rate": mean, "unparseable": 0} if wins else {"difference": mean})


def judgement(*sections: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"sections": list(sections), "settings": {"samples": 0, "seed": 0, **settings}}


def policy_result(**settings: Any) -> dict[str, Any]:
    """What a policy.json holds; ten clients by default, five a group, as in S1."""
    config = override(RunConfig(), {"data.group_sizes": (5, 5), "rlhf.rounds": 25, "rlhf.batch_size": 16} | settings)
    told = {"algorithm": config.algorithm, "key": "0", "seed": config.seed, "config": to_dict(config)}
    return told | {"clients": sum(config.data.group_sizes), "prompts": {"train": 9, "test": 4}, "rounds": 25}


def policy(helpful: Sequence[float], harmless: Sequence[float], started: int = 0, **settings: Any) -> Policy:
    """One judged by `style` on both axes."""
    told = policy_result(**settings)
    judged = {"style": judgement(section("helpful", helpful), section("harmless", harmless))}
    id = f"{told['algorithm']} {settings} {started}"
    return Policy(id, started, flatten(told["config"]), told, judgements=judged)
