"""A finished run that takes people in: what a few choices become, whatever the run is.

With a latent they become a z; where clients keep a part of the model (`ClientHalf.fits`), that part; else an adapter, a
few local steps from what the run gives newcomers to start from. All of it is what the run itself did with its unseen
clients, here in this process, with the choices in the place of training pairs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raypref.clients.pool import InProcess, Inputs
from raypref.clients.worker import Worker
from raypref.config import RunConfig, UserError, read_config, registry
from raypref.data.encode import Counts, EncodedClient, EncodedFederation, EncodedFold, Fit, concatenate, encode_each
from raypref.data.federation import Pair
from raypref.models.identity import check_base
from raypref.models.layout import Layout
from raypref.models.selector import load_selector, load_tokenizer, pad_id
from raypref.objectives.choice import pair_margins
from raypref.storage import results, rows
from raypref.tools import checkpoint


class Described(NamedTuple):
    """The clients of a run as a method's constructor looks at them, which reads none of their data."""

    layout: Layout
    sizes: np.ndarray
    keys: np.ndarray
    groups: tuple[str, ...]
    group_of: np.ndarray


@dataclass(frozen=True)
class Learned:
    """n people after some local steps."""

    steps: int
    rows: Tensor
    """[n, D]"""
    z: Tensor | None
    """[n, d]"""
    margins: list[Tensor]
    """[n] the margin M [N_i] of every pair that each is judged on."""


