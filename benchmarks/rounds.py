"""`python benchmarks/rounds.py`: what a round of a cohort of ten costs by how many clients are registered.

It should be the same for 40 and for 100,000: who is not drawn costs nothing. Measured are whole rounds of a run in this
process, its state saved after each, of FedAvg and of two methods whose clients keep something between rounds, Ditto (a
row each) and FedVPA-GP (what they learn of their peers). The numbers of clients take turns. Registered clients share
the pairs of forty, so that only their number grows.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as `python benchmarks/rounds.py` finds the package where it is not installed
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.measuring import Lines, Ratio, alternate, conclude, machine, main, ratios, spread, table  # noqa: E402
from raypref.clients.pool import Inputs  # noqa: E402
from raypref.config import RunConfig, UserError, override, registry  # noqa: E402
from raypref.experiment.loop import RoundDone, Saved, Started, prepare, read_once, records  # noqa: E402
from raypref.storage.results import Store  # noqa: E402
from raypref.tools.cli import parse  # noqa: E402


@dataclass(frozen=True)
class Options:
    """Measure what a round costs by how many clients are registered."""

    clients: tuple[int, ...] = (40, 1_000, 10_000, 100_000)
    """Registered clients; the first number is what the others are compared with."""
    algorithms: tuple[str, ...] = ("fedavg", "ditto", "fedvpa_gp")
    """Methods."""
    runs: int = 5
    """Rounds of each that are counted, after one that is not."""
    cohort: int = 10
    """Clients of a round."""
    steps: int = 10
    """Local steps of each."""
    base: str = "embedded"
    """As `model.base`."""
    out: Path = Path("runs/rounds")
    """Where lines and table go."""


def registered(small: Inputs, count: int) -> Inputs:
    """The same federation with `count` clients, who share the pairs of the ones that there are."""
    clients = tuple(itertools.islice(itertools.cycle(small.data.clients), count))
    ids = tuple(f"client-{i}" for i in range(count))
    return replace(
        small, data=replace(small.data, ids=ids, clients=clients, group_of=np.resize(small.data.group_of, count))
    )


def rounds(inputs: Inputs, folder: Path) -> Iterator[None]:
    """A run's rounds one by one, each saved."""
    store = Store(folder, inputs.config)
    store.resume(inputs.data.digest)
    for record in records(inputs, Saved()):
        match record:
            case Started():
                store.started(record.state, record.left)
            case RoundDone():
                store.round(record.state, record.metrics, record.used, 0.0, record.left, record.latent)
                yield
            case _:
                return


def measure(options: Options, algorithm: str, lines: Lines, folder: Path) -> None:
    """Rounds of one method."""
    given = {
        "algorithm": algorithm,
        "objective": registry.algorithm(algorithm).objective or "choice",
        "model.base": options.base,
        "data.group_sizes": (10, 10, 10, 10),
        "federation.cohort": options.cohort,
        "federation.local_steps": options.steps,
        "federation.rounds": options.runs + 2,
        "variational.every": 0,  # a read-out of all clients, for people to see
    }
    small = prepare(override(RunConfig(), given))
    read_once(small)

    def step(going: Iterator[None]) -> float:
        next(going)
        return 1

    turns: dict[str, Callable[[], float]] = {}
    for count in options.clients:
        turns[str(count)] = partial(step, rounds(registered(small, count), folder / f"{algorithm}-{count}"))
    alternate(algorithm, turns, options.runs, lines)


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv, "python benchmarks/rounds.py", Options())
    if options.runs < 1 or not options.clients or min(options.clients) < options.cohort:
        raise UserError("give --runs of 1 or more, and --clients of at least --cohort")
    for algorithm in options.algorithms:
        registry.algorithm(algorithm)
    torch.set_num_threads(1)
    lines, first = Lines(options.out / "lines.jsonl"), str(options.clients[0])
    shown = []
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        for algorithm in options.algorithms:
            measure(options, algorithm, lines, Path(folder))
            for count in map(str, options.clients):
                cpu = spread(lines.of(algorithm, count, "cpu").values())
                share = spread(ratios(lines, algorithm, Ratio(count, first))) if count != first else ""
                shown.append((algorithm, f"{int(count):,}", cpu, share))
    head = ("method", "registered clients", "CPU-s of a round", f"by that of {first}")
    about = f"cohort {options.cohort}, {options.steps} local steps; {machine()}"
    text = f"{table(head, shown)}\n\n{about}"
    conclude(options.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(command))
