"""What claims read of a run: accuracies, groups, diagnostics, latent space, costs, win rates. Shares are in points (%).

Accuracies are those on test pairs. Each raises `Lacks` where a run does not hold what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import numpy as np

from raypref.evaluation import diagnostics
from raypref.evaluation.claims.claim import Lacks, Quantity, mean
from raypref.evaluation.claims.statistics import worst_tenth_floor
from raypref.evaluation.curve import worst_tenth
from raypref.evaluation.latent import numbers
from raypref.evaluation.runs import FinishedRun, Policy, context_marks

JUDGE = "style"
"""Whose win rates are read: the judge that counts phrases, which is exact."""


def at(run: FinishedRun, t: int, unseen: bool = False) -> np.ndarray:
    """[C] acc^t of every client in points."""
    part = run.unseen if unseen else run.result
    if part is None:
        raise Lacks("unseen clients")
    if t not in part["marks"]:
        raise Lacks(f"acc^{t}")
    line = np.asarray(part["test"]["accuracy"], dtype=np.float64)[:, list(part["marks"]).index(t)]
    return 100.0 * line


def accuracy(t: int) -> Quantity:
    return Quantity(f"acc^{t}", lambda run: at(run, t))


def by_context(count: int) -> Quantity:
    """Accuracy without a local step where a client's part is inferred from so many of its choices."""

    def read(run: FinishedRun) -> np.ndarray:
        marks, values = context_marks(run.config), run.result.get("probes", {}).get("context_accuracy")
        if not values or count not in marks:
            raise Lacks(f"accuracy from {count} choices")
        return 100.0 * np.asarray(values, dtype=np.float64)[:, marks.index(count)]

    return Quantity(f"accuracy from {count} choices", read)


def gain(start: int, end: int) -> Quantity:
    """What the local steps between two marks bring."""
    return Quantity(f"acc^{end} - acc^{start}", lambda run: at(run, end) - at(run, start))


def early(share: float, middle: int, end: int) -> Quantity:
    """What the first steps bring beyond a share of what all bring."""

    def read(run: FinishedRun) -> np.ndarray:
        start = at(run, 0)
        return at(run, middle) - start - share * (at(run, end) - start)

    return Quantity(f"(acc^{middle} - acc^0) - {share} (acc^{end} - acc^0)", read)


def off_chance(t: int) -> Quantity:
    return Quantity(f"distance of acc^{t} from 50", lambda run: abs(mean(at(run, t)) - 50.0))


def by_group(name: str, t: int, reduce: Callable[[Sequence[float]], float], start: int | None = None) -> Quantity:
    """One number of the means of true groups, in their order, at a mark (with `start`: of the gain since then)."""

    def read(run: FinishedRun) -> float:
        values = at(run, t) - (0.0 if start is None else at(run, start))
        of = np.asarray(run.result["groups"]["of"])
        if not len(of):
            raise Lacks("true groups")
        return reduce([mean(values[of == g]) for g in range(len(run.result["groups"]["names"])) if (of == g).any()])

    return Quantity(f"{name} of acc^{t}{'' if start is None else f' - acc^{start}'}", read)


def worst_group(t: int, start: int | None = None) -> Quantity:
    return by_group("lowest group", t, min, start)


def minority(t: int) -> Quantity:
    """acc^t of the clients whose group is smaller than the largest."""

    def read(run: FinishedRun) -> np.ndarray:
        of = np.asarray(run.result["groups"]["of"])
        counts = np.bincount(of) if len(of) else np.zeros(1)
        if counts.min() == counts.max():
            raise Lacks("a smaller group")
        return np.where(counts[of] < counts.max(), at(run, t), np.nan)

    return Quantity(f"acc^{t} of the smaller groups", read)


def above_floor(t: int) -> Quantity:
    """The worst tenth beside what it would be if nobody were worse than others (`worst_tenth_floor`)."""

    def read(run: FinishedRun) -> float:
        values = at(run, t)
        values, pairs = values[~np.isnan(values)], [n for n in pairs_of(run) if n]
        return float(worst_tenth(values[:, None])[0]) - 100.0 * worst_tenth_floor(mean(values) / 100.0, pairs)

    return Quantity(f"worst tenth of acc^{t} minus its noise floor", read)


