"""The graded benchmark: mixed answers, individual wishes within groups, noisy labels; one that methods can lose.

It writes with the phrases of `raypref.data.synthetic`, where each answer is wholly in one style, so that counting words
solves it. Here every slot of an answer picks an axis, and then one of its poles by the answer's own leaning, so that
both answers hold both poles. A client wishes as its group does, each axis as strongly as it pleases (lognormal), and
with something of its own (Gaussian). Which answer it chooses is drawn by the logistic function of the margin, the
preference model of Bradley and Terry (1952), so that labels are noisy where the answers are close.

A client's pairs depend on (seed, group, its number in the group, fold) alone: another client, group or size of a fold
changes none of them. Test pairs have topics of their own, so that no prompt that somebody is tested on, or that a
policy is judged by, is in any training pair.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from raypref.config import DataConfig
from raypref.data.federation import FOLDS, Pair
from raypref.data.synthetic import QUESTIONS, SKELETONS, STYLES, TOPICS, WORDS, Draws, groups, members

HELD_OUT = TOPICS[::4]
"""What test pairs are about: every fourth topic."""
OTHERS = tuple(topic for topic in TOPICS if topic not in HELD_OUT)
"""What training and validation pairs are about."""

_PURPOSE = int.from_bytes(b"graded", "big")
"""Keeps the draws apart from those of `raypref.data.synthetic.pairs`, whose clients have no such number."""
_WISH = len(FOLDS)
"""The draws of a client's wish, beside those of its folds."""


@dataclass(frozen=True)
class Answer:
    """A text and what it is made of."""

    text: str
    holds: tuple[tuple[int, int], ...]
    """Of every axis, how many of its phrases are in the first pole and how many in the second."""


@dataclass(frozen=True)
class Choice:
    """A pair as it was drawn, with what a run never sees."""

    topic: str
    prompt: str
    chosen: Answer
    rejected: Answer
    margin: float
    """By how much the client's wish prefers what it chose; below 0 the label is noise, at 0 it was a coin's toss."""

    @property
    def pair(self) -> Pair:
        return Pair(self.prompt, self.chosen.text, self.rejected.text)


@dataclass(frozen=True)
class Person:
    """A client as it was drawn."""

    id: str
    group: str
    wish: Mapping[str, float]
    """Axis -> how much it wishes a phrase of the first pole over one of the second."""
    folds: Mapping[str, Sequence[Choice]]


def people(config: DataConfig, seed: int) -> Iterator[Person]:
    """Every client of `data.group_sizes` with its wish and its pairs.

    Raises `UserError` for axes, wishes and group sizes that do not go together.
    """
    everyone = members(config.group_sizes, config.axes, config.graded.wishes)
    names, number = groups(config.axes, config.graded.wishes), Counter[str]()
    for _, group, poles in everyone:
        key = (seed, _PURPOSE, names.index(group), number[group])
        wish = _wish(Draws(*key, _WISH), poles, config)
        sizes = {
            "train": spaced(number[group], *config.graded.train),
            "validation": config.graded.validation,
            "test": config.graded.test,
        }
        choices: dict[str, list[Choice]] = {}
        met: set[frozenset[str]] = set()
        for fold in ("validation", "test", "train"):  # training last: the others do not depend on how many it has
            draws, topics = Draws(*key, FOLDS.index(fold)), HELD_OUT if fold == "test" else OTHERS
            choices[fold] = [_choice(draws, wish, topics, config, met) for _ in range(sizes[fold])]
        yield Person(f"{group.split()[0]}-{number[group]:03d}", group, wish, {fold: choices[fold] for fold in FOLDS})
        number[group] += 1


def rows(config: DataConfig, seed: int) -> Iterator[dict[str, str]]:
    """Rows {"client_id", "group", "topic", "fold", "prompt", "chosen", "rejected"}, client by client."""
    for person in people(config, seed):
        for fold, choices in person.folds.items():
            for choice in choices:
                yield {
                    "client_id": person.id,
                    "group": person.group,
                    "topic": choice.topic,
                    "fold": fold,
                    "prompt": choice.prompt,
                    "chosen": choice.chosen.text,
                    "rejected": choice.rejected.text,
                }


