"""What an objective is: what clients minimise, from the words of a pair to the numbers that are read off.

A new objective is one file with a class of this shape and a line in `raypref.objectives.OBJECTIVES`. Its parameters
stand in that file, too, and are read without torch; it is made once a worker, over the clients that the worker holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from raypref.config import registry
from raypref.data.encode import EncodedFold, Encoding, choice_tokens
from raypref.models.layout import Layout, initial_row, last_block
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch
from raypref.tools.rng import stream, torch_stream

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.models.lora import Dropout
    from raypref.models.reader import Reader


T = TypeVar("T")


@dataclass
class Batch:
    """One step's sequences of n clients, padded to one shape where an objective looks at them."""

    reader: Reader
    clients: Sequence[int]
    parts: Sequence[np.ndarray]
    """[n] indices into each client's training fold, as `Objective.sequences` gave them."""
    mask: Callable[[], Dropout | None]
    """Makes the step's dropout, the same at each call."""
    seed: int
    at: tuple[str, int, int]
    """Purpose, round and step: what the step's other randomness is keyed by, beside the client."""

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.reader.batch(self.reader.folds(self.clients, "train"), self.parts)

    @property
    def ids(self) -> Tensor:
        """[n, b, L]"""
        return self._padded[0]

    @property
    def lengths(self) -> Tensor:
        """[n, b]"""
        return self._padded[1]

    @cached_property
    def valid(self) -> Tensor:
        """[n, b] bool."""
        counts = np.array([len(part) for part in self.parts])
        return self.reader.tensor(np.arange(counts.max()) < counts[:, None])

    @cached_property
    def dropout(self) -> Dropout | None:
        """The adapters' in this step."""
        return self.mask()

    @property
    def slots(self) -> Tensor:
        """[n, b] of comparisons: 0 where the chosen response is in slot A."""
        slots = torch.zeros_like(self.valid, dtype=torch.int64)
        for i, part in enumerate(self.parts):
            slots[i, : len(part)] = torch.from_numpy(part % 2)
        return slots

    def afresh(self) -> Batch:
        """The same batch for another pass at other rows, with the same dropout masks and draws."""
        return replace(self)

    def draw(self, what: str, shape: Sequence[int], fill: Callable[[Tensor, Any], Tensor]) -> Tensor:
        """[n, *shape] noise, each client's own whoever shares the pass. fill: (tensor, generator) -> the tensor,
        filled."""
        purpose, *at = self.at
        device = str(self.valid.device.type)
        return torch.stack([
            fill(torch.empty(tuple(shape), device=device),
                 torch_stream(self.seed, f"{what} {purpose}", *at, c, device=device))
            for c in self.clients
        ])  # fmt: skip


class Posterior(NamedTuple):
    """q(z | ·) = N(μ, diag σ²) of n clients, S each."""

    mu: Tensor
    """[n, S, d]"""
    log_variance: Tensor
    """[n, S, d]"""


class Latent(NamedTuple):
    """What a variational loss has inferred of n clients in a batch."""

    q: Posterior
    z: Tensor
    """[n, S, d] a sample of q."""
    prototypes: Tensor
    """[n, M, d] of each client's row."""


@dataclass(frozen=True)
class Loss:
    """The loss of n clients on a batch: a sum of parts, each with a name that people are shown."""

    parts: Mapping[str, Tensor]
    """Each [n, S], a value a comparison (or pair), or [n], a value a client."""
    valid: Tensor
    """[n, S] which of the S are there, beside padding."""
    latent: Latent | None = None

    def by_client(self) -> dict[str, Tensor]:
        """Every part as each client's mean over its own comparisons: [n]."""
        count = self.valid.sum(-1)
        return {
            name: (part * self.valid).sum(-1) / count if part.dim() == 2 else part for name, part in self.parts.items()
        }


