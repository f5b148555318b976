"""The variational selector of S1 (4.1 to 4.3, A.1 to A.7): each client has a latent z, inferred from its own pairs.

First the objective, then its loss as pure functions. These are stacked over n clients and S samples a client:
q = N(μ, diag σ²) is a posterior, z a sample of it. Peers are the clients that a mixture prior was built from; their
statistics are constants here (A.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from raypref.config.fields import setting
from raypref.data.encode import EncodedFold, Encoding, encode_pairs, sequences_of
from raypref.models.layout import BESIDE, Layout
from raypref.objectives import latent
from raypref.objectives.base import (
    Batch,
    Latent,
    Loss,
    Objective,
    Once,
    Posterior,
    check_context_marks,
    context_pairs,
    other_pairs,
    padded,
)
from raypref.objectives.choice import choice_loss, metrics, order_margins
from raypref.tools.errors import UserError
from raypref.tools.lazy import torch
from raypref.tools.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

    from raypref.config import RunConfig
    from raypref.models.reader import Reader

SHOWN_PAIRS = 8
"""Pairs a client whose own posteriors the printed form shows."""


@dataclass(frozen=True)
class VariationalConfig:
    """The variational selector (S1 section 4); used where `objective` is `variational`."""

    form: Literal["conditioned", "printed"] = "conditioned"
    """`printed`: Eq. 2 and Algorithm 2 as printed: the projection of z is added to the choice logits, and the posterior
    of a pair comes from that pair. `conditioned`: the projection of z weighs the responses' features, and the posterior
    comes from the client's other pairs."""
    lora: bool = False
    """Train the LoRA adapter, too, as the printed form must; without, only the latent modules, on features computed
    once."""
    adapted: bool = False
    """Features through the adapter instead of from the frozen base (S1 4.1: "the frozen base LLM"); needs `lora`."""
    responses: Literal["joint", "apart"] = "joint"
    """A response's features inside the comparison, as printed, or read on its own after its prompt: by the frozen base
    once for all runs, for whatever pairs it is in."""
    logits: bool = setting(True, neutral=True)
    """Conditioned without `lora` only: add the base's choice logits, as printed; without them nothing but z weighs
    responses, and with `responses apart` no comparison is read."""
    linear: bool = True
    """Conditioned only: a linear path beside extractor, encoder and projection, the last two sharing it, so that z
    starts as a projection of the mean feature difference, by which alone pairs are told apart better than by chance."""
    pooling: Literal["mean", "attention"] = "mean"
    """Conditioned only: how the context pairs are summed up."""
    context: int = setting(0, least=0)
    """Conditioned only: context pairs drawn a training step; 0: all the client's other training pairs."""
    context_marks: tuple[int, ...] = setting((1, 2, 4, 8, 16, 64), part="shown")
    """Read-outs before any local step with z from so many of the client's training pairs only (all, where it has
    fewer)."""
    d: int = setting(32, least=1)
    """Latent dimension (S1 Table 4)."""
    features: int = setting(64, least=1)
    """F, width of the feature extractor, an MLP H -> F -> F (S1 does not say; 512 and `encoder` 256 make the modules
    the 0.9 M of 5.5 on Qwen2-0.5B)."""
    encoder: int = setting(64, least=1)
    """E, width of the encoder, an MLP F -> E -> 2d."""
    M: int = setting(4, least=1)
    """Prototypes: preference groups to tell apart (S1 5.1: 2, for helpful and harmless)."""
    beta: float = setting(0.001, least=0)
    """β, weight of the KL (S1 Table 4: 0.01)."""
    lam: float = setting(0.1, least=0)
    """λ, weight of the pull towards the prototype (S1 Table 4: 1)."""
    gamma: float = setting(0.1, least=0)
    """γ, weight of the prototypes' orthonormality (S1 Table 4)."""
    tau: float = setting(1.0, above=0)
    """τ, Gumbel-softmax temperature (S1 Table 4)."""
    scale: float = setting(5.0, above=0)
    """s, the prototypes' radius (S1 Table 4)."""
    log_variance_max: float = setting(0.0, least=-20)
    """log σ²_max (S1 4.1 does not say it)."""
    logit_dropout: float = setting(0.5, least=0, below=1)
    """p_logit: rate at which a comparison's base logits are dropped in training (S1 4.4: 0.5 on Qwen2-0.5B, 0 on
    Gemma-2B)."""
    peer_learning_rate: float = setting(0.1, above=0)
    """Of the peer log-weights ℓ, which stay at the client (S1 does not say): at the adapter's rate they would not leave
    uniform within a round."""
    every: int = setting(10, part="shown", least=0)
    """Rounds between two read-outs of every client's posterior, beside the last; 0: none."""
    balanced: bool = True
    """Prototype labels by balanced k-means (S1 4.2), or by ordinary k-means."""


