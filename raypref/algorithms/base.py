"""What an algorithm is: a value of state, one round, and what each client then starts from.

A new paper is one file with a class of this shape and a line in `raypref.algorithms.ALGORITHMS`. Its parameters stand
in that file, too, and are read without torch; what it does at its clients is its `client` half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from raypref.clients.half import ClientHalf
from raypref.clients.kept import Kept
from raypref.clients.protocol import Clients, Trained

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from raypref.clients.seen import Part
    from raypref.config import RunConfig

Metrics = dict[str, float]


@dataclass(frozen=True)
class State:
    """Everything a method carries from round to round. Subclasses add tensors, ints and lists of ints; each is saved
    after every round, so that any run can be resumed."""

    round: int
    """Communication rounds done; the next is number `round`, counted from 0."""
    kept: Kept = field(default_factory=Kept, kw_only=True)
    """What clients keep between rounds; the server does not look into it."""


class Prior(NamedTuple):
    """A mixture of P Gaussians that z may be drawn from in stage 2."""

    mean: np.ndarray
    """float32 [P, d]"""
    variance: np.ndarray
    """float32 [P, d]"""
    tau: float
    """Temperature of the Gumbel-softmax that picks a component."""


class Algorithm:
    """One method. It holds no state of its own and reaches data only through `clients`."""

    title: ClassVar[str] = ""
    """The paper's name for it, as tables show it; empty: its name in the registry."""
    weights: ClassVar[str] = ""
    """The aggregation weights, in words, printed with the result."""
    state: ClassVar[type[State]] = State
    objective: ClassVar[str] = "choice"
    """The objective that it is usually run with."""
    parameters: ClassVar[Mapping[str, type]] = {}
    """Section of the configuration -> its dataclass."""
    client: ClassVar[type[ClientHalf]] = ClientHalf
    """What it does at its clients beside the objective's loss."""
    pooled: ClassVar[bool] = False
    """Whether it trains on pooled data, in blocks of steps instead of rounds."""
    needs: ClassVar[Mapping[str, str] | None] = None
    """Kind of what clients send (`raypref.clients.ledger.KINDS`) -> why the server reads each client's own of it. Of
    all other kinds it takes one weighted sum over the cohort, or nothing, which secure aggregation could give it. None:
    nobody has said."""
    rounds_note: ClassVar[str] = ""
    """Beneath tables of budgets: how its rounds are not R rounds of training for the model that is judged."""

    @classmethod
    def needed(cls) -> Mapping[str, str] | None:
        """`needs`, as far as it is said of the rounds that the class has: a subclass with rounds of its own must say it
        anew."""
        first = next(kind for kind in cls.__mro__ if {"needs", "round"} & vars(kind).keys())
        return cls.needs if "needs" in vars(first) else None

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        """Raises `UserError` where the configuration does not fit the clients."""
        self.config, self.clients = config, clients

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Raises `UserError` for what can be said before data are read."""

    @property
    def rounds(self) -> int:
        """Communication rounds that the method will run."""
        return self.config.federation.rounds

    def init(self) -> Any:
        """The state before round 0."""
        raise NotImplementedError

    def round(self, state: Any) -> tuple[Any, Metrics]:
        """One communication round: number `state.round`."""
        raise NotImplementedError

    def initialization(self, state: Any) -> Tensor:
        """θ^init: [D] for all clients alike, those included that took no part; or [C, D], then also `newcomers`."""
        raise NotImplementedError

    def newcomers(self, state: Any, clients: Clients) -> Tensor:
        """θ^init of U other clients, who took no part in any round, each from its own data at most: [U, D]. For methods
        whose initialization is a row a client."""
        raise NotImplementedError

    def shared(self, state: Any) -> Tensor | None:
        """[W] what every client is sent, where clients fit what is their own to it alone, for the accuracy by the
        number of choices; None: there is no such part."""
        return None

    # --- what others may ask of a state ---

    @classmethod
    def groups(cls, state: Any) -> list[int] | None:
        """[C] the group that each client is in, from 0; None for methods without groups."""
        return None

    def prototypes(self, state: Any) -> Tensor | None:
        """[M, d] what clients' latents are pulled to, where there is such a thing."""
        return None

    @classmethod
    def selectors(cls, state: Any) -> Tensor | None:
        """[U, D] an ensemble whose votes label pairs in stage 2; None: the initialization does, where it is one row."""
        return None

    @classmethod
    def prior(cls, state: Any, config: RunConfig) -> Prior | None:
        """What z may be drawn from in stage 2; None for methods without."""
        return None


def loss_metrics(returned: Trained) -> Metrics:
    """The mean training loss of a round and, where it has several, of its parts."""
    parts = {f"train/{name}": float(values.mean()) for name, values in returned.parts.items()}
    return {"train/loss": float(returned.loss.mean())} | (parts if len(parts) > 1 else {})


def starts(algorithm: Algorithm, state: Any, unseen: Part | None) -> Tensor:
    """What every client of the pool starts its personalization from: [D], or [C, D] in the pool's order."""
    rows = algorithm.initialization(state)
    if unseen is None or rows.dim() == 1:
        return rows
    return unseen.beside(rows, algorithm.newcomers(state, unseen))
