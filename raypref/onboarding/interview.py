"""One person's interview: what has been shown and chosen, what comes next, and what the person has become so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from raypref.config import UserError
from raypref.data.encode import EncodedFold, concatenate
from raypref.data.federation import Pair
from raypref.data.load import load
from raypref.evaluation.expected import Expected
from raypref.onboarding import asking
from raypref.onboarding.learner import Learned, Learner
from raypref.storage import people
from raypref.tools.rng import stream

KEYS = {"1": True, "2": False, "0": None}
"""Key -> whether the first response is preferred; None: cannot say."""
COMMITTEE = 24
"""Most people of the run who are looked at for what a question would tell."""


class Chosen(NamedTuple):
    """One choice with its tokens."""

    pair: Pair
    fold: EncodedFold


@dataclass
class Interview:
    """Whom it is with, and how far it has come."""

    learner: Learner
    name: str
    candidates: Sequence[Chosen]
    """Pairs that may be shown; which response is called the first says nothing of anybody's choice."""
    choices: list[Chosen] = field(default_factory=list)
    """What has been chosen so far, from earlier interviews and files, too."""
    expected: Expected | None = None
    steps: int | None = None
    """Local steps; None: those that did best for as many choices."""
    answers: dict[int, bool] = field(default_factory=dict)
    """Candidate -> whether its first response was chosen, in the order of the answers."""
    unsure: list[int] = field(default_factory=list)
    """Candidates on which the person could not say."""
    at_random: bool = False
    """Show pairs in an order by the seed instead, to compare with."""

    @cached_property
    def committee(self) -> list[int]:
        """People of the run, as many as there are or `COMMITTEE`, by the seed; those that it never trained on are left
        to be judged by."""
        there = np.setdiff1d(np.arange(len(self.learner.result["clients"])), self.learner.result.get("unseen", ()))
        return sorted(map(int, stream(self.learner.config.seed, "committee").permutation(there)[:COMMITTEE]))

    @cached_property
    def models(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows [K, D] and z [K, d] of the committee."""
        rows, z = zip(*(self.learner.of_client(c) for c in self.committee), strict=True)
        return torch.stack(rows), None if z[0] is None else torch.stack([one for one in z if one is not None])

    def preferring(self, pairs: Sequence[Chosen]) -> np.ndarray:
        """[K, N] each one's probability of preferring the first response of each pair."""
        if not pairs:
            return np.zeros((len(self.committee), 0))
        return asking.preferring(self.learner.margins(*self.models, concatenate([chosen.fold for chosen in pairs])))

    @cached_property
    def of_candidates(self) -> np.ndarray:
        return self.preferring(self.candidates)

    @cached_property
    def of_earlier(self) -> np.ndarray:
        """[K, E] of the choices made before this interview, which were of the first response each."""
        return self.preferring(self.choices)

    def next(self) -> int | None:
        """The candidate to show next; None where none is left."""
        if self.at_random:
            order = stream(self.learner.config.seed, "questions").permutation(len(self.candidates))
            return next((int(i) for i in order if i not in self.answers and i not in self.unsure), None)
        known, E = np.concatenate([self.of_earlier, self.of_candidates], axis=1), self.of_earlier.shape[1]
        answers = dict.fromkeys(range(E), True) | {E + i: first for i, first in self.answers.items()}
        found = asking.next_pair(known, answers, [E + i for i in self.unsure])
        return None if found is None else found - E

    def answer(self, candidate: int, first: bool | None) -> None:
        """Whether the person prefers the first response; None: cannot say."""
        if first is None:
            self.unsure.append(candidate)
        else:
            self.answers[candidate] = first

    def undo(self) -> None:
        """Take the last choice back; it may be shown again."""
        if self.answers:
            self.answers.popitem()

    def known(self) -> list[Chosen]:
        """All choices so far."""
        return [*self.choices, *(self._turned(self.candidates[i], first) for i, first in self.answers.items())]

    def _turned(self, chosen: Chosen, first: bool) -> Chosen:
        pair, fold = chosen
        if first:
            return chosen
        turned = Pair(pair.prompt, pair.rejected, pair.chosen)
        (fit,) = self.learner.encoded([turned])
        return Chosen(turned, fit.fold or fold)

    def steps_now(self) -> int:
        """Local steps for the choices so far."""
        if not self.learner.trains:
            return 0
        if self.steps is not None:
            return self.steps
        return self.expected.steps_for(len(self.known())) if self.expected else self.learner.most_steps

    def learned(self) -> Learned:
        """What the person has become by the choices so far; at least one is needed."""
        return self.learner.learn(concatenate([chosen.fold for chosen in self.known()]), self.steps_now())

    def says(self) -> str:
        """What to expect by now, in a sentence; empty where nothing is known."""
        count = len(self.known())
        return self.expected.sentence(count) if self.expected and count else ""

    def agreement(self, learned: Learned) -> str:
        """How many of the choices that made it the person's model agrees with, and how many pairs were chosen both
        ways; a clause each."""
        known = self.known()
        (margins,) = self.learner.margins(learned.rows, learned.z, concatenate([chosen.fold for chosen in known]))
        right = int((margins > 0).sum())
        of = {(c.pair.prompt, c.pair.chosen, c.pair.rejected) for c in known}
        both = sum((prompt, rejected, chosen) in of for prompt, chosen, rejected in of) // 2
        words = f"it agrees with {right} of these {len(known)}"
        if 2 * right < len(known):
            words += ", so it does not know this person: give more choices, or more --steps where there are local steps"
        return words + f"; {both} pair{'s were' if both > 1 else ' was'} chosen both ways" * bool(both)

    def map(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Where the committee lies [K, 2], and the person [2], by what each would choose of the candidates; None before
        the first choice."""
        axes, centre, places = asking.plane(self.of_candidates)
        if not self.known():
            return places, None
        learned = self.learned()
        fold = concatenate([chosen.fold for chosen in self.candidates])
        (margins,) = self.learner.margins(learned.rows, learned.z, fold)
        return places, (asking.preferring(margins) - centre) @ axes.T

    def person(self) -> people.Person:
        """Who the person has become, to be kept. Raises `UserError` without a choice."""
        if not self.known():
            raise UserError(f"{self.name} has chosen nothing yet, and one choice at least is needed")
        learned, count = self.learned(), len(self.known())
        said = {
            "choices": count,
            "became": self.learner.became(learned.steps),
            "steps": learned.steps,
            "agreement": self.agreement(learned),
            "expected": self.says(),
        }
        return people.Person(self.name, learned.rows[0], None if learned.z is None else learned.z[0], said)


def usable(learner: Learner, pairs: Sequence[Pair]) -> list[Chosen]:
    """Those of the pairs that the run's base can compare."""
    fits = learner.encoded(pairs)
    return [Chosen(pair, fit.fold) for pair, fit in zip(pairs, fits, strict=True) if fit.fold]


def generated(learner: Learner, count: int) -> list[Pair]:
    """Pairs to ask about where the run's data were made here: of people that the run never met. Raises `UserError` for
    other data: who wrote those, and who chose among them, is nobody's to show."""
    config = learner.config
    if not config.data.generated:
        raise UserError(
            "the pairs of the run's clients are theirs; name a file of pairs to ask about: --candidates FILE, with "
            "columns prompt, chosen and rejected, in which nothing is read into the order of the two"
        )
    made = load(replace(config.data, group_sizes=tuple(min(2, n) for n in config.data.group_sizes)), config.seed + 1)
    pairs = list(dict.fromkeys(pair for client in made.clients for pair in client.train))
    order = stream(config.seed, "candidates").permutation(len(pairs))[:count]
    return shuffled(learner, [pairs[i] for i in order])


def shuffled(learner: Learner, pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs, the responses of half of them in the other order."""
    turn = stream(learner.config.seed, "order of responses").integers(0, 2, size=len(pairs))
    return [Pair(p.prompt, p.rejected, p.chosen) if t else p for p, t in zip(pairs, turn, strict=True)]
