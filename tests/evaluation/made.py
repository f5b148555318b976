"""Finished runs by hand: four clients in two groups by default, accuracies as a test says them."""

from typing import Any

import numpy as np

from raypref.config import RunConfig, flatten, override, to_dict
from raypref.evaluation.papers import Found

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
    real = config.data.source != "synthetic"
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


def found(accuracy: Any, id: str = "", started: int = 0, groups: Any = None, **how: Any) -> Found:
    told = result(accuracy, **how)
    return Found(id, started, flatten(told["config"]), told, groups)


def flat(*values: float, C: int = 4) -> list[list[float]]:
    """C clients of the same curve."""
    return [list(values)] * C
