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
from raypref.tools.rng import stream

Verdict = Literal["ours", "theirs", "tie", "unparseable"]
"""What one answer of a judge prefers: the fine-tuned response, the frozen one, neither, or nobody can tell."""


def score(verdicts: Sequence[Verdict]) -> float | None:
    """1 where every order prefers ours, 0 where every order prefers theirs, 1/2 where one is a tie or they disagree.

    None where an answer is unparseable: the other order alone would let a liking for its position decide.
    """
    different = set(verdicts)
    if not different or "unparseable" in different:
        return None
    return {"ours": 1.0, "theirs": 0.0}.get(min(different), 0.5) if len(different) == 1 else 0.5


def orders(comparisons: Sequence[Sequence[Verdict]]) -> dict[str, Any]:
    """What the two orders have to do with each other, ours being A in the first and B in the second.

    `both_read` counts the comparisons of which both answers can be read; on the share `agreement` of them both say the
    same (None without any), on `always_A` (`always_B`) of them the judge prefers A (B) in both.
    """
    both = Counter((c[0], c[1]) for c in comparisons if len(c) == 2 and "unparseable" not in c)
    n = both.total()
    return {
        "both_read": n,
        "agreement": sum(count for (first, second), count in both.items() if first == second) / n if n else None,
        "always_A": both["ours", "theirs"],
        "always_B": both["theirs", "ours"],
    }


def interval(
    values: Sequence[float], clients: Sequence[str], seed: int = 0, section: str = "", level: float = 0.95
) -> list[float] | None:
    """[low, high] of the mean of `values` by percentile bootstrap; they come in clusters: `clients[i]` is whose i is.

    Clients are redrawn, then values within each drawn client; a draw's mean is over all its values. Prompts of one
    client are alike, so that redrawing values alone is too narrow; redrawing whole clients alone is so for the few
    clients that a section has: of five clients with six prompts each its 95 % interval holds the true mean in 84 to
    88 % of simulated samples, this one in 93 to 98 %. With one value each all three are the plain bootstrap. It holds
    the spread over clients and prompts of one run, not that over seeds. None where redrawing shows no spread, which is
    not to say that there is none: of one client nothing is known of others, and values that are all equal would give
    an interval without width.

    section: names what else under this seed must not share its draws.

    Raises `ValueError` without values, or where the lengths differ.
    """
    if not len(values) or len(values) != len(clients):
        raise ValueError(f"{len(values)} values of {len(clients)} clients")
    if len(set(clients)) < 2 or min(values) == max(values):
        return None
    generator = stream(seed, f"judgement interval {section}")
    of = np.asarray(values, dtype=np.float64)
    owner = np.asarray(clients)
    of_client = [of[owner == name] for name in sorted(set(clients))]
    C = len(of_client)
    times = generator.multinomial(C, np.full(C, 1 / C), size=RESAMPLES)  # [R, C]: how often a draw has each client
    total, count = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for c, numbers in enumerate(of_client):  # a client drawn twice has its values redrawn each time
        n = times[:, c] * len(numbers)
        total += generator.multinomial(n, np.full(len(numbers), 1 / len(numbers))) @ numbers
        count += n
    low, high = np.quantile(total / count, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]


def summary(
    comparisons: Sequence[Sequence[Verdict]], clients: Sequence[str], seed: int = 0, section: str = ""
) -> dict[str, Any]:
    """The numbers of one section, JSON-able: all comparisons of one axis by clients that were all seen, or all unseen.

    comparisons: the verdicts of each, one an order. clients: whose each is. Comparisons are counted, one a prompt:
    `wins`, `losses`, `ties` and `left_out`, those with an answer that cannot be read, are all `prompts`; answers are
    in `unparseable` alone. `win_rate` is the mean of `scores` (`client_of` says whose each is), in which what is left
    out has no part, None where none is left; so is `interval`, which may be None besides. The rest is of `orders`.
    """
    scored = [(score(verdicts), client) for verdicts, client in zip(comparisons, clients, strict=True)]
    kept = [(value, client) for value, client in scored if value is not None]
    scores, client_of = [value for value, _ in kept], [client for _, client in kept]
    counts = Counter(scores)
    return {
        "prompts": len(comparisons),
        "clients": len(set(clients)),
        "wins": counts[1.0],
        "losses": counts[0.0],
        "ties": counts[0.5],
        "left_out": len(scored) - len(kept),
        "unparseable": sum(verdict == "unparseable" for verdicts in comparisons for verdict in verdicts),
        **orders(comparisons),
        "win_rate": float(np.mean(scores)) if scores else None,
        "interval": interval(scores, client_of, seed, section) if scores else None,
        "scores": scores,
        "client_of": client_of,
    }
