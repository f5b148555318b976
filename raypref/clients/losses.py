"""What clients minimize, stacked: the binary selector's choice loss (S2), the variational selector's (S1), a policy's
(DPO).

An algorithm does not know which: rows, layout and results have the same form. Each judges margins in its own way, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from raypref.clients.protocol import PART, Context
from raypref.data.encode import EncodedFold
from raypref.models import latent
from raypref.models.layout import Layout
from raypref.models.peft_io import start_row
from raypref.models.selector import Dropout
from raypref.objectives import variational as vi
from raypref.objectives.choice import choice_loss, margins, metrics, order_margins
from raypref.objectives.dpo import dpo_loss, margin
from raypref.tools.rng import stream, torch_stream

if TYPE_CHECKING:
    from raypref.clients.worker import Worker


SHOWN_PAIRS = 8
"""Pairs a client whose own posteriors the printed form shows."""


class Batch(NamedTuple):
    """One step's sequences of n clients, padded to one shape."""

    stack: Sequence[int]
    parts: Sequence[np.ndarray]
    """[n] indices into each client's training fold, as `Loss.sequences` gave them."""
    ids: Tensor
    """[n, b, L]"""
    lengths: Tensor
    """[n, b]"""
    valid: Tensor
    """[n, b] bool."""
    dropout: Dropout | None
    at: tuple[str, int, int]
    """Purpose, round and step: what the step's other randomness is keyed by, beside the client."""

    @property
    def slots(self) -> Tensor:
        """[n, b] of comparisons: 0 where the chosen response is in slot A."""
        slots = torch.zeros_like(self.lengths)
        for i, part in enumerate(self.parts):
            slots[i, : len(part)] = torch.from_numpy(part % 2)
        return slots


