"""Ray's own processes, for tests that start real nodes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

RAY = Path(sys.executable).with_name("ray")
COMMON = ["--block", "--object-store-memory=100000000", "--disable-usage-stats", "--dashboard-agent-listen-port=0"]


def free_port() -> int:
    """Of those that the system gives out, which are above Ray's workers' 10002 to 19999."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@contextlib.contextmanager
def process(words: list[str], **how) -> Iterator[subprocess.Popen]:
    """A process that is gone afterwards, and all that it started."""
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(words, stdout=log, stderr=log, **how) as started:
        try:
            yield started
        finally:
            if started.poll() is not None:  # by itself, which no test wants; pytest shows this where one fails
                log.seek(0)
                print(log.read()[-4000:])
            else:
                family = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
                started.terminate()
                _, left = psutil.wait_procs(family, timeout=20)
                for one in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()


def wait_until(true: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if true():
                return
        assert time.monotonic() < deadline
        time.sleep(0.3)
