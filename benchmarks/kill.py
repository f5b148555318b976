"""`python benchmarks/kill.py`: kill whatever takes part in a run, for real, and see that nothing is lost.

Six kinds of processes end by kill -9 at seeded moments of a small run over Ray: a client actor, the server actor, the
process of a sweep's trial, the driver (then the same words are typed again, with --resume), one of two Ray nodes, the
MLflow server (then what the run says is typed). After each

- the numbers of the run's folder equal those of a run that nothing disturbed, bit for bit;
- MLflow has all of it, and nothing there stays RUNNING;
- the cluster, which outlives the run, is as it was before it: resources, placement groups, no actor's process;
- each JSON, NPZ and safetensors file reads, and no temporary file is left.

Every case that has passed is kept in --out, so that the same words go on where they were interrupted. At the end
stands a table; exit status 1 where a case fails. In Python: `from benchmarks.kill import play`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as `python benchmarks/kill.py` finds the package where it is not installed

import numpy as np  # noqa: E402
import psutil  # noqa: E402

from benchmarks.measuring import main  # noqa: E402
from raypref.tools import checkpoint, console  # noqa: E402
from raypref.tools.cli import parse  # noqa: E402
from raypref.tools.errors import UserError, nearest  # noqa: E402
from raypref.tools.rng import stream  # noqa: E402

ROUNDS, STACKS = 16, 2
"""Communication rounds of the run, and the stacks of personalized clients that follow, by an actor each."""
ALL = ROUNDS + STACKS + 1
"""Moments of its progress: nothing saved, a round, …, all clients, after which adapters, tables and figures come."""
RUN = [
    *("fedgd", "--smoke", "--adapters", "--experts.K", "2", "--federation.rounds", str(ROUNDS)),
    *("--clients.clients-per-actor", "6", "--clients.cpus-per-actor", "0.9", "--clients.server-cpus", "0.1"),
]
"""What `raypref.run` and `raypref.sweep` are both given: 12 clients on two actors."""
COMMANDS = {"run": [*RUN, "--against", "none"], "sweep": [*RUN, "--seeds", "0"]}
PATIENCE = 300.0
"""Seconds after which whatever is waited for counts as stuck."""
VOLATILE = {"config", "restarts", "seconds"}
"""Of results and records: where a run took place and how long it took."""


@dataclass(frozen=True)
class Options:
    """Kill whatever takes part in a run, and see that nothing is lost."""

    kinds: tuple[str, ...] = ()
    """Which: client, server, trial, driver, node, mlflow. Default: all."""
    moments: int = 5
    """Seeded moments of each kind, spread over the run."""
    seed: int = 0
    """Of the moments."""
    out: Path = Path("runs/kill")
    """Where the runs and what became of each case are kept."""


class Failed(Exception):
    """What a case has shown to be wrong, in a line."""


def wait_until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first value of `true()` that counts as true. Raises `Failed` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds:g} s: {what}")
        time.sleep(0.02)
    return value


# --- what is checked, of folders alone ------------------------------------------------------------------------------


def read(path: Path) -> Any:
    """What a file of a run holds, without what differs from one time to the next; None for another kind of file."""
    match path.suffix:
        case ".json":
            return steady(json.loads(path.read_text()))
        case ".jsonl":
            return [steady(json.loads(line)) for line in path.read_text().splitlines()]
        case ".npz":
            with np.load(path) as arrays:
                return {name: bits(arrays[name]) for name in arrays}
        case ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="np") as file:
                values = json.loads((file.metadata() or {}).get("raypref", "{}"))
                return {name: bits(file.get_tensor(name)) for name in file.keys()} | {"values": steady(values)}  # noqa: SIM118
    return None


def steady(value: Any) -> Any:
    """A JSON object without what is `VOLATILE`."""
    return {key: v for key, v in value.items() if key not in VOLATILE} if isinstance(value, dict) else value


def bits(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """An array as a value that equals another only bit for bit, NaN included."""
    return array.dtype.str, array.shape, array.tobytes()


def differences(whole: Path, folder: Path) -> list[str]:
    """What differs in a run's folder from the folder `whole` of the same run undisturbed, a line a file."""
    about = {"config.json", "mlflow.json"}  # where it ran, where it is tracked
    out = []
    for path in sorted(p for p in whole.rglob("*") if p.suffix in (".json", ".jsonl", ".npz", ".safetensors")):
        other = folder / path.relative_to(whole)
        if not other.exists():
            out += [f"{other} is missing"] if path.name != "mlflow.json" else []
        elif path.name not in about and read(path) != read(other):
            out.append(f"{other} differs from {path}")
    return out


