"""The work of some clients that share one frozen base: local training, evaluation, personalization.

The same object runs in the driver's process and inside a Ray actor. Everything is a stacked pass over n clients, each
with its own row, optimizer moments, batches and dropout masks; n = 1 is not another code path.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from raypref.clients.half import ClientHalf, Message, Start
from raypref.clients.kept import Arrays
from raypref.clients.work import (
    Compose,
    Evaluate,
    Hold,
    Latents,
    Personalize,
    Personalized,
    PooledStack,
    Posteriors,
    Train,
    TrainedStack,
    TrainPooled,
    Validate,
    WeightNorms,
    Work,
)
from raypref.config import RunConfig, UserError, registry
from raypref.data.encode import EncodedClient, EncodedFold
from raypref.models.lora import Dropout
from raypref.models.reader import Reader
from raypref.models.selector import Selector, load_selector
from raypref.objectives.base import Batch, Objective, context_pairs
from raypref.objectives.choice import metrics, pair_margins
from raypref.tools.rng import stream, torch_stream

EVALUATED = ("validation", "test")


@dataclass(frozen=True)
class Share:
    """One process's part of every batch, where several train the same rows together."""

    rank: int
    world: int


class Worker:
    """Clients with their tokens, and the base they share."""

    def __init__(
        self,
        config: RunConfig,
        clients: Mapping[int, EncodedClient],
        choice_ids: tuple[int, ...],
        pad: int,
        selector: Selector | None = None,
    ) -> None:
        """selector: the base, where it is loaded already."""
        torch.set_num_threads(config.clients.threads)
        keep_memory()
        self.config = config
        self.device = "cuda" if config.clients.gpus_per_actor > 0 else "cpu"
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("clients.gpus_per_actor is above 0 but there is no GPU here; set it to 0 to train on CPUs")
        self.selector = selector or load_selector(config.model, choice_ids, pad, self.device)
        self.selector.recompute = config.clients.recompute
        self.reader = Reader(self.selector, clients, config.clients.eval_batch)
        objective = registry.objective(config.objective)
        self.layout = objective.layout(config)
        self.objective: Objective = objective(config, self.reader)
        self.half: type[ClientHalf] = registry.algorithm(config.algorithm).client

    def do(self, work: Work) -> Any:
        """What `work` asks for."""
        return getattr(self, work.method)(work)

    def hold(self, work: Hold) -> None:
        self.reader.clients |= work.data

    def train(self, work: Train) -> TrainedStack:
        """τ steps with a fresh AdamW, and what the algorithm does at its clients."""
        config, steps = self.config, self.config.federation.local_steps
        rows = self.reader.tensor(work.rows)
        start = Start(work.clients, rows, work.message, work.kept, self.layout, steps, self.objective)
        stretch = Stretch("train", work.round, steps, config.optim.learning_rate)
        local = LocalTraining(self, work.clients, rows, stretch, self.half(config, start))
        loss = local.advance(steps)
        return TrainedStack(local.result(), loss, local.parts(), local.half.report(), local.half.keep())

    def compose(self, work: Compose) -> np.ndarray:
        return self.composed(work.clients, self.reader.tensor(work.rows), work.kept).cpu().numpy()

    def composed(self, clients: np.ndarray, rows: Tensor, kept: Sequence[Arrays]) -> Tensor:
        """[n, D] the row of each client, made of what it was sent and what it keeps; one that keeps nothing first fits
        what is its own to its training pairs."""
        start = Start(clients, rows, Message(), kept, self.layout, 0, self.objective)
        out = self.half(self.config, start).personal(rows)
        if new := [i for i, arrays in enumerate(kept) if not arrays] if self.half.fits else []:
            (out[new],) = self.fitted(clients[new], rows[new], [0])
        return out

    def fitted(self, clients: np.ndarray, rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """[n, D] a size: the rows of clients that keep nothing, with what is their own fitted to so many of their
        training pairs (0: all)."""
        config, steps = self.config, self.half.fit_steps(self.config)
        start = Start(clients, rows, Message(), [{}] * len(clients), self.layout, steps, self.objective, alone=True)
        if not steps:
            folds = list(zip(clients.tolist(), self.reader.folds(clients, "train"), strict=True))
            known = [[context_pairs(config.seed, c, fold.pairs, size) for c, fold in folds] for size in sizes]
            return self.half(config, start).fitted(known)
        out = []
        for size in sizes:
            stretch = Stretch("fit", 0, steps, config.optim.learning_rate, context=size)
            local = LocalTraining(self, clients.tolist(), rows, stretch, self.half(config, start))
            local.advance(steps)
            out.append(local.half.personal(local.rows.detach()))
        return out

    def by_context(self, clients: np.ndarray, shared: np.ndarray) -> dict[str, np.ndarray]:
        """`context_accuracy` [n, sizes] on the test fold of clients that know nothing but what all share, and fit what
        is their own to so many of their training pairs."""
        rows = self.reader.tensor(shared).expand(len(clients), -1)
        fitted = self.fitted(clients, rows, self.half.context_marks(self.config))
        margins = [[m.cpu() for m in self.order_margins(each, clients, "test")] for each in fitted]
        return {"context_accuracy": np.stack([measured(m)["accuracy"] for m in margins], axis=1)} if margins else {}

    def train_pooled(self, work: TrainPooled, share: Share | None = None) -> PooledStack:
        """Steps `begin` to `end` of R · τ; several processes that train together have a share of every batch each."""
        config = self.config
        stretch = Stretch(
            "pooled", 0, config.federation.rounds * config.federation.local_steps, config.optim.learning_rate, share
        )
        local = LocalTraining(self, work.clients, self.reader.tensor(work.rows), stretch)
        local.restore(work.begin, work.moments)
        loss = local.advance(work.end - work.begin)
        return PooledStack(local.result(), local.moments(), loss)

    def weight_norms(self, work: WeightNorms) -> dict[str, float]:
        return {name: float(m.linear.weight.float().norm()) for name, m in self.selector.modules.items()}

    def evaluate(self, work: Evaluate) -> dict[str, np.ndarray]:
        """Every row on every client's fold: metric -> [K, n]. One row after another, each for a stack of clients."""
        lines, stack = [], self.config.clients.stack
        for row in work.rows:
            parts = [
                measured(self.order_margins(self.reader.tensor(row).expand(len(part), -1), part, work.fold))
                for part in np.split(work.clients, range(stack, len(work.clients), stack))
            ]
            lines.append({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
        return {name: np.stack([line[name] for line in lines]) for name in lines[0]}

    def personalize(self, work: Personalize) -> Personalized:
        """Local fine-tuning, one optimizer state throughout, read at the marks (S2 2.1)."""
        config, clients, marks = self.config, work.clients, self.config.personalization.marks
        rows = self.reader.tensor(work.rows)
        with torch.no_grad():
            probes = self.objective.probe(rows, clients)
        if work.shared is not None and "context_accuracy" not in probes:
            probes |= self.by_context(clients, work.shared)
        local = self.personalization(clients, rows)
        measures: dict[str, list[dict[str, np.ndarray]]] = {fold: [] for fold in EVALUATED}
        margins: list[list[np.ndarray]] = [[] for _ in clients]
        diagnoses: dict[int, list[dict[str, np.ndarray]]] = {}
        for mark in marks:
            local.advance(mark - local.step)
            theta = local.rows.detach()
            for fold in EVALUATED:
                m = [one.cpu() for one in self.order_margins(theta, clients, fold)]
                measures[fold].append(measured(m))
                if fold == "test":
                    for of_client, one in zip(margins, m, strict=True):
                        of_client.append(pair_margins(one).numpy())
            if mark in config.diagnostics.marks:
                diagnoses[mark] = self.objective.diagnose(theta, clients, config.diagnostics.eta or local.stretch.rate)
        with torch.no_grad():
            z = self.objective.posterior(local.rows.detach(), clients)
        probes |= {"personalized_mu": z["mu"]} if z else {}
        curves = {
            fold: {name: np.stack([one[name] for one in at], axis=1) for name in at[0]} for fold, at in measures.items()
        }
        return Personalized(
            clients, local.result(), curves, [np.stack(of_client) for of_client in margins], diagnoses, probes
        )

    def validate(self, work: Validate) -> dict[str, np.ndarray]:
        local = self.personalization(work.clients, self.reader.tensor(work.rows))
        local.advance(work.steps)
        return measured([m.cpu() for m in self.order_margins(local.rows.detach(), work.clients, "validation")])

    def personalization(self, clients: np.ndarray, rows: Tensor) -> LocalTraining:
        """The local training of a client's personalization, up to the last mark."""
        p = self.config.personalization
        rate = p.learning_rate or self.config.optim.learning_rate
        return LocalTraining(self, clients, rows, Stretch("personalize", 0, p.marks[-1], rate))

    def posterior(self, work: Posteriors) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return self.objective.posterior(self.reader.tensor(work.rows), work.clients)

    def latent(self, work: Latents) -> dict[str, np.ndarray]:
        with torch.no_grad():
            rows = self.reader.tensor(work.row).expand(len(work.clients), -1)
            return {"mu": self.objective.posterior(rows, work.clients)["mu"]}

    @torch.no_grad()
    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """Client i's fold with row i -> [n] order margins m [N_i, 2]."""
        return self.objective.order_margins(rows, clients, fold)

    @torch.no_grad()
    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None = None) -> Tensor:
        """Order margins [U, N, 2] of any pairs, see `Objective.margins`."""
        return self.objective.margins(rows, fold, z)


def keep_memory() -> None:
    """Have glibc keep what a step has freed for the next one. It gives large pieces back to the system, where taking
    them again costs a small base a tenth of its steps."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD: the most that it takes
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def measured(m: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Order margins [N_i, 2] of n folds: metric of `raypref.objectives.choice.metrics` -> float64 [n]."""
    values = [metrics(one) for one in m]
    return {name: np.array([float(v[name]) for v in values]) for name in values[0]}


@dataclass(frozen=True)
class Stretch:
    """Local training that belongs together: its batches and masks are keyed by purpose and round."""

    purpose: str
    round: int
    steps: int
    """Of the whole stretch."""
    rate: float
    """Learning rate."""
    share: Share | None = None
    context: int = 0
    """How many of a client's training pairs are known in it; 0: all."""


class LocalTraining:
    """n clients' local training in one stack: AdamW on the matrix of rows, elementwise and so each client's own."""

    def __init__(
        self, worker: Worker, clients: Sequence[int], rows: Tensor, stretch: Stretch, half: ClientHalf | None = None
    ) -> None:
        """rows: [n, D] float32 on the worker's device. half: of the algorithm, in a round."""
        config = worker.config
        self.worker, self.clients, self.stretch, self.step = worker, list(clients), stretch, 0
        self.folds = worker.reader.folds(self.clients, "train")
        self.rows = rows.clone().requires_grad_()
        self.half = half or ClientHalf(
            config,
            Start(
                np.asarray(clients), rows, Message(), [{}] * len(rows), worker.layout, stretch.steps, worker.objective
            ),
        )
        self.optimizer = torch.optim.AdamW(
            [self.rows], lr=stretch.rate, betas=config.optim.betas, weight_decay=config.optim.weight_decay
        )
        self.trained = [self.rows]
        for group in self.half.trained():
            self.optimizer.add_param_group(group)
            self.trained += group["params"]
        self.batches = [self._drawn(f.pairs, c) for f, c in zip(self.folds, self.clients, strict=True)]
        self.steps_parts: list[dict[str, Tensor]] = []
        """A step each: the parts of which the loss is the sum, [n]."""

    def advance(self, steps: int) -> np.ndarray:
        """`steps` optimizer steps -> mean loss over them, float64 [n] (NaN for none)."""
        share = self.stretch.share
        total = torch.zeros(len(self.clients), dtype=torch.float64, device=self.rows.device)
        for _ in range(steps):
            whole = [b[self.step] for b in self.batches]
            drawn = [b[share.rank :: share.world] for b in whole] if share else whole
            batch = self.batch(drawn)
            read = self.worker.objective.loss(self.half.model(self.rows, self.step), batch)
            parts = self.half.loss(self.rows, batch, read).by_client()
            loss = torch.stack(list(parts.values())).sum(0)
            if share:  # this part's share of each whole batch's mean
                loss = loss * torch.tensor([len(d) / len(b) for d, b in zip(drawn, whole, strict=True)]).to(loss)
            # The sum over clients: d(sum)/d(row i) is client i's own gradient.
            gradients = torch.autograd.grad(loss.sum(), self.trained, allow_unused=True)
            for tensor, gradient in zip(self.trained, gradients, strict=True):
                tensor.grad = gradient
            if share:
                torch.distributed.all_reduce(self.rows.grad)
            if gradients[0] is not None:
                self.rows.grad = self.half.gradient(gradients[0])
            self.optimizer.step()
            total += loss.detach()
            self.steps_parts.append({name: part.detach() for name, part in parts.items()})
            self.step += 1
        return (total / steps).cpu().numpy() if steps else np.full(len(self.clients), np.nan)

    def batch(self, drawn: Sequence[np.ndarray]) -> Batch:
        """The sequences of the comparisons drawn for each client."""
        parts = [self.worker.objective.sequences(comparisons) for comparisons in drawn]
        at = (self.stretch.purpose, self.stretch.round, self.step)
        mask = partial(self._dropout, parts, self.step)
        return Batch(self.worker.reader, self.clients, parts, mask, self.worker.config.seed, at)

    def parts(self) -> dict[str, np.ndarray]:
        """The loss's parts by name, [n] means over the steps so far."""
        names = self.steps_parts[0] if self.steps_parts else ()
        return {name: torch.stack([step[name] for step in self.steps_parts]).mean(0).cpu().numpy() for name in names}

    def restore(self, step: int, moments: np.ndarray) -> None:
        """Go on after `step` steps with AdamW's moments [n, 2, D]."""
        self.step = step
        first, second = (torch.tensor(moments[:, i], device=self.rows.device) for i in (0, 1))
        self.optimizer.state[self.rows] = {"step": torch.tensor(float(step)), "exp_avg": first, "exp_avg_sq": second}

    def moments(self) -> np.ndarray:
        """float32 [n, 2, D], as `restore` takes them."""
        state = self.optimizer.state[self.rows]
        return torch.stack([state["exp_avg"], state["exp_avg_sq"]], dim=1).cpu().numpy()

    def result(self) -> np.ndarray:
        """float32 [n, …] what goes back: the rows, where an algorithm's half says nothing else."""
        return self.half.result(self.rows.detach()).cpu().numpy()

    def _drawn(self, pairs: int, client: int) -> np.ndarray:
        """A client's batches of the whole stretch: int64 [steps, b] comparisons."""
        config, stretch = self.worker.config, self.stretch
        known = context_pairs(config.seed, client, pairs, stretch.context)
        draw = stream(config.seed, stretch.purpose, stretch.round, client)
        drawn = comparisons(len(known), config.optim.batch_size, stretch.steps, draw)
        return 2 * known[drawn // 2] + drawn % 2

    def _dropout(self, parts: Sequence[np.ndarray], step: int) -> Dropout | None:
        config, stretch = self.worker.config, self.stretch
        if config.model.lora_dropout == 0:
            return None
        at = (stretch.round, stretch.share.rank) if stretch.share else (stretch.round,)
        generators = [
            torch_stream(config.seed, f"dropout {stretch.purpose}", *at, c, step, device=self.worker.device)
            for c in self.clients
        ]
        shapes = [(len(p), int(f.lengths[p].max())) for f, p in zip(self.folds, parts, strict=True)]
        return Dropout(config.model.lora_dropout, generators, shapes)


def comparisons(pairs: int, batch_size: int, steps: int, draw: np.random.Generator) -> np.ndarray:
    """A client's batches: int64 [steps, b] comparison indices, b = min(batch_size, pairs).

    Shuffled passes over the pairs one after another, each pair in a random order (2i or 2i + 1, see
    `raypref.data.encode`), so that the choice mark alone says nothing.
    """
    b = min(batch_size, pairs)
    passes = -(-steps * b // pairs) if steps else 0
    order = np.concatenate([draw.permutation(pairs) for _ in range(passes)] or [np.zeros(0, np.int64)])[: steps * b]
    return (2 * order + draw.integers(0, 2, size=len(order))).reshape(steps, b)
