"""The embedded benchmark: readable English preference pairs along style axes (after FedGD, section 2.3).

A pair is one question and two answers that differ in one style. All poles of all axes share topics and sentence
skeletons; a pole is known by the phrases in a skeleton's slots, one to three to a sentence (a verb may be neutral),
each from a pool of its own. Which answer a client prefers is its group's pole; everything else about its pairs
depends on (seed, client, axis) alone, so that two groups would label the very same pairs oppositely. Draws come
straight from Philox's raw words, which numpy keeps fixed across versions and platforms.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from raypref.config import UserError

_T = TypeVar("_T")

AXES: dict[str, tuple[str, str]] = {
    "education": ("elementary", "PhD"),
    "humor": ("humorous", "non-humorous"),
    "manners": ("warm", "blunt"),
}
"""Axis -> its two poles. "manners" is never named in the embedded base's pretraining: nobody told it to look for it."""

WORDS = (8, 20)
"""Fewest and most words of an answer."""

# (subject, what acts, what it acts on): all singular, so that any verb below fits.
TOPICS: tuple[tuple[str, str, str], ...] = tuple(
    tuple(part.strip() for part in line.split("|"))  # type: ignore[misc]
    for line in """
    rain | rising air | the clouds
    a rainbow | sunlight | the water drops
    bread | the yeast | the dough
    a battery | the charge | the wire
    the tide | the pull of the moon | the sea
    a magnet | the field | the iron
    snow | cold air | the water
    a garden | the soil | the roots
    sleep | the dark | the brain
    a bridge | the cable | the road
    music | the string | the air
    a clock | the spring | the hands
    cheese | the salt | the milk
    a volcano | the heat | the rock
    the heart | the muscle | the blood
    a telescope | the lens | the light
    soap | the foam | the grease
    a boat | the wind | the sail
    money | the bank | the market
    a bicycle | the chain | the wheel
    thunder | the storm | the air
    a candle | the flame | the wax
    honey | the hive | the nectar
    a computer | the chip | the signal
    glass | the furnace | the sand
    a forest | the rain | the trees
    language | the speaker | the words
    a kite | the breeze | the cloth
    memory | the brain | the facts
    an engine | the fuel | the piston
    paper | the mill | the wood
    a river | the current | the stones
    cooking | the heat | the food
    a map | the scale | the land
    the ear | the sound | the bones
    a city | the street | the crowd
    ice cream | the cold | the cream
    a plane | the wing | the wind
    the sun | the core | the gas
    a library | the index | the books
    tea | hot water | the leaves
    a mirror | the silver | the image
    fire | the air | the fuel
    a camera | the shutter | the film
    voting | the count | the result
    a shadow | the lamp | the wall
    wool | the loom | the thread
    a tooth | the acid | the surface
    gravity | the mass | the path
    a farm | the season | the crop
    the skin | the sweat | the heat
    a phone | the tower | the call
    steel | the carbon | the iron
    a dream | the mind | the story
    trade | the harbor | the goods
    a seed | the water | the shell
    painting | the brush | the color
    a dam | the gate | the lake
    fog | the night | the valley
    a poem | the rhythm | the line
    """.strip().splitlines()
)

QUESTIONS: tuple[str, ...] = (
    "How does {s} work?",
    "What is {s}?",
    "Can you explain {s}?",
    "Tell me about {s}.",
    "What should I know about {s}?",
    "Why does {s} matter?",
    "What happens in {s}?",
    "How would you describe {s}?",
)

SKELETONS: tuple[str, ...] = (
    "{START} {s} is {LIKE}, and {p} {VERB} {r}.",
    "{s} is {LIKE}: {p} {VERB} {r}, {TAIL}.",
    "{START} {p} {VERB} {r}, {TAIL}.",
    "{p} {VERB} {r} in {s}, {TAIL}.",
    "With {s}, {p} {VERB} {r}; it is {LIKE}.",
    "{START} with {s}, {p} {VERB} {r}, {TAIL}.",
    "{START} {s} is {LIKE}, {TAIL}.",
    "{START} it is {LIKE} when {p} {VERB} {r}.",
    "Here {p} {VERB} {r}, and {s} is {LIKE}.",
    "{s} works because {p} {VERB} {r}, {TAIL}.",
    "In {s} it is {LIKE}, as {p} {VERB} {r}, {TAIL}.",
    "{p} {VERB} {r}, {TAIL}, so {s} is {LIKE}.",
)

