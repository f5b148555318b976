"""Ray, as a thin wall: client actors, each pinned to its share of a GPU or CPU, and the server actor.

A client actor is a `Worker` with the clients it holds (`clients.clients_per_actor`, 1: every client its own actor). The
server actor runs whatever generator it is given, such as the rounds of a run, and streams its records to the driver.

Whatever must be ended is an actor and is killed, at any time: Ray's one thread for replies books or fails each call of
an actor once, and sends the kill itself. Nothing is cancelled: `ray.cancel` fails a task from the thread it is called
in, and where Ray has the task's reply but has not booked it yet, Ray aborts the process (ray-project/ray#54260).
"""

from __future__ import annotations

import math
import os
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray._private import ray_constants
from ray.util import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from torch import Tensor

from raypref.clients.autoscaler import answer
from raypref.clients.pool import Inputs, Pool, pooled
from raypref.clients.work import Evaluate, PooledStack, TrainPooled, Work
from raypref.clients.worker import Share, Worker
from raypref.config import RunConfig, UserError, registry
from raypref.data.encode import EncodedClient
from raypref.models.features import FOLDER
from raypref.tools.errors import Lost

KINDS = ("CPU", "GPU")
PATIENCE = 30.0
"""Seconds between two lines that say what is waited for."""
GROWTH = 60.0
"""The same, of a cluster that grows."""
LOSSES = (
    *(ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError),
    ray.exceptions.ObjectLostError,  # what an actor has answered lies on its node until it is fetched
)
"""How Ray says that an actor or a node is gone."""
REMEDY = "lower clients.{kind}s-per-actor or raise clients.clients-per-actor, or wait for nodes with clients.wait"
"""What a run can do that asks for more than there is."""


def start_ray() -> None:
    """Join the cluster that is named or running, or else start one on this machine."""
    if not ray.is_initialized():
        if not _check_address():
            listen_here_alone()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        handed = {name: os.environ[name] for name in (registry.PLUGINS, FOLDER) if os.environ.get(name)}
        try:
            ray.init(
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=False,
                runtime_env={"env_vars": handed} if handed else None,
            )
        except Exception as error:  # ConnectionError, OSError, RuntimeError, ValueError and Ray's own
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"Ray can be neither joined nor started ({reason}); see to RAY_ADDRESS and RAY_TMPDIR, try again "
                "where the machine was busy, or take --clients.backend local, which needs no Ray"
            ) from error
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray puts its own in their place, which abort the process
                if handler is not None:
                    signal.signal(number, handler)


def listen_here_alone() -> None:
    """Have the Ray that is started next listen on the loopback interface alone, where its ports are else open on all of
    the machine's: what Ray does on other systems than Linux, and for whoever sets its variable. That says otherwise
    where a person has set it."""
    if ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR not in os.environ:
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
        ray_constants.ENABLE_RAY_CLUSTER = False


def _check_address() -> bool:
    """Whether there is a cluster to join. `UserError` within seconds where nothing answers at RAY_ADDRESS, or at the
    address that a head has left behind: Ray itself waits for many minutes."""
    named = os.environ.get("RAY_ADDRESS", "")
    left = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    address, where = named, "RAY_ADDRESS"
    if named in ("", "auto") and left.exists():
        address, where = left.read_text().strip(), str(left)
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return address not in ("", "local")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        remedy = "unset it" if where == "RAY_ADDRESS" else "delete that file"
        raise UserError(
            f"no Ray cluster answers at {address} ({error.strerror or error}), which {where} names; start it there, or "
            f"{remedy}"
        ) from error
    return True


def bundles(config: RunConfig, clients: int) -> list[dict[str, float]]:
    """What a run asks of Ray: the server's share, then one entry a client actor."""
    c = config.clients
    actor = {"CPU": c.cpus_per_actor} | ({"GPU": c.gpus_per_actor} if c.gpus_per_actor else {})
    workers = math.ceil(clients / (c.clients_per_actor or clients))
    return [{"CPU": c.server_cpus}] + [actor] * workers