class Learner:
    """A finished run and its base, loaded once."""

    def __init__(self, folder: Path, base: str = "") -> None:
        """base: where it does not lie where the run had it. Raises `UserError` where the run cannot be gone on with."""
        self.folder, self.result = folder, checkpoint.read_json(folder / "result.json", "clients", "config")
        config = read_config(folder)
        here = {"gpus_per_actor": config.clients.gpus_per_actor if torch.cuda.is_available() else 0.0}
        model = replace(config.model, base=base or config.model.base)
        self.config: RunConfig = replace(config, model=model, clients=replace(config.clients, **here))
        self.scratch = tempfile.TemporaryDirectory(prefix="raypref-person-")
        self.private = replace(self.config, model=replace(model, feature_cache=self.scratch.name))
        """The same, but that what the frozen base says of a text is not kept for later runs: whose texts these are,
        nobody else need know."""
        check_base(self.config.model.base, self.result.get("base", ""), str(folder))
        self.objective = registry.objective(config.objective)
        self.method = registry.algorithm(config.algorithm)
        self.layout: Layout = self.objective.layout(self.config)
        self.tokenizer = load_tokenizer(self.config.model.base)
        self.choice_ids = self.objective.choice_ids(self.tokenizer, self.config)
        device = "cuda" if here["gpus_per_actor"] else "cpu"
        self.selector = load_selector(self.config.model, self.choice_ids, pad_id(self.tokenizer), device)
        self.d = int(self.objective.latent_width(self.config))
        self.newcomers = self._newcomers()

    @property
    def trains(self) -> bool:
        """Whether a newcomer takes local steps."""
        return not self.d and not self.method.client.fits

    @property
    def most_steps(self) -> int:
        return int(self.config.personalization.marks[-1])

    def became(self, steps: int) -> str:
        """What choices become, in words."""
        if self.d:
            return f"a z of {self.d} numbers"
        if self.method.client.fits:
            return str(self.method.client.part(self.config))
        what = "adapter" if self.layout.width > self.layout.beside else "head"
        return f"{'an' if what == 'adapter' else 'a'} {what} after {steps} local step{'s' * (steps != 1)}"

    def encoded(self, pairs: Sequence[Pair]) -> list[Fit]:
        """Each pair in the run's words."""
        encoding = self.objective.encoding(self.config)
        return encode_each(pairs, self.tokenizer, encoding, self.config.data.max_length)

    def at_marks(
        self, known: Sequence[EncodedFold], marks: Sequence[int], judged: Sequence[EncodedFold] | None = None
    ) -> Iterator[Learned]:
        """n people who are known by these choices alone, after each number of local steps, rising. judged: of people of
        the run itself, other pairs of theirs. Who learned beside whom changes nothing but rounding."""
        stack, parts = self.config.clients.stack, []
        for i in range(0, len(known), stack):
            some = judged[i : i + stack] if judged else [concatenate([])] * len(known[i : i + stack])
            parts.append(self._stack(known[i : i + stack], some, marks, judged is not None))
        for at in zip(*parts, strict=True):
            z = None if at[0].z is None else torch.cat([one.z for one in at if one.z is not None])
            yield Learned(at[0].steps, torch.cat([one.rows for one in at]), z, [m for one in at for m in one.margins])

    def learn(self, choices: EncodedFold, steps: int = 0) -> Learned:
        """One person, after so many local steps. Raises `UserError` where what came of it is not finite."""
        (learned,) = self.at_marks([choices], [steps])
        rows.check_row(learned.rows, self.layout, self.folder, "the new person")
        return learned

    @torch.no_grad()
    def margins(self, rows: Tensor, z: Tensor | None, pairs: EncodedFold) -> np.ndarray:
        """float64 [K, N] M of each pair under rows [K, D], with z [K, d] where there is one: above 0 where the first
        response is preferred."""
        each = None if z is None else z[:, None]
        return pair_margins(self._worker.margins(rows, pairs, each)).double().cpu().numpy()

    def of_client(self, c: int) -> tuple[Tensor, Tensor | None]:
        """What the run has made of its client c as it would of a newcomer: row and z, with local steps only where
        newcomers take some."""
        ids = self.result["clients"]
        at: rows.At = "personalized" if self.trains else "initialization"
        row = rows.client_row(self.folder, self.config, self.layout, ids, c, at)
        z = rows.client_z(self.result, c, at, str(self.folder)) if self.d else None
        return rows.check_row(row, self.layout, self.folder, ids[c]), z

    @property
    def _worker(self) -> Worker:
        return Worker(self.private, {}, self.choice_ids, self.selector.pad, self.selector)

    def _stack(
        self, known: Sequence[EncodedFold], judged: Sequence[EncodedFold], marks: Sequence[int], judge: bool
    ) -> Iterator[Learned]:
        # Methods that look at a validation fold, such as FedBiscuit, look at the choices: there is nothing else.
        clients = tuple(EncodedClient(k, k, j) for k, j in zip(known, judged, strict=True))
        everyone = np.arange(len(clients))
        data = EncodedFederation(tuple(map(str, everyone)), np.full(len(clients), -1), (), clients, Counts())
        pool = InProcess(
            Inputs(self.config if judge else self.private, data, self.choice_ids, self.selector.pad, self.layout),
            self.selector,
        )
        start = self.newcomers(pool)
        worker = pool.worker
        local = worker.personalization(everyone, worker.reader.tensor(start.numpy()))
        for mark in marks:
            local.advance(mark - local.step)
            theta = local.rows.detach()
            with torch.no_grad():
                z = worker.objective.posterior(theta, everyone).get("mu")
            margins = [pair_margins(m.cpu()) for m in worker.order_margins(theta, everyone, "test")] if judge else []
            yield Learned(mark, theta.cpu().clone(), None if z is None else torch.tensor(z), margins)

    def _newcomers(self) -> Any:
        """What gives n people of a pool their rows to start from, [n, D]."""
        file = self.folder / "initialization.safetensors"
        per_client = checkpoint.load(file)[0]["rows"].dim() > 1 if file.exists() else self._named_adapters()
        if not per_client:
            row = rows.client_row(self.folder, self.config, self.layout, self.result["clients"], 0, "initialization")
            rows.check_row(row, self.layout, self.folder, "its initialization")
            return lambda pool: row.expand(len(pool.sizes), -1)
        if not (self.folder / "state.safetensors").exists():
            raise UserError(f"{self.folder} has no state.safetensors, which newcomers need; name the run's own folder")
        state = results.saved_state(self.folder, self.config)
        seen = np.setdiff1d(np.arange(len(self.result["clients"])), self.result.get("unseen", ()))
        groups = self.result["groups"]
        of = np.asarray(groups["of"] or [-1] * len(self.result["clients"]), dtype=np.int64)
        sizes = np.asarray(self.result["sizes"], dtype=np.int64)
        method = self.method(self.config, Described(self.layout, sizes[seen], seen, tuple(groups["names"]), of[seen]))
        return lambda pool: method.newcomers(state, pool)

    def _named_adapters(self) -> bool:
        """Whether the adapters of the initialization, where a run has no other file of it, are a client's each."""
        place = self.folder / "adapters" / "initialization"
        return place.is_dir() and all(path.is_dir() for path in place.iterdir())