def spaced(number: int, least: int, most: int) -> int:
    """The training pairs N_c of a group's client of this number, from `least` to `most` by rank.

    least (most / least)^u with u = 0, 1, 1/2, 1/4, 3/4, 1/8, … (van der Corput's sequence behind its ends): however
    many clients a group has, their sizes in order rise by about the same factor, and one more changes none of them.
    """
    u = float(number)
    if number > 1:
        digits = bin(number - 1)[2:]
        u = int(digits[::-1], 2) / 2 ** len(digits)
    return round(least * (most / least) ** u)


def _wish(draws: Draws, poles: Mapping[str, int], config: DataConfig) -> dict[str, float]:
    """A client's own wish: its group's sign times lognormal(spread), plus N(0, noise²); axis by axis."""
    normal, graded = NormalDist(), config.graded
    signs = {axis: 1 - 2 * poles[axis] if axis in poles else 0 for axis in config.axes}
    return {
        axis: sign * math.exp(graded.spread * normal.inv_cdf(draws.uniform()))
        + graded.noise * normal.inv_cdf(draws.uniform())
        for axis, sign in signs.items()
    }


def _choice(
    draws: Draws,
    wish: Mapping[str, float],
    topics: Sequence[tuple[str, str, str]],
    config: DataConfig,
    met: set[frozenset[str]],
) -> Choice:
    """The next pair that the client has not met and that differs in what its answers hold."""
    while True:
        topic = draws.pick(topics)
        prompt = draws.pick(QUESTIONS).format(s=topic[0])
        first, second = (_answer(draws, topic, config) for _ in range(2))
        differences = [(a - b) - (c - d) for (a, b), (c, d) in zip(first.holds, second.holds, strict=True)]
        texts = frozenset((first.text, second.text))
        if any(differences) and texts not in met:
            break
    met.add(texts)
    margin = sum(weight * difference for weight, difference in zip(wish.values(), differences, strict=True))
    u = draws.uniform()
    if math.log(u / (1 - u)) < margin / config.graded.temperature:  # which has the probability σ(margin / temperature)
        return Choice(topic[0], prompt, first, second, margin)
    return Choice(topic[0], prompt, second, first, -margin)


def _answer(draws: Draws, topic: tuple[str, str, str], config: DataConfig) -> Answer:
    """Sentences whose slots pick an axis each, evenly, and its first pole with the odds that the answer has for it."""
    odds = [draws.uniform() for _ in config.axes]
    sentences = [_sentence(draws, topic, config.axes, odds) for _ in range(config.graded.sentences)]
    held = Counter(style for _, styles in sentences for style in styles)
    holds = tuple((held[axis, 0], held[axis, 1]) for axis in config.axes)
    return Answer(" ".join(text for text, _ in sentences), holds)


def _sentence(
    draws: Draws, topic: tuple[str, str, str], axes: Sequence[str], odds: Sequence[float]
) -> tuple[str, list[tuple[str, int]]]:
    """A sentence, and the style (axis, pole) of each of its phrases."""
    words = dict(zip("spr", topic, strict=True))
    while True:
        skeleton = draws.pick(SKELETONS)
        phrases, styles = {}, []
        for slot in ("START", "LIKE", "VERB", "TAIL"):
            if f"{{{slot}}}" in skeleton:
                axis = draws.below(len(axes))
                style = (axes[axis], int(draws.uniform() > odds[axis]))
                styles.append(style)
                phrases[slot] = draws.pick(STYLES[style][slot])
        text = skeleton.format(**words, **phrases)
        if WORDS[0] <= text.count(" ") + 1 <= WORDS[1]:
            return text[0].upper() + text[1:], styles
