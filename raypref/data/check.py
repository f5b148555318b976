"""What a data set would do to a run, before it is run; and a few of its pairs, to look at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raypref.config import RunConfig, registry
from raypref.data import encode
from raypref.data.federation import FOLDS, Federation, Pair
from raypref.data.graded import Person
from raypref.data.people import Counts
from raypref.data.rows import listing
from raypref.data.synthetic import AXES
from raypref.tools import console


@dataclass(frozen=True)
class Report:
    """What a data set would do to a run: clients, folds, and all that is lost."""

    config: RunConfig
    federation: Federation
    counts: Counts
    tokens: encode.Counts
    starved: tuple[str, ...]
    """Clients with pairs in every fold as text, but not as tokens; a run refuses them."""

    @property
    def unusable(self) -> int:
        """Rows or pairs that no run could use with this configuration."""
        return sum(self.counts.lost.values()) + self.tokens.too_long + self.tokens.identical

    def lines(self) -> Iterator[str]:
        """The report as plain lines, for a terminal or a pipe."""
        counts, tokens, federation, data = self.counts, self.tokens, self.federation, self.config.data
        dealt_pairs = f", {counts.pairs:,} of them dealt to clients" if counts.undealt else ""
        choices = f", {counts.rows:,} choices" if counts.read != counts.rows else ""
        pairs = f"{counts.pairs + counts.undealt:,} distinct pairs{dealt_pairs}"
        yield f"{data.source}: {counts.read:,} rows{choices}, {pairs}"
        yield f"read as {counts.read_as}"
        for what, number in counts.asides.items():
            yield _row(number, what)
        yield "\nrows"
        yield _row(sum(counts.lost.values()), "unusable and left out")
        for reason, number in counts.lost.items():
            yield _row(number, f"  {reason}")
        yield _row(counts.doubled, "repeat a row of the same client (kept once)")
        yield _row(counts.conflicting, "pairs on which one client chose both ways (both kept, in one fold)")
        yield _row(counts.disagreed, "pairs on which people disagree")
        if counts.undealt:
            yield _row(counts.undealt, "pairs dealt to no client, since none needed more")
        yield "\nclients"
        yield _row(len(federation.clients), "take part")
        for k, group in enumerate(federation.groups):
            yield _row(int((federation.group_of == k).sum()), f"  {group}")
        for reason, ids in counts.left_out.items():
            yield _row(len(ids), f"left out: {reason}: {listing(ids)}")
        if counts.hint:
            yield f"hint: {counts.hint}"
        if not federation.clients:
            return
        yield "\npairs a fold" + (f", as column {data.fold_column!r} has them" if data.fold_column else "")
        yield f"{'':12}{'all':>10}{'share':>9}{'min':>8}{'median':>8}{'max':>8}  a client"
        total = sum(int(federation.sizes(fold).sum()) for fold in FOLDS)
        for fold in FOLDS:
            n = federation.sizes(fold)
            share = f"{100 * n.sum() / total:.1f} %"
            yield f"  {fold:10}{n.sum():>10,}{share:>9}{n.min():>8,}{np.median(n):>8,g}{n.max():>8,}"
        yield _row(counts.crossing, "distinct pairs in different folds for different people or values")
        encode_folds, template, _ = registry.objective(self.config.objective).encoding(self.config)
        sequence = "comparison" if encode_folds is encode.encode_pairs else "prompt with its response"
        yield f"\ntokens (template {template}, at most {data.max_length} a {sequence})"
        yield _row(tokens.prompts_truncated, "pairs lose prompt text from the left")
        yield _row(tokens.too_long, "pairs too long and left out: the responses alone do not fit")
        yield _row(tokens.identical, "pairs identical after truncation and left out")
        if self.starved:
            yield _row(len(self.starved), f"clients keep no pair in some fold, so a run stops: {listing(self.starved)}")


def check(config: RunConfig, federation: Federation, counts: Counts, tokenizer: Any) -> Report:
    """Count what a run would meet in a data set that `load.read` has read; progress goes to standard error."""
    encode_folds, template, _ = registry.objective(config.objective).encoding(config)
    tokens = encode.Counts()
    starved: list[str] = []
    with console.Progress(sum(int(federation.sizes(fold).sum()) for fold in FOLDS), "pairs tokenised") as progress:
        for client in federation.clients:
            lists = [client.fold(name) for name in FOLDS]
            folds = encode_folds(lists, tokenizer, template, config.data.max_length, [tokens] * len(lists))
            progress.advance(sum(map(len, lists)))
            if not all(fold.pairs for fold in folds):
                starved.append(client.id)
    return Report(config, federation, counts, tokens, tuple(starved))


def show(federation: Federation, n: int, hidden: Mapping[str, Person]) -> Iterator[str]:
    """A few pairs as text: `n` of them, of clients spread over the federation.

    hidden: by client id what a generator knows of its clients, which is shown, too (`raypref.data.load.hidden`).
    """
    clients = federation.clients
    count = min(n, len(clients))
    spread = [clients[i * len(clients) // count] for i in range(count)]
    longest = max(len(client.train) for client in clients)
    pairs = ((client, client.train[i]) for i in range(longest) for client in spread if i < len(client.train))
    for client, pair in itertools.islice(pairs, n):
        yield f"client {client.id}" + (f", group {client.group}" if client.group else "")
        for name in ("prompt", "chosen", "rejected"):
            yield f"  {name:9} " + getattr(pair, name).replace("\n", f"\n{'':12}")
        if client.id in hidden:
            yield from _hidden(hidden[client.id], pair)
        yield ""


def _hidden(person: Person, pair: Pair) -> Iterator[str]:
    """The wish behind a choice, what its answers are made of, and whether the label is noise."""
    choice = next(choice for choices in person.folds.values() for choice in choices if choice.pair == pair)
    wishes = (f"{AXES[axis][weight < 0]} {abs(weight):.1f}" for axis, weight in person.wish.items())
    yield "  wish      " + ", ".join(wishes)
    for name, answer in (("chosen", choice.chosen), ("rejected", choice.rejected)):
        styles = (pole for axis in person.wish for pole in AXES[axis])
        numbers = itertools.chain.from_iterable(answer.holds)
        yield f"  {name:9} holds " + ", ".join(f"{n} {pole}" for n, pole in zip(numbers, styles, strict=True))
    verdicts = ("a coin: it wishes neither more", "as wished", "noise: it wishes the other")
    yield f"  margin    {choice.margin:+.1f}, {verdicts[int(np.sign(choice.margin))]}"


def _row(number: int, sentence: str) -> str:
    return f"{number:>10,}  {sentence}"
