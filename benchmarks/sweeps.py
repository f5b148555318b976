"""`python benchmarks/sweeps.py`: a sweep of small trials against the same runs typed one after another.

Trials run side by side, and the processes that run them stay, so that libraries are read once a process. What a trial
costs beside its training is therefore what decides here; it is measured for trials of several lengths. Sweep and runs
take turns, each in a process of its own, and are compared only where all results are the same to the last bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as `python benchmarks/sweeps.py` finds the package where it is not installed
os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil  # noqa: E402

from benchmarks.measuring import Lines, Ratio, conclude, machine, main, own_ray, ratios, spread, table  # noqa: E402
from raypref.config import UserError  # noqa: E402
from raypref.tools.cli import parse  # noqa: E402

SWEEP, RUNS = "sweep", "one after another"
KINDS = {"ImplicitFunc": "trials", "Server": "servers", "ClientActor": "client actors"}
"""What Ray calls the processes of a sweep, and what they are."""


@dataclass(frozen=True)
class Options:
    """Measure a sweep of small trials against the same runs one after another."""

    rounds: tuple[int, ...] = (4, 100)
    """Rounds of a trial: each number is a sweep and runs of its own. 4 is what `--smoke` has."""
    trials: int = 8
    """Trials, a seed each."""
    runs: int = 3
    """Turns of each."""
    base: str = "embedded"
    """As `model.base`."""
    out: Path = Path("runs/sweeps")
    """Where lines and table go."""


def measured(command: Sequence[str], folder: Path) -> dict[str, float]:
    """Seconds of a command: by the clock, of CPUs, and of CPUs by kind of process. Raises `UserError` with
    what it said where it fails.

    Processes of Ray are not waited for by whoever started them, so that each one's time is read while it lives.
    """
    began, spent, kinds = time.perf_counter(), dict[psutil.Process, float](), dict[psutil.Process, str]()
    with open(folder / "said.txt", "w+") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=said, stderr=said)
        try:
            while process.poll() is None:
                for one in family(process.pid):
                    with contextlib.suppress(psutil.Error):
                        times = one.cpu_times()
                        spent[one], kinds[one] = times.user + times.system, kind(one, process.pid)
                time.sleep(0.2)
        finally:
            process.terminate()  # where this is interrupted, and then it ends what it has started
            process.wait()
        wall = time.perf_counter() - began
        said.seek(0)
        if process.returncode:
            raise UserError(f"{' '.join(command)} failed: {said.read()[-2000:]}")
    by_kind = defaultdict[str, float](float)
    for one, seconds in spent.items():
        by_kind[f"cpu, {kinds[one]}"] += seconds
    return {"cpu": sum(spent.values()), "wall": wall} | by_kind


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")} | {"PYTHONPATH": str(ROOT)}


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started, directly or not."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.Error:
        return []


def kind(process: psutil.Process, driver: int) -> str:
    """Whose a process is: the command's own, a trial's (Tune's function), a server's, a client actor's, or Ray's."""
    if process.pid == driver:
        return "command"
    actor = re.match(r"ray::(\w+)", " ".join(process.cmdline()))
    return KINDS.get(actor[1], "Ray") if actor else "Ray"


def words(options: Options, rounds: int) -> list[str]:
    """What both commands are given."""
    given = {"--model.base": options.base, "--experts.K": "2", "--federation.rounds": str(rounds)}
    return ["fedgd", "--smoke", "--no-track", "--out", "out", *(word for pair in given.items() for word in pair)]


def by_sweep(options: Options, rounds: int, folder: Path) -> dict[str, float]:
    seeds = [str(seed) for seed in range(options.trials)]
    line = [sys.executable, "-m", "raypref.sweep", *words(options, rounds), "--seeds", *seeds]
    return measured(line, folder)


def by_runs(options: Options, rounds: int, folder: Path) -> dict[str, float]:
    """One after another, without figures of others beside them and without adapters, as in a sweep."""
    total = defaultdict[str, float](float)
    alone = ["--clients.backend", "local", "--against", "none", "--no-adapters"]
    for seed in range(options.trials):
        line = [sys.executable, "-m", "raypref.run", *words(options, rounds), *alone, "--seed", str(seed)]
        for name, value in measured(line, folder).items():
            total[name] += value
    return dict(total)


def results(folder: Path) -> dict[int, dict]:
    """The results that a command has left, by seed."""
    found = (json.loads(path.read_text()) for path in folder.glob("out/**/result.json"))
    return {result["config"]["seed"]: result for result in found}


def measure(options: Options, rounds: int, lines: Lines, folder: Path) -> None:
    """Turns of trials of one length."""
    for run in range(options.runs):
        left = {}
        for what, by in ((SWEEP, by_sweep), (RUNS, by_runs)):
            own = folder / f"{rounds}-{run}-{what.replace(' ', '-')}"
            own.mkdir()
            took = by(options, rounds, own)
            left[what] = results(own)
            seconds = [result["seconds"] for result in left[what].values()]
            training = sum(of["rounds"] + of["personalization"] for of in seconds)
            lines.add(row=str(rounds), run=run, what=what, **took, training=training, load=round(os.getloadavg()[0], 1))
        if not same(*left.values()) or len(left[SWEEP]) != options.trials:
            raise UserError(f"not the same work: trials of {rounds} rounds differ from the same runs; see {folder}")


def same(one: dict[int, dict], other: dict[int, dict]) -> bool:
    """Whether the results of the same seeds are the same to the last bit."""
    numbers = ("validation", "test", "client_steps", "bytes_up", "bytes_down")
    return one.keys() == other.keys() and all(one[s][name] == other[s][name] for s in one for name in numbers)


def report(lines: Lines, rounds: Sequence[int]) -> str:
    """The table: a line each, the ratios behind the sweep's."""
    head = ("rounds of a trial", "", "wall, s", "CPU-s", "of them by kind of process", "training, s of all trials",
            "by the sweep's: wall", "CPU")  # fmt: skip
    return table(head, [row for number in rounds for row in rows(lines, str(number))])


def rows(lines: Lines, row: str) -> Iterator[tuple[str, ...]]:
    for what in (SWEEP, RUNS):
        of = [line for line in lines.all if line["row"] == row and line["what"] == what]
        kinds = sorted({name for line in of for name in line if name.startswith("cpu, ")})
        parts = (f"{name[5:]} {spread((line.get(name, 0.0) for line in of), 2).split(' ')[0]}" for name in kinds)
        wall, cpu, training = (spread(line[name] for line in of) for name in ("wall", "cpu", "training"))
        shares = [spread(ratios(lines, row, Ratio(what, SWEEP, measure=m))) for m in ("wall", "cpu")]
        yield row, what, wall, cpu, ", ".join(parts), training, *(shares if what != SWEEP else ("", ""))


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    options = parse(Options, argv, "python benchmarks/sweeps.py", Options())
    if min(options.runs, options.trials, *options.rounds, 1) < 1:
        raise UserError("give --runs, --trials and --rounds of 1 or more")
    lines = Lines(options.out / "lines.jsonl")
    with own_ray(), tempfile.TemporaryDirectory(dir=options.out) as folder:
        for rounds in options.rounds:
            measure(options, rounds, lines, Path(folder).absolute())
    text = f"{report(lines, options.rounds)}\n\n{options.trials} trials; {machine()}"
    conclude(options.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(command))
