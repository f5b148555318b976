"""What an algorithm is: a value of state, one round, and what each client then starts from.

A new paper is one file with a class of this shape and a line in `raypref.algorithms.ALGORITHMS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from torch import Tensor

from raypref.clients.protocol import Clients
from raypref.config import RunConfig

if TYPE_CHECKING:
    from raypref.clients.seen import Part

Metrics = dict[str, float]


@dataclass(frozen=True)
class State:
    """Everything a method carries from round to round. Subclasses add tensors, ints and lists of ints; each is saved
    after every round, so that any run can be resumed."""

    round: int
    """Communication rounds done; the next is number `round`, counted from 0."""


class Algorithm(Protocol):
    """One method. It holds no state of its own and reaches data only through `clients`."""

    weights: ClassVar[str]
    """The aggregation weights, in words, printed with the result."""
    state: ClassVar[type[State]]

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        """Raises `UserError` where the configuration does not fit the clients."""
        ...

    @property
    def rounds(self) -> int:
        """Communication rounds that the method will run."""
        ...

    def init(self) -> Any:
        """The state before round 0."""
        ...

    def round(self, state: Any) -> tuple[Any, Metrics]:
        """One communication round: number `state.round`."""
        ...

    def initialization(self, state: Any) -> Tensor:
        """θ^init: [D] for all clients alike, those included that took no part; or [C, D], see `PerClient`."""
        ...


class PerClient(Algorithm, Protocol):
    """A method whose initialization is a row a client."""

    def newcomers(self, state: Any, clients: Clients) -> Tensor:
        """θ^init of U other clients, who took no part in any round, each from its own data at most: [U, D]."""
        ...


def starts(algorithm: Algorithm, state: Any, unseen: Part | None) -> Tensor:
    """What every client of the pool starts its personalization from: [D], or [C, D] in the pool's order."""
    rows = algorithm.initialization(state)
    if unseen is None or rows.dim() == 1:
        return rows
    return unseen.beside(rows, cast(PerClient, algorithm).newcomers(state, unseen))
