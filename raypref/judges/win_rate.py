"""Win rate of fine-tuned against frozen responses (S1 C.3.1, D.2), from what a judge said of each comparison.

S1 always shows the fine-tuned response first; a judge that prefers a position then decides. Here a comparison is shown
in both orders and counts as won only where both agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from raypref.evaluation.curve import RESAMPLES
from raypref.rng import stream

Verdict = Literal["ours", "theirs", "tie", "unparseable"]
"""What one answer of a judge prefers: the fine-tuned response, the frozen one, neither, or nobody can tell."""


def score(verdicts: Sequence[Verdict]) -> float | None:
    """1 where every order prefers ours, 0 where every order prefers theirs, 1/2 where one is a tie or they disagree.

    An unparseable answer is left out, so that the other order alone decides; None where nothing is left.
    """
    told = {verdict for verdict in verdicts if verdict != "unparseable"}
    if not told:
        return None
    return {"ours": 1.0, "theirs": 0.0}.get(min(told), 0.5) if len(told) == 1 else 0.5


def agreement(comparisons: Sequence[Sequence[Verdict]]) -> float | None:
    """Share of the comparisons with two parseable answers whose orders say the same; None without any."""
    both = [c for c in comparisons if len(c) == 2 and "unparseable" not in c]
    return float(np.mean([first == second for first, second in both])) if both else None


def interval(
    values: Sequence[float], clients: Sequence[str], seed: int = 0, section: str = "", level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values`, which come in clusters: `clients[i]` is whose i is.

    Clients are redrawn, then values within each drawn client; a draw's mean is over all its values. Prompts of one
    client are alike, so that redrawing values alone is too narrow; redrawing whole clients alone is so for the few
    clients that a section has: of five clients with six prompts each its 95 % interval holds the true mean in 84 to
    88 % of simulated samples, this one in 93 to 98 %. With one client, or one value each, all three are the plain
    bootstrap. Values that are all equal give it no width. It holds the spread over clients and prompts of one run, not
    that over seeds.

    section: names what else under this seed must not share its draws.

    Raises `ValueError` without values, or where the lengths differ.
    """
    if not len(values) or len(values) != len(clients):
        raise ValueError(f"{len(values)} values of {len(clients)} clients")
    generator = stream(seed, f"judgement interval {section}")
    of = np.asarray(values, dtype=np.float64)
    owner = np.asarray(clients)
    held = [of[owner == name] for name in sorted(set(clients))]
    C = len(held)
    times = generator.multinomial(C, np.full(C, 1 / C), size=RESAMPLES)  # [R, C]: how often a draw has each client
    total, count = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for c, own in enumerate(held):  # a client drawn twice has its values redrawn each time
        n = times[:, c] * len(own)
        total += generator.multinomial(n, np.full(len(own), 1 / len(own))) @ own
        count += n
    low, high = np.quantile(total / count, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summary(
    comparisons: Sequence[Sequence[Verdict]], clients: Sequence[str], seed: int = 0, section: str = ""
) -> dict[str, Any]:
    """The numbers of one section, JSON-able: all comparisons of one axis by clients that were all seen, or all unseen.

    comparisons: the verdicts of each, one an order. clients: whose each is. `prompts` and `clients` count what was
    judged; `unparseable` counts answers, `left_out` comparisons without any that can be read, which have no part in
    `win_rate` (the mean of `scores`; `client_of` says whose each is), None where none is left, nor in `interval`.
    """
    found = [(score(verdicts), client) for verdicts, client in zip(comparisons, clients, strict=True)]
    kept = [(value, client) for value, client in found if value is not None]
    scores, client_of = [value for value, _ in kept], [client for _, client in kept]
    counts = Counter(scores)
    return {
        "prompts": len(comparisons),
        "clients": len(set(clients)),
        "wins": counts[1.0],
        "losses": counts[0.0],
        "ties": counts[0.5],
        "unparseable": sum(verdict == "unparseable" for verdicts in comparisons for verdict in verdicts),
        "left_out": len(found) - len(kept),
        "agreement": agreement(comparisons),
        "win_rate": float(np.mean(scores)) if scores else None,
        "interval": list(interval(scores, client_of, seed, section)) if scores else None,
        "scores": scores,
        "client_of": client_of,
    }
