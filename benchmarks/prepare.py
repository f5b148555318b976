"""`python benchmarks/prepare.py`: what it takes until 10,000 clients of 20 pairs each can begin to train.

A process of its own generates, reads and tokenises them and checks the run; a second one finds what was kept on disk.
Told are seconds, what the process holds at its fullest moment, and the bytes of a pair's tokens in memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as `python benchmarks/prepare.py` finds the package where it is not installed

from benchmarks.measuring import Lines, conclude, family_seconds, machine, main, table  # noqa: E402
from raypref.config import RunConfig, UserError, override  # noqa: E402
from raypref.tools.cli import parse  # noqa: E402

MEASURED = "--measured"
"""First word of a process that is measured."""


@dataclass(frozen=True)
class Options:
    """Measure what preparing many clients' data takes."""

    clients: int = 10_000
    """In four groups."""
    pairs: int = 20
    """Of each client; an even number."""
    base: str = "embedded"
    """As `model.base`."""
    out: Path = Path("runs/prepare")
    """Where lines and table go."""


def measured(clients: int, pairs: int, base: str) -> dict[str, Any]:
    """What preparing took in this process, with those that it has started."""
    share = clients // 4
    given = {
        "algorithm": "fedavg",
        "model.base": base,
        "data.group_sizes": (share, share, share, clients - 3 * share),
        "data.pairs_per_axis": pairs // 2,
    }
    from raypref.data.federation import FOLDS
    from raypref.experiment.loop import prepare

    before, cpu, wall = peak(), family_seconds(), time.perf_counter()
    inputs = prepare(override(RunConfig(), given))
    took = {"wall": time.perf_counter() - wall, "cpu": family_seconds() - cpu}
    folds = [client.fold(name) for client in inputs.data.clients for name in FOLDS]
    count = sum(fold.pairs for fold in folds)
    size = sum(array.nbytes for fold in folds for array in (fold.tokens, fold.offsets, fold.spans))
    return took | {
        "clients": len(inputs.data.clients),
        "pairs": count,
        "bytes a pair": size / count,
        "peak": peak(),
        "before": before,
    }


def peak() -> float:
    """MB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def command(argv: list[str]) -> int:
    """The command line; see `Options`."""
    if argv[:1] == [MEASURED]:
        clients, pairs, base = argv[1:]
        print("@" + json.dumps(measured(int(clients), int(pairs), base)))
        return 0
    options = parse(Options, argv, "python benchmarks/prepare.py", Options())
    if options.clients < 4 or options.pairs < 2 or options.pairs % 2:
        raise UserError("give --clients of 4 or more, and --pairs that are even")
    lines, shown = Lines(options.out / "lines.jsonl"), []
    with tempfile.TemporaryDirectory(dir=options.out) as cache:
        for what in ("the first time", "again"):
            words = [sys.executable, __file__, MEASURED, str(options.clients), str(options.pairs), options.base]
            environment = os.environ | {"RAYPREF_FEATURES": cache}
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True)
            said = [line for line in done.stdout.splitlines() if line.startswith("@")]
            if done.returncode or not said:
                raise UserError(f"preparing failed with status {done.returncode}; what it said stands above")
            took = json.loads(said[-1][1:])
            lines.add(row="prepare", what=what, **took)
            each = 1000 * took["wall"] / took["clients"]
            size = took["bytes a pair"]
            shown.append((what, took["wall"], took["cpu"], each, f"{took['peak']:.0f} ({took['before']:.0f})", size))
        kept = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
    head = ("", "seconds", "CPU-s", "ms a client", "peak, MB (before it began)", "bytes a pair in memory")
    count = f"{took['clients']:,} clients, {took['pairs']:,} pairs, on disk {kept / took['pairs']:.0f} bytes a pair"
    text = f"{table(head, shown)}\n\n{count}; {machine()}"
    conclude(options.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(command))