class Loss(Protocol):
    """Made once a worker; holds nothing that changes but caches of what is frozen."""

    def sequences(self, comparisons: np.ndarray) -> np.ndarray:
        """Which sequences of a fold it reads where these comparisons were drawn."""
        ...

    def loss(self, rows: Tensor, batch: Batch, local: Local) -> Tensor:
        """rows [n, D] -> each client's own loss [n]."""
        ...

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """Client i's fold with row i -> [n] order margins m [N_i, 2]."""
        ...

    def judge(self, row: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        """Order margins [N, 2] of any N pairs under `row` [D], given one z [d] or each pair's own [N, d] where the
        objective has one."""
        ...

    def posterior(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """What each client's own training pairs say of its latent preference, n first; empty without one."""
        ...

    def probe(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Further numbers on the test fold that only this objective has, n first."""
        ...


@dataclass
class Local:
    """What a stretch of local training has beside the rows: the server's context, and what the client learns of it."""

    context: Context | None = None
    log_weights: Tensor | None = None
    """[n, P] ℓ over the context's peers, trained beside the rows."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """A step each: μ and z [n, b, d] of its pairs, and which of them are valid [n, b]."""
    parts: list[dict[str, Tensor]] = field(default_factory=list)
    """A step each: the parts of which the loss is the sum, [n]."""

    def statistics(self) -> dict[str, np.ndarray]:
        """What a client reports: the mean of its μ and the variance of its z over the stretch (S1 Algorithm 2, line
        26), [n, d] each, and its ℓ [n, P]; for people to see, the mean parts of its loss [n]."""
        told: dict[str, np.ndarray] = {}
        if self.seen:
            mu, z, valid = (torch.cat(parts, dim=1) for parts in zip(*self.seen, strict=True))
            weight = (valid / valid.sum(1, keepdim=True))[..., None]
            mean = (z * weight).sum(1, keepdim=True)
            told = {
                "mu": (mu * weight).sum(1).cpu().numpy(),
                "variance": ((z - mean) ** 2 * weight).sum(1).cpu().numpy(),
            }
        for name in self.parts[0] if self.parts else ():
            told[f"{PART}{name}"] = torch.stack([step[name] for step in self.parts]).mean(0).cpu().numpy()
        if self.log_weights is not None:
            told["log_weights"] = self.log_weights.detach().cpu().numpy()
        return told


class Choice:
    """-log σ(m), averaged over each client's own pairs (S2 2.1)."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def sequences(self, comparisons: np.ndarray) -> np.ndarray:
        return comparisons

    def loss(self, rows: Tensor, batch: Batch, local: Local) -> Tensor:
        logits = self.worker.selector.choice_logits(rows, batch.ids, batch.lengths, batch.dropout)
        return choice_loss(logits, batch.slots, batch.valid)

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        folds = [self.worker.clients[c].fold(fold) for c in clients]
        return [order_margins(one) for one in self.worker.choice_logits(rows, folds)]

    def judge(self, row: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        return order_margins(self.worker.choice_logits(row[None], [fold])[0])

    def posterior(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        return {}

    def probe(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        return {}


class DPO:
    """-log σ of the implicit reward's margin, averaged over each client's own pairs (`raypref.objectives.dpo`).

    The reference is what every policy of the run starts from, the frozen base or the adapter in `dpo.start`, in all
    rounds and in personalization. A policy that has not moved from it has margins of 0 up to rounding.
    """

    def __init__(self, worker: Worker) -> None:
        config = worker.config
        self.worker, self.beta = worker, config.dpo.beta
        self.reference = start_row(config, worker.layout)[None].to(worker.device) if config.dpo.start else None
        self.known: dict[tuple[int, str], Tensor] = {}

    def sequences(self, comparisons: np.ndarray) -> np.ndarray:
        """Both responses of each pair, whichever order was drawn."""
        pairs = comparisons // 2
        return np.stack([2 * pairs, 2 * pairs + 1], axis=1).reshape(-1)

    def loss(self, rows: Tensor, batch: Batch, local: Local) -> Tensor:
        folds = [self.worker.clients[c].train for c in batch.stack]
        spans = _spans(folds, batch.parts, batch.ids)
        policy = self.worker.selector.log_probs(rows, batch.ids, spans, batch.dropout)
        known = _padded([self.referred(c, "train")[p] for c, p in zip(batch.stack, batch.parts, strict=True)])
        return dpo_loss(self._margins(policy - known), batch.valid[:, ::2])

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """Either order is the same margin: no response is shown beside the other."""
        policies = self.log_probs(rows, [self.worker.clients[c].fold(fold) for c in clients])
        ratios = [own - self.referred(c, fold) for c, own in zip(clients, policies, strict=True)]
        return [self._margins(one)[:, None].expand(-1, 2) for one in ratios]

    def judge(self, row: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        (own,), (known,) = (self.log_probs(rows, [fold]) for rows in (row[None], self.reference))
        return self._margins(own - known)[:, None].expand(-1, 2)

    def posterior(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        return {}

    def probe(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        return {}

    def referred(self, client: int, fold: str) -> Tensor:
        """[2N] log-probabilities under the reference, computed once."""
        key = (client, fold)
        if key not in self.known:
            (self.known[key],) = self.log_probs(self.reference, [self.worker.clients[client].fold(fold)])
        return self.known[key]

    @torch.no_grad()
    def log_probs(self, rows: Tensor | None, folds: Sequence[EncodedFold]) -> list[Tensor]:
        """Row i on fold i -> log π of every response [2 N_i], without dropout; rows None: the frozen base."""
        found = [torch.empty(2 * f.pairs, device=self.worker.device) for f in folds]
        for parts, ids, _ in self.worker.passes(folds):
            told = self.worker.selector.log_probs(rows, ids, _spans(folds, parts, ids))
            for i, part in enumerate(parts):
                found[i][part] = told[i, : len(part)]
        return found

    def _margins(self, ratios: Tensor) -> Tensor:
        """Log-ratios of chosen and rejected responses in turn [..., 2N] -> [..., N]."""
        return margin(ratios[..., ::2], ratios[..., 1::2], self.beta)


@dataclass(frozen=True)
class States:
    """What a base reads of a fold: N pairs."""

    h: Tensor
    """[2N, 2, H] last-token states of responses A and B in each comparison."""
    logits: Tensor
    """[2N, 2] choice logits."""

    @property
    def chosen_rejected(self) -> Tensor:
        """[N, 2, H] (chosen, rejected), averaged over both orders: in one order alone the state carries the slot."""
        one, other = self.h[0::2], self.h[1::2].flip(1)
        return (one + other) / 2

    def either_way(self, comparisons: np.ndarray) -> Tensor:
        """[b, 2, H] (A, B) of comparisons, of those averages."""
        both = self.chosen_rejected[comparisons // 2]
        return torch.where(torch.from_numpy(comparisons % 2 == 0).to(both.device)[:, None, None], both, both.flip(1))


class Variational:
    """S1 Eq. 10 in both forms; see `raypref.models.latent`."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.options = worker, worker.config.variational
        self.adapter = worker.selector.layout.width if self.options.lora else 0
        self.latent = Layout(worker.layout.segments[len(worker.selector.layout.segments) if self.options.lora else 0 :])
        self.frozen: dict[tuple[int, str], States] = {}
        self.names: dict[int, np.ndarray] = {}

    def sequences(self, comparisons: np.ndarray) -> np.ndarray:
        return comparisons

    def loss(self, rows: Tensor, batch: Batch, local: Local) -> Tensor:
        v, n = self.options, len(batch.stack)
        parts = self.latent.split(rows[:, self.adapter :])
        # 1. Choice logits and features of the batch, and of the pairs from which z is inferred.
        if v.lora:
            folds = [self.worker.clients[c].train for c in batch.stack]
            spans = _spans(folds, batch.parts, batch.ids)
            logits, shown = self.worker.selector.read(
                rows[:, : self.adapter], batch.ids, batch.lengths, spans, batch.dropout
            )
        if not v.adapted:
            cached = [self.states(c, "train") for c in batch.stack]
            own = [s.h[p] if v.form == "printed" else s.either_way(p) for s, p in zip(cached, batch.parts, strict=True)]
            shown = _padded(own)
        if not v.lora:
            logits = _padded([s.logits[p] for s, p in zip(cached, batch.parts, strict=True)])
        kept = 1.0 - v.logit_dropout
        logits = (
            logits
            * self._draw(batch, "logits", logits.shape[1:2], lambda t, g: t.bernoulli_(kept, generator=g))[..., None]
        )
        # 2. The posterior, a sample, and what it does to the logits.
        if v.form == "printed":
            difference = _signed(shown, batch.slots)  # Δh = h_chosen - h_rejected of the comparison shown
            q = latent.encode(parts, latent.features(parts, difference), v.log_variance_max)
        else:
            e = latent.features(parts, shown)
            q = latent.encode(parts, self._summary(parts, batch, e), v.log_variance_max)
        noise = self._draw(batch, "z", q.mu.shape[1:], lambda t, g: t.normal_(generator=g))
        z = vi.reparameterize(q.mu, q.log_variance, noise)
        local.seen.append((q.mu.detach(), z.detach(), batch.valid))
        out = latent.project(parts, z)
        logits = logits + (out if v.form == "printed" else weigh(out, e))
        # 3. Reconstruction, prior matching, separation.
        per_pair = {
            "reconstruction": -torch.nn.functional.logsigmoid(margins(logits, batch.slots)),
            "kl": v.beta * self._kl(z, q, local, batch),
        }
        context, apart = local.context, {}
        if context is not None and context.labels is not None:
            labels = torch.from_numpy(context.labels).to(rows.device)
            P = parts[latent.PROTOTYPES]
            towards = P[torch.arange(n), labels.clamp(min=0)]
            per_pair["pull"] = v.lam * vi.pull_loss(z, towards) * (labels >= 0)[:, None]
            apart["orthonormality"] = v.gamma * vi.orthonormal_loss(P, v.scale)
        count = batch.valid.sum(-1)
        parts_of_it = {name: (part * batch.valid).sum(-1) / count for name, part in per_pair.items()} | apart
        local.parts.append({name: part.detach() for name, part in parts_of_it.items()})
        return torch.stack(list(parts_of_it.values())).sum(0)

    @torch.no_grad()
    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """z is inferred from the client's training pairs, never from the pair that is judged."""
        z = self.infer(rows, clients).mu
        return [self._judge(rows[i], states, z[i]) for i, states in enumerate(self._current(rows, clients, fold))]

    @torch.no_grad()
    def infer(self, rows: Tensor, clients: Sequence[int]) -> latent.Posterior:
        """Each client's posterior [n, d] given its training pairs, client i with row i. Nothing of the other folds is
        read. Printed, it has the mean and the variance of the mixture of its pairs' own posteriors."""
        told = [self._posterior(rows[i], s, c) for i, (c, s) in enumerate(self._contexts(rows, clients))]
        return latent.Posterior(*(torch.stack(part) for part in zip(*told, strict=True)))

    def _contexts(self, rows: Tensor, clients: Sequence[int]) -> list[tuple[int, States]]:
        """Each client with the states of its training pairs, of which only h is looked at."""
        if self.options.adapted:
            return list(zip(clients, self._current(rows, clients, "train"), strict=True))
        return [(c, self.states(c, "train")) for c in clients]

    def _posterior(self, row: Tensor, states: States, client: int, context: int = 0) -> tuple[Tensor, Tensor]:
        """μ and log σ² [d], given `context` of the client's training pairs (0, or more than it has: all)."""
        parts = self._parts(row)
        pairs = self._drawn(client, len(states.h) // 2, context)
        if self.options.form == "printed":
            q = self._by_comparison(parts, states.h[np.stack([2 * pairs, 2 * pairs + 1], axis=1).reshape(-1)])
            variance = q.log_variance.exp().mean(0) + q.mu.var(0, correction=0)
            return q.mu.mean(0), variance.log()
        e = latent.features(parts, states.chosen_rejected[pairs][None])
        every = torch.ones(1, 1, len(pairs), dtype=torch.bool, device=e.device)
        summary = latent.pool(parts, e[:, :, 0] - e[:, :, 1], every)
        q = latent.encode(parts, summary, self.options.log_variance_max)
        return q.mu[0, 0], q.log_variance[0, 0]

    def _by_comparison(self, parts: dict[str, Tensor], h: Tensor) -> latent.Posterior:
        """Printed: the posteriors [2N, d] of comparisons h [2N, 2, H] in both orders, each from its own Δh."""
        slots = (torch.arange(len(h), device=h.device) % 2)[None]
        q = latent.encode(parts, latent.features(parts, _signed(h[None], slots)), self.options.log_variance_max)
        return latent.Posterior(q.mu[0], q.log_variance[0])

    @torch.no_grad()
    def posterior(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """`mu` and `log_variance` [n, d] of the honest posterior; printed, also `pair_mu` [n, P, d] of P single pairs
        a client, the mean of both orders (NaN where it has fewer)."""
        q = self.infer(rows, clients)
        found = {"mu": q.mu.cpu().numpy(), "log_variance": q.log_variance.cpu().numpy()}
        if self.options.form == "printed":
            found["pair_mu"] = np.full((len(found["mu"]), SHOWN_PAIRS, self.options.d), np.nan, dtype=np.float32)
            for i, (_, states) in enumerate(self._contexts(rows, clients)):
                mu = self._by_comparison(self._parts(rows[i]), states.h[: 2 * SHOWN_PAIRS]).mu
                found["pair_mu"][i, : len(mu) // 2] = mu.unflatten(0, (-1, 2)).mean(1).cpu().numpy()
        return found

    @torch.no_grad()
    def probe(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Pair accuracy on the test fold, n first: `context_accuracy` [n, sizes] with z from `context_marks` pairs
        instead of all; `linear_accuracy` [n, sizes + 1] (the last: all) of what each client could do alone, see
        `linear_margins`; printed, also `leaked_accuracy` [n], see `leaked_margins`. `mu` and `log_variance` [n, d] are
        the posterior that a policy would be told (S1 Algorithm 1, line 17)."""
        tested = self._current(rows, clients, "test")
        contexts = self._contexts(rows, clients)
        by_size = [
            [
                self._judge(rows[i], tested[i], self._posterior(rows[i], states, c, size)[0])
                for size in self.options.context_marks
            ]
            for i, (c, states) in enumerate(contexts)
        ]
        alone = [[self.linear_margins(c, size) for size in (*self.options.context_marks, 0)] for c in clients]
        found = {
            name: np.array([[float(metrics(m)["accuracy"]) for m in own] for own in each])
            for name, each in (("context_accuracy", by_size), ("linear_accuracy", alone))
        }
        if self.options.form == "printed":
            leaked = [self.leaked_margins(rows[i], states) for i, states in enumerate(tested)]
            found["leaked_accuracy"] = np.array([float(metrics(m)["accuracy"]) for m in leaked])
        q = self.infer(rows, clients)
        return found | {"mu": q.mu.cpu().numpy(), "log_variance": q.log_variance.cpu().numpy()}

    def _drawn(self, client: int, pairs: int, context: int) -> np.ndarray:
        """Which of a client's training pairs z is inferred from."""
        if not context or context >= pairs:
            return np.arange(pairs)
        return np.sort(stream(self.worker.config.seed, "context", client).permutation(pairs)[:context])

    def linear_margins(self, client: int, context: int) -> Tensor:
        """Order margins [N, 2], both alike, of a logistic regression on the frozen base's features that the client fits
        alone to the same context pairs: what needs no federation, and no training but this."""
        from sklearn.linear_model import LogisticRegression

        states, test = self.states(client, "train"), self.states(client, "test")
        pairs = self._drawn(client, len(states.h) // 2, context)
        x, told = (latent.normalized(s.chosen_rejected).cpu().double().numpy() for s in (states, test))
        x = x[pairs, 0] - x[pairs, 1]
        model = LogisticRegression(C=10.0, fit_intercept=False, max_iter=1000)
        model.fit(np.concatenate([x, -x]), np.repeat([1, 0], len(x)))
        return torch.from_numpy(model.decision_function(told[:, 0] - told[:, 1])).float()[:, None].expand(-1, 2)

    def leaked_margins(self, row: Tensor, states: States) -> Tensor:
        """Order margins [N, 2] that the printed form seems to reach when z comes from the very pair that is judged, as
        Algorithm 2's posterior does: its Δh = h_chosen - h_rejected holds the label. A diagnostic of that leak, no
        accuracy."""
        parts = self._parts(row)
        z = self._by_comparison(parts, states.h).mu
        return order_margins((states.logits + latent.project(parts, z[None])[0]).cpu())

    @torch.no_grad()
    def judge(self, row: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        assert z is not None
        lora, adapted = self.options.lora, self.options.adapted
        (states,) = self._read(row[None, : self.adapter] if adapted else None, [fold])
        if lora and not adapted:
            (logits,) = self.worker.choice_logits(row[None, : self.adapter], [fold])
            states = States(states.h, logits.to(row.device))
        return self._judge(row, states, z)

    def _judge(self, row: Tensor, states: States, z: Tensor) -> Tensor:
        """Order margins [N, 2] of N pairs, given one z [d] or each pair's own [N, d]."""
        parts = self._parts(row)
        out = latent.project(parts, torch.atleast_2d(z)[None])
        if self.options.form == "printed":
            both = out[0].repeat_interleave(2, dim=0) if z.dim() == 2 else out[0]  # a pair's two orders
            return order_margins((states.logits + both).cpu())
        e = latent.features(parts, states.chosen_rejected[None])
        shift = weigh(out.expand(-1, e.shape[1], -1), e)[0]  # for the chosen in slot A
        return order_margins((states.logits + torch.stack([shift, shift.flip(-1)], dim=1).flatten(0, 1)).cpu())

    def _parts(self, row: Tensor) -> dict[str, Tensor]:
        """The latent modules of one row [D], [1, ...] each."""
        return self.latent.split(row[None, self.adapter :])

    def _summary(self, parts: dict[str, Tensor], batch: Batch, e: Tensor) -> Tensor:
        """[n, b, F] what each target's posterior is inferred from: the client's other pairs, never the pair itself nor
        a reversed or repeated form of it."""
        if self.options.adapted:  # the batch's own, through the pass that there is
            f = _signed(e, batch.slots)
            pairs = [part // 2 for part in batch.parts]
            there = batch.valid
        else:
            pairs = [self._context(batch, c) for c in batch.stack]
            h = _padded([self.states(c, "train").chosen_rejected[p] for c, p in zip(batch.stack, pairs, strict=True)])
            context = latent.features(parts, h)
            f = context[:, :, 0] - context[:, :, 1]
            there = _padded([torch.ones(len(p), dtype=torch.bool) for p in pairs]).to(f.device)
        mask = torch.zeros(*batch.valid.shape, f.shape[1], dtype=torch.bool)
        for i, (c, own, part) in enumerate(zip(batch.stack, pairs, batch.parts, strict=True)):
            names = self.pair_names(c)
            mask[i, : len(part), : len(own)] = torch.from_numpy(names[part // 2][:, None] != names[own][None])
        return latent.pool(parts, f, mask.to(f.device) & there[:, None])

    def _context(self, batch: Batch, client: int) -> np.ndarray:
        pairs, wanted = self.worker.clients[client].train.pairs, self.options.context
        if not wanted or wanted >= pairs:
            return np.arange(pairs)
        purpose, *at = batch.at
        return np.sort(stream(self.worker.config.seed, f"context {purpose}", *at, client).permutation(pairs)[:wanted])

    def _kl(self, z: Tensor, q: latent.Posterior, local: Local, batch: Batch) -> Tensor:
        """[n, b]: to the mixture of the peers where the server sent one, else to N(0, I) (S1 Algorithm 2, lines
        2-6)."""
        context = local.context
        if context is None or local.log_weights is None:
            return vi.gaussian_kl(q.mu, q.log_variance).sum(-1)
        own = torch.from_numpy(context.peers[None] == np.asarray(batch.stack)[:, None]).to(z.device)
        alone = own.all(1)  # of a cohort of one that was drawn twice running: nobody is left but N(0, I)
        own = own & ~alone[:, None]
        logits = local.log_weights.masked_fill(own, -torch.inf)
        gumbel = self._draw(batch, "gumbel", logits.shape[1:], lambda t, g: -torch.log(t.exponential_(generator=g)))
        log_w = vi.gumbel_log_weights(logits, gumbel, self.options.tau)
        mean, variance = (torch.from_numpy(a).to(z.device) for a in (context.mean, context.variance))
        mixed = vi.mixture_kl(z, q.mu, q.log_variance, log_w, mean, variance)
        return torch.where(alone[:, None], vi.gaussian_kl(q.mu, q.log_variance).sum(-1), mixed)

    def _draw(self, batch: Batch, what: str, shape: Sequence[int], fill: Any) -> Tensor:
        """[n, *shape] noise, each client's own whoever shares the pass."""
        purpose, *at = batch.at
        device = self.worker.device
        return torch.stack([
            fill(torch.empty(tuple(shape), device=device),
                 torch_stream(self.worker.config.seed, f"{what} {purpose}", *at, c, device=device))
            for c in batch.stack
        ])  # fmt: skip

    def states(self, client: int, fold: str) -> States:
        """Of the frozen base, computed once."""
        key = (client, fold)
        if key not in self.frozen:
            (self.frozen[key],) = self._read(None, [self.worker.clients[client].fold(fold)])
        return self.frozen[key]

    def _current(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[States]:
        """As each row sees it: its own logits where it has an adapter, its own features where they are adapted."""
        if not self.options.lora:
            return [self.states(c, fold) for c in clients]
        folds = [self.worker.clients[c].fold(fold) for c in clients]
        if self.options.adapted:
            return self._read(rows[:, : self.adapter], folds)
        logits = self.worker.choice_logits(rows[:, : self.adapter], folds)
        return [States(self.states(c, fold).h, own.to(rows.device)) for c, own in zip(clients, logits, strict=True)]

    @torch.no_grad()
    def _read(self, rows: Tensor | None, folds: Sequence[EncodedFold]) -> list[States]:
        """Stacked, in batches of similar length; rows None: the frozen base, of one fold."""
        worker = self.worker
        width = worker.selector.model.config.hidden_size
        h = [torch.empty(2 * f.pairs, 2, width, device=worker.device) for f in folds]
        logits = [torch.empty(2 * f.pairs, 2, device=worker.device) for f in folds]
        for parts, ids, lengths in worker.passes(folds):
            told, states = worker.selector.read(rows, ids, lengths, _spans(folds, parts, ids))
            for i, part in enumerate(parts):
                logits[i][part], h[i][part] = told[i, : len(part)], states[i, : len(part)]
                if self.options.responses == "apart" and len(part):
                    h[i][part] = self._apart(None if rows is None else rows[i : i + 1], folds[i], part)
        return [States(*both) for both in zip(h, logits, strict=True)]

    def _apart(self, row: Tensor | None, data: EncodedFold, part: np.ndarray) -> Tensor:
        """[b, 2, H] each response after its own prompt, outside the comparison: the text up to where A begins, then
        the response. The same in both slots."""
        texts = []
        for j in part:
            tokens = data.tokens[data.offsets[j] : data.offsets[j + 1]]
            a, a_end, b, b_end = data.spans[j]
            texts += [np.concatenate([tokens[:a], tokens[a:a_end]]), np.concatenate([tokens[:a], tokens[b:b_end]])]
        lengths = np.array([len(t) for t in texts])
        ids = np.full((len(texts), lengths.max()), self.worker.selector.pad, dtype=np.int64)
        for i, text in enumerate(texts):
            ids[i, : len(text)] = text
        hidden = self.worker.selector.hidden(row, self.worker._tensor(ids)[None])
        last = hidden[0, torch.arange(len(texts)), torch.from_numpy(lengths - 1)]
        return last.float().view(len(part), 2, -1)

    def pair_names(self, client: int) -> np.ndarray:
        """int64 [N] equal for pairs of the same two texts, whichever was chosen."""
        if client not in self.names:
            fold = self.worker.clients[client].train
            both = [fold.tokens[fold.offsets[j] : fold.offsets[j + 1]].tobytes() for j in range(2 * fold.pairs)]
            names = [
                hashlib.blake2b(b"".join(sorted(both[2 * i : 2 * i + 2])), digest_size=8) for i in range(fold.pairs)
            ]
            self.names[client] = np.array([int.from_bytes(name.digest(), "little", signed=True) for name in names])
        return self.names[client]


def weigh(out: Tensor, e: Tensor) -> Tensor:
    """w(z) · (e_A - e_B) / √F as a shift of both logits, half up and half down: [n, b, F], [n, b, 2, F] -> [n, b,
    2]."""
    difference = (out * (e[..., 0, :] - e[..., 1, :])).sum(-1) / out.shape[-1] ** 0.5
    return torch.stack([difference, -difference], dim=-1) / 2


def _spans(folds: Sequence[EncodedFold], parts: Sequence[np.ndarray], ids: Tensor) -> Tensor:
    """[n, b, 4 or 2] of sequences parts[i] of fold i, beside their ids [n, b, L]."""
    spans = torch.ones(*ids.shape[:2], folds[0].spans.shape[1], dtype=torch.int64)
    for i, (fold, part) in enumerate(zip(folds, parts, strict=True)):
        spans[i, : len(part)] = torch.from_numpy(fold.spans[part].astype(np.int64))
    return spans.to(ids.device)


def _signed(h: Tensor, slots: Tensor) -> Tensor:
    """Chosen minus rejected of comparisons: [n, b, 2, X] (A, B), slots [n, b] -> [n, b, X]."""
    difference = h[..., 0, :] - h[..., 1, :]
    return torch.where((slots == 0)[..., None], difference, -difference)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of different lengths in one, zeros behind: n of [K_i, ...] -> [n, K, ...]."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