def damages(folder: Path) -> list[str]:
    """Files in a folder that do not read, and temporary files that are left, a line each."""
    out = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if "tune" in path.relative_to(folder).parts:  # Ray Tune's own notes
            continue
        if checkpoint.ASIDE.fullmatch(path.name) or path.suffix in (".tmp", ".part"):
            out.append(f"{path} is left over")
            continue
        try:
            read(path)
        except Exception as error:  # safetensors, zip and JSON have their own
            out.append(f"{path} does not read ({error})")
    return out


def untracked(folder: Path, uri: str) -> list[str]:
    """What MLflow lacks of the runs in a folder, and what it believes to be at work still."""
    from raypref.storage import tracking

    runs = tracking.search(uri, ["fedgd"])[0]
    records = list(folder.rglob("mlflow.json"))
    out = [f"MLflow lacks parts of {path.parent}" for path in records if not json.loads(path.read_text()).get("done")]
    out += [f"MLflow run {run.id} is {run.status}" for run in runs if run.status != "FINISHED"]
    return out + ["nothing is tracked"] * (not runs or not records)


# --- the machinery: a cluster, a command, an MLflow server ----------------------------------------------------------


class Cluster:
    """A Ray cluster of one node on this machine, which outlives what runs on it; it may get a second node."""

    def __init__(self, address: str, nodes: Any) -> None:
        self.address, self.nodes = address, nodes
        self.resources = self.free()

    def free(self) -> dict[str, float]:
        """Of each resource that is counted, how much is free."""
        import ray

        return {name: round(n, 3) for name, n in ray.available_resources().items() if name in ("CPU", "GPU")}

    def at_work(self, name: str = "") -> list[psutil.Process]:
        """Processes of actors and tasks of this name (default: of all) on all nodes, in the order of their start."""
        out = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith(f"ray::{name}") and not re.match(r"ray::(IDLE|\w+Agent)", title):
                    out.append((process.create_time(), process.pid, process))
        return [process for *_, process in sorted(out, key=lambda entry: entry[:2])]

    def leftovers(self) -> list[str]:
        """What a run has left behind, once there was time to clear it away."""
        import ray

        def groups() -> list[Any]:
            return [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]

        with contextlib.suppress(Failed):
            wait_until(lambda: self.free() == self.resources and not groups() and not self.at_work(), "", 60)
        out = [f"{process.cmdline()[0]} is left over" for process in self.at_work()]
        out += [f"a placement group of {group['name'] or 'no name'} is {group['state']}" for group in groups()]
        now = self.free()
        return out + ([f"free are {now}, at the start {self.resources}"] if now != self.resources else [])

    @contextlib.contextmanager
    def second_node(self) -> Iterator[Any]:
        """A second node as large as the first, gone afterwards whether or not it was killed."""
        with terminable():
            node = self.nodes.add_node(num_cpus=2)
        try:
            yield node
        finally:
            self.kill(node)

    def kill(self, node: Any) -> None:
        """Kill -9 a node: its workers, its raylet and whatever else it has started."""
        if node not in self.nodes.worker_nodes:
            return
        family = [psutil.Process(info.process.pid) for infos in node.all_processes.values() for info in infos]
        family += [child for process in family for child in process.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.nodes.remove_node(node, allow_graceful=False)

    def hold(self, node_id: str, cpus: float) -> Any:
        """An actor that keeps CPUs of a node from others until it is killed."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        @ray.remote
        class Holder:
            def ready(self) -> None:
                pass

        holder = Holder.options(
            num_cpus=cpus, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, False)
        ).remote()
        ray.get(holder.ready.remote(), timeout=PATIENCE)
        return holder


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Keeps what SIGTERM does: Ray puts its own in its place, which ends this process where it stands."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster with folders of its own, so that it neither finds another of this machine nor is found."""
    with tempfile.TemporaryDirectory(
        prefix="kill-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:  # sockets: short
        os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        import ray
        from ray.cluster_utils import Cluster as Nodes

        with terminable():
            nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            with terminable():
                ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
            yield Cluster(nodes.address, nodes)
        finally:
            ray.shutdown()
            nodes.shutdown()


class Command:
    """`python -m raypref.NAME WORDS` in a folder, with its output in files there."""

    def __init__(self, folder: Path, address: str, uri: str, name: str, *words: str) -> None:
        self.name, self.folder = name, folder
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        environment = kept | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": address, "MLFLOW_TRACKING_URI": uri}
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{name}.out", "w") as out, open(folder / f"{name}.err", "w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"raypref.{name}", *words], cwd=folder, env=environment, stdout=out, stderr=err
            )

    @property
    def said(self) -> str:
        return "".join((self.folder / f"{self.name}.{kind}").read_text() for kind in ("out", "err"))

    def end(self) -> str:
        """What it has said, once it is done. Raises `Failed` where it fails or hangs."""
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"raypref.{self.name} hangs: {last(self.said)}") from error
        finally:
            self.kill()
        if status:
            raise Failed(f"raypref.{self.name} ends with status {status}: {last(self.said)}")
        return self.said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def last(text: str) -> str:
    """The last line of a text."""
    return next(reversed(text.strip().splitlines()), "it said nothing")


