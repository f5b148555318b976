"""Machines that this one makes believe it has: network namespaces on one switch, with the file system in common.

Nothing of this machine's own network is touched: the switch is in a namespace, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Machine:
    """A network namespace."""

    name: str
    ip: str

    def words(self, *command: str) -> list[str]:
        """The command, run there."""
        return ["ip", "netns", "exec", self.name, *command]

    def processes(self) -> list[int]:
        return [int(word) for word in ip("netns", "pids", self.name).split()]

    def unplug(self) -> None:
        """Cut its cable, then its power: what the others sent is never answered."""
        ip("-n", self.name, "link", "set", "eth0", "down")
        self.kill()

    def kill(self) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout


@contextlib.contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Machines 10.77.0.1 to 10.77.0.COUNT, gone afterwards with all that runs on them; skips where none can be made."""
    switch = Machine(f"raypref-{os.getpid()}-switch", "")
    made = [Machine(f"raypref-{os.getpid()}-{i}", f"10.77.0.{i}") for i in range(1, count + 1)]
    try:
        try:
            for one in (switch, *made):
                ip("netns", "add", one.name)
                ip("-n", one.name, "link", "set", "lo", "up")
            ip("-n", switch.name, "link", "add", "br0", "type", "bridge")
            ip("-n", switch.name, "link", "set", "br0", "up")
            for i, one in enumerate(made):
                ip("-n", switch.name, "link", "add", f"port{i}", "type", "veth", "peer", "eth0", "netns", one.name)
                ip("-n", switch.name, "link", "set", f"port{i}", "master", "br0", "up")
                ip("-n", one.name, "addr", "add", f"{one.ip}/24", "dev", "eth0")
                ip("-n", one.name, "link", "set", "eth0", "up")
            subprocess.run(made[0].words("true"), check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.CalledProcessError) as error:
            why = str(getattr(error, "stderr", None) or error).strip()
            pytest.skip(f"needs leave to make network namespaces ({why})")
        yield made
    finally:
        for one in (*made, switch):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                one.kill()
                ip("netns", "del", one.name)