@dataclass(frozen=True)
class States:
    """What a base reads of a fold: N pairs."""

    logits: Tensor
    """[2N, 2] choice logits."""
    shown: Callable[[np.ndarray], Tensor]
    """Comparisons [b] -> [b, 2, H] last-token states of responses A and B in them."""

    @property
    def pairs(self) -> int:
        return len(self.logits) // 2

    @property
    def all_shown(self) -> Tensor:
        """[2N, 2, H]"""
        return self.shown(np.arange(2 * self.pairs))

    def chosen_rejected(self, pairs: np.ndarray | None = None) -> Tensor:
        """[b, 2, H] (chosen, rejected) of some pairs (None: all), averaged over both orders: in one order alone the
        state carries the slot."""
        pairs = np.arange(self.pairs) if pairs is None else pairs
        one, other = self.shown(2 * pairs), self.shown(2 * pairs + 1).flip(1)
        return (one + other) / 2

    def either_way(self, comparisons: np.ndarray) -> Tensor:
        """[b, 2, H] (A, B) of comparisons, of those averages."""
        both = self.chosen_rejected(comparisons // 2)
        return torch.where(torch.from_numpy(comparisons % 2 == 0).to(both.device)[:, None, None], both, both.flip(1))


class Variational(Objective):
    """S1 Eq. 10 in both forms with the prior N(0, I); see `raypref.objectives.latent`."""

    parameters: ClassVar[Mapping[str, type]] = {"variational": VariationalConfig}
    has_latent: ClassVar[bool] = True
    has_prototypes: ClassVar[bool] = True

    def __init__(self, config: RunConfig, reader: Reader) -> None:
        from raypref.models.features import Features

        super().__init__(config, reader)
        self.options = config.of(VariationalConfig)
        adapter = reader.selector.layout
        self.adapter = adapter.width if self.options.lora else 0
        """Parameters of a row that are the adapter's; the latent modules follow."""
        self.latent = Layout(self.layout(config).segments[len(adapter.segments) if self.options.lora else 0 :])
        self.features = Features(reader.selector, config)
        self.frozen: dict[tuple[int, str], States] = {}
        self.inferred: Once[Posterior] = Once()

    @classmethod
    def check(cls, config: RunConfig) -> None:
        v = config.of(VariationalConfig)
        check_context_marks("variational.context_marks", v.context_marks)
        if v.adapted and not v.lora:
            raise UserError("variational.adapted reads features through the adapter; it needs variational.lora")
        if not v.logits and (v.lora or v.form == "printed"):
            raise UserError(
                "without variational.logits nothing but z weighs responses: that is the conditioned form without LoRA; "
                "leave variational.form and variational.lora as they are"
            )
        if v.form == "printed" and (not v.lora or v.pooling != "mean" or v.context):
            raise UserError(
                "variational.form printed learns by its adapter alone and sums up no context: add --variational.lora, "
                "and leave variational.pooling and context as they are"
            )

    @classmethod
    def form(cls, config: Mapping[str, Any]) -> str:
        return str(config["variational.form"])

    @classmethod
    def latent_width(cls, config: RunConfig) -> int:
        return config.of(VariationalConfig).d

    @classmethod
    def posterior_every(cls, config: RunConfig) -> int:
        return config.of(VariationalConfig).every

    @classmethod
    def encoding(cls, config: RunConfig) -> Encoding:
        return Encoding(encode_pairs, config.data.template, compares=True)

    @classmethod
    def layout(cls, config: RunConfig) -> Layout:
        """The latent modules and, as `lora` says, the adapter before them."""
        from raypref.models.selector import base_layout, load_architecture

        options = config.of(VariationalConfig)
        modules = latent.latent_segments(load_architecture(config.model.base).hidden_size, options)
        return Layout((*base_layout(config.model).segments, *modules) if options.lora else modules)

    @classmethod
    def head(cls, config: RunConfig, layout: Layout) -> Tensor:
        """The projection of z."""
        return layout.mask(segment.name.startswith(f"{BESIDE}projection.") for segment in layout.segments)

    def loss(self, rows: Tensor, batch: Batch) -> Loss:
        v = self.options
        parts = self.latent.split(rows[:, self.adapter :])
        # 1. Choice logits and features of the batch, and of the pairs from which z is inferred.
        if v.lora:
            spans = self.reader.spans(self.reader.folds(batch.clients, "train"), batch.parts, batch.ids)
            logits, shown = self.reader.selector.read(
                rows[:, : self.adapter], batch.ids, batch.lengths, spans, batch.dropout
            )
        if not v.adapted:
            read = list(zip([self.states(c, "train") for c in batch.clients], batch.parts, strict=True))
            shown = padded([s.shown(p) if v.form == "printed" else s.either_way(p) for s, p in read])
        if not v.lora:
            logits = padded([s.logits[p] for s, p in read])
        kept = 1.0 - v.logit_dropout
        logits = (
            logits * batch.draw("logits", logits.shape[1:2], lambda t, g: t.bernoulli_(kept, generator=g))[..., None]
        )
        # 2. The posterior, a sample, and what it does to the logits.
        if v.form == "printed":
            difference = _signed(shown, batch.slots)  # Δh = h_chosen - h_rejected of the comparison shown
            q = latent.encode(parts, latent.features(parts, difference), v.log_variance_max)
        else:
            e = latent.features(parts, shown)
            q = latent.encode(parts, self._summary(parts, batch, e), v.log_variance_max)
        noise = batch.draw("z", q.mu.shape[1:], lambda t, g: t.normal_(generator=g))
        z = reparameterize(q.mu, q.log_variance, noise)
        out = latent.project(parts, z)
        logits = logits + (out if v.form == "printed" else weigh(out, e))
        # 3. Reconstruction, and the prior N(0, I).
        per_pair = {
            "reconstruction": choice_loss(logits, batch.slots),
            "kl": v.beta * gaussian_kl(q.mu, q.log_variance).sum(-1),
        }
        return Loss(per_pair, batch.valid, Latent(q, z, parts[latent.PROTOTYPES]))

    def order_margins(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[Tensor]:
        """z is inferred from the client's training pairs, never from the pair that is judged."""
        z = self.infer(rows, clients).mu
        return [self._margins(rows[i], states, z[i]) for i, states in enumerate(self._current(rows, clients, fold))]

    def infer(self, rows: Tensor, clients: Sequence[int]) -> Posterior:
        """Each client's posterior [n, d] given its training pairs, client i with row i. Nothing of the other folds is
        read. Printed, it has the mean and the variance of the mixture of its pairs' own posteriors."""
        return self.inferred.get(
            rows, clients, self.reader.folds(clients, "train"), lambda: self._posteriors(rows, clients)
        )

    def _posteriors(self, rows: Tensor, clients: Sequence[int]) -> Posterior:
        posteriors = [self._posterior(rows[i], s, c) for i, (c, s) in enumerate(self._contexts(rows, clients))]
        return Posterior(*(torch.stack(part) for part in zip(*posteriors, strict=True)))

    def _contexts(self, rows: Tensor, clients: Sequence[int]) -> list[tuple[int, States]]:
        """Each client with the states of its training pairs, of which only h is looked at."""
        if self.options.adapted:
            return list(zip(clients, self._current(rows, clients, "train"), strict=True))
        return [(c, self.states(c, "train")) for c in clients]

    def _posterior(self, row: Tensor, states: States, client: int, context: int = 0) -> tuple[Tensor, Tensor]:
        """μ and log σ² [d], given `context` of the client's training pairs (0, or more than it has: all)."""
        parts = self._parts(row)
        pairs = context_pairs(self.config.seed, client, states.pairs, context)
        if self.options.form == "printed":
            q = self._by_comparison(parts, states.shown(np.stack([2 * pairs, 2 * pairs + 1], axis=1).reshape(-1)))
            variance = q.log_variance.exp().mean(0) + q.mu.var(0, correction=0)
            return q.mu.mean(0), variance.log()
        e = latent.features(parts, states.chosen_rejected(pairs)[None])
        every = torch.ones(1, 1, len(pairs), dtype=torch.bool, device=e.device)
        summary = latent.pool(parts, e[:, :, 0] - e[:, :, 1], every)
        q = latent.encode(parts, summary, self.options.log_variance_max)
        return q.mu[0, 0], q.log_variance[0, 0]

    def _by_comparison(self, parts: dict[str, Tensor], h: Tensor) -> Posterior:
        """Printed: the posteriors [2N, d] of comparisons h [2N, 2, H] in both orders, each from its own Δh."""
        slots = (torch.arange(len(h), device=h.device) % 2)[None]
        q = latent.encode(parts, latent.features(parts, _signed(h[None], slots)), self.options.log_variance_max)
        return Posterior(q.mu[0], q.log_variance[0])

    def posterior(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """`mu` and `log_variance` [n, d] of the honest posterior; printed, also `pair_mu` [n, P, d] of P single pairs
        a client, the mean of both orders (NaN where it has fewer)."""
        q = self.infer(rows, clients)
        arrays = {"mu": q.mu.cpu().numpy(), "log_variance": q.log_variance.cpu().numpy()}
        if self.options.form == "printed":
            arrays["pair_mu"] = np.full((len(arrays["mu"]), SHOWN_PAIRS, self.options.d), np.nan, dtype=np.float32)
            for i, (_, states) in enumerate(self._contexts(rows, clients)):
                mu = self._by_comparison(
                    self._parts(rows[i]), states.shown(np.arange(2 * min(SHOWN_PAIRS, states.pairs)))
                ).mu
                arrays["pair_mu"][i, : len(mu) // 2] = mu.unflatten(0, (-1, 2)).mean(1).cpu().numpy()
        return arrays

    def probe(self, rows: Tensor, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Pair accuracy on the test fold, n first: `context_accuracy` [n, sizes] with z from `context_marks` pairs
        instead of all; `linear_accuracy` [n, sizes + 1] (the last: all) of what each client could do alone, see
        `linear_margins`; printed, also `leaked_accuracy` [n], see `leaked_margins`. `mu` and `log_variance` [n, d] are
        the posterior that a policy would be given (S1 Algorithm 1, line 17)."""
        tested = self._current(rows, clients, "test")
        contexts = self._contexts(rows, clients)
        by_size = [
            [
                self._margins(rows[i], tested[i], self._posterior(rows[i], states, c, size)[0])
                for size in self.options.context_marks
            ]
            for i, (c, states) in enumerate(contexts)
        ]
        alone = [[self.linear_margins(c, size) for size in (*self.options.context_marks, 0)] for c in clients]
        accuracies = {
            name: np.array([[float(metrics(m)["accuracy"]) for m in of_client] for of_client in each])
            for name, each in (("context_accuracy", by_size), ("linear_accuracy", alone))
        }
        if self.options.form == "printed":
            leaked = [self.leaked_margins(rows[i], states) for i, states in enumerate(tested)]
            accuracies["leaked_accuracy"] = np.array([float(metrics(m)["accuracy"]) for m in leaked])
        q = self.infer(rows, clients)
        return accuracies | {"mu": q.mu.cpu().numpy(), "log_variance": q.log_variance.cpu().numpy()}

    def linear_margins(self, client: int, context: int) -> Tensor:
        """Order margins [N, 2], both alike, of a logistic regression on the frozen base's features that the client fits
        alone to the same context pairs: what needs no federation, and no training but this."""
        from sklearn.linear_model import LogisticRegression

        states, test = self.states(client, "train"), self.states(client, "test")
        pairs = context_pairs(self.config.seed, client, states.pairs, context)
        x, tested = (latent.normalized(s.chosen_rejected()).cpu().double().numpy() for s in (states, test))
        x = x[pairs, 0] - x[pairs, 1]
        model = LogisticRegression(C=10.0, fit_intercept=False, max_iter=1000)
        model.fit(np.concatenate([x, -x]), np.repeat([1, 0], len(x)))
        return torch.from_numpy(model.decision_function(tested[:, 0] - tested[:, 1])).float()[:, None].expand(-1, 2)

    def leaked_margins(self, row: Tensor, states: States) -> Tensor:
        """Order margins [N, 2] that the printed form seems to reach when z comes from the very pair that is judged, as
        Algorithm 2's posterior does: its Δh = h_chosen - h_rejected holds the label. A diagnostic of that leak, no
        accuracy."""
        parts = self._parts(row)
        z = self._by_comparison(parts, states.all_shown).mu
        return order_margins((states.logits + latent.project(parts, z[None])[0]).cpu())

    def margins(self, rows: Tensor, fold: EncodedFold, z: Tensor | None) -> Tensor:
        assert z is not None
        margins, states = [], None
        for i, row in enumerate(rows):
            if states is None or not torch.equal(row, rows[i - 1]):
                states = self._of_pairs(row, fold)
            margins.append(self._margins(row, states, z[i, 0] if z.dim() == 3 else z))
        return torch.stack(margins)

    def _of_pairs(self, row: Tensor, fold: EncodedFold) -> States:
        """What one row reads of any pairs."""
        adapter = row[None, : self.adapter]
        (states,) = self._read(adapter if self.options.adapted else None, [fold])
        if self.options.lora and not self.options.adapted:
            (logits,) = self.reader.choice_logits(adapter, [fold])
            states = States(logits.to(row.device), states.shown)
        return states

    def _margins(self, row: Tensor, states: States, z: Tensor) -> Tensor:
        """Order margins [N, 2] of N pairs, given one z [d] or each pair's own [N, d]."""
        parts = self._parts(row)
        out = latent.project(parts, torch.atleast_2d(z)[None])
        if self.options.form == "printed":
            both = out[0].repeat_interleave(2, dim=0) if z.dim() == 2 else out[0]  # a pair's two orders
            return order_margins((states.logits + both).cpu())
        e = latent.features(parts, states.chosen_rejected()[None])
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
            pairs = [self._context(batch, c) for c in batch.clients]
            h = padded([self.states(c, "train").chosen_rejected(p) for c, p in zip(batch.clients, pairs, strict=True)])
            context = latent.features(parts, h)
            f = context[:, :, 0] - context[:, :, 1]
            there = padded([torch.ones(len(p), dtype=torch.bool) for p in pairs]).to(f.device)
        names = [self.pair_names(c) for c in batch.clients]
        targets = [of_client[part // 2] for of_client, part in zip(names, batch.parts, strict=True)]
        mask = other_pairs(targets, [of_client[k] for of_client, k in zip(names, pairs, strict=True)]).to(f.device)
        return latent.pool(parts, f, mask & there[:, None])

    def _context(self, batch: Batch, client: int) -> np.ndarray:
        pairs, wanted = self.reader.clients[client].train.pairs, self.options.context
        if not wanted or wanted >= pairs:
            return np.arange(pairs)
        purpose, *at = batch.at
        return np.sort(stream(self.config.seed, f"context {purpose}", *at, client).permutation(pairs)[:wanted])

    def states(self, client: int, fold: str) -> States:
        """Of the frozen base, computed once."""
        key = (client, fold)
        if key not in self.frozen:
            (data,) = self.reader.folds([client], fold)
            self.frozen[key] = self._looked_up(data) if self.looks_up(self.config) else self._read(None, [data])[0]
        return self.frozen[key]

    @classmethod
    def looks_up(cls, config: RunConfig) -> bool:
        """Whether it looks up what the frozen base reads of each response, which is the same in many pairs."""
        options = config.of(VariationalConfig)
        return options.responses == "apart" and not options.adapted

    @classmethod
    def read_once(cls, config: RunConfig, folds: Sequence[EncodedFold]) -> Iterator[np.ndarray]:
        options = config.of(VariationalConfig)
        for fold in folds if cls.looks_up(config) else ():
            yield from responses_apart(fold, range(2 * fold.pairs))
            if options.logits and not options.lora:
                yield from sequences_of(fold)

    @classmethod
    def kept_bytes(cls, config: RunConfig, pairs: int, context: int) -> int:
        from raypref.models.selector import load_architecture

        options, H = config.of(VariationalConfig), int(load_architecture(config.model.base).hidden_size)
        if options.adapted:
            return 0
        # A table of both responses, and its copy as it grows; else states and logits of either order.
        states = pairs * 4 * (2 * 2 * H if cls.looks_up(config) else 2 * (2 * H + 2))
        if options.form == "printed":
            return states
        return states + min(context, options.context or context) * 2 * 4 * (2 * H + 8 * options.features)

    def _looked_up(self, data: EncodedFold) -> States:
        """Of the frozen base, each response and comparison read once for all runs."""
        at = self.features.places(responses_apart(data, range(2 * data.pairs))).reshape(-1, 2)
        logits = torch.zeros(2 * data.pairs, 2, device=self.reader.device)
        if self.options.logits and not self.options.lora:
            last = self.features.states(sequences_of(data), keep=True)
            logits = self.reader.selector.head(last.to(self.reader.selector.choice_weight))
        return States(logits, lambda comparisons: self.features.table[self.reader.tensor(at[comparisons])])

    def _current(self, rows: Tensor, clients: Sequence[int], fold: str) -> list[States]:
        """As each row sees it: its own logits where it has an adapter, its own features where they are adapted."""
        if not self.options.lora:
            return [self.states(c, fold) for c in clients]
        folds = self.reader.folds(clients, fold)
        if self.options.adapted:
            return self._read(rows[:, : self.adapter], folds)
        logits = self.reader.choice_logits(rows[:, : self.adapter], folds)
        return [States(one.to(rows.device), self.states(c, fold).shown) for c, one in zip(clients, logits, strict=True)]

    def _read(self, rows: Tensor | None, folds: Sequence[EncodedFold]) -> list[States]:
        """Row i on fold i, one after another as in `Reader.choice_logits`; rows None: the frozen base."""
        reader, width = self.reader, self.reader.selector.model.config.hidden_size
        read = []
        with torch.no_grad():
            for row, fold in zip([None] * len(folds) if rows is None else rows.split(1), folds, strict=True):
                h = torch.empty(2 * fold.pairs, 2, width, device=reader.device)
                logits = torch.empty(2 * fold.pairs, 2, device=reader.device)
                for (part,), ids, lengths, _ in reader.passes([fold]):
                    choices, states = reader.selector.read(row, ids, lengths, reader.spans([fold], [part], ids))
                    apart = self.options.responses == "apart"
                    h[part] = self._apart(row, fold, part) if apart else states[0]
                    logits[part] = choices[0] * self.options.logits
                read.append(States(logits, h.__getitem__))
        return read

    def _apart(self, row: Tensor | None, data: EncodedFold, part: np.ndarray) -> Tensor:
        """[b, 2, H] each response of comparisons as `responses_apart` has it."""
        texts = list(responses_apart(data, part))
        lengths = np.array([len(t) for t in texts])
        ids = np.full((len(texts), lengths.max()), self.reader.selector.pad, dtype=np.int64)
        for i, text in enumerate(texts):
            ids[i, : len(text)] = text
        last = self.reader.selector.states(
            row, self.reader.tensor(ids)[None], self.reader.tensor(lengths - 1)[None, :, None]
        )
        return last.float().view(len(part), 2, -1)


def responses_apart(data: EncodedFold, comparisons: Iterable[int]) -> Iterator[np.ndarray]:
    """A, then B of each comparison, after its own prompt and outside the comparison: the text up to where A begins,
    then the response. The same in both slots."""
    for j in comparisons:
        tokens = data.tokens[data.offsets[j] : data.offsets[j + 1]]
        a, a_end, b, b_end = data.spans[j]
        yield tokens[:a_end]
        yield np.concatenate([tokens[:a], tokens[b:b_end]])


def weigh(out: Tensor, e: Tensor) -> Tensor:
    """w(z) · (e_A - e_B) / √F as a shift of both logits, half up and half down: [n, b, F], [n, b, 2, F] -> [n, b,
    2]."""
    difference = (out * (e[..., 0, :] - e[..., 1, :])).sum(-1) / out.shape[-1] ** 0.5
    return torch.stack([difference, -difference], dim=-1) / 2


def _signed(h: Tensor, slots: Tensor) -> Tensor:
    """Chosen minus rejected of comparisons: [n, b, 2, X] (A, B), slots [n, b] -> [n, b, X]."""
    difference = h[..., 0, :] - h[..., 1, :]
    return torch.where((slots == 0)[..., None], difference, -difference)


def reparameterize(mu: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """z = μ + ε exp(log σ² / 2) (S1 Eq. 23); all [..., d]."""
    return mu + noise * torch.exp(0.5 * log_variance)


def log_normal(z: Tensor, mu: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z; μ, diag σ²) (S1 Eq. 22): [..., d] -> [...]."""
    squares = (z - mu) ** 2 * torch.exp(-log_variance)
    return -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)


def gaussian_kl(mu: Tensor, log_variance: Tensor) -> Tensor:
    """D_KL(q ‖ N(0, I)) by dimension (S1 Eq. 37): [..., d] -> [..., d]; their sum is the divergence."""
    return 0.5 * (mu**2 + torch.exp(log_variance) - log_variance - 1.0)


def gumbel_log_weights(log_weights: Tensor, gumbel: Tensor, temperature: float) -> Tensor:
    """log w_j of Eq. 8: [n, P] ℓ and Gumbel(0, 1) noise of the same shape (zero in evaluation) -> [n, P]."""
    return torch.log_softmax((log_weights + gumbel) / temperature, dim=-1)


def mixture_log_prob(z: Tensor, log_w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log p_mixture(z) by log-sum-exp (S1 Eq. 7, 21): z [n, S, d], log_w [n, P], mean and variance [P, d] -> [n, S]."""
    components = log_normal(z[:, :, None], mean, torch.log(variance))  # [n, S, P]
    return torch.logsumexp(log_w[:, None] + components, dim=-1)


def mixture_kl(z: Tensor, mu: Tensor, log_variance: Tensor, log_w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """One-sample Monte-Carlo D_KL(q ‖ p_mixture) = log q(z) - log p_mixture(z) (S1 A.1): [n, S, d] … -> [n, S]."""
    return log_normal(z, mu, log_variance) - mixture_log_prob(z, log_w, mean, variance)


def pull_loss(z: Tensor, prototypes: Tensor) -> Tensor:
    """‖z - p_y*‖² (S1 Eq. 28): z [n, S, d], each client's assigned prototype [n, d] -> [n, S]."""
    return ((z - prototypes[:, None]) ** 2).sum(-1)


def orthonormal_loss(prototypes: Tensor, scale: float) -> Tensor:
    """‖P Pᵀ / s² - I_M‖_F² (S1 Eq. 9): [n, M, d] -> [n].

    A.3.2 prints PᵀP, which cannot be I for M < d, and unit norms, which the radius s contradicts; the division by s²
    lets both meet.
    """
    gram = torch.bmm(prototypes, prototypes.mT) / scale**2
    return ((gram - torch.eye(gram.shape[-1], device=gram.device)) ** 2).sum((-1, -2))
