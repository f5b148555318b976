"""The latent space as numbers: what a run records of its clients' posteriors q(z | D_i) = N(μ, diag σ²), and how far
they tell preferences apart (S1 5.3), so that posterior collapse can be read off.

Groups are true preference groups, indices [C]; -1 (or no entry at all) where unknown. What is not finite, as after a
diverged round, is left out client by client.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

import numpy as np

from raypref.evaluation.curve import adjusted_rand_index
from raypref.tools import checkpoint

NUMBERS = ("silhouette", "ari", "kl", "active_units")
"""Keys of `numbers`, in the order in which they are shown."""


@dataclass(frozen=True, eq=False)
class Latent:
    """What a run's `latent.npz` holds: the posteriors of all C clients in T of its rounds. Raises `ValueError` where
    shapes do not fit."""

    rounds: np.ndarray
    """int [T], rising."""
    mu: np.ndarray
    """float32 [T, C, d] of each client given all its training pairs."""
    log_variance: np.ndarray
    """float32 [T, C, d]"""
    pair_mu: np.ndarray
    """float32 [T, C, P, d] of P single training pairs a client: printed form, inferred from that pair; conditioned,
    from the client's other pairs. P may be 0; nan where a client has fewer."""
    prototypes: np.ndarray
    """float32 [T, M, d]; M is 0 for methods without."""

    def __post_init__(self) -> None:
        T, C, d = self.mu.shape
        there = (self.rounds.shape, self.log_variance.shape, self.pair_mu.shape, self.prototypes.shape)
        if there != ((T,), (T, C, d), (T, C, self.pair_mu.shape[2], d), (T, self.prototypes.shape[1], d)):
            raise ValueError(f"shapes of mu {self.mu.shape} and the others do not fit: {there}")

    @classmethod
    def of(
        cls,
        round: int,
        mu: np.ndarray,
        log_variance: np.ndarray,
        pair_mu: np.ndarray | None = None,
        prototypes: np.ndarray | None = None,
    ) -> Latent:
        """One round's: μ and log σ² [C, d], pairs' [C, P, d], prototypes [M, d]."""
        C, d = mu.shape
        pairs = np.zeros((C, 0, d)) if pair_mu is None else pair_mu
        stars = np.zeros((0, d)) if prototypes is None else prototypes
        values = (np.asarray(value, dtype=np.float32)[None] for value in (mu, log_variance, pairs, stars))
        return cls(np.array([round]), *values)

    def append(self, later: Latent) -> Latent:
        """Both; what `self` holds of `later`'s first round or beyond is of a run that was cut short, and goes."""
        kept = self.rounds < later.rounds[0]
        names = [field.name for field in fields(self)]
        return Latent(*(np.concatenate([getattr(self, n)[kept], getattr(later, n)]) for n in names))

    def save(self, path: Path) -> None:
        """The whole file or none of it."""
        file = io.BytesIO()
        np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})
        checkpoint.write_bytes(path, file.getvalue())

    @classmethod
    def load(cls, source: Path | IO[bytes]) -> Latent:
        """Raises `UserError` where a file of this name is missing or damaged."""
        damage = (EOFError, KeyError, zipfile.BadZipFile, zlib.error)
        guard = checkpoint.reading(source, *damage) if isinstance(source, Path) else contextlib.nullcontext()
        with guard, np.load(source, allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def silhouette(z: np.ndarray, groups: Sequence[int] | np.ndarray) -> float:
    """Mean silhouette coefficient (Rousseeuw 1987) of z [C, d] by true group: 1 groups far apart, 0 entangled, below 0
    closer to another group than to their own.

    nan where it is not defined: fewer than two groups, a group for every client, or all z the same point.
    """
    from sklearn.metrics import silhouette_score

    z, of = _known(z, groups)
    if not 2 <= len(np.unique(of)) < len(of) or len(np.unique(z, axis=0)) < 2:
        return float("nan")
    return float(silhouette_score(z, of))


def separation(z: np.ndarray, groups: Sequence[int] | np.ndarray) -> float:
    """Adjusted Rand index of ordinary k-means of z [C, d], with as many clusters as true groups, against these: 1 the
    groups can be read off z without knowing them, 0 as by chance. nan where fewer than two groups are known."""
    from sklearn.cluster import KMeans

    z, of = _known(z, groups)
    if len(np.unique(of)) < 2:
        return float("nan")
    K = min(len(np.unique(of)), len(np.unique(z, axis=0)))  # collapsed z have fewer places than groups
    clusters = KMeans(K, n_init=10, random_state=0).fit_predict(z)
    value = adjusted_rand_index(clusters, of)
    return float("nan") if value is None else value


def kl_by_dimension(mu: np.ndarray, log_variance: np.ndarray) -> np.ndarray:
    """D_KL(q ‖ N(0, I)) by dimension in nats (S1 Eq. 37), mean over clients: [..., d] twice -> [d]. 0: that dimension
    says nothing of a client. The same prior for every method, also where training has the mixture's, to compare them.
    """
    mu, log_variance = (np.asarray(value, dtype=np.float64) for value in (mu, log_variance))
    kl = 0.5 * (mu**2 + np.exp(log_variance) - log_variance - 1.0)
    return kl.reshape(-1, kl.shape[-1]).mean(axis=0)


def active_units(mu: np.ndarray, threshold: float = 0.01) -> int:
    """Dimensions of μ [..., d] whose variance over all that stands before the last axis is above the threshold: A_u =
    Cov_x(E[z_u]) > 0.01 (Burda et al. 2016, Importance Weighted Autoencoders, section 5.2)."""
    values = np.asarray(mu, dtype=np.float64)
    return int(np.sum(values.reshape(-1, values.shape[-1]).var(axis=0) > threshold))


def numbers(mu: np.ndarray, log_variance: np.ndarray, groups: Sequence[int] | np.ndarray) -> dict[str, float]:
    """One round's numbers of its clients' posteriors [C, d]; those that are not finite are left out.

    `kl` is the whole divergence, the sum over dimensions. A collapsed latent space has `kl` near 0 and no
    `active_units`, entangled preferences `silhouette` and `ari` near 0.
    """
    kept = np.isfinite(mu).all(axis=1) & np.isfinite(log_variance).all(axis=1)
    if not kept.any():
        return {}
    values = (
        silhouette(mu, groups),
        separation(mu, groups),
        float(kl_by_dimension(mu[kept], log_variance[kept]).sum()),
        float(active_units(mu[kept])),
    )
    return {name: value for name, value in zip(NUMBERS, values, strict=True) if np.isfinite(value)}


def _known(z: np.ndarray, groups: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finite z of clients whose group is known, and that group."""
    of = np.asarray(groups, dtype=np.int64) if len(groups) else np.full(len(z), -1)
    kept = (of >= 0) & np.isfinite(z).all(axis=1)
    return np.asarray(z, dtype=np.float64)[kept], of[kept]
