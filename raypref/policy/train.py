"""Conditional RLHF (S1 4.4; Algorithm 1, lines 15-23): what each training process does.

The steps keep the order of Algorithm 1; line numbers are its own. Every draw is keyed by seed, round, step and process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gumbel_softmax

from raypref.algorithms.base import Prior
from raypref.clients.worker import Share, Worker
from raypref.models.layout import initial_row
from raypref.models.lora import Dropout
from raypref.models.policy import Policy, Sampling
from raypref.models.selector import load_tokenizer
from raypref.objectives.dpo import dpo_loss, margin
from raypref.policy import answers
from raypref.policy.engines import Engine, open_engine
from raypref.policy.labels import VariationalSelector, VotingSelectors
from raypref.policy.task import Task
from raypref.tools import checkpoint
from raypref.tools.rng import stream, torch_stream


@dataclass
class Tally:
    """Sums over the steps of a round, of one process."""

    loss: float = 0.0
    pairs: float = 0.0
    """Prompts that two responses were generated for."""
    usable: float = 0.0
    """Of them, those whose responses differ, fit and get a margin other than 0."""
    first: float = 0.0
    """Of the usable ones, those where the first response was preferred: about half."""
    accuracy: float = 0.0
    """Usable pairs that the policy's implicit reward already ranks as the selector does."""
    tokens: float = 0.0
    """Generated."""

    def metrics(self, steps: int) -> dict[str, float]:
        """Means of a round, for people to see."""
        usable = max(1.0, self.usable)
        return {
            "train/loss": self.loss / max(1, steps),
            "rlhf/usable": self.usable / max(1.0, self.pairs),
            "rlhf/first": self.first / usable,
            "rlhf/accuracy": self.accuracy / usable,
            "rlhf/length": self.tokens / max(1.0, 2 * self.pairs),
        }


