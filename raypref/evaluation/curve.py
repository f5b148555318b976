"""The personalization curve over clients: what the tables of S2 report at each read-out acc^t (S2 2.1, 2.2).

Values are arrays [C, M]: one row a client, one column a mark (a number t of local steps). A client with nothing to
judge (an empty fold) has nan in its row; it is left out of every statistic, and `summary` says how many were counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np

Fold = Literal["test", "validation"]
"""Which of a client's held-out pairs accuracies are read on."""


class Groups(TypedDict):
    """True preference groups; both empty where they are unknown."""

    names: list[str]
    of: list[int]
    """[C] indices into `names`."""


RESAMPLES = 2000
"""Bootstrap draws of `interval`: its ends then move by 1 to 2 % of its width from seed to seed."""


def summary(
    values: np.ndarray, group_of: Sequence[int] | np.ndarray = (), names: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
    """Statistics over clients at each mark, as plain JSON-able lists of length M.

    `mean` and `std` are S2's mean ± std over clients (Table 3). The paper does not say which std; this is the
    population one (division by C), for the clients are all there are, not a sample. `groups` holds the mean of each
    true group (S2 Figs. 2, 3), `worst_tenth` see there, `low` and `high` the bootstrap `interval` of the mean,
    `clients` the number of clients counted.

    values: [C, M], where more is better (for `worst_tenth`). group_of: [C] indices into `names`; both empty where true
    groups are unknown. Raises `ValueError` where no client has values, or the shapes do not fit.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or (len(names) and len(group_of) != len(values)):
        raise ValueError(f"values [C, M] and group_of [C] do not fit: {values.shape}, {len(group_of)}")
    counted = ~np.isnan(values).any(axis=1)
    if not counted.any():
        raise ValueError("no client has anything to judge")
    kept = values[counted]
    low, high = interval(kept, seed)
    statistics: dict[str, Any] = {
        "mean": kept.mean(axis=0).tolist(),
        "std": kept.std(axis=0).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "worst_tenth": worst_tenth(kept).tolist(),
        "clients": int(counted.sum()),
        "groups": {},
    }
    if len(names):
        group = np.asarray(group_of)[counted]
        statistics["groups"] = {
            name: kept[group == g].mean(axis=0).tolist() for g, name in enumerate(names) if (group == g).any()
        }
    return statistics


def seen_and_unseen(result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A finished run's result over the clients that trained, and over its unseen ones (None without any): the one place
    that keeps them apart, for whatever is averaged over clients.

    Both have the form of the result itself, with the clients at `unseen` left out, or they alone. `assignment` and
    `ari`, which are of the seen clients, are None in the other.
    """
    away = set(result.get("unseen", ()))
    if not away:
        return dict(result), None
    there = [c for c in range(len(result["test"]["accuracy"])) if c not in away]
    return _of(result, there), _of(result, sorted(away)) | OF_SEEN_ALONE


OF_SEEN_ALONE: dict[str, Any] = {"assignment": None, "ari": None, "calibration": {}, "retention": {}}
"""What of a result, or a kept one, says nothing of clients that took no part."""


def _of(result: Mapping[str, Any], clients: Sequence[int]) -> dict[str, Any]:
    """The result of these clients alone."""

    def of(values: Sequence[Any]) -> list[Any]:
        return [values[c] for c in clients]

    part = dict(result) | {"unseen": []}
    part |= {name: of(result[name]) for name in ("clients", "sizes") if name in result}
    part["groups"] = {**result["groups"], "of": of(result["groups"]["of"]) if result["groups"]["of"] else []}
    for name in ("test", "validation", "margins", "probes"):
        part[name] = {what: of(values) for what, values in result.get(name, {}).items()}
    part["diagnostics"] = [
        {what: values if what == "mark" else of(values) for what, values in line.items()}
        for line in result.get("diagnostics", ())
    ]
    if kept := result.get("calibration"):
        part["calibration"] = {**kept, "nll": of(kept["nll"])}
    return part


def worst_tenth(values: np.ndarray) -> np.ndarray:
    """[C, M] -> [M]: mean of the lowest ⌈C/10⌉ clients at each mark, chosen anew at each."""
    count = math.ceil(len(values) / 10)
    lowest: np.ndarray = np.sort(values, axis=0)[:count].mean(axis=0)
    return lowest


def interval(values: np.ndarray, seed: int = 0, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the mean over clients: [C, M] -> two arrays [M].

    Whole clients are redrawn, so a client's marks stay together. It holds the spread over people of one training run,
    not that over seeds.
    """
    C = len(values)
    draws = np.random.default_rng(seed).multinomial(C, np.full(C, 1 / C), size=RESAMPLES)
    low, high = np.quantile(draws @ values / C, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def adjusted_rand_index(found: Sequence[int] | np.ndarray, true: Sequence[int] | np.ndarray) -> float | None:
    """Agreement of found with true groups over clients (Hubert and Arabie 1985): 1 the same partition, 0 as by chance.

    Both [C]; the labels' names do not matter. None where true groups are unknown (-1). S2 compares by eye (Fig. 4).
    """
    if not len(true) or min(true) < 0:
        return None
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(np.asarray(true), np.asarray(found)))
