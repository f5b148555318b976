"""Ray, as a thin wall: client actors, each pinned to its share of a GPU or CPU, and the server actor.

A client actor is a `Worker` with the clients it holds (`clients.clients_per_actor`, 1: every client its own actor). The
server actor runs whatever generator it is given, such as the rounds of a run, and streams its records to the driver.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raypref.clients.pool import Inputs, Pool
from raypref.clients.worker import Worker
from raypref.config import RunConfig, UserError

KINDS = ("CPU", "GPU")
PATIENCE = 30.0
"""Seconds between two lines that say what is waited for."""


def start_ray() -> None:
    """Join the cluster that is named or running, or else start one on this machine."""
    if not ray.is_initialized():
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray puts its own in their place, which abort the process
                if handler is not None:
                    signal.signal(number, handler)


def bundles(config: RunConfig, clients: int) -> list[dict[str, float]]:
    """What a run asks of Ray: the server's share, then one entry a client actor."""
    c = config.clients
    actor = {"CPU": c.cpus_per_actor} | ({"GPU": c.gpus_per_actor} if c.gpus_per_actor else {})
    workers = math.ceil(clients / (c.clients_per_actor or clients))
    return [{"CPU": c.server_cpus}] + [actor] * workers


def check_fits(wanted: Sequence[dict[str, float]]) -> None:
    """`UserError` at once where the cluster could never hold these bundles, instead of a wait without end."""
    for kind in KINDS:
        place([b.get(kind, 0.0) for b in wanted], [node.get(kind, 0.0) for node in cluster()], kind)


def at_once(wanted: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]], most: int) -> int:
    """How many runs that ask for these bundles fit on nodes with these resources side by side, counted up to `most`."""
    for count in range(most):
        try:
            for kind in KINDS:
                shares = [b.get(kind, 0.0) for b in wanted] * (count + 1)
                place(shares, [node.get(kind, 0.0) for node in nodes], kind)
        except UserError:
            return count
    return most


def cluster() -> list[dict[str, float]]:
    """Resources of every living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def place(shares: Sequence[float], nodes: Sequence[float], kind: str) -> None:
    """Put shares of one resource onto nodes, the largest first; `UserError` where they do not fit.

    A share of a GPU lies on one device, so 0.6 twice needs two; other shares lie on one node.
    """
    devices = kind == "GPU" and max(shares) <= 1
    free = [unit for n in nodes for unit in ([1.0] * int(n) if devices else [n])]
    for share in sorted(shares, reverse=True):
        fitting = [i for i, unit in enumerate(free) if unit >= share - 1e-9]
        if share and not fitting:
            raise UserError(
                f"the run asks for {sum(shares):g} {kind} in shares of up to {max(shares):g}, the cluster has "
                f"{sum(nodes):g}; lower clients.{kind.lower()}s-per-actor or raise clients.clients-per-actor"
            )
        if share:
            free[fitting[0]] -= share


def _bundle(index: int) -> dict[str, Any]:
    """Options that pin an actor to its entry of `bundles` where its creator runs in a placement group (a trial)."""
    group = get_current_placement_group()
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index, True)} if group else {}


@ray.remote(max_restarts=0)
class ClientActor:
    """A `Worker` in a process of its own."""

    def __init__(self, config: RunConfig, clients: dict[int, Any], choice_ids: tuple[int, int], pad: int) -> None:
        self.worker = Worker(config, clients, choice_ids, pad)

    def ready(self) -> str:
        """The node this actor runs on."""
        return ray.get_runtime_context().get_node_id()

    def do(self, method: str, *args: Any) -> Any:
        return getattr(self.worker, method)(*args)


class ActorClients(Pool):
    """`Pool` over client actors."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        c = inputs.config.clients
        self.actors = [
            ClientActor.options(num_cpus=c.cpus_per_actor, num_gpus=c.gpus_per_actor, **_bundle(1 + w)).remote(
                inputs.config,
                {int(i): inputs.data.clients[i] for i in self.placement.members(w)},
                inputs.choice_ids,
                inputs.pad,
            )
            for w in range(self.placement.workers)
        ]
        self.nodes = wait_for([actor.ready.remote() for actor in self.actors], "client actors")

    def call(self, worker: int, method: str, *args: Any) -> Any:
        return self.actors[worker].do.remote(method, *args)

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        return ray.get(list(calls))

    def share(self, value: np.ndarray) -> Any:
        return ray.put(value)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


def wait_for(refs: Sequence[Any], what: str) -> list[Any]:
    """All results; while some are missing, a line now and then that says so (a busy cluster is never a silent wait)."""
    pending = list(refs)
    while pending:
        _, pending = ray.wait(pending, num_returns=len(pending), timeout=PATIENCE)
        if pending:
            print(f"waiting for {len(pending)} of {len(refs)} {what}: the cluster has no free place yet", flush=True)
    return ray.get(list(refs))


@ray.remote(max_restarts=0)
class Server:
    """Owns the algorithm's state while it runs; everything a driver needs comes out as a stream."""

    def stream(self, records: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
        yield from records(*args)


def stream_from_server(config: RunConfig, records: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
    """Run a generator function in the server actor and yield what it yields.

    Raises what it raised: a `UserError` as itself; a lost actor or node as `UserError` that names --resume.
    """
    server = Server.options(num_cpus=config.clients.server_cpus, **_bundle(0)).remote()
    try:
        stream = server.stream.options(num_returns="streaming", _generator_backpressure_num_objects=4).remote(
            records, *args
        )
        for ref in stream:
            yield ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from error
        if isinstance(error.cause, (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError)):
            raise _lost(error.cause) from error
        raise
    except ray.exceptions.RayActorError as error:
        raise _lost(error) from error
    finally:
        ray.kill(server)


def _lost(error: Exception) -> UserError:
    return UserError(
        f"an actor died ({(str(error).strip().splitlines() or ['no reason given'])[0]}); "
        "nothing finished is lost: run the same command again with --resume"
    )
