"""What the benchmarks share: taking turns, the clock, lines that are kept as they come, and tables.

It imports nothing of raypref or torch, so that a process in another environment can be measured in the same way.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "peft", "ray")


@dataclass(frozen=True)
class Ratio:
    """Two of the things compared, and what is wanted of the first one's time by the second one's."""

    over: str
    under: str
    goal: str = ""
    measure: str = "cpu"


class Lines:
    """What was measured, a JSON line each, on disk as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self.path, self.all = path, []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def add(self, **line: Any) -> None:
        self.all.append(line)
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def of(self, row: str, what: str, measure: str) -> dict[int, float]:
        """Run -> what was measured of this thing in it."""
        return {x["run"]: x[measure] for x in self.all if x["row"] == row and x.get("what") == what and measure in x}

    def notes(self, row: str) -> list[str]:
        """What was checked, or could not be measured."""
        return [x["note"] for x in self.all if x["row"] == row and "note" in x]


def timed(step: Callable[[], float]) -> dict[str, float]:
    """Seconds of this process's CPUs and of the clock, for each of the units that `step` says it has done."""
    cpu, wall = time.process_time(), time.perf_counter()
    units = step()
    return {"cpu": (time.process_time() - cpu) / units, "wall": (time.perf_counter() - wall) / units}


def alternate(row: str, steps: Mapping[str, Callable[[], float]], runs: int, lines: Lines, warm: bool = True) -> None:
    """Measure each of `steps` in turn, `runs` times, so that whatever else a machine does meets all of them alike."""
    for step in steps.values() if warm else ():
        step()
    for run in range(runs):
        for what, step in steps.items():
            lines.add(row=row, run=run, what=what, **timed(step), load=round(os.getloadavg()[0], 1))


def ratios(lines: Lines, row: str, ratio: Ratio) -> list[float]:
    """The ratio of each run; both numbers are of the same one."""
    over, under = (lines.of(row, what, ratio.measure) for what in (ratio.over, ratio.under))
    return [over[run] / under[run] for run in sorted(over.keys() & under.keys())]


def spread(values: Iterable[float], digits: int = 3) -> str:
    """The median, with the range behind it."""
    several = sorted(values)
    if not several:
        return "-"
    middle, least, most = (f"{x:.{digits}g}" for x in (statistics.median(several), several[0], several[-1]))
    return middle if len(several) == 1 else f"{middle} ({least} to {most})"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """As Markdown; numbers keep four digits."""
    shown = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *shown])


def conclude(out: Path, text: str) -> None:
    """Keep what was measured as `table.md`, and show it."""
    from raypref.tools import console  # not where Flower runs, which imports this file, too

    (out / "table.md").write_text(text + "\n")
    console.say(text)


def main(command: Callable[[list[str]], int], left: str = "what was measured is in the lines of --out") -> int:
    """The command line of a benchmark, whose interruption says what is left of it."""
    from raypref.tools import console

    def told(argv: list[str]) -> int:
        with console.resumable(left):
            return command(argv)

    return console.main(told, sys.argv[1:])


def machine(packages: Sequence[str] = PACKAGES, also: Mapping[str, str] | None = None) -> str:
    """This machine, and the versions of what is measured on it, in a sentence."""
    info = Path("/proc/cpuinfo")
    models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    versions = {package: importlib.metadata.version(package) for package in packages} | dict(also or {})
    cores, threads = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "all cores")
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{name}, {cores} cores, threads a process: {threads}; Python {platform.python_version()}, "
        f"{', '.join(f'{package} {version}' for package, version in versions.items())}; load {load}"
    )


@contextlib.contextmanager
def own_ray() -> Iterator[None]:
    """While inside, Ray that is started here has folders of its own: it neither joins another of this machine nor is
    found. Its workers have the priority of other processes, where Ray's own choice would have them wait for all."""
    with tempfile.TemporaryDirectory(
        prefix="bench-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:  # sockets: short
        before = os.environ.pop("RAY_ADDRESS", None)
        os.environ |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        try:
            yield
        finally:
            del os.environ["RAY_TMPDIR"]
            if before is not None:
                os.environ["RAY_ADDRESS"] = before


# --- a process that is measured with all that it has started ----------------------------------------------------------


def family_seconds() -> float:
    """CPU seconds so far of this process, of those that it has started, and of those that they have."""
    import psutil

    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Turns:
    """The side of a process that does a round when a line is written to it, and says what the round took."""

    def __init__(self) -> None:
        self.began = (0.0, 0.0)

    def wait(self) -> None:
        """Return when it is this process's turn; `SystemExit` where whoever gives them is gone."""
        print("@ready", flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        self.began = family_seconds(), time.perf_counter()

    def done(self) -> None:
        cpu, wall = family_seconds() - self.began[0], time.perf_counter() - self.began[1]
        print("@" + json.dumps({"cpu": cpu, "wall": wall}), flush=True)
