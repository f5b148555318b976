"""A Bayesian reward model of each client: features and a prior that all train, weights that its own choices give.

Client c values a response y at r_c(y) = (u + Bᵀ z_c) · e(y): features e, the mean u and the directions B in which
people differ are shared; z_c ~ N(0, I) is the client's. No gradient trains z. Its posterior given the client's choices
is computed (Bayesian logistic regression, by the bound of Jaakkola and Jordan, "Bayesian parameter estimation via
variational methods", Statistics and Computing 10, 2000), so that it knows how many choices there were, how far each
could tell, and that choices are noisy. A step judges every pair of a batch by the posterior that the client's *other*
pairs in it give, and its gradient goes through that posterior into e, u and B: they learn to be told from few choices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from raypref.config.fields import setting
from raypref.models.layout import Layout, Segment
from raypref.objectives.base import Batch, Loss, Once, Posterior, check_context_marks, context_pairs, other_pairs
from raypref.objectives.choice import metrics
from raypref.objectives.reward import Reward, RewardConfig, both_orders
from raypref.tools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.data.encode import EncodedFold
    from raypref.models.reader import Reader


@dataclass(frozen=True)
class BayesConfig:
    """The Bayesian reward model, where `objective` is `bayes`; `reward` says what its features are."""

    d: int = setting(16, least=1)
    """Directions in which people differ: the length of z."""
    iterations: int = setting(5, least=1)
    """Of the posterior's fixed point, in training; read-outs take four times as many."""
    context_marks: tuple[int, ...] = setting((1, 2, 4, 8, 16, 64), part="shown")
    """Read-outs before any local step with z from so many of the client's training pairs only (all, where it has
    fewer)."""
    every: int = setting(10, part="shown", least=0)
    """Rounds between two read-outs of every client's posterior, beside the last; 0: none."""


class Gaussian(NamedTuple):
    """N(μ, Σ) over z, any number of them."""

    mu: Tensor
    """[..., d]"""
    covariance: Tensor
    """[..., d, d]"""