class Objective:
    """The parts that most objectives share; `encoding`, `layout`, `loss`, `order_margins` and `margins` are each one's
    own. It holds nothing that changes but caches of what is frozen."""

    parameters: ClassVar[Mapping[str, type]] = {}
    """Section of the configuration -> its dataclass."""
    is_policy: ClassVar[bool] = False
    """Whether the rows are a policy, which stage 2 need not train any more."""
    has_latent: ClassVar[bool] = False
    """Whether each client is known by a latent z, inferred from its pairs."""
    has_prototypes: ClassVar[bool] = False
    """Whether its rows hold prototypes and its loss shows a sample of z, as S1's algorithms need."""
    diagnoses: ClassVar[bool] = False
    """Whether S2's gradient quotient and headroom are defined for it."""

    def __init__(self, config: RunConfig, reader: Reader) -> None:
        self.config, self.reader = config, reader
        self._names: dict[int, tuple[EncodedFold, np.ndarray]] = {}

    # --- before any data is read ---

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Raises `UserError` where its parameters do not go together."""

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        """What tables put in brackets behind the method's name; '' for the objective that goes without saying. config:
        flat."""
        raise NotImplementedError

    @classmethod
    def latent_width(cls, config: RunConfig) -> int:
        """d of the z that a policy is conditioned on; 0 without a latent."""
        return 0

    @classmethod
    def posterior_every(cls, config: RunConfig) -> int:
        """Rounds between two read-outs of every client's posterior; 0: none."""
        return 0

    @classmethod
    def given_start(cls, config: RunConfig) -> str:
        """The field that names what training starts from, where it is not a fresh row; else ''."""
        return ""

    # --- rows and words ---

    @classmethod
    def encoding(cls, config: RunConfig) -> Encoding:
        """How its pairs become token sequences."""
        raise NotImplementedError

    @classmethod
    def choice_ids(cls, tokenizer: Any, config: RunConfig) -> tuple[int, ...]:
        """The tokens of choices A and B; none where no comparison is read."""
        encoding = cls.encoding(config)
        return choice_tokens(tokenizer, encoding.template) if encoding.compares else ()

    @classmethod
    def layout(cls, config: RunConfig) -> Layout:
        """What a client trains, from the architecture alone: no weight is read."""
        raise NotImplementedError

    @classmethod
    def start(cls, config: RunConfig, layout: Layout) -> Tensor:
        """[D] what training starts from."""
        return initial_row(layout, config.seed)

    @classmethod
    def head(cls, config: RunConfig, layout: Layout) -> Tensor:
        """bool [D]: which of a row's parameters stand last and may be a client's own, the others being a body that many
        share. Of adapters those of the last block."""
        return last_block(layout)

    @classmethod
    def read_once(cls, config: RunConfig, folds: Sequence[EncodedFold]) -> Iterator[np.ndarray]:
        """The token sequences of these folds whose last state in the frozen base it looks up, repeats among them:
        each is read once for all runs (`raypref.models.features`), before clients start."""
        yield from ()

    @classmethod
    def kept_bytes(cls, config: RunConfig, pairs: int, context: int) -> int:
        """What a worker's device holds beside rows and a pass through the base, for forecasts: of what the frozen base
        says of so many pairs, and of `context` pairs that a step looks at beside its batch."""
        return 0

    # --- at the clients ---

    def sequences(self, comparisons: np.ndarray) -> np.ndarray:
        """Which sequences of a fold it reads where these comparisons were drawn."""
        return comparisons

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        """Of each client with its row of [n, D]."""
        raise NotImplementedError

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """Client i's fold with row i -> [n] order margins m [N_i, 2]."""
        raise NotImplementedError

    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        """Order margins [U, N, 2] of any N pairs under each of rows [U, D], given one z [d], each pair's own [N, d] or
        each row's [U, 1, d] where the objective has one."""
        raise NotImplementedError

    def posterior(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """What each client's own training pairs say of its latent preference, n first; empty without one."""
        return {}

    def probe(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Further numbers on the test fold that only this objective has, n first."""
        return {}

    def diagnose(self, rows: Tensor, clients: Sequence[int], eta: float) -> list[dict[str, np.ndarray]]:
        """S2's diagnostics of each client at its row, by name, for a plain gradient step of size η."""
        raise NotImplementedError

    def pair_names(self, client: int) -> np.ndarray:
        """`pair_names` of a client's training pairs, computed once."""
        fold = self.reader.clients[client].train
        if self._names.get(client, (None,))[0] is not fold:
            self._names[client] = fold, pair_names(fold)
        return self._names[client][1]


def check_context_marks(field: str, marks: Sequence[int]) -> None:
    """`UserError` where numbers of choices do not rise from 1 or more."""
    if list(marks) != sorted({mark for mark in marks if mark > 0}):
        raise UserError(f"{field} is {marks}; give rising numbers of pairs such as 1 4 16")


def context_pairs(seed: int, client: int, pairs: int, count: int) -> np.ndarray:
    """Which of a client's training pairs are looked at where only `count` of them are known: int64, ascending; all for
    0, or where it has no more. A larger count takes the same ones and others."""
    if not count or count >= pairs:
        return np.arange(pairs)
    return np.sort(stream(seed, "context", client).permutation(pairs)[:count])


def pair_names(fold: EncodedFold) -> np.ndarray:
    """What tells a fold's pairs apart: int64 [N], equal for pairs of the same two texts, whichever was chosen."""
    both = [fold.tokens[fold.offsets[j] : fold.offsets[j + 1]].tobytes() for j in range(2 * fold.pairs)]
    names = (hashlib.blake2b(b"".join(sorted(both[2 * i : 2 * i + 2])), digest_size=8) for i in range(fold.pairs))
    return np.array([int.from_bytes(name.digest(), "little", signed=True) for name in names], dtype=np.int64)


def other_pairs(targets: Sequence[np.ndarray], context: Sequence[np.ndarray]) -> Tensor:
    """Which pairs of a context may say something of a target: none of the same two texts, which would give its label
    away. n of names [S_i] and [K_i] -> bool [n, S, K], False where either is padding."""
    mask = torch.zeros(len(targets), max(map(len, targets)), max(map(len, context)), dtype=torch.bool)
    for i, (names, others) in enumerate(zip(targets, context, strict=True)):
        mask[i, : len(names), : len(others)] = torch.from_numpy(names[:, None] != others[None])
    return mask


class Once(Generic[T]):
    """Keeps what was last computed of some rows and clients, so that it is computed once for all folds that are
    judged."""

    def __init__(self) -> None:
        self.known: tuple[tuple[bytes, tuple[int, ...]], T] | None = None

    def get(self, rows: Tensor, clients: Sequence[int], folds: Sequence[EncodedFold], compute: Callable[[], T]) -> T:
        """What `compute` gives, or gave when rows, clients and their folds were these."""
        content = rows.detach().cpu().numpy().tobytes() + np.asarray(clients, dtype=np.int64).tobytes()
        key = hashlib.blake2b(content).digest(), tuple(map(id, folds))
        if self.known is None or self.known[0] != key:
            self.known = key, compute()
        return self.known[1]


def row_layout(config: RunConfig) -> Layout:
    """What a client of this run trains."""
    return registry.objective(config.objective).layout(config)


def padded(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of different lengths in one, zeros behind: n of [K_i, ...] -> [n, K, ...]."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
