"""A run, from configuration to result: the one place where it can be read as a whole.

`records` is the run itself: rounds, then personalization. It yields, and does nothing else; it runs in the driver
or inside the server actor. `run` consumes it in the driver (or Tune's function): saves, tracks, shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raypref.algorithms.base import Algorithm, State, starts
from raypref.clients.ledger import Entries
from raypref.clients.pool import InProcess, Inputs, Pool
from raypref.clients.protocol import Clients, Usage
from raypref.clients.seen import parted
from raypref.clients.work import Personalized
from raypref.config import RunConfig, UserError, registry, validate
from raypref.data.encode import EncodedFederation
from raypref.evaluation import latent
from raypref.experiment import forecast
from raypref.experiment.encoded import encoded
from raypref.experiment.publish import publish, report_metrics
from raypref.experiment.reports import Reported, Reports, report
from raypref.models import features
from raypref.models.selector import check_tokens, load_tokenizer, pad_id
from raypref.objectives.base import row_layout
from raypref.storage import results
from raypref.tools import console
from raypref.tools.errors import Lost


@dataclass(frozen=True)
class Started:
    """The run is about to train its first round, or the first after a resume."""

    state: State
    rounds: int
    """Communication rounds of the whole run."""
    left: Entries
    """What has left clients before the first round (`raypref.clients.ledger`)."""


@dataclass(frozen=True)
class RoundDone:
    """A communication round is done."""

    state: State
    metrics: dict[str, float]
    used: Usage
    left: Entries
    """What has left clients since the record before, as in all records."""
    latent: dict[str, np.ndarray] | None = None
    """The clients' posteriors where they are due, and `prototypes` where clients are pulled to them."""


@dataclass(frozen=True)
class PersonalizationStarts:
    """The global phase is over."""

    initialization: torch.Tensor
    """θ^init: [D], or [C, D]."""
    done: int
    """Clients that were personalized before an interruption."""
    left: Entries


@dataclass(frozen=True)
class ClientsDone:
    """Some clients are personalized."""

    clients: Personalized
    left: Entries


Record = Started | RoundDone | Reported | PersonalizationStarts | ClientsDone


@dataclass(frozen=True)
class Saved:
    """How far an interrupted run has come."""

    state: State | None = None
    used: Usage = dataclasses.field(default_factory=Usage)
    personalized: frozenset[int] = frozenset()
    """Clients whose personalization is done."""
    reported: int = 0
    """The last round after which validation was read."""


def check(config: RunConfig) -> None:
    """Check the configuration before data and base are read; raises `UserError`."""
    validate(config)
    if trains_together(config):
        if config.clients.backend != "ray":
            raise UserError("clients.pooled_workers above 1 needs Ray; add --clients.backend ray, or set it to 1")
        if config.optim.batch_size < config.clients.pooled_workers:
            raise UserError(
                f"clients.pooled_workers is {config.clients.pooled_workers}, but a batch has only "
                f"{config.optim.batch_size} pairs to share out; lower it, or raise --optim.batch-size"
            )


def trains_together(config: RunConfig) -> bool:
    """Whether Ray Train's processes share the batches of this run."""
    return config.clients.pooled_workers > 1 and bool(registry.algorithm(config.algorithm).pooled)


def read(config: RunConfig) -> EncodedFederation:
    """Read the data alone, as `prepare` does and takes them."""
    check(config)
    return encoded(config, load_tokenizer(config.model.base), registry.objective(config.objective).encoding(config))


def prepare(config: RunConfig, data: EncodedFederation | None = None) -> Inputs:
    """Read data and base, and check it all; raises `UserError` on whatever a person can mend before anything starts.

    data: what `read` gave for another configuration of the same data, base and encoding."""
    check(config)
    objective, tokenizer = registry.objective(config.objective), load_tokenizer(config.model.base)
    layout = objective.layout(config)
    data = data or encoded(config, tokenizer, objective.encoding(config))
    check_tokens(config.model.base, data.largest_token)
    inputs = Inputs(config, data, objective.choice_ids(tokenizer, config), pad_id(tokenizer), layout)
    forecast.check(inputs)
    return inputs


