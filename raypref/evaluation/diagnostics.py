"""The diagnostics of a finished run as S2's Tables 1, 2 and 5 report them (S2 2.2).

`result["marks"]` holds the M numbers t of local steps, `result["margins"]["test"]` the pair margins [C][M][N_c] of
every client's test pairs there, and `result["diagnostics"]` at each diagnosed mark `gq`, `gq_median`, `gq_excluded`
[C][L] and `headroom` [C][N_c] (see `raypref.clients.diagnosis`). θ_0 is where a diagnosed mark begins: the
initialization at mark 0. R are the test pairs that are right there (M > 0), W the wrong ones (M <= 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Retention(NamedTuple):
    """P^t: what becomes of R and W."""

    marks: list[int]
    """The T marks t from θ_0 on."""
    R: np.ndarray
    """[T] share of R right after t local steps; 1 at the first."""
    W: np.ndarray
    """[T] share of W right after t local steps; 0 at the first."""


def summary(result: Mapping[str, Any], mark: int = 0) -> dict[str, Any]:
    """The columns of S2's tables at a diagnosed mark, as plain JSON-able values; shares in [0, 1].

    `gq_layers` [L] is GQ(l), the mean over the clients that have one, `gq_clients` [L] their number; `gq` and `gq_std`
    are mean and population std over the L blocks, `gq_body` the mean over the first round(2L/3) of them and `gq_head`
    over the others (S2: 16 and 8 of 24). `gq_median` and `gq_excluded` are means over clients and blocks. With R (and
    so with W): `m0_R` mean margin at θ_0, `H0_R` mean headroom, `Hplus_R` share of positive headroom, each a mean over
    a client's set and then over the `clients_R` clients whose set is not empty. NaN where nobody has any.

    Raises `ValueError` where the run has no diagnostics at that mark.
    """
    line = next((d for d in result.get("diagnostics", ()) if d["mark"] == mark), None)
    if line is None:
        raise ValueError(f"the run has no diagnostics at mark {mark}")
    gq = np.asarray(line["gq"], dtype=np.float64)
    layers = _mean(gq)
    body = round(2 * gq.shape[1] / 3)
    columns = {
        "gq_layers": layers.tolist(),
        "gq_clients": (~np.isnan(gq)).sum(axis=0).tolist(),
        "gq": float(_mean(layers)),
        "gq_std": float(np.sqrt(_mean((layers - _mean(layers)) ** 2))),
        "gq_body": float(_mean(layers[:body])),
        "gq_head": float(_mean(layers[body:])),
        "gq_median": float(_mean(np.asarray(line["gq_median"], dtype=np.float64).ravel())),
        "gq_excluded": float(_mean(np.asarray(line["gq_excluded"], dtype=np.float64).ravel())),
    }
    margins = [m[0] for m in _margins(result, mark)]
    headroom = [np.asarray(h, dtype=np.float64) for h in line["headroom"]]
    for name, sets in _sets(margins).items():
        columns[f"m0_{name}"] = float(_over_clients(margins, sets))
        columns[f"H0_{name}"] = float(_over_clients(headroom, sets))
        columns[f"Hplus_{name}"] = float(_over_clients([h > 0 for h in headroom], sets))
        columns[f"clients_{name}"] = sum(bool(s.any()) for s in sets)
    return columns


def retention_curve(result: Mapping[str, Any], mark: int = 0) -> Retention:
    """P_R^t and P_W^t over the marks t >= `mark`, averaged as in `summary`; NaN where no client has such a sample.

    Needs no diagnostics, only margins, or from the initialization on what was kept of them
    (`raypref.storage.kept`). Raises `ValueError` where `mark` is not one of the run's marks.
    """
    if mark == 0 and not result.get("margins") and result.get("retention"):
        R, W = (np.array(result["retention"][name], dtype=np.float64) for name in ("R", "W"))
        return Retention(list(result["marks"]), R, W)
    margins = _margins(result, mark)
    sets = _sets([m[0] for m in margins])
    steps = range(len(margins[0]))
    P = {name: np.array([_over_clients([m[t] > 0 for m in margins], sets[name]) for t in steps]) for name in sets}
    return Retention([t for t in result["marks"] if t >= mark], P["R"], P["W"])


def _margins(result: Mapping[str, Any], mark: int) -> list[np.ndarray]:
    """[T, N_c] test margins a client at the marks from `mark` on."""
    if mark not in result["marks"]:
        raise ValueError(f"mark {mark} is not one of the run's: {', '.join(map(str, result['marks']))}")
    first = list(result["marks"]).index(mark)
    return [np.asarray(m, dtype=np.float64)[first:] for m in result["margins"]["test"]]


def _sets(margins: Sequence[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """R and W, a bool [N_c] a client."""
    return {"R": [m > 0 for m in margins], "W": [m <= 0 for m in margins]}


def _over_clients(values: Sequence[np.ndarray], sets: Sequence[np.ndarray]) -> np.float64:
    """Mean over each client's set, then over the clients whose set is not empty."""
    return _mean(np.array([v[s].mean() for v, s in zip(values, sets, strict=True) if s.any()]))


def _mean(values: np.ndarray) -> Any:
    """Mean along the first axis of what is not NaN; NaN, without a warning, where there is nothing."""
    counted = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(counted, values, 0.0).sum(axis=0) / counted.sum(axis=0)