NEUTRAL_VERBS: tuple[str, ...] = ("changes", "meets", "touches", "needs", "shapes", "reaches", "works on", "acts on")


def _pool(text: str) -> tuple[str, ...]:
    """Phrases separated by "/"; "a | b + c | d" is each left alternative with each right one: a c, a d, b c, b d."""
    phrases: list[str] = []
    for part in text.split("/"):
        lists = [alternatives.split("|") for alternatives in part.strip().split("+")]
        phrases += (" ".join(word.strip() for word in words) for words in itertools.product(*lists))
    return tuple(phrases)


def _slots(text: str) -> dict[str, tuple[str, ...]]:
    """Slot -> phrases: each slot's name in capitals, and what `_pool` reads."""
    _, *parts = re.split("(START|LIKE|VERB|TAIL)", " ".join(text.split()))
    return {slot: _pool(phrases) for slot, phrases in zip(parts[::2], parts[1::2], strict=True)}


STYLES: dict[tuple[str, int], dict[str, tuple[str, ...]]] = {
    ("education", 0): _slots("""
        START It is easy: / Think of it this way: / Let us look: / You can see it at school: / Guess what, / Ask
            your mom: / When you are small, / Kids know that / Just remember, / Look closely:
        LIKE like a | as fun as a | a bit of a | such a big | a small red + toy box | puzzle | balloon | train set |
            sandwich | playground | snow man | sand castle | teddy bear / something you can + hold | draw | build |
            count | play with
        VERB makes / helps / pushes / pulls / fills / holds / bumps into / says hello to / goes around / plays with
            / opens up / picks up / looks after
        TAIL just like + in the bath | at recess | at home / the way + mommy does | you jump rope | kids share toys
            / and you can + try it too | see it outside | do it with your hands / one bit at a time / and then it is
            done / easy as pie / so ask your teacher
    """),
    ("education", 1): _slots("""
        START Formally, / A priori, / Prima facie, / Stated rigorously, / As theorists posit, / By hypothesis, /
            Ontologically, / Ex ante, / On this formalism, / To first order,
        LIKE a + latent | kinetic | canonical | stochastic | spectral + manifold | flux | gradient | paradigm |
            tensor | regime | operator | substrate | heuristic / isomorphic to a + lattice | Markov chain | quotient
            | functor | fixed point
        VERB modulates / mediates / induces / constrains / subsumes / perturbs / entails / delineates / catalyzes /
            renormalizes / instantiates / diffuses into / bifurcates
        TAIL modulo + boundary terms | entropy | a phase factor | selection effects | noise / as the + literature
            attests | axioms require | theorem implies | posterior suggests / ceteris paribus / in the asymptotic
            limit / pace the reductionists
    """),
    ("humor", 0): _slots("""
        START Plot twist: / Ha, / Funny story: / Buckle up: / Knock knock: / Hold my sandwich: / Breaking news: /
            Drum roll, please: / According to my cat, / My parrot swears that
        LIKE a + grumpy | confused | sneaky | dizzy | dramatic + penguin | llama | raccoon | wizard | hippo | pigeon
            | pirate | walrus | goblin / basically + karaoke | a food fight | a bad haircut | a disco nap | clown
            college
        VERB tickles / moonwalks past / pranks / yodels at / high fives / body slams / giggles at / steals snacks
            from / waltzes with / roasts / gossips about / bamboozles / serenades
        TAIL while juggling + pickles | rubber ducks | tacos | socks | noodles / and the + kazoo weeps | mustache
            falls off | llama wins | banana slips / no refunds / cue the laugh track / oops, wrong planet
    """),
    ("humor", 1): _slots("""
        START In general, / In practice, / To summarize, / As a rule, / Note that / Under normal conditions, / In
            short, / Typically, / According to the manual, / Current records state that
        LIKE a + regular | standard | gradual | common | stable + process | method | cycle | sequence | system |
            mechanism | pattern | event | procedure / part of + daily operation | a known order | a set schedule |
            local practice | basic supply
        VERB affects / controls / supports / requires / produces / determines / follows / depends on / alters /
            maintains / precedes / results in / limits
        TAIL at a constant + rate | level | pressure | speed | volume / as the + report states | data indicate |
            table shows | records confirm / in most cases / with few exceptions / over several hours
    """),
    ("manners", 0): _slots("""
        START What a lovely question, / I am so glad you asked, / Thank you, dear friend, / Happy to help, / Bless
            you for asking, / With pleasure, / Welcome, friend, / How thoughtful of you, / Of course, my dear, /
            Gladly, my friend,
        LIKE a + wonderful | charming | beautiful | precious | delightful + gift | joy | blessing | comfort | marvel
            | treasure | companion / truly + worth sharing | close to my heart | a pleasure | a kindness
        VERB kindly + greets | guides | aids / gently + embraces | soothes | leads / lovingly + tends | nurtures |
            cradles / cherishes / welcomes
        TAIL and you are + doing great | most welcome | so kind | not alone | very clever / please + ask me anytime
            | take your time | be well | enjoy it / I am here for you / fondest wishes / thank you again
    """),
    ("manners", 1): _slots("""
        START Listen, / Obviously, / Figure it out: / Not again, / Fine, / Pay attention: / Wrong question, but /
            Stop guessing: / For the last time, / Everybody knows that
        LIKE a + boring | stupid | pointless | dull | lousy + mess | chore | nuisance | gimmick | waste | racket |
            headache / hardly + worth asking | news to anyone | a mystery | my problem
        VERB merely + hits | dumps | drags / rudely + shoves | smacks | cuts / stupidly + wrecks | blocks | burns /
            ruins / ignores
        TAIL and you are + wasting my time | plainly lost | too slow | no expert | still wrong / now + go away |
            quit asking | drop it | move on / deal with it / end of story / take it or leave it
    """),
}
"""(axis, pole index) -> slot -> phrases."""