def prepare_like(inputs: Inputs, config: RunConfig) -> Inputs:
    """`prepare` for a configuration of the same data and base, which are read again only for another encoding."""
    one, other = (registry.objective(c.objective).encoding(c) for c in (inputs.config, config))
    if one != other:
        return prepare(config)
    check(config)
    like = dataclasses.replace(inputs, config=config, layout=row_layout(config))
    forecast.check(like)
    return like


def records(inputs: Inputs, saved: Saved, reports: Reports | None = None) -> Iterator[Record]:
    """Compute a run: communication rounds, the initialization, then every client's personalization, by stacks.

    reports: read validation between rounds, too, which changes nothing of the other records.
    """
    with contextlib.closing(connect(inputs)) as clients:
        participants, newcomers = parted(clients)
        algorithm: Algorithm = registry.algorithm(inputs.config.algorithm)(inputs.config, participants)
        # 1. The global phase, of the seen clients alone.
        state = saved.state or algorithm.init()
        yield Started(state, algorithm.rounds, clients.ledger.take())
        while state.round < algorithm.rounds:
            if reports and reports.due(state.round) and state.round > saved.reported:
                yield report(reports, algorithm, state, participants, clients)
            state, metrics = algorithm.round(state)
            used, posteriors = saved.used.add(clients.used), shown_posteriors(inputs, algorithm, state, participants)
            if posteriors:
                numbers = latent.numbers(posteriors["mu"], posteriors["log_variance"], participants.group_of)
                metrics |= {f"latent/{name}": value for name, value in numbers.items()}
            yield RoundDone(state, metrics, used, clients.ledger.take(), posteriors)
        # 2. What each client starts from.
        start = starts(algorithm, state, newcomers)
        yield PersonalizationStarts(start, len(saved.personalized), clients.ledger.take())
        shared = algorithm.shared(state)
        # 3. Personalization, no further communication.
        for stack in clients.stacks():
            if not saved.personalized.issuperset(stack.tolist()):
                rows = start.expand(len(stack), -1) if start.dim() == 1 else start[stack]
                yield ClientsDone(clients.personalize(stack, rows, shared), clients.ledger.take())


def shown_posteriors(
    inputs: Inputs, algorithm: Algorithm, state: State, clients: Clients
) -> dict[str, np.ndarray] | None:
    """The clients' posteriors after a round, where the objective has a latent space and shows it this round."""
    every = registry.objective(inputs.config.objective).posterior_every(inputs.config)
    if not every or (state.round % every and state.round not in (1, algorithm.rounds)):
        return None
    start, count = algorithm.initialization(state), len(clients.sizes)
    shown = clients.posterior(range(count), start.expand(count, -1) if start.dim() == 1 else start)
    if (prototypes := algorithm.prototypes(state)) is not None:
        shown["prototypes"] = prototypes.numpy()
    return shown


def connect(inputs: Inputs) -> Pool:
    """Make the clients, in this process or behind Ray actors, as configured."""
    if inputs.config.clients.backend == "ray":
        from raypref.clients.actors import ActorClients

        return ActorClients(inputs)
    return InProcess(inputs)


def read_once(inputs: Inputs, bar: Callable[[int, str, int], Any] | None = None) -> None:
    """Have in the store, before clients start, what the objective looks up of the frozen base.

    Where GPUs are the actors' alone, they read what they lack themselves.
    """
    here = not inputs.config.clients.gpus_per_actor or torch.cuda.is_available()
    if here and (filled := features.fill_for(inputs.config, inputs.data, inputs.pad, bar)):
        console.say(str(filled))


def stream(inputs: Inputs, saved: Saved, reports: Reports | None = None) -> Iterator[Record]:
    """Compute `records`, in this process or in the server actor, as configured."""
    if inputs.config.clients.backend == "ray":
        from raypref.clients import actors

        actors.start_ray()
        wanted = actors.bundles(inputs.config, len(inputs.sizes))
        if trains_together(inputs.config):  # Ray Train asks for its processes on top
            wanted += wanted[-1:] * inputs.config.clients.pooled_workers
        try:
            actors.check_fits(wanted, inputs.config.clients.wait)
        except UserError as error:
            hint = "; clients.pooled_workers come on top of the client actors" * trains_together(inputs.config)
            raise UserError(f"{error}{hint}") from error
        yield from actors.stream_from_server(inputs.config, records, inputs, saved, reports)
    else:
        yield from records(inputs, saved, reports)


