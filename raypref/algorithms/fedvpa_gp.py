"""FedVPA-GP: a variational selector with a federated mixture prior and prototypes (S1 section 4, Algorithms 1 and 2).

First the client's half, Algorithm 2, then the server's, Algorithm 1, lines 1-14; the steps keep the paper's order. The
selector itself and its evidence bound with the prior N(0, I) are `raypref.objectives.variational`. FedVPL and the
ablations of S1 5.4 are the same with parts left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raypref.algorithms.base import Algorithm, Metrics, Prior, State, loss_metrics
from raypref.algorithms.fedavg import check_cohort, uniform_cohort
from raypref.clients.half import ClientHalf, Message, Start
from raypref.clients.kept import Arrays
from raypref.clients.protocol import Clients
from raypref.config import registry
from raypref.objectives.base import Batch, Latent, Loss
from raypref.objectives.latent import PROTOTYPES
from raypref.objectives.variational import (
    VariationalConfig,
    gaussian_kl,
    gumbel_log_weights,
    mixture_kl,
    orthonormal_loss,
    pull_loss,
)
from raypref.rounds.aggregation import combine, uniform_weights
from raypref.rounds.clustering import kmeans, match_labels, strays
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch
from raypref.tools.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.models.layout import Layout


class VariationalHalf(ClientHalf):
    """Algorithm 2 for n clients: the mixture of the peers' posteriors as prior, the pull towards the own prototype, and
    the statistics that go to the server."""

    def __init__(self, config: RunConfig, start: Start) -> None:
        super().__init__(config, start)
        self.options, message, device = config.of(VariationalConfig), start.message, start.rows.device
        self.peers = message.about
        self.mean, self.variance = (
            torch.from_numpy(np.array(message.shared[name])).to(device) if len(self.peers) else None
            for name in ("mean", "variance")
        )
        labels = message.each.get("label")
        self.labels = None if labels is None else torch.from_numpy(labels).to(device)
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []
        """A step each: μ and z [n, b, d] of its pairs, and which of them are valid [n, b]."""
        log_weights = torch.tensor(np.stack([self._known(arrays) for arrays in start.kept]), device=device)
        self.log_weights = log_weights.requires_grad_()
        """[n, P] ℓ over the peers of this round."""

    def _known(self, kept: Arrays) -> np.ndarray:
        """[P] ℓ of one client over this round's peers, 0 for those it meets for the first time."""
        weights = _by_peer(kept)
        return np.array([weights.get(peer, 0.0) for peer in self.peers.tolist()], dtype=np.float32)

    def trained(self) -> list[dict[str, Any]]:
        """ℓ, where there are peers."""
        rate = self.options.peer_learning_rate
        return [{"params": [self.log_weights], "lr": rate}] if len(self.peers) else []

    def loss(self, rows: Tensor, batch: Batch, loss: Loss) -> Loss:
        """S1 Eq. 10."""
        v, latent = self.options, loss.latent
        assert latent is not None
        self.steps.append((latent.q.mu.detach(), latent.z.detach(), loss.valid))
        parts = dict(loss.parts)
        # 2-6. D_KL to the mixture of the peers; where the server sent none, to N(0, I), as the objective has it.
        if len(self.peers):
            parts["kl"] = v.beta * self._mixture_kl(batch, latent)
        # 7-8. The pull towards the client's prototype, and prototypes that are orthonormal up to their radius.
        if self.labels is not None:
            P = latent.prototypes
            towards = P[torch.arange(len(P)), self.labels.clamp(min=0)]
            parts["pull"] = v.lam * pull_loss(latent.z, towards) * (self.labels >= 0)[:, None]
            parts["orthonormality"] = v.gamma * orthonormal_loss(P, v.scale)
        return replace(loss, parts=parts)

    def _mixture_kl(self, batch: Batch, latent: Latent) -> Tensor:
        """[n, b] with the peers' weights drawn by Gumbel-softmax; a client is no peer of its own (Eq. 6 to 8)."""
        q, z = latent.q, latent.z
        itself = torch.from_numpy(self.peers[None] == np.asarray(batch.clients)[:, None]).to(z.device)
        alone = itself.all(1)  # of a cohort of one that was drawn twice running: nobody is left but N(0, I)
        logits = self.log_weights.masked_fill(itself & ~alone[:, None], -torch.inf)
        gumbel = batch.draw("gumbel", logits.shape[1:], lambda t, g: -torch.log(t.exponential_(generator=g)))
        log_w = gumbel_log_weights(logits, gumbel, self.options.tau)
        mixed = mixture_kl(z, q.mu, q.log_variance, log_w, self.mean, self.variance)
        return torch.where(alone[:, None], gaussian_kl(q.mu, q.log_variance).sum(-1), mixed)

    def report(self) -> dict[str, np.ndarray]:
        """The mean of a client's μ and the variance of its z over the stretch (line 26), [n, d] each."""
        mu, z, valid = (torch.cat(values, dim=1) for values in zip(*self.steps, strict=True))
        weight = (valid / valid.sum(1, keepdim=True))[..., None]
        mean = (z * weight).sum(1, keepdim=True)
        return {
            "mu": (mu * weight).sum(1).cpu().numpy(),
            "variance": ((z - mean) ** 2 * weight).sum(1).cpu().numpy(),
        }

    def keep(self) -> list[Arrays]:
        """ℓ over all peers that a client has met."""
        return [
            _merged(arrays, self.peers, weights)
            for arrays, weights in zip(self.start.kept, self.log_weights.detach().cpu().numpy(), strict=True)
        ]

    @classmethod
    def reports(cls, config: RunConfig, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        d = config.of(VariationalConfig).d
        return {"mu": (d,), "variance": (d,)}


def _by_peer(kept: Arrays) -> dict[int, float]:
    """Peer -> ℓ, of what a client keeps."""
    return dict(zip(kept["peers"].tolist(), kept["log_weights"], strict=True)) if kept else {}


def _merged(kept: Arrays, peers: np.ndarray, weights: np.ndarray) -> Arrays:
    """What a client keeps of its peers' log-weights, with these in place of earlier ones; {} without any."""
    known = _by_peer(kept) | dict(zip(peers.tolist(), weights, strict=True))
    if not known:
        return {}
    return {
        "peers": np.array(sorted(known), dtype=np.int64),
        "log_weights": np.array([known[peer] for peer in sorted(known)], dtype=np.float32),
    }


@dataclass(frozen=True)
class FedVPAState(State):
    theta: Tensor
    """[D] θ^t and φ^t: adapter, extractor, encoder, projection, prototypes."""
    mu: Tensor
    """[C, d] μ̄_i, as each client last reported it."""
    variance: Tensor
    """[C, d] σ̄_i²."""
    assignment: list[int]
    """[C] y_i*, the label of each client's prototype, -1 before the first; empty without prototypes."""
    peers: list[int]
    """S^{t-1}: of whom the mixture prior is made."""


PEERS = dict.fromkeys(("statistics/mu", "statistics/variance"), "each is a component of its peers' next prior")
CLUSTERED = {"statistics/mu": "means are clustered, and each client is told its prototype"}
"""What the mixture prior and the prototypes need, see `Algorithm.needs`."""


class FedVPAGP(Algorithm):
    """FedVPA-GP: a latent for each client, with a mixture prior made of its peers and prototypes (S1 section 4)."""

    title: ClassVar[str] = "FedVPA-GP"
    weights: ClassVar[str] = "uniform"
    state: ClassVar[type[State]] = FedVPAState
    objective: ClassVar[str] = "variational"
    client: ClassVar[type[ClientHalf]] = VariationalHalf
    needs: ClassVar[Mapping[str, str]] = {**CLUSTERED, **PEERS}
    mixture: ClassVar[bool] = True
    """The federated mixture prior; else N(0, I)."""
    orthogonal: ClassVar[bool] = True
    """Prototypes with the pull towards them; else no orthogonal loss."""

    def __init__(self, config: RunConfig, clients: Clients) -> None:
        super().__init__(config, clients)
        check_cohort(config, clients)
        self.options = v = config.of(VariationalConfig)
        if self.orthogonal and min(v.d, len(clients.sizes)) < v.M:
            limit = f"variational.d is {v.d}" if v.d < v.M else f"there are {len(clients.sizes)} clients"
            raise UserError(f"variational.M is {v.M} but {limit}; lower variational.M")

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if not registry.objective(config.objective).has_prototypes:
            raise UserError(f"{config.algorithm} trains the variational selector; add --objective {cls.objective}")

    def init(self) -> FedVPAState:
        """Line 2."""
        C, d = len(self.clients.sizes), self.options.d
        return FedVPAState(
            round=0,
            theta=self.clients.start(),
            mu=torch.zeros(C, d),
            variance=torch.ones(C, d),
            assignment=[-1] * C if self.orthogonal else [],
            peers=[],
        )

    def round(self, state: FedVPAState) -> tuple[FedVPAState, Metrics]:
        # 4. Sample S^t.
        cohort = uniform_cohort(self.config, self.clients, state.round)
        # 5-8. Broadcast θ and φ, the mixture prior of S^{t-1}'s statistics, and to each client its prototype's label.
        # 9-10. Algorithm 2 at the clients.
        returned = self.clients.train(cohort, state.theta, state.round, self.message(state, cohort), state.kept)
        # 11-12. Uniform average.
        cohort = returned.cohort
        theta = combine(uniform_weights(len(cohort)), returned.rows)
        # 13. The components of the next round's prior.
        mu, variance = state.mu.clone(), state.variance.clone()
        mu[cohort] = torch.from_numpy(returned.statistics["mu"])
        variance[cohort] = torch.from_numpy(returned.statistics["variance"]).clamp(min=1e-6)
        # 4.2. Labels by clustering the means of whoever has reported one.
        labels = self.assign(state, mu, sorted({*cohort.tolist(), *np.flatnonzero(self.reported(state))}))
        metrics = loss_metrics(returned)
        if self.orthogonal:
            moved = [a != b for a, b in zip(state.assignment, labels, strict=True) if a >= 0]
            metrics["groups/moved"] = float(sum(moved))
            if not np.isnan(share := strays(np.asarray(labels), self.clients.group_of)):
                metrics["groups/strays"] = share
        peers = cohort.tolist() if self.mixture else []
        return FedVPAState(state.round + 1, theta, mu, variance, labels, peers, kept=returned.kept), metrics

    def message(self, state: FedVPAState, cohort: np.ndarray) -> Message:
        """What the cohort is sent."""
        peers = np.asarray(state.peers, dtype=np.int64)
        labels = {"label": np.asarray(state.assignment, dtype=np.int64)[cohort]} if self.orthogonal else {}
        prior = {"mean": state.mu.numpy()[peers], "variance": state.variance.numpy()[peers]} if len(peers) else {}
        return Message(shared=prior, each=labels, about=self.clients.keys[peers])

    def reported(self, state: FedVPAState) -> np.ndarray:
        """bool [C] who has sent statistics yet."""
        return state.mu.numpy().any(1)

    def assign(self, state: FedVPAState, mu: Tensor, known: Sequence[int]) -> list[int]:
        """y_i* of the clients that have reported a mean; others keep none, and are not pulled."""
        labels, M = np.asarray(state.assignment, dtype=np.int64), self.options.M
        known = [c for c in known if torch.isfinite(mu[c]).all()]  # a diverged client has no place among the others
        if not self.orthogonal or len(known) < M:
            return labels.tolist()
        draw = stream(self.config.seed, "kmeans", state.round)
        clusters = kmeans(mu.numpy()[known].astype(np.float64), M, draw, self.options.balanced)
        labels = labels.copy()
        labels[known] = match_labels(clusters, labels[known], M)
        return labels.tolist()

    def initialization(self, state: FedVPAState) -> Tensor:
        """θ and φ for every client; its z comes from its own pairs."""
        return state.theta

    @classmethod
    def groups(cls, state: FedVPAState) -> list[int] | None:
        return state.assignment or None

    def prototypes(self, state: FedVPAState) -> Tensor | None:
        return self.clients.layout.split(state.theta[None])[PROTOTYPES][0] if state.assignment else None

    @classmethod
    def prior(cls, state: FedVPAState, config: RunConfig) -> Prior | None:
        """The statistics of the last cohort, of which the next round's prior would be made (lines 12-13)."""
        if not state.peers:
            return None
        mean, variance = state.mu.numpy()[state.peers], state.variance.numpy()[state.peers]
        return Prior(mean, variance, config.of(VariationalConfig).tau)


class FedVPL(FedVPAGP):
    """FedVPL: FedVPA-GP with a fixed Gaussian prior and without prototypes (S1 5.1)."""

    title: ClassVar[str] = "FedVPL"
    needs: ClassVar[Mapping[str, str]] = {}
    mixture, orthogonal = False, False


class FedVPLOrtho(FedVPAGP):
    """FedVPL with prototypes and the orthogonal loss (S1 5.4)."""

    title: ClassVar[str] = "FedVPL+Ortho"
    needs: ClassVar[Mapping[str, str]] = CLUSTERED
    mixture, orthogonal = False, True


class FedVPLPrior(FedVPAGP):
    """FedVPL with the federated mixture prior, "GB Prior" (S1 5.4)."""

    title: ClassVar[str] = "FedVPL+GB Prior"
    needs: ClassVar[Mapping[str, str]] = PEERS
    mixture, orthogonal = True, False