class MLflowServer:
    """`mlflow server` in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ["--port", str(self.port), "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{self.folder}/server.db"]
        words += ["--artifacts-destination", str(self.folder / "artifacts")]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words],
                cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, "the MLflow server does not answer")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=1):
            return True
        return False

    def kill(self) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


# --- the kinds ------------------------------------------------------------------------------------------------------


class Case:
    """One kill of a kind: the run is started, disturbed at its moment, and gets to its end."""

    kind = ""
    command = "run"
    """`run` or `sweep`."""
    notice = ""
    """A pattern of what the command says where it has noticed the loss."""
    points = ROUNDS + 1
    """Of the progress at which it may come: nothing saved, a round, …, all rounds."""

    def __init__(self, out: Path, cluster: Cluster, moment: int, of: int, seed: int) -> None:
        self.cluster, self.moment = cluster, moment
        self.folder = out / f"{self.kind}-{moment}"
        self.uri = f"sqlite:///{self.folder}/mlflow.db"
        self.rng = stream(seed, f"kill {self.kind}", moment)
        self.point = int(self.rng.integers(self.points * moment // of, self.points * (moment + 1) // of))
        """How many rounds, and after them stacks of personalized clients, are saved when the kill comes."""
        self.delay = float(self.rng.uniform(0, 0.2))
        """Seconds after that."""

    def start(self, *more: str) -> Command:
        return Command(self.folder, self.cluster.address, self.uri, self.command, *COMMANDS[self.command], *more)

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run, once it is there."""
        return next((path.parent for path in self.folder.glob("runs/**/config.json")), None)

    def reached(self) -> bool:
        """Whether the run is where the kill is due."""
        if (folder := self.run_folder) is None:
            return False
        records = folder / "records.jsonl"
        rounds = records.read_bytes().count(b"\n") - 1 if records.exists() else 0  # the first line is of the start
        return rounds + len(list(folder.glob("clients/0*.safetensors"))) >= self.point

    def wait_for_moment(self, started: Command, victims: Callable[[], list[Any]]) -> list[Any]:
        """The victims, once the run is at its moment and they are there."""

        def due() -> list[Any]:
            if started.process.poll() is not None:
                raise Failed(f"raypref.{self.command} ended before the kill: {last(started.said)}")
            return victims() if self.reached() else []

        wait_until(due, "nobody to kill")
        time.sleep(self.delay)
        return wait_until(due, "nobody to kill")

    def play(self) -> str:
        """Run, kill, get to the end; returns what was killed. Raises `Failed`."""
        started = self.start()
        try:
            what = self.disturb(started)
            said = self.end(started)
        finally:
            started.kill()
        if not re.search(self.notice, said):
            raise Failed(f"{what} was killed, and nobody noticed")
        return what

    def disturb(self, started: Command) -> str:
        raise NotImplementedError

    def end(self, started: Command) -> str:
        """Get the run to its end; returns what was said."""
        return started.end()

    def close(self) -> None:
        """End what the case alone needs."""


