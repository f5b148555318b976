"""The accuracy that a new person can expect of a run: what it has read out, or else is measured here, once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raypref.config import UserError
from raypref.data.encode import EncodedClient, EncodedFold, concatenate
from raypref.evaluation.expected import SIZES, Expected, from_result
from raypref.experiment.encoded import encoded
from raypref.objectives.base import context_pairs
from raypref.onboarding.learner import Learner
from raypref.tools import checkpoint
from raypref.tools.rng import stream

FILE = "expected.json"
PEOPLE = 16
"""Most people that are measured."""


def expected(learner: Learner, bar: Callable[[int, str], Any] | None = None, measure: bool = True) -> Expected | None:
    """What the run's folder says, or what is measured now and kept there; None where it says nothing and nothing is to
    be measured. Raises `UserError` where the run's data cannot be read as they were."""
    if not learner.trains and (known := from_result(learner.result)):
        return known
    file = learner.folder / FILE
    if file.exists():
        values = checkpoint.read_json(file, "sizes", "accuracy", "unseen", "steps")
        return Expected(values["sizes"], np.asarray(values["accuracy"]), values["unseen"], values["steps"])
    if not measure:
        return None
    found = measured(learner, SIZES, bar)
    values = {"sizes": list(found.sizes), "accuracy": found.accuracy.tolist(), "unseen": found.unseen}
    checkpoint.write_json(file, values | {"steps": list(found.steps)})
    return found


def people_of(learner: Learner, most: int = PEOPLE) -> tuple[list[int], bool]:
    """Whom to measure: clients that took no part in training, or else any, by the seed; and whether it is the former.
    Ascending, at most so many."""
    unseen = list(learner.result.get("unseen", ()))
    everyone = unseen or range(len(learner.result["clients"]))
    drawn = stream(learner.config.seed, "people to measure").permutation(np.asarray(everyone))[:most]
    return sorted(map(int, drawn)), bool(unseen)


def data_of(learner: Learner) -> tuple[EncodedClient, ...]:
    """The run's clients with their pairs, as they were in the run. Raises `UserError` where they have changed since."""
    data = encoded(learner.config, learner.tokenizer, learner.objective.encoding(learner.config))
    file = learner.folder / "data.json"
    same = checkpoint.read_json(file)["digest"] == data.digest if file.exists() else True
    if not same or list(data.ids) != learner.result["clients"]:
        raise UserError(f"the data of {learner.folder} changed since it was made; put them back, or run it again")
    return data.clients


def some_of(fold: EncodedFold, pairs: Sequence[int] | np.ndarray) -> EncodedFold:
    """These pairs of a fold, in their order."""
    each = [np.arange(2 * i, 2 * i + 2) for i in pairs]
    at = np.concatenate([np.zeros(0, np.int64), *each])
    lengths = fold.lengths[at]
    tokens = [fold.tokens[fold.offsets[j] : fold.offsets[j + 1]] for j in at]
    return EncodedFold(
        np.concatenate([np.zeros(0, np.int32), *tokens]), np.cumsum([0, *lengths], dtype=np.int64), fold.spans[at]
    )


def measured(learner: Learner, sizes: Sequence[int], bar: Callable[[int, str], Any] | None = None) -> Expected:
    """People of the run made known by so many of their training pairs at random, as a new person is, and judged on
    their test pairs; the local steps of each size are those of the best mean validation accuracy."""
    chosen, unseen = people_of(learner)
    clients = data_of(learner)
    marks = learner.config.personalization.marks if learner.trains else (0,)
    accuracy, steps = [], []
    with bar(len(sizes), "measuring what to expect") if bar else contextlib.nullcontext() as progress:
        for size in sizes:
            known = []
            for c in chosen:
                fold = clients[c].train
                known.append(some_of(fold, context_pairs(learner.config.seed, c, fold.pairs, size)))
            validation, test = accuracies(learner, known, [clients[c] for c in chosen], marks)
            best = int(validation.mean(axis=0).argmax())
            accuracy.append(test[:, best])
            steps.append(marks[best])
            if progress:
                progress.advance()
    return Expected(sizes, np.stack(accuracy, axis=1), unseen, steps if learner.trains else ())


def accuracies(
    learner: Learner, known: Sequence[EncodedFold], clients: Sequence[EncodedClient], marks: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """float64 [P, marks] on the validation and on the test pairs of P people, known by some choices each."""
    judged = [concatenate([client.validation, client.test]) for client in clients]
    cuts = [client.validation.pairs for client in clients]
    values = np.zeros((len(marks), len(clients), 2))
    for t, at in enumerate(learner.at_marks(known, marks, judged)):
        for i, (m, cut) in enumerate(zip(at.margins, cuts, strict=True)):
            values[t, i] = [float((part > 0).double().mean()) for part in (m[:cut], m[cut:])]
    return values[..., 0].T, values[..., 1].T