def check_fits(wanted: Sequence[Mapping[str, float]], wait: float = 0.0, remedy: str = REMEDY) -> None:
    """Return once the cluster's nodes could hold these bundles, whoever uses them now; `UserError` where they never
    will.

    It waits for the nodes of an autoscaler, as long as its node types could hold the bundles. Where they could not,
    and where no autoscaler reports, it waits `wait` minutes for nodes that people add.
    """
    if not lacking(wanted):
        return
    # An autoscaler adds nodes for what is asked of Ray, nothing else. The request goes with this process at the latest.
    group = placement_group([asked for bundle in wanted if (asked := {k: n for k, n in bundle.items() if n})])
    begun, said = time.monotonic(), -math.inf
    try:
        while lack := lacking(wanted):
            what, kind = lack
            growth, now = answer(group), time.monotonic()
            hopeless = growth is None or (growth.refuses and not in_use())
            if hopeless and now - begun >= 60 * wait:
                types = ", and no node types of its autoscaler add up to it" if growth else ""
                raise UserError(f"{what}{types}; {remedy.format(kind=kind)}")
            if now - said >= GROWTH:
                said = now
                print(f"waiting for the cluster to grow: {what}{f'; {growth.note}' if growth else ''}", flush=True)
            time.sleep(1)
    finally:
        remove_placement_group(group)


def lacking(wanted: Sequence[Mapping[str, float]]) -> tuple[str, str] | None:
    """What the living nodes could not hold of these bundles, in words, and its kind; None where they could."""
    for kind in KINDS:
        try:
            place([b.get(kind, 0.0) for b in wanted], [node.get(kind, 0.0) for node in cluster()], kind)
        except UserError as error:
            return str(error), kind.lower()
    return None


def in_use() -> bool:
    """Whether anybody holds a CPU or a GPU of the cluster."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return any(total.get(kind, 0.0) - free.get(kind, 0.0) > 1e-6 for kind in KINDS)


def check_shared(folder: Path) -> None:
    """`UserError` where a node of the cluster does not see `folder`, which is there, or cannot write to it."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) == 1:
        return

    @ray.remote(num_cpus=0)
    def sees(path: Path) -> bool:
        return path.exists() and os.access(path.parent, os.W_OK)

    token = folder / f".seen-by-all-{uuid.uuid4().hex}"
    token.touch()
    try:
        asked = [  # by node, not by host: two nodes of one machine may see different folders
            sees.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(token)
            for node in nodes
        ]
        saw = ray.get(asked, timeout=120)
        blind = [node["NodeManagerHostname"] for node, seen in zip(nodes, saw, strict=True) if not seen]
    except ray.exceptions.GetTimeoutError as error:
        raise UserError("a node of the cluster does not answer; see `ray status`") from error
    finally:
        token.unlink()
    if blind:
        raise UserError(f"{', '.join(blind)} cannot write to {folder}; give a folder that all nodes share as --out")


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
                f"the run asks for {sum(shares):g} {kind} in shares of up to {max(shares):g}, "
                f"the cluster has {sum(nodes):g}"
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

    def __init__(self, config: RunConfig, clients: dict[int, Any], choice_ids: tuple[int, ...], pad: int) -> None:
        self.worker = Worker(config, clients, choice_ids, pad)

    def ready(self) -> str:
        """The node this actor runs on."""
        return ray.get_runtime_context().get_node_id()

    def do(self, work: Work) -> Any:
        return self.worker.do(work)

    def evaluate(self, clients: np.ndarray, rows: np.ndarray, fold: str) -> dict[str, np.ndarray]:
        return self.worker.evaluate(Evaluate(clients, rows, fold))


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

    def run_pooled(
        self, pools: Sequence[np.ndarray], rows: np.ndarray, moments: np.ndarray, begin: int, end: int
    ) -> tuple[Tensor, Tensor, np.ndarray]:
        """By a client actor each, or with `clients.pooled_workers` above 1 by that many processes together."""
        if self.config.clients.pooled_workers == 1:
            return super().run_pooled(pools, rows, moments, begin, end)
        virtual = dict(enumerate(pooled(self.inputs.data.clients, pools), self.placement.clients))
        parts = []
        for start in range(0, len(pools), self.placement.stack):
            ks = np.arange(start, min(start + self.placement.stack, len(pools)))
            ids = self.placement.clients + ks
            data = {int(i): virtual[i] for i in ids}
            make = (self.config, data, self.inputs.choice_ids, self.inputs.pad)
            work = TrainPooled(ids, rows[ks], moments[ks], begin, end)
            parts.append(by_ray_train(PooledTask(make, work)))
            self.ledger.result(work, parts[-1])
        out, state, loss = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "moments", "loss")
        )
        return torch.from_numpy(out), torch.from_numpy(state), loss

    def call(self, worker: int, work: Work) -> Any:
        if isinstance(work, Evaluate):  # the rows are a reference, which Ray resolves only among the arguments
            return self.actors[worker].evaluate.remote(work.clients, work.rows, work.fold)
        return self.actors[worker].do.remote(work)

    def gather(self, calls: Sequence[Any]) -> list[Any]:
        return ray.get(list(calls))

    def share(self, value: np.ndarray) -> Any:
        return ray.put(value)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)  # calls may be under way, where another's has failed: each is booked or failed, once