def pairs_of(run: FinishedRun) -> list[int]:
    """[C] how many test pairs every client has."""
    if margins := run.result.get("margins", {}).get("test"):
        return [len(of_client[0]) for of_client in margins]
    if run.config["data.source"] == "graded":
        return [int(run.config["data.graded.test"])] * len(run.result["clients"])
    raise Lacks("margins, which tell how many test pairs a client has")


def partition() -> Quantity:
    def read(run: FinishedRun) -> float:
        if run.result.get("ari") is None:
            raise Lacks("found groups")
        return float(run.result["ari"])

    return Quantity("ARI of found groups", read, "ARI")


def diagnosis(key: str, words: str, unit: str, scale: Callable[[float], float] = float) -> Quantity:
    """A column of `raypref.evaluation.diagnostics.summary`."""

    def read(run: FinishedRun) -> float:
        if not run.diagnosed:
            raise Lacks("diagnostics")
        return scale(run.diagnosed[key])

    return Quantity(words, read, unit)


def flatness(part: Literal["", "_body", "_head"] = "") -> Quantity:
    """log10 of the gradient quotient (S2 2.2), whose ratios the paper compares."""
    name = {"": "GQ(l)", "_body": "GQ_B", "_head": "GQ_H"}[part]
    return diagnosis(f"gq{part}", f"log10 {name}", "tenfold", lambda value: float(np.log10(value)))


def retained(name: Literal["R", "W"], t: int) -> Quantity:
    """P^t of the test pairs that are right (R) or wrong (W) at the initialization (S2 Tables 1, 2)."""

    def read(run: FinishedRun) -> float:
        if not (run.result.get("margins") or run.result.get("retention")):
            raise Lacks("margins")
        if not {0, t} <= set(run.result["marks"]):
            raise Lacks(f"margins at step {t}")
        curve = diagnostics.retention_curve(run.result)
        return 100.0 * float(getattr(curve, name)[curve.marks.index(t)])

    return Quantity(f"P^{t}_{name}", read)


def latent(name: str, unit: str) -> Quantity:
    """A number of the last recorded latent space (`raypref.evaluation.latent.numbers`)."""

    def read(run: FinishedRun) -> float:
        if run.latent is None:
            raise Lacks("posteriors of its clients")
        z = run.latent
        return numbers(z.mu[-1], z.log_variance[-1], run.result["groups"]["of"]).get(name, np.nan)

    return Quantity(f"{name} of z", read, unit)


def unseen_gap(t: int = 0) -> Quantity:
    return Quantity(f"acc^{t}, unseen minus seen clients", lambda run: mean(at(run, t, unseen=True)) - mean(at(run, t)))


def cost(words: str, unit: str, of: Callable[[Mapping[str, Any]], float]) -> Quantity:
    """Of a result's counts."""

    def read(run: FinishedRun) -> float:
        try:
            return float(of(run.result))
        except (KeyError, ZeroDivisionError) as error:
            raise Lacks("counts of parameters and bytes") from error

    return Quantity(words, read, unit)


def win_rates(run: FinishedRun, unseen: bool = False) -> dict[str, float]:
    """Group -> win rate of a policy against its frozen base, in points: all that claims need of a policy."""
    judgements = run.judgements if isinstance(run, Policy) else {}
    sections = judgements[JUDGE]["sections"] if JUDGE in judgements else ()
    rates = {s["axis"]: 100.0 * s["win_rate"] for s in sections if s["unseen"] == unseen and s["win_rate"] is not None}
    if not rates:
        raise Lacks(f"win rates by {JUDGE}{' of unseen clients' * unseen}")
    return rates


def wins(words: str, reduce: Callable[[Sequence[float]], float]) -> Quantity:
    """One number of the groups' win rates, in the order of the groups."""
    return Quantity(words, lambda run: reduce([*win_rates(run).values()]))


def unseen_wins() -> Quantity:
    def read(run: FinishedRun) -> float:
        return fmean(win_rates(run, unseen=True).values()) - fmean(win_rates(run).values())

    return Quantity("win rate, unseen minus seen clients", read)
