"""What a data set's test pairs give to those who only count words: how much there is for a model to lose or win."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import linalg

from raypref.data.federation import Federation, Pair
from raypref.data.graded import Person
from raypref.tools import console

MOST = 20_000
"""Most pairs of a fold that are looked at, so that time and memory stay bounded; evenly over the clients."""

Predict = Callable[[sparse.csr_matrix, sparse.csr_matrix], np.ndarray]
"""(word counts of the chosen answer less those of the rejected: [N, W] to learn from, [M, W] to judge) -> [M] 1 where
the chosen answer is preferred, 0 where the other is, 0.5 where neither."""


@dataclass(frozen=True)
class Baselines:
    """Accuracies on the test pairs in [0, 1], means over clients."""

    regression: tuple[float, ...]
    """A logistic regression of word counts by whose training pairs it learns from: the client's alone, its group's, all
    clients'; without the group's where groups are unknown."""
    neighbour: tuple[float, ...]
    """The most similar training pair by word counts, of the same."""
    longer: float
    """The longer answer in characters."""
    bayes: float | None
    """The client's own wish, which no method can beat but by luck; None where it is unknown."""
    noise: float | None
    """Share of the labels of all folds that are against the wish."""
    cut: int
    """Most pairs that were looked at of a client's fold; 0: all."""


def measure(federation: Federation, hidden: Mapping[str, Person]) -> Baselines:
    """Learn from the training pairs and judge the test pairs. hidden: as `raypref.data.load.hidden` gives it."""
    clients = federation.clients
    most = max(1, MOST // len(clients))
    train, test = ([client.fold(fold)[:most] for client in clients] for fold in ("train", "test"))
    counted = _counter([pair for pairs in train for pair in pairs])
    learnt, judged = [counted(pairs) for pairs in train], [counted(pairs) for pairs in test]
    scopes = [np.arange(len(clients)), np.zeros(len(clients), int)]
    if federation.groups:
        scopes.insert(1, federation.group_of)
    with console.Progress(2 * len(scopes) * len(clients), "fits to counted words") as progress:
        regression, neighbour = (
            tuple(_accuracy(predict, learnt, judged, scope, progress) for scope in scopes)
            for predict in (regressed, nearest)
        )
    longer = [[_right(len(p.chosen) - len(p.rejected)) for p in pairs] for pairs in test]
    people = [hidden[client.id] for client in clients if client.id in hidden]
    margins = [choice.margin for person in people for choices in person.folds.values() for choice in choices]
    return Baselines(
        regression,
        neighbour,
        _mean(longer),
        _mean([_right([choice.margin for choice in person.folds["test"]]) for person in people]) if people else None,
        float(np.mean(np.array(margins) < 0)) if people else None,
        most if any(len(client.fold(fold)) > most for client in clients for fold in ("train", "test")) else 0,
    )


def lines(of: Baselines) -> Iterator[str]:
    """The numbers in percent, as plain lines."""
    names = ("alone", "own group", "all") if len(of.regression) == 3 else ("alone", "all")
    cut = f"; of at most {of.cut:,} pairs a client and fold" if of.cut else ""
    yield f"\nwhat counted words tell of the test pairs (accuracy in %, mean over clients{cut})"
    yield f"{'':34}" + "".join(f"{name:>11}" for name in names) + "  whose training pairs"
    for name, accuracies in (("logistic regression", of.regression), ("nearest neighbour", of.neighbour)):
        yield f"  {name:32}" + "".join(f"{100 * accuracy:11.1f}" for accuracy in accuracies)
    yield f"  {'the longer answer':32}{100 * of.longer:11.1f}"
    if of.bayes is not None and of.noise is not None:
        yield f"  {'best possible, by the wish':32}{100 * of.bayes:11.1f}"
        yield f"  {'labels against the wish':32}{100 * of.noise:11.1f}  of all folds"


def _counter(pairs: Sequence[Pair]) -> Callable[[Sequence[Pair]], sparse.csr_matrix]:
    """What makes pairs into differences of word counts [N, W], by the W words and marks in the answers of `pairs`."""
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(token_pattern=r"\w+|[^\w\s]", dtype=np.float64)
    counter.fit(text for pair in pairs for text in (pair.chosen, pair.rejected))

    def counted(pairs: Sequence[Pair]) -> sparse.csr_matrix:
        return counter.transform(p.chosen for p in pairs) - counter.transform(p.rejected for p in pairs)

    return counted


def regressed(learnt: sparse.csr_matrix, judged: sparse.csr_matrix) -> np.ndarray:
    """Logistic regression through the origin, scikit-learn's with its default penalty; see `Predict`."""
    from sklearn.linear_model import LogisticRegression

    used = np.unique(learnt.indices)  # the weights of all other words stay 0
    if not used.size:
        return np.full(judged.shape[0], 0.5)
    both = sparse.vstack([learnt[:, used], -learnt[:, used]])  # each pair either way round: the labels are balanced
    labels = np.repeat([1, 0], learnt.shape[0])
    model = LogisticRegression(fit_intercept=False, max_iter=1_000).fit(both, labels)
    return _right(model.decision_function(judged[:, used]))


def nearest(learnt: sparse.csr_matrix, judged: sparse.csr_matrix) -> np.ndarray:
    """As the pair of the largest cosine either way round was chosen; see `Predict`."""
    scaled = sparse.diags_array(1 / np.maximum(linalg.norm(learnt, axis=1), 1e-12)) @ learnt
    result = []
    for start in range(0, judged.shape[0], 256):
        cosines = (judged[start : start + 256] @ scaled.T).toarray()
        first = np.abs(cosines).argmax(axis=1)
        result.append(_right(cosines[np.arange(len(first)), first]))
    return np.concatenate(result)


def _accuracy(
    predict: Predict,
    learnt: Sequence[sparse.csr_matrix],
    judged: Sequence[sparse.csr_matrix],
    scope: np.ndarray,
    progress: console.Progress,
) -> float:
    """Learn from the clients of each scope together and judge each of them."""
    right: list[np.ndarray] = []
    for one in np.unique(scope):
        of = np.flatnonzero(scope == one)
        sizes = [judged[c].shape[0] for c in of]
        both = (sparse.vstack([part[c] for c in of], format="csr") for part in (learnt, judged))
        right += np.split(predict(*both), np.cumsum(sizes)[:-1])
        progress.advance(len(of))
    return _mean(right)


def _right(margins: Any) -> Any:
    """1 where the chosen answer has the larger score, 0 where the other has, 0.5 where neither."""
    return (np.sign(margins) + 1) / 2


def _mean(by_client: Sequence[Sequence[float] | np.ndarray]) -> float:
    """Over clients, of the means over their pairs."""
    return float(np.mean([np.mean(right) for right in by_client]))