class Draws:
    """Fair choices keyed by integers: index = word * n >> 64 of Philox's raw words, whatever the platform or numpy."""

    def __init__(self, *key: int) -> None:
        philox = np.random.Philox(np.random.SeedSequence(key))
        self._words = (word for _ in itertools.count() for word in philox.random_raw(1024).tolist())

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return next(self._words) * n >> 64

    def uniform(self) -> float:
        """A number in (0, 1), in steps of 2^-52."""
        return ((next(self._words) >> 12) + 0.5) / 2**52

    def pick(self, items: Sequence[_T]) -> _T:
        """One of the items."""
        return items[self.below(len(items))]


def _answer(draws: Draws, style: dict[str, tuple[str, ...]], topic: tuple[str, str, str]) -> str:
    topic_words = dict(zip("spr", topic, strict=True))
    while True:
        slots = {**style, "VERB": NEUTRAL_VERBS} if draws.below(3) == 0 else style
        skeleton = draws.pick(SKELETONS)
        text = skeleton.format(**topic_words, **{slot: draws.pick(phrases) for slot, phrases in slots.items()})
        if WORDS[0] <= text.count(" ") + 1 <= WORDS[1]:
            return text[0].upper() + text[1:]


def pairs(axis: str, client: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Endless (question, answer in the axis's first pole, answer in its second) from (seed, client, axis) alone.

    No two are the same pair. A fair coin says which answer is the longer, in characters and in words alike, so that
    length tells nothing about the pole.
    """
    draws = Draws(seed, client, list(AXES).index(axis))
    seen: set[tuple[str, str]] = set()
    while True:
        topic = draws.pick(TOPICS)
        question = draws.pick(QUESTIONS).format(s=topic[0])
        sign = 1 - 2 * draws.below(2)
        while True:
            first, second = (_answer(draws, STYLES[axis, pole], topic) for pole in (0, 1))
            longer, wordier = len(first) - len(second), first.count(" ") - second.count(" ")
            if sign * longer > 0 and sign * wordier > 0:
                break
        if (first, second) not in seen:
            seen.add((first, second))
            yield question, first, second


def _words(axes: Sequence[str], wishes: Sequence[str]) -> Sequence[str]:
    """A word a group, a digit an axis: 1 wishes its first pole, 2 its second, 0 neither. Without `wishes` all 2**axes
    ways to wish a pole of every axis, the last axis turning fastest."""
    return wishes or ["".join(word) for word in itertools.product("12", repeat=len(axes))]


def groups(axes: Sequence[str], wishes: Sequence[str] = ()) -> list[str]:
    """The names of the groups, by what they wish (`_words`).

    For ("education", "humor") they are G1 to G4 of FedGD, section 2.3.
    """
    words = _words(axes, wishes)
    digits = len(str(len(words)))
    poles = (
        "/".join(("either", *AXES[axis])[int(digit)] for axis, digit in zip(axes, word, strict=True)) for word in words
    )
    return [f"G{g:0{digits}d} {names}" for g, names in enumerate(poles, start=1)]


def members(
    group_sizes: Sequence[int], axes: Sequence[str], wishes: Sequence[str] = ()
) -> list[tuple[str, str, dict[str, int]]]:
    """Every client as (id, group, axis -> preferred pole, where its group has one), G1's first ("c00", "c01", ...).

    group_sizes: clients in each group, in the order of groups(axes, wishes); two of them without `wishes`: in the first
    and the last, which wish the opposite on every axis.
    Raises UserError for an unknown or repeated axis, wishes that do not fit the axes, a wrong number of groups, a
    negative size, or no client.
    """
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown or not axes or len(set(axes)) < len(axes):
        raise UserError(f"axes {list(axes)}: name one or more of {list(AXES)}, each once.")
    misfits = [word for word in wishes if not re.fullmatch(rf"[012]{{{len(axes)}}}", word)]
    if misfits or len(set(wishes)) < len(wishes) or (wishes and not 2 <= len(wishes) <= 16):
        raise UserError(
            f"--data.graded.wishes {' '.join(wishes)}: give 2 to 16 different ones, each a digit for each of "
            f"{list(axes)}: 1 for its first pole, 2 for its second, 0 for neither."
        )
    names = groups(axes, wishes)
    if len(group_sizes) not in ((len(names),) if wishes else (2, len(names))):
        raise UserError(
            f"{len(group_sizes)} group sizes for {len(axes)} axes: give {len(names)}, one for each of {names}"
            + ("." if wishes else ", or two, for the first and the last.")
        )
    if min(group_sizes) < 0:
        raise UserError("group sizes must not be negative.")
    if not any(group_sizes):
        raise UserError(
            f"--data.group-sizes is {' '.join(map(str, group_sizes))}: that is no client; raise one of them"
        )
    words = _words(axes, wishes)
    numbers = range(len(names)) if len(group_sizes) == len(names) else (0, len(names) - 1)
    group_of = [g for g, size in zip(numbers, group_sizes, strict=True) for _ in range(size)]
    digits = max(2, len(str(len(group_of) - 1)))
    poles = [{axis: int(d) - 1 for axis, d in zip(axes, word, strict=True) if d != "0"} for word in words]
    return [(f"c{client:0{digits}d}", names[g], poles[g]) for client, g in enumerate(group_of)]


def generate(
    group_sizes: Sequence[int], pairs_per_axis: int, axes: Sequence[str], seed: int
) -> Iterator[dict[str, str]]:
    """Rows {"client_id", "group", "axis", "prompt", "chosen", "rejected"}, client by client and axis by axis.

    Every client gets pairs_per_axis different pairs on each axis; two clients may now and then meet the same pair.
    Raises UserError as `members` does, or for a negative number.
    """
    if min(pairs_per_axis, seed) < 0:
        raise UserError("pairs per axis and the seed must not be negative.")
    for client, (name, group, poles) in enumerate(members(group_sizes, axes)):
        for axis, pole in poles.items():
            for pair in itertools.islice(pairs(axis, client, seed), pairs_per_axis):
                yield choice(name, group, axis, pole, *pair)


def shuffled(keys: Iterable[bytes], seed: int) -> list[bytes]:
    """Keys of pairs in the order in which `seed` deals them, whatever their own."""
    return sorted(keys, key=lambda key: hashlib.blake2b(b"deal %d " % seed + key).digest())


def choice(client: str, group: str, axis: str, pole: int, prompt: str, *answers: str) -> dict[str, str]:
    """The row of a client's choice: of the answers in the axis's first pole and in its second, the one of `pole`."""
    return {
        "client_id": client,
        "group": group,
        "axis": axis,
        "prompt": prompt,
        "chosen": answers[pole],
        "rejected": answers[1 - pole],
    }