class ProcessCase(Case):
    """One process of the cluster."""

    process = ""
    """The name of the actor, as its process is called."""

    def disturb(self, started: Command) -> str:
        victims = self.wait_for_moment(started, lambda: self.cluster.at_work(self.process))
        victim = victims[int(self.rng.integers(len(victims)))]
        title = victim.cmdline()[0]
        victim.kill()
        return title


class ClientCase(ProcessCase):
    kind, process, notice = "client", "ClientActor", r"\(restart 1 of at most"


class ServerCase(ProcessCase):
    kind, process, notice = "server", "Server", r"\(restart 1 of at most"


class TrialCase(ProcessCase):
    kind, process, command, points = "trial", "ImplicitFunc", "sweep", ALL
    notice = "its process or node was lost; it goes on"


class DriverCase(Case):
    """The command itself, of a run and of a sweep in turn; the same words go on."""

    kind, points = "driver", ALL

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.command = ("run", "sweep")[self.moment % 2]

    def disturb(self, started: Command) -> str:
        self.wait_for_moment(started, lambda: [started])
        started.kill()
        return f"raypref.{self.command}"

    def end(self, started: Command) -> str:
        return self.start("--resume").end()


class NodeCase(Case):
    """One of two nodes, with all of a run's actors on it, with its client actors alone, or with a sweep's trial."""

    kind = "node"

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.lost = ("server and clients", "clients", "trial")[self.moment % 3]
        self.command = "sweep" if self.lost == "trial" else "run"
        self.notice = TrialCase.notice if self.lost == "trial" else ClientCase.notice

    def play(self) -> str:
        import ray

        head = ray.get_runtime_context().get_node_id()
        with self.cluster.second_node() as self.node:
            other = self.node.node_id
            # Who asks is placed where something is free: first on one node alone, then on the other.
            held = [self.cluster.hold(head, 1.9 if self.lost == "clients" else 2.0)]
            held += [self.cluster.hold(other, 2.0)] if self.lost == "clients" else []
            self.held = held
            try:
                return super().play()
            finally:
                for holder in held:
                    ray.kill(holder)

    def disturb(self, started: Command) -> str:
        import ray

        if len(self.held) == 2:
            wait_until(lambda: self.cluster.at_work("Server"), "the server actor does not start")
            ray.kill(self.held.pop())

        def victims() -> list[str]:
            here = {
                p.pid
                for info in self.node.all_processes["raylet"]
                for p in psutil.Process(info.process.pid).children(True)
            }
            return [p.cmdline()[0] for p in self.cluster.at_work() if p.pid in here]

        found = self.wait_for_moment(started, lambda: [v for v in victims() if "Client" in v] and victims())
        ray.kill(self.held.pop())
        self.cluster.kill(self.node)
        return f"a node with {', '.join(sorted(v.removeprefix('ray::') for v in found))}"


class MLflowCase(Case):
    """The MLflow server, which is back when the run is over; then what the run has said is typed."""

    kind, points, notice = "mlflow", ALL, "python -m raypref.deliver"

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.server = MLflowServer(self.folder / "server")
        self.uri = self.server.uri

    def play(self) -> str:
        self.server.start()
        return super().play()

    def disturb(self, started: Command) -> str:
        self.wait_for_moment(started, lambda: [started])
        self.server.kill()
        return "mlflow server"

    def end(self, started: Command) -> str:
        said = started.end()
        if words := re.search(r"python -m raypref\.(deliver .*)", said):
            self.server.start()
            Command(self.folder, self.cluster.address, self.uri, *shlex.split(words[1])).end()
        return said

    def close(self) -> None:
        self.server.kill()