class Trainer:
    """What one process of stage 2 computes; `share` says which process it is."""

    def __init__(self, task: Task, share: Share) -> None:
        self.task, self.config, self.share = task, task.config, share
        self.worker = Worker(task.config, {}, task.choice_ids, task.pad)
        tokenizer = load_tokenizer(task.config.model.base)
        # 16. Load the selector. 18. It is frozen.
        self.policy = Policy(self.worker.selector, tokenizer, task.config, task.d)
        kind = VariationalSelector if task.d else VotingSelectors
        self.labels = kind(self.worker, tokenizer, torch.from_numpy(task.rows))
        # 17. z of the clients.
        self.z = None if task.z is None else torch.from_numpy(task.z).to(self.worker.device)
        self.sampling = Sampling.of(task.config)

    def start(self) -> Tensor:
        """[D] the policy's row before any step: the frozen base, whatever z is; FedDPO's is trained already."""
        if not self.task.trains:
            return torch.from_numpy(self.task.rows[0])
        return initial_row(self.policy.layout, self.config.seed, 2)

    def round(self, engine: Engine, round: int) -> Tally:
        """Train one round: `rlhf.local_steps` optimizer steps."""
        r, tally = self.config.rlhf, Tally()
        batches = iter(self.batches(round))
        # 19. Each DPO step.
        for step in range(r.local_steps):
            for part in range(r.accumulation):
                loss = self.loss(engine, next(batches), (round, step, part, self.share.rank), tally)
                engine.backward(loss / r.accumulation)
                tally.loss += float(loss.detach()) / r.accumulation
            engine.step(self.rate(round * r.local_steps + step))
        return self.summed(tally)

    def rate(self, done: int) -> float:
        """The learning rate after `done` steps: from `rlhf.learning_rate` in a straight line to 0 at the end."""
        r = self.config.rlhf
        return r.learning_rate * (1 - done / (r.rounds * r.local_steps))

    def loss(self, engine: Engine, batch: np.ndarray, at: tuple[int, ...], tally: Tally) -> Tensor:
        """DPO's loss on fresh pairs of the current policy for these prompts, [b] positions in `task.train`."""
        prompts = [self.task.train.texts[i] for i in batch]
        # 20. Get z for the batch.
        z = self.latents(batch, at)
        twice = None if z is None else torch.cat([z, z])
        # 21-22. Generate conditioned on z, two responses each.
        responses = []
        with engine.gathered() as row:
            for chunk, start in enumerate(range(0, len(batch), self.config.rlhf.generation_batch)):
                part = slice(start, start + self.config.rlhf.generation_batch)
                z_part = None if z is None else z[part].repeat(2, 1)
                seed = int(stream(self.config.seed, "generate", *at, chunk).integers(2**31))
                responses.append(
                    self.policy.generate(row, prompts[part] * 2, z_part, self.sampling, seed, engine.together)
                )
        first = [text for r in responses for text in r.texts[: len(r.texts) // 2]]
        second = [text for r in responses for text in r.texts[len(r.texts) // 2 :]]
        # 22. Score with the selector.
        m, usable = self.labels(prompts, first, second, z)
        m, usable = m.to(self.worker.device), usable.to(self.worker.device)
        # 22. Update the policy via DPO; the reference is the frozen base without adapter or z.
        ids, spans = joined([(r.ids, r.spans) for r in responses], self.task.pad)
        with torch.no_grad():
            reference = self.policy.log_probs(None, ids, spans)
        ratio = engine.log_probs(ids, spans, twice, self.dropout(ids, at)) - reference
        reward = margin(ratio[: len(batch)], ratio[len(batch) :], self.config.dpo.beta)
        towards = torch.where(m >= 0, reward, -reward)
        tally.pairs += len(batch)
        tally.usable += float(usable.sum())
        tally.first += float((usable & (m > 0)).sum())
        tally.accuracy += float((usable & (towards > 0)).sum())
        tally.tokens += float((spans[:, 1] - spans[:, 0]).sum())
        # A pair without a label has no gradient; the mean is over all prompts, so that processes weigh alike.
        return dpo_loss(torch.where(usable, towards, 0.0)).mean()

    def latents(self, batch: np.ndarray, at: tuple[int, ...]) -> Tensor | None:
        """[b, d] each prompt's z: its client's, or a sample of the mixture prior, a component by Gumbel-softmax."""
        if self.task.mixture is None or self.z is None:
            return None if self.z is None else self.z[torch.from_numpy(self.task.train.client[batch])]
        draw = torch_stream(self.config.seed, "rlhf prior", *at)
        return sample_mixture(self.task.mixture, len(batch), draw).to(self.z)

    def batches(self, round: int) -> list[np.ndarray]:
        """This process's prompts of each pass of a round: shuffled passes over at most `rlhf.prompts` of them."""
        r, draw = self.config.rlhf, stream(self.config.seed, "rlhf prompts", round)
        pool = draw.permutation(len(self.task.train.texts))[: r.prompts or None]
        wanted = r.local_steps * r.accumulation * r.batch_size
        passes = (draw.permutation(pool) for _ in itertools.count())
        order = np.fromiter(itertools.islice(itertools.chain.from_iterable(passes), wanted), np.int64, wanted)
        return list(order.reshape(-1, r.batch_size)[:, self.share.rank :: self.share.world])

    def dropout(self, ids: Tensor, at: tuple[int, ...]) -> Dropout | None:
        p = self.config.model.lora_dropout
        generator = torch_stream(self.config.seed, "rlhf dropout", *at, device=self.worker.device)
        return Dropout(p, [generator], [(ids.shape[0], ids.shape[1])]) if p else None

    def summed(self, tally: Tally) -> Tally:
        """The tally summed over all processes; the loss is their mean."""
        if self.share.world == 1:
            return tally
        values = torch.tensor(astuple(tally), device=self.worker.device)
        torch.distributed.all_reduce(values)
        total = Tally(*values.tolist())
        total.loss /= self.share.world
        return total


def work(task: Task, share: Share, folder: Path, record: Callable[[int, dict[str, float]], None]) -> None:
    """Run all of stage 2 in one process: the rounds that `folder` does not hold yet, then the answers for judges.

    Process 0 writes the answers, and calls record(round, metrics) after each round.
    """
    trainer = Trainer(task, share)
    with open_engine(trainer.policy, trainer.start(), task.config, share) as engine:
        for round in range(engine.restore(folder), task.config.rlhf.rounds if task.trains else 0):
            metrics = trainer.round(engine, round).metrics(task.config.rlhf.local_steps)
            if share.rank == 0:
                record(round + 1, metrics)  # before it is saved: twice rather than never
            engine.save(folder, round + 1)
        with engine.gathered() as row:
            entries = answers.answer(task, trainer.policy, row, engine.together)
            if share.rank == 0:
                keep(folder, row, task)
                checkpoint.write_lines(folder / answers.FILE, entries)


def keep(folder: Path, row: Tensor, task: Task) -> None:
    """Save the finished policy's row with its clients' z: all that `raypref.generate` needs, whatever the engine."""
    z = {} if task.z is None else {"z": torch.from_numpy(task.z)}
    checkpoint.save(folder / "row.safetensors", {"row": row, **z}, {"ids": task.ids, "base": task.base})


def sample_mixture(prior: Prior, count: int, draw: torch.Generator) -> Tensor:
    """Draw samples [count, d] of Σ_j w_j N(μ_j, σ_j²); Gumbel-softmax, taken hard, picks a component (S1 Eq. 8).

    The weights w_j are equal: the clients' log-weights stay with the clients.
    """
    mean, variance = torch.from_numpy(prior.mean), torch.from_numpy(prior.variance)
    with torch.random.fork_rng([]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=draw)))
        chosen = gumbel_softmax(torch.zeros(count, len(mean)), tau=prior.tau, hard=True)
    noise = torch.randn(count, mean.shape[1], generator=draw)
    return chosen @ mean + noise * (chosen @ variance).sqrt()


def joined(parts: list[tuple[Tensor, Tensor]], pad: int) -> tuple[Tensor, Tensor]:
    """Passes of first and then second responses -> ids [2B, L] and spans [2B, 2], all first ones before the others."""
    width = max(ids.shape[1] for ids, _ in parts)
    padded = [torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=pad) for ids, _ in parts]
    ids, spans = (
        torch.cat([tensor.chunk(2)[k] for k in (0, 1) for tensor in tensors])
        for tensors in (padded, [spans for _, spans in parts])
    )
    return ids, spans
