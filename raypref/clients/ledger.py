"""What leaves clients, counted at the one door that it passes (`raypref.clients.pool.Pool.ask`).

Whatever workers compute for the server comes back through that door, which counts every number in it by its kind. A
value that no kind below names does not pass. The kinds also say who reads them: much of what a run writes down for
people to see would never leave a client where clients are real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from raypref.clients.work import Evaluate, Work

SERVER, STUDY, CLIENT, PUBLIC = "server", "study", "client", "public"
READERS = {
    SERVER: "the server, as part of the method: whoever runs it, and whoever can read its memory or its traffic",
    STUDY: "the people who made the run: it is measured for tables and figures, and no method reads it",
    CLIENT: "nobody but the client; this simulation keeps it in the run's folder, to resume the run and to export it",
    PUBLIC: "anybody: it says nothing of a client",
}
"""Who could read what left, where clients are real."""


class Kind(NamedTuple):
    """Something that leaves a client."""

    name: str
    what: str
    reader: str
    apart: bool = False
    """Whether each name beneath it is a kind of its own, such as `readings/validation/loss`."""


LOSS = Kind("training loss", "the mean loss of its local steps, and the parts of it", STUDY)
OWN = Kind("own row", "the parameters that a client judges by, before and after personalization", CLIENT)
MEASURED = Kind("measurements", "accuracy, loss and margins on held-out pairs, and diagnostics", STUDY)
KINDS = {
    "join/size": Kind("number of pairs", "N_c, how many training pairs a client has", SERVER),
    "join/group": Kind("true group", "the group that the data say a client is of", STUDY),
    "join/pairs": Kind("training pairs", "the pairs themselves, of methods that pool them", SERVER),
    "train/rows": Kind("update", "what the method sends back of the trained parameters", SERVER),
    "train/statistics": Kind("statistics", "what the method's client half reports beside its update", SERVER, True),
    "train/loss": LOSS,
    "train/parts": LOSS,
    "train/kept": Kind("kept state", "what a client keeps for its next round", CLIENT),
    "compose": OWN,
    "train_pooled": Kind("pooled model", "a model that was trained where the pooled pairs are", SERVER),
    "weight_norms": Kind("norms of the base", "of the frozen base's weights", PUBLIC),
    "evaluate": Kind("readings", "how well models of the server do on a fold of a client", SERVER, True),
    "latent": Kind("latent", "the mean of what a client's choices say of its latent preference", SERVER, True),
    "posterior": Kind("posterior", "what a client's training pairs say of its latent preference", STUDY),
    "personalize": MEASURED,
    "personalize/rows": OWN,
    "personalize/probes": Kind(
        "probes", "z, and accuracy by how many choices are known; stage 2 is given mu", STUDY, True
    ),
    "validate": MEASURED,
}
"""Path of a value (the work that it is the result of, and the fields and names on the way to it) -> what it is; the
longest beginning of the path counts."""

Entries = dict[str, list[int]]
"""Kind -> how many times a client sent something of it, and bytes."""


def kind_of(path: str) -> tuple[str, Kind]:
    """The name that a value of this path is counted under, and its kind; `LookupError` where no kind names it."""
    parts = path.split("/")
    for n in range(len(parts), 0, -1):
        if kind := KINDS.get("/".join(parts[:n])):
            return "/".join([kind.name, *parts[n:]]) if kind.apart else kind.name, kind
    raise LookupError(f"{path} would leave clients uncounted; give it a kind in {__name__}")


def leaves(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """The path and the bytes of every number in a result; `TypeError` for what cannot be counted."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield path, value.nbytes
    elif isinstance(value, (bool, int, float, np.number)):
        yield path, 8
    elif isinstance(value, Mapping):
        for name, one in value.items():  # a mark is a number, and no name
            yield from leaves(one, f"{path}/{name}" if isinstance(name, str) else path)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from leaves(one, path)
    elif is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{path}/{field.name}")
    elif value is not None:
        raise TypeError(f"{path} is a {type(value).__name__}, of which no bytes can be counted")


class Ledger:
    """Counts since it was last taken."""

    def __init__(self) -> None:
        self.entries: Entries = {}

    def result(self, work: Work, result: Any) -> None:
        """Count what came back for some work."""
        path = f"{work.method}/{work.fold}" if isinstance(work, Evaluate) else work.method
        self.add(path, result, len(getattr(work, "clients", ())))

    def add(self, path: str, value: Any, clients: int) -> None:
        """Count a value that so many clients sent."""
        seen = set()
        for at, size in leaves(value, path):
            name, _ = kind_of(at)
            entry = self.entries.setdefault(name, [0, 0])
            entry[0] += 0 if name in seen else clients
            entry[1] += size
            seen.add(name)

    def take(self) -> Entries:
        """The counts, by name; they begin again from nothing."""
        entries, self.entries = self.entries, {}
        return dict(sorted(entries.items()))


NAMED = {kind.name: kind for kind in KINDS.values()}


def named(name: str) -> Kind:
    """The kind of what is counted under this name."""
    return NAMED[name.partition("/")[0]]