KINDS: dict[str, type[Case]] = {
    case.kind: case for case in (ClientCase, ServerCase, TrialCase, DriverCase, NodeCase, MLflowCase)
}


# --- all of it ------------------------------------------------------------------------------------------------------


def undisturbed(out: Path) -> Path:
    """The folder of the run that nothing disturbs, made where it is missing, in one process."""
    words = [*COMMANDS["run"], "--clients.backend", "local", "--no-track", "--resume"]
    folder = out / "undisturbed"
    if not any(folder.glob("runs/*/result.json")):
        try:
            Command(folder, "", "", "run", *words).end()
        except Failed as error:
            raise UserError(f"the run that nothing disturbs cannot be made: {error}") from error
    return next(folder.glob("runs/*/result.json")).parent


def play(case: Case, whole: Path) -> dict[str, Any]:
    """One case from its start to its checks -> what was killed, when, how long it took and what was wrong."""
    began, what, problems = time.monotonic(), "", []
    shutil.rmtree(case.folder, ignore_errors=True)  # of a case that was interrupted, or has failed
    try:
        what = case.play()
        assert case.run_folder
        problems += (
            differences(whole, case.run_folder) + damages(case.folder / "runs") + untracked(case.folder, case.uri)
        )
    except Failed as failed:
        problems.append(str(failed))
    finally:
        case.close()
    problems += case.cluster.leftovers()
    stacks = f" and {case.point - ROUNDS} of {STACKS} stacks" if case.point > ROUNDS else ""
    when = f"{min(case.point, ROUNDS)} of {ROUNDS} rounds{stacks}, {case.delay:.2f} s"
    seconds = round(time.monotonic() - began, 1)
    return {"kind": case.kind, "killed": what, "after": when, "seconds": seconds, "problems": problems}


def table(cases: Sequence[dict[str, Any]]) -> str:
    """The cases by kind, as Markdown."""
    lines = ["| killed | passed | seconds, median | most |", "|---|---|---|---|"]
    for kind, of_kind in itertools.groupby(cases, lambda case: case["kind"]):
        several = list(of_kind)
        took, passed = [case["seconds"] for case in several], sum(not case["problems"] for case in several)
        lines.append(f"| {kind} | {passed} of {len(several)} | {statistics.median(took):.0f} | {max(took):.0f} |")
    return "\n".join(lines)


def command(argv: list[str]) -> int:
    """The command line; see `Options`. Exit status 1 where a case fails."""
    options = parse(Options, argv, "python benchmarks/kill.py", Options())
    kinds = options.kinds or tuple(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"--kinds: unknown kind {kind!r}{nearest(kind, KINDS)}")
    if options.moments < 1:
        raise UserError(f"--moments is {options.moments}; give 1 or more")
    out = options.out.expanduser().absolute()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # workers inherit them from their node
    with checkpoint.locked(out), contextlib.ExitStack() as stack:
        whole, running, cases = undisturbed(out), None, []
        for kind, moment in itertools.product(kinds, range(options.moments)):
            record = out / f"{kind}-{moment}-of-{options.moments}-seed{options.seed}.json"
            case = checkpoint.read_json(record) if record.exists() else {}
            again = bool(case)
            if not again:
                running = running or stack.enter_context(cluster())
                folder = out / f"of-{options.moments}-seed{options.seed}"
                case = play(KINDS[kind](folder, running, moment, options.moments, options.seed), whole)
                if not case["problems"]:
                    checkpoint.write_json(record, case)
            cases.append(case)
            how = "; ".join(case["problems"]) or ("passed before" if again else "passed")
            console.say(
                f"{kind} {moment + 1}/{options.moments}: {case['killed'] or 'nothing'} killed after {case['after']}: "
                f"{how}, {case['seconds']:.0f} s"
            )
    failed = sum(bool(case["problems"]) for case in cases)
    console.say(f"\n{table(cases)}\n\n{len(cases) - failed} of {len(cases)} passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(command, "the same words go on from here"))