@dataclass(frozen=True)
class PooledTask:
    """Some steps of virtual clients, for a group of processes."""

    make: tuple[RunConfig, dict[int, EncodedClient], tuple[int, ...], int]
    """What each process's `Worker` is made from: the virtual clients' data, no other's."""
    work: TrainPooled


def by_ray_train(task: PooledTask) -> PooledStack:
    """The task by a `TorchTrainer` of `clients.pooled_workers` processes, each on its share of every batch; what comes
    out is what one process computes, to rounding (dropout masks are a process's own)."""
    from ray.train import RunConfig as TrainRun
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    c = task.make[0].clients
    share = {"CPU": c.cpus_per_actor} | ({"GPU": c.gpus_per_actor} if c.gpus_per_actor else {})
    scaling = ScalingConfig(num_workers=c.pooled_workers, use_gpu=c.gpus_per_actor > 0, resources_per_worker=share)
    mailbox = Mailbox.remote()
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # a relative path such as model.base stays one
    with tempfile.TemporaryDirectory(prefix="raypref-train-") as notes:  # Ray Train's own; nothing of ours is in it
        TorchTrainer(
            train_share,
            train_loop_config={"task": ray.put(task), "mailbox": mailbox},
            scaling_config=scaling,
            run_config=TrainRun(name="pooled", storage_path=notes),
        ).fit()
        result = ray.get(mailbox.get.remote())
    ray.kill(mailbox)  # its one call may still be being booked, as in `ActorClients.close`; no call can follow
    return result


def train_share(config: dict[str, Any]) -> None:
    """One process of `by_ray_train`; rank 0 hands in what all of them have."""
    import ray.train.torch

    task, context = ray.get(config["task"]), ray.train.get_context()
    share = Share(context.get_world_rank(), context.get_world_size())
    if task.make[0].clients.gpus_per_actor > 0:
        torch.cuda.set_device(ray.train.torch.get_device())
    result = Worker(*task.make).train_pooled(task.work, share)
    if share.rank == 0:
        ray.get(config["mailbox"].put.remote(result))


@ray.remote(num_cpus=0)
class Mailbox:
    """Holds one value for whoever started its sender; the sender may be on any node."""

    value: Any = None

    def put(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value


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

    Raises what it raised: a `UserError` as itself; a lost actor or node as `Lost`.
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
        if isinstance(error.cause, LOSSES):
            raise _lost(error.cause) from error
        raise
    except LOSSES as error:
        raise _lost(error) from error
    finally:
        # The stream may have ended a moment ago, or go on where its reader has gone: it is one call of an actor, which
        # is booked or failed once, and items that still arrive are dropped. The client actors end with their owner.
        ray.kill(server)


def _lost(error: Exception) -> Lost:
    why = f"an actor died ({(str(error).strip().splitlines() or ['no reason given'])[0]})"
    return Lost(why, displaced=not group_is_whole())


def group_is_whole() -> bool:
    """Whether all nodes with a place of this trial's placement group answer; True outside of a trial.

    They are asked, for Ray itself takes up to a minute to notice that one is gone.
    """
    if (group := get_current_placement_group()) is None:
        return True
    table = placement_group_table(group)
    if table["state"] != "CREATED":
        return False
    where = [NodeAffinitySchedulingStrategy(n, soft=False) for n in set(table["bundles_to_node_id"].values())]
    try:
        return all(ray.get([lives.options(scheduling_strategy=node).remote() for node in where], timeout=PATIENCE))
    except ray.exceptions.RayError:  # a time-out, too
        return False


@ray.remote(num_cpus=0, max_retries=0)
def lives() -> bool:
    return True