class Bayes(Reward):
    """-log P(the client's choice | its other choices), averaged over its own pairs."""

    parameters: ClassVar[Mapping[str, type]] = {"bayes": BayesConfig, "reward": RewardConfig}
    has_latent: ClassVar[bool] = True

    def __init__(self, config: RunConfig, reader: Reader) -> None:
        super().__init__(config, reader)
        self.options = config.of(BayesConfig)
        self.read: dict[str, Once[list[Tensor]]] = defaultdict(Once)
        """Fold -> what was last read of clients' pairs."""

    @classmethod
    def check(cls, config: RunConfig) -> None:
        check_context_marks("bayes.context_marks", config.of(BayesConfig).context_marks)

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        return super().form(config).replace("reward", "Bayesian", 1)

    @classmethod
    def latent_width(cls, config: RunConfig) -> int:
        return config.of(BayesConfig).d

    @classmethod
    def posterior_every(cls, config: RunConfig) -> int:
        return config.of(BayesConfig).every

    @classmethod
    def layout(cls, config: RunConfig) -> Layout:
        """A reward model's, and B [d, X] before the last layer, which is u [1, X]."""
        from raypref.models.head import BASIS

        *before, u = super().layout(config).segments
        d, X = config.of(BayesConfig).d, u.shape[1]
        return Layout((*before, Segment(BASIS, (d, X), "orthonormal" if d <= X else "uniform"), u))

    def outputs(self, rows: Tensor, states: Tensor) -> Tensor:
        """u · e and B e of each response: [n, S, 1 + d]."""
        from raypref.models.head import BASIS, SCORE, penultimate

        head = self.scorer.split(rows[:, self.adapter :])
        e = penultimate(head, self.scale * states)
        return torch.bmm(e, torch.cat([head[SCORE], head[BASIS]], dim=1).mT)

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        difference, there = _differences(self.of_batch(rows, batch)), batch.valid[:, ::2]
        names = [self.pair_names(c)[part[::2] // 2] for c, part in zip(batch.clients, batch.parts, strict=True)]
        context = other_pairs(names, names).to(there.device)
        each = difference[:, None].expand(*context.shape, -1)  # the same context for every target, less itself
        m = predicted(difference, posterior(each, context, self.options.iterations))
        return Loss({"choice": -torch.nn.functional.logsigmoid(m)}, there)

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """z is inferred from the client's training pairs, never from the pair that is judged."""
        given, read = self.infer(rows, clients), self.differences(rows, clients, fold)
        return [both_orders(predicted(one, q)) for one, q in zip(read, given, strict=True)]

    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        assert z is not None
        read = map(_differences, self.of_fold(rows, fold))
        return torch.stack([
            both_orders(one[:, 0] + (one[:, 1:] * (z[i] if z.dim() == 3 else z)).sum(-1)) for i, one in enumerate(read)
        ])  # fmt: skip

    def infer(self, rows: Tensor, clients: Sequence[int], context: int = 0) -> list[Gaussian]:
        """Each client's posterior given its training pairs, or `context` of them, client i with row i."""
        training = self.differences(rows, clients, "train")
        return [self._posterior(c, one, context) for c, one in zip(clients, training, strict=True)]

    def differences(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """[N_i, 1 + d] of the pairs of client i's fold by row i."""
        folds = self.reader.folds(clients, fold)
        return self.read[fold].get(
            rows, clients, folds, lambda: [_differences(o) for o in self.of_clients(rows, clients, fold)]
        )

    def _posterior(self, client: int, difference: Tensor, context: int) -> Gaussian:
        pairs = self.reader.tensor(context_pairs(self.config.seed, client, len(difference), context))
        every = torch.ones(len(pairs), dtype=torch.bool, device=difference.device)
        return posterior(difference[pairs], every, 4 * self.options.iterations)

    def posterior(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """`mu` and `log_variance` [n, d], the variance of each entry of z alone."""
        q = _diagonal(self.infer(rows, clients))
        return {"mu": q.mu.cpu().numpy(), "log_variance": q.log_variance.cpu().numpy()}

    def probe(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """`context_accuracy` [n, sizes] on the test fold with z from `context_marks` pairs instead of all; `mu` and
        `log_variance` [n, d] are the posterior that a policy would be given."""
        tested = self.differences(rows, clients, "test")
        by_size = [
            [float(metrics(both_orders(predicted(one, q)))["accuracy"]) for one, q in zip(tested, given, strict=True)]
            for given in (self.infer(rows, clients, size) for size in self.options.context_marks)
        ]
        return {"context_accuracy": np.array(by_size).T} | self.posterior(rows, clients)


def posterior(difference: Tensor, there: Tensor, iterations: int) -> Gaussian:
    """The posterior N(μ, Σ) of z ~ N(0, I) given choices whose log-odds are t + x · z.

    difference: [..., K, 1 + d], t before x of every choice, as chosen minus rejected; there: bool [..., K] which of
    them count. Jaakkola and Jordan (2000, section 3): σ(a) is bounded below by a Gaussian in a that touches it at ±ξ;
    with λ(ξ) = tanh(ξ/2) / 4ξ,

        Σ⁻¹ = I + 2 Σ_k λ(ξ_k) x_k x_kᵀ,   μ = Σ Σ_k (1/2 - 2 λ(ξ_k) t_k) x_k,   ξ_k² = x_kᵀ Σ x_k + (t_k + x_k · μ)²

    and each turn raises the bound on the evidence. Where no choice counts it is the prior.
    """
    t, x = difference[..., 0], difference[..., 1:]
    counts, eye = there.to(x.dtype), torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    xi = torch.ones_like(t)
    for _ in range(iterations):
        lam = counts * torch.tanh(xi / 2) / (4 * xi)
        covariance = torch.linalg.inv(eye + 2 * (x * lam[..., None]).mT @ x)
        towards = (x * (counts / 2 - 2 * lam * t)[..., None]).sum(-2)
        mu = (covariance @ towards[..., None])[..., 0]
        squares = ((x @ covariance) * x).sum(-1) + (t + (x @ mu[..., None])[..., 0]) ** 2
        xi = squares.clamp(min=1e-6).sqrt()  # λ is flat at 0, and a root's gradient is not
    return Gaussian(mu, covariance)


def predicted(difference: Tensor, q: Gaussian) -> Tensor:
    """The log-odds [..., S] of choices [..., S, 1 + d] where z ~ q, as one margin for all S or each its own:
    ∫ σ(a) N(a; m, s²) da ≈ σ(m / √(1 + π s² / 8)) (MacKay, "The evidence framework applied to classification networks",
    Neural Computation 4, 1992), so that what is not known of z is said as a margin nearer to 0."""
    t, x = difference[..., 0], difference[..., 1:]
    m = t + (x * q.mu).sum(-1)
    variance = (x[..., None, :] @ q.covariance @ x[..., None])[..., 0, 0]
    return m / torch.sqrt(1 + math.pi / 8 * variance)


def _differences(outputs: Tensor) -> Tensor:
    """Chosen and rejected in turn [..., 2N, k] -> their differences [..., N, k]."""
    return outputs[..., ::2, :] - outputs[..., 1::2, :]


def _diagonal(given: Iterable[Gaussian]) -> Posterior:
    """[n, d] each entry of z by itself."""
    mu, covariance = (torch.stack(part) for part in zip(*given, strict=True))
    return Posterior(mu, covariance.diagonal(dim1=-2, dim2=-1).log())
