"""The work of some clients that share one frozen base: local training, evaluation, personalization.

The same object runs in the driver's process and inside a Ray actor. Everything is a stacked pass over n clients, each
with its own row, optimizer moments, batches and dropout masks; n = 1 is not another code path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from raypref.clients.diagnosis import diagnose
from raypref.clients.losses import DPO, Batch, Choice, Local, Loss, Variational
from raypref.clients.protocol import Context
from raypref.config import RunConfig, UserError
from raypref.data.encode import EncodedClient, EncodedFold
from raypref.models.latent import row_layout
from raypref.models.selector import Dropout, Selector, load_selector
from raypref.objectives.choice import metrics, pair_margins
from raypref.tools.rng import stream, torch_stream

EVALUATED = ("validation", "test")


class Worker:
    """Clients with their tokens, and the base they share."""

    def __init__(
        self, config: RunConfig, clients: Mapping[int, EncodedClient], choice_ids: tuple[int, ...], pad: int
    ) -> None:
        torch.set_num_threads(config.clients.threads)
        self.config = config
        self.clients = dict(clients)
        self.device = "cuda" if config.clients.gpus_per_actor > 0 else "cpu"
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("clients.gpus_per_actor is above 0 but there is no GPU here; set it to 0 to train on CPUs")
        self.selector: Selector = load_selector(config.model, choice_ids, pad, self.device)
        self.layout = row_layout(config)
        self.loss: Loss = {"choice": Choice, "variational": Variational, "dpo": DPO}[config.objective](self)

    def train(
        self, stack: Sequence[int], rows: np.ndarray, round: int, context: Context | None = None
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """τ steps from rows [n, D] with a fresh AdamW -> (rows [n, D], mean loss [n], statistics, n first)."""
        steps = self.config.federation.local_steps
        local = LocalTraining(
            self, stack, rows, "train", round, steps, self.config.optim.learning_rate, context=context
        )
        losses = local.advance(steps)
        return local.result(), losses, local.local.statistics()

    def hold(self, clients: Mapping[int, EncodedClient]) -> None:
        """Take more clients in."""
        self.clients |= clients

    def train_pooled(
        self,
        stack: Sequence[int],
        rows: np.ndarray,
        moments: np.ndarray,
        begin: int,
        end: int,
        share: Share | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps `begin` to `end` of R · τ from rows [n, D] and moments [n, 2, D] -> (rows, moments, mean loss [n])."""
        config = self.config
        total = config.federation.rounds * config.federation.local_steps
        local = LocalTraining(self, stack, rows, "pooled", 0, total, config.optim.learning_rate, share)
        local.restore(begin, moments)
        losses = local.advance(end - begin)
        return local.result(), local.moments(), losses

    def weight_norms(self) -> dict[str, float]:
        """Frobenius norm of the frozen weight of every adapted module."""
        return {name: float(m.linear.weight.float().norm()) for name, m in self.selector.modules.items()}

    def evaluate(self, clients: Sequence[int], rows: np.ndarray, fold: str) -> dict[str, np.ndarray]:
        """Every row of [K, D] on every client's fold: metric -> [K, n]. A client's batches never mix with another's."""
        columns = []
        for c in clients:
            parts = [
                measured(self.loss.order_margins(self._tensor(part), [c] * len(part), fold))
                for part in np.split(rows, range(self.config.clients.stack, len(rows), self.config.clients.stack))
            ]
            columns.append({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
        return {name: np.stack([column[name] for column in columns], axis=1) for name in columns[0]}

    def personalize(
        self, stack: Sequence[int], rows: np.ndarray
    ) -> tuple[
        np.ndarray,
        dict[str, dict[str, np.ndarray]],
        list[np.ndarray],
        dict[int, list[dict[str, np.ndarray]]],
        dict[str, np.ndarray],
    ]:
        """Local fine-tuning from rows [n, D], one optimizer state throughout, read at the marks (S2 2.1).

        Returns what `raypref.clients.protocol.Personalized` holds: rows, curves, margins, diagnoses, probes.
        """
        probes = self.loss.probe(self._tensor(rows), stack)
        marks = self.config.personalization.marks
        rate = self.config.personalization.learning_rate or self.config.optim.learning_rate
        local = LocalTraining(self, stack, rows, "personalize", 0, marks[-1], rate)
        eta = self.config.diagnostics.eta or rate
        read: dict[str, list[dict[str, np.ndarray]]] = {fold: [] for fold in EVALUATED}
        told: list[list[np.ndarray]] = [[] for _ in stack]
        diagnoses: dict[int, list[dict[str, np.ndarray]]] = {}
        for mark in marks:
            local.advance(mark - local.step)
            theta = local.rows.detach()
            for fold in EVALUATED:
                m = [one.cpu() for one in self.loss.order_margins(theta, stack, fold)]
                read[fold].append(measured(m))
                if fold == "test":
                    for own, one in zip(told, m, strict=True):
                        own.append(pair_margins(one).numpy())
            if mark in self.config.diagnostics.marks:
                diagnoses[mark] = diagnose(self, stack, theta, eta).by_client()
        z = self.loss.posterior(local.rows.detach(), stack)
        probes |= {"personalized_mu": z["mu"]} if z else {}
        curves = {
            fold: {name: np.stack([at[name] for at in read[fold]], axis=1) for name in read[fold][0]} for fold in read
        }
        return local.result(), curves, [np.stack(own) for own in told], diagnoses, probes

    def posterior(self, stack: Sequence[int], rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `raypref.clients.losses.Loss.posterior`; rows [n, D]."""
        return self.loss.posterior(self._tensor(rows), stack)

    @torch.inference_mode()
    def choice_logits(self, rows: Tensor, folds: Sequence[EncodedFold]) -> list[Tensor]:
        """Row i on fold i -> choice logits [2 N_i, 2] float32, in batches of similar length."""
        logits = [torch.empty(2 * f.pairs, 2) for f in folds]
        for parts, ids, lengths in self.passes(folds):
            out = self.selector.choice_logits(rows, ids, lengths).cpu()
            for i, part in enumerate(parts):
                logits[i][part] = out[i, : len(part)]
        return logits

    def passes(self, folds: Sequence[EncodedFold]) -> Iterator[tuple[list[np.ndarray], Tensor, Tensor]]:
        """Every sequence of each fold once, in batches of similar length: parts [n], ids [n, b, L], lengths [n, b]."""
        orders = [np.argsort(-f.lengths, kind="stable") for f in folds]
        batch = max(1, self.config.clients.eval_batch // len(folds))
        for start in range(0, max(map(len, orders)), batch):
            parts = [o[start : start + batch] for o in orders]
            ids, lengths, _ = self._batch(folds, parts)
            yield parts, ids, lengths

    def _batch(self, folds: Sequence[EncodedFold], parts: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """Sequences parts[i] of fold i -> ids [n, b, L], lengths [n, b], valid [n, b]; padded both ways."""
        n, b = len(folds), max(map(len, parts))
        longest = max(int(f.lengths[p].max()) for f, p in zip(folds, parts, strict=True) if len(p))
        ids = np.full((n, b, longest), self.selector.pad, dtype=np.int64)
        lengths = np.ones((n, b), dtype=np.int64)
        valid = np.zeros((n, b), dtype=bool)
        for i, (fold, part) in enumerate(zip(folds, parts, strict=True)):
            ids[i, : len(part)] = fold.padded(part, longest, self.selector.pad)
            lengths[i, : len(part)] = fold.lengths[part]
            valid[i, : len(part)] = True
        return self._tensor(ids), self._tensor(lengths), self._tensor(valid)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self.device)  # copies: arrays out of an object store are read-only


def measured(m: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Order margins [N_i, 2] of n folds: metric of `raypref.objectives.choice.metrics` -> float64 [n]."""
    values = [metrics(one) for one in m]
    return {name: np.array([float(v[name]) for v in values]) for name in values[0]}


@dataclass(frozen=True)
class Share:
    """One process's part of every batch, where several train the same rows together."""

    rank: int
    world: int


class LocalTraining:
    """n clients' local training in one stack: AdamW on the matrix of rows, elementwise and so each client's own."""

    def __init__(
        self,
        worker: Worker,
        stack: Sequence[int],
        rows: np.ndarray,
        purpose: str,
        round: int,
        steps: int,
        rate: float,
        share: Share | None = None,
        context: Context | None = None,
    ) -> None:
        config = worker.config
        self.share = share
        self.local = Local(context)
        self.worker, self.stack, self.purpose, self.round = worker, list(stack), purpose, round
        self.folds = [worker.clients[c].train for c in self.stack]
        self.step = 0
        self.rows = torch.tensor(rows, dtype=torch.float32, device=worker.device, requires_grad=True)
        self.optimizer = torch.optim.AdamW(
            [self.rows], lr=rate, betas=config.optim.betas, weight_decay=config.optim.weight_decay
        )
        self.trained = [self.rows]
        if context is not None and len(context.peers):
            ell = torch.tensor(context.log_weights, dtype=torch.float32, device=worker.device, requires_grad=True)
            self.optimizer.add_param_group({"params": [ell], "lr": config.variational.peer_learning_rate})
            self.local.log_weights = ell
            self.trained.append(ell)
        self.batches = [
            comparisons(f.pairs, config.optim.batch_size, steps, stream(config.seed, purpose, round, c))
            for f, c in zip(self.folds, self.stack, strict=True)
        ]

    def advance(self, steps: int) -> np.ndarray:
        """`steps` optimizer steps -> mean loss over them, float64 [n] (NaN for none)."""
        total = torch.zeros(len(self.stack), dtype=torch.float64, device=self.rows.device)
        for _ in range(steps):
            whole = [b[self.step] for b in self.batches]
            drawn = [b[self.share.rank :: self.share.world] for b in whole] if self.share else whole
            parts = [self.worker.loss.sequences(own) for own in drawn]
            ids, lengths, valid = self.worker._batch(self.folds, parts)
            at = (self.purpose, self.round, self.step)
            batch = Batch(self.stack, parts, ids, lengths, valid, self._dropout(parts), at)
            loss = self.worker.loss.loss(self.rows, batch, self.local)
            if self.share:  # this part's share of each whole batch's mean
                loss = loss * torch.tensor([len(d) / len(b) for d, b in zip(drawn, whole, strict=True)]).to(loss)
            # The sum over clients: d(sum)/d(row i) is client i's own gradient.
            for tensor, gradient in zip(self.trained, torch.autograd.grad(loss.sum(), self.trained), strict=True):
                tensor.grad = gradient
            if self.share:
                torch.distributed.all_reduce(self.rows.grad)
            self.optimizer.step()
            total += loss.detach()
            self.step += 1
        return (total / steps).cpu().numpy() if steps else np.full(len(self.stack), np.nan)

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
        """float32 [n, D]"""
        return self.rows.detach().cpu().numpy()

    def _dropout(self, parts: Sequence[np.ndarray]) -> Dropout | None:
        config = self.worker.config
        if config.model.lora_dropout == 0:
            return None
        at = (self.round, self.share.rank) if self.share else (self.round,)
        generators = [
            torch_stream(config.seed, f"dropout {self.purpose}", *at, c, self.step, device=self.worker.device)
            for c in self.stack
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