def enduring(inputs: Inputs, store: results.Store, reports: Reports | None = None) -> Iterator[Record]:
    """`stream` from what the store has saved, begun again where an actor or a node is lost.

    Raises `Lost` where that happens more often than `clients.restarts`, or where a trial's places went with a node.
    """
    most, restarts = inputs.config.clients.restarts, 0
    while True:
        state, used, personalized = store.resume(inputs.data.digest)
        reported = max((line["round"] for line in store.reports()), default=0)
        try:
            yield from stream(inputs, Saved(state, used, frozenset(personalized), reported), reports)
            return
        except Lost as lost:
            if lost.displaced or restarts == most:
                raise
            restarts += 1
            store.restarted()
            done = max((line["round"] for line in store.lines()), default=0)
            console.warn(f"{lost.why}; going on after round {done} (restart {restarts} of at most {most})")
        except UserError as error:  # such as a cluster that is too small without the node that it has lost
            if not restarts:
                raise
            raise UserError(f"{error}; what was saved stands, --resume goes on from there") from error


def run(
    config: RunConfig,
    folder: Path,
    *,
    track: Any | None = None,
    bar: Callable[[int, str, int], Any] | None = None,
    adapters: bool = True,
    inputs: Inputs | None = None,
    reports: Reports | None = None,
    heard: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run, or finish, what `folder` holds of this configuration; returns the result (also in `folder/result.json`).

    track: an open `raypref.storage.tracking.Run`, or None. bar: makes a progress bar (a context manager with `advance`)
    from (total, label, done). adapters: also write the initialization and every personalized adapter as PEFT folders.
    inputs: what `prepare` makes of the configuration, where the caller has it already. reports: when validation is read
    between rounds. heard: is given each reading, those of an earlier process included, and may raise `Stopped`.
    """
    store = results.Store(folder, config)
    if track:  # what MLflow has not had from an earlier process
        for line in store.lines():
            if "metrics" in line:
                track.metrics(line["metrics"], step=line["round"])
        for line in store.reports():
            track.metrics(report_metrics(line), step=line["round"])
    if not store.finished:
        for line in store.reports() if heard else ():
            heard(line)
        inputs = inputs or prepare(config)
        for note in inputs.data.notes:
            console.say(f"note: {note}")
        read_once(inputs, bar)
        if config.clients.backend == "ray":
            n = inputs.placement.workers
            console.say(f"starting Ray: a server actor and {n} client actor{'s' * (n > 1)}")
        computed = enduring(inputs, store, reports)
        with contextlib.ExitStack() as stack, contextlib.closing(computed):
            progress: Any = None

            def next_bar(total: int, what: str, done: int) -> Any:
                stack.close()
                return stack.enter_context(bar(total, f"{config.method} {what}", done)) if bar and total else None

            last = time.monotonic()
            for record in computed:
                seconds, last = time.monotonic() - last, time.monotonic()
                match record:
                    case Started():
                        store.started(record.state, record.left)
                        what = "blocks of steps" if store.algorithm.pooled else "rounds"
                        progress = next_bar(record.rounds, what, record.state.round)
                    case RoundDone():
                        store.round(record.state, record.metrics, record.used, seconds, record.left, record.latent)
                        if progress:
                            progress.advance(1, f"loss {record.metrics['train/loss']:.3f}")
                        if track:
                            track.metrics(record.metrics, step=record.state.round)
                    case Reported():
                        line = store.report(dataclasses.asdict(record))
                        if track:
                            track.metrics(report_metrics(line), step=record.round)
                        if heard:
                            heard(line)
                    case PersonalizationStarts():
                        store.initialization(record.initialization, record.left)
                        progress = next_bar(len(inputs.sizes), "personalization", record.done)
                    case ClientsDone():
                        store.personalized(record.clients, seconds, record.left)
                        if progress:
                            progress.advance(len(record.clients.clients))
        if adapters:  # before the result, with which a run is finished: what is killed here is written again
            store.export(inputs.layout, inputs.data.ids)
        result = store.finish(inputs.data, inputs.layout)
        for doubt in results.doubts(result):
            console.say(f"warning: {doubt}")
    publish(store, track)
    return store.result()
