"""Stage 2 as a job: in this process, or in those of a Ray Train job."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch

from raypref.clients import actors
from raypref.clients.worker import Share
from raypref.config import RLHFConfig, UserError, override
from raypref.policy.task import Task
from raypref.policy.train import work

RESTARTS = 3
"""Times that the processes start again where one has died; they go on from the last saved round."""

Record = Callable[[int, dict[str, float]], None]


def run(task: Task, folder: Path, record: Record) -> None:
    """Train the policy in `folder`, or finish what it holds, and answer the test prompts.

    record(round, metrics) is called in this process after each round, and once more for a round that had to run again.
    Raises `UserError` where the job cannot be done as it is configured.
    """
    r, folder = task.config.rlhf, folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # A worker reads where it runs, and how, where clients have theirs.
    where = {"clients.gpus_per_actor": r.gpus_per_worker, "clients.recompute": r.recompute}
    config = override(task.config, where)
    task = dataclasses.replace(task, config=config)
    if r.backend == "ray":
        by_ray_train(task, folder, record)
    else:
        work(task, Share(0, 1), folder, record)


def by_ray_train(task: Task, folder: Path, record: Record) -> None:
    """`run` in the `rlhf.workers` processes of a Ray `TorchTrainer`."""
    r = task.config.rlhf
    actors.start_ray()
    remedy = "lower rlhf.workers or rlhf.{kind}s-per-worker, or wait for nodes with rlhf.wait"
    actors.check_fits([share_of(r)] * r.workers, r.wait, remedy)
    actors.check_shared(folder)
    post, trainer = Post.remote(), Trainer.remote()
    with tempfile.TemporaryDirectory(prefix=".ray-train-", dir=folder, ignore_cleanup_errors=True) as notes:
        try:
            deliver(post, trainer.fit.remote([ray.put(task)], str(folder), notes, post), r.workers, record)
        except ray.exceptions.RayError as error:
            if dead := deaths(getattr(error, "cause", error)):
                raise UserError(
                    f"the training's processes died and are not started again ({dead[0]}); nothing finished is lost: "
                    "run the same command again"
                ) from error
            raise
        finally:
            # Whatever ends this one, the processes end with the trainer, who owns them. A kill is safe at any time,
            # even where Ray has handed on a result but not yet booked it; a cancel is not (see `clients.actors`).
            ray.kill(trainer)
            ray.kill(post)  # the same holds for the last call of `post.next`, which nobody waits for


def deliver(post: Any, job: Any, workers: int, record: Record) -> None:
    """Pass the processes' messages to `record` until the job is done; raises what the job or a process raised."""
    begun, letter = False, post.next.remote()
    while True:
        ready, _ = ray.wait([letter, job], timeout=None if begun else actors.PATIENCE)
        if letter in ready:
            begun, message = True, ray.get(letter)
            if isinstance(message, UserError):
                raise message
            if message is not None:
                record(*message)
            ray.get(post.done.remote())
            letter = post.next.remote()
        elif job in ready:
            ray.get(job)
            return
        else:
            print(f"waiting for {workers} training process{'es' * (workers > 1)} to start", flush=True)


def share_of(r: RLHFConfig) -> dict[str, float]:
    """The resources that one training process requests from Ray."""
    return {"CPU": r.cpus_per_worker} | ({"GPU": r.gpus_per_worker} if r.gpus_per_worker else {})


def deaths(error: Exception) -> list[str]:
    """Why processes died, a line each; none where something else ended the job."""
    if isinstance(error, ray.exceptions.RayActorError):  # the trainer's own, or that of Ray Train's controller
        return [str(error).strip().splitlines()[0]]
    failures = getattr(error, "worker_failures", {}).values()  # Ray Train's, by rank
    causes = [getattr(failure, "health_check_failure", None) for failure in failures]
    return [str(cause).strip().splitlines()[0] for cause in causes if cause]


@ray.remote(num_cpus=0)
class Post:
    """A queue of messages from the training processes to the process that started them, maybe on another node."""

    def __init__(self) -> None:
        self.letters: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, letter: Any) -> None:
        """Returns when the message has been dealt with."""
        await self.letters.put(letter)
        await self.letters.join()

    async def next(self) -> Any:
        return await self.letters.get()

    async def done(self) -> None:
        self.letters.task_done()


@ray.remote(num_cpus=0)
class Trainer:
    """Ray Train's trainer in a process of its own, which can be ended at any time; what it started ends with it."""

    def fit(self, task: list[Any], folder: str, notes: str, post: Any) -> None:
        """Train to the end. task: a reference to the `Task` inside a list, which Ray passes on as it is."""
        from ray.train import FailureConfig, ScalingConfig
        from ray.train import RunConfig as TrainRun
        from ray.train.torch import TorchTrainer

        os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # a relative path such as model.base stays one
        r = ray.get(task[0]).config.rlhf
        TorchTrainer(
            train_share,
            train_loop_config={"task": task, "folder": folder, "post": post},
            scaling_config=ScalingConfig(
                num_workers=r.workers, use_gpu=r.gpus_per_worker > 0, resources_per_worker=share_of(r)
            ),
            run_config=TrainRun(name="policy", storage_path=notes, failure_config=FailureConfig(max_failures=RESTARTS)),
        ).fit()


def train_share(config: dict[str, Any]) -> None:
    """What one process of the job runs; rank 0 sends the records, any process its `UserError`."""
    import ray.train.torch

    context, post = ray.train.get_context(), config["post"]
    share = Share(context.get_world_rank(), context.get_world_size())
    task = ray.get(config["task"][0])
    if task.config.rlhf.gpus_per_worker > 0:
        torch.cuda.set_device(ray.train.torch.get_device())
    if share.rank == 0:
        ray.get(post.send.remote(None))

    def record(round: int, metrics: dict[str, float]) -> None:
        ray.get(post.send.remote((round, metrics)))

    try:
        work(task, share, Path(config["folder"]), record)
    except UserError as error:
        ray.get(post.send.remote(error))  # never returns: whoever receives it ends the job
