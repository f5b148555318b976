"""FedVPA-GP: a variational selector with a federated mixture prior and prototypes (S1 section 4, Algorithms 1 and 2).

The client's side, Algorithm 2, is `raypref.clients.losses.Variational`; this is the server's, Algorithm 1, lines 1-14.
The steps below keep its order. FedVPL and the ablations of S1 5.4 are the same with parts left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from raypref.algorithms.base import Metrics, State
from raypref.algorithms.fedavg import check_cohort, uniform_cohort
from raypref.clients.protocol import PART, Clients, Context
from raypref.config import RunConfig, UserError
from raypref.models.layout import initial_row
from raypref.server.aggregation import combine, uniform_weights
from raypref.server.clustering import kmeans, match_labels, strays
from raypref.tools.rng import stream


@dataclass(frozen=True)
class FedVPAState(State):
    theta: Tensor
    """[D] θ^t and φ^t: adapter, extractor, encoder, projection, prototypes."""
    mu: Tensor
    """[C, d] μ̄_i, as each client last reported it."""
    variance: Tensor
    """[C, d] σ̄_i²."""
    log_weights: Tensor
    """[C, C] ℓ of each client (row) over its peers, [C, 0] without mixture: the clients' own, here only so that a run
    can be resumed."""
    assignment: list[int]
    """[C] y_i*, the label of each client's prototype, -1 before the first; empty without prototypes."""
    peers: list[int]
    """S^{t-1}: of whom the mixture prior is made."""


class FedVPAGP:
    """The full method."""

    weights: ClassVar[str] = "uniform"
    state: ClassVar[type[State]] = FedVPAState
    mixture: ClassVar[bool] = True
    """The federated mixture prior; else N(0, I)."""
    orthogonal: ClassVar[bool] = True
    """Prototypes with the pull towards them; else no orthogonal loss."""

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        self.config, self.clients = config, clients
        check_cohort(config, clients)
        v = config.variational
        if config.objective != "variational":
            raise UserError(f"{config.algorithm} trains the variational selector; add --objective variational")
        if self.orthogonal and min(v.d, len(clients.sizes)) < v.M:
            limit = f"variational.d is {v.d}" if v.d < v.M else f"there are {len(clients.sizes)} clients"
            raise UserError(f"variational.M is {v.M} but {limit}; lower variational.M")

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds

    def init(self) -> FedVPAState:
        """Line 2."""
        C, d = len(self.clients.sizes), self.config.variational.d
        return FedVPAState(
            round=0,
            theta=initial_row(self.clients.layout, self.config.seed),
            mu=torch.zeros(C, d),
            variance=torch.ones(C, d),
            log_weights=torch.zeros(C, C if self.mixture else 0),
            assignment=[-1] * C if self.orthogonal else [],
            peers=[],
        )

    def round(self, state: FedVPAState) -> tuple[FedVPAState, Metrics]:
        # 4. Sample S^t.
        cohort = uniform_cohort(self.config, self.clients, state.round)
        # 5-8. Broadcast θ and φ, the mixture prior of S^{t-1}'s statistics, and to each client its prototype's label.
        context = self.context(state, cohort)
        # 9-10. Algorithm 2 at the clients.
        returned = self.clients.train(cohort, state.theta, state.round, context)
        # 11-12. Uniform average.
        theta = combine(uniform_weights(len(cohort)), returned.rows)
        # 13. The components of the next round's prior.
        mu, variance, log_weights = state.mu.clone(), state.variance.clone(), state.log_weights.clone()
        mu[cohort] = torch.from_numpy(returned.statistics["mu"])
        variance[cohort] = torch.from_numpy(returned.statistics["variance"]).clamp(min=1e-6)
        if context.peers.size:
            told = torch.from_numpy(returned.statistics["log_weights"])
            log_weights[torch.from_numpy(cohort)[:, None], torch.from_numpy(context.peers)[None]] = told
        # 4.2. Labels by clustering the means of whoever has reported one.
        labels = self.assign(state, mu, sorted({*cohort.tolist(), *np.flatnonzero(self.reported(state))}))
        metrics = {"train/loss": float(returned.loss.mean())}
        for name, part in returned.statistics.items():
            if name.startswith(PART):
                metrics[f"train/{name.removeprefix(PART)}"] = float(part.mean())
        if self.orthogonal:
            moved = [a != b for a, b in zip(state.assignment, labels, strict=True) if a >= 0]
            metrics["groups/moved"] = float(sum(moved))
            if not np.isnan(share := strays(np.asarray(labels), self.clients.group_of)):
                metrics["groups/strays"] = share
        peers = cohort.tolist() if self.mixture else []
        return FedVPAState(state.round + 1, theta, mu, variance, log_weights, labels, peers), metrics

    def context(self, state: FedVPAState, cohort: np.ndarray) -> Context:
        """What the cohort is told."""
        peers = np.asarray(state.peers, dtype=np.int64)
        return Context(
            peers=peers,
            mean=state.mu.numpy()[peers],
            variance=state.variance.numpy()[peers],
            log_weights=state.log_weights.numpy()[np.ix_(cohort, peers)],
            labels=np.asarray(state.assignment, dtype=np.int64)[cohort] if self.orthogonal else None,
        )

    def reported(self, state: FedVPAState) -> np.ndarray:
        """bool [C] who has sent statistics yet."""
        return state.mu.numpy().any(1)

    def assign(self, state: FedVPAState, mu: Tensor, known: list[int]) -> list[int]:
        """y_i* of the clients that have reported a mean; others keep none, and are not pulled."""
        labels, M = np.asarray(state.assignment, dtype=np.int64), self.config.variational.M
        known = [c for c in known if torch.isfinite(mu[c]).all()]  # a diverged client has no place among the others
        if not self.orthogonal or len(known) < M:
            return labels.tolist()
        draw = stream(self.config.seed, "kmeans", state.round)
        found = kmeans(mu.numpy()[known].astype(np.float64), M, draw, self.config.variational.balanced)
        labels = labels.copy()
        labels[known] = match_labels(found, labels[known], M)
        return labels.tolist()

    def initialization(self, state: FedVPAState) -> Tensor:
        """θ and φ for every client; its z comes from its own pairs."""
        return state.theta


class FedVPL(FedVPAGP):
    """Gaussian prior, no orthogonal loss (S1 5.1)."""

    mixture, orthogonal = False, False


class FedVPLOrtho(FedVPAGP):
    """FedVPL with the orthogonal loss (S1 5.4)."""

    mixture, orthogonal = False, True


class FedVPLPrior(FedVPAGP):
    """FedVPL with the federated mixture prior (S1 5.4, "GB Prior")."""

    mixture, orthogonal = True, False
