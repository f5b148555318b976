"""A disk that takes no more in the middle of a run: one line, what was saved is whole, and the run goes on later."""

import os
import resource
import subprocess
import sys

import pytest

from raypref.experiment import loop as experiment
from raypref.experiment.tracked import tracked, tracker
from raypref.storage.results import Store
from raypref.storage.tracking import search
from raypref.tools import checkpoint, console
from tests.bars import acting

pytestmark = pytest.mark.slow

MEASURED = ("test", "validation", "assignment", "rounds", "client_steps")


@pytest.fixture
def disk(tmp_path):
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("needs leave to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    return experiment.run(tiny, tmp_path_factory.mktemp("whole") / "run", adapters=False)


def run_with(fault, config, folder, log, tracking="") -> tuple[int, str]:
    """Run in a process of its own, where `fault()` happens once round 2 is saved -> exit status, the one line that
    it said (beside a warning where it is tracked, in a database in the folder `tracking`)."""

    def at(seen):
        if seen == 2:
            fault()

    def command(argv):
        to = tracker("full", f"sqlite:///{tracking}/mlflow.db") if tracking else None
        tracked(config, folder, to, bar=acting("rounds", at), adapters=False)

    child = os.fork()
    if child == 0:
        sys.stderr = open(log, "w")  # noqa: SIM115 - the process ends here
        status = -1
        try:
            status = console.main(command, [])
            sys.stderr.flush()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    *warned, said = [line for line in log.read_text().splitlines() if line and "Loading weights" not in line]
    assert all(line.startswith("raypref: warning: MLflow") for line in warned) and bool(warned) is bool(tracking), (
        warned
    )
    assert said.startswith(f"raypref: {folder}/"), said
    return status, said


def check_intact(config, folder, whole):
    """State and records are of round 2, no half of a file is there, and a resume ends with the numbers of `whole`."""
    assert checkpoint.load(folder / "state.safetensors")[1]["round"] == 2
    assert [line["round"] for line in Store(folder, config).lines()][:3] == [0, 1, 2]
    assert not [path for path in folder.rglob(".*") if checkpoint.ASIDE.fullmatch(path.name)]
    again = experiment.run(config, folder, adapters=False)
    assert {name: again[name] for name in MEASURED} == {name: whole[name] for name in MEASURED}


def test_a_full_disk(tiny, disk, tmp_path, whole):
    """MLflow's database is on it, too."""

    def fill():
        with open(disk / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    status, said = run_with(fill, tiny, disk / "run", tmp_path / "log", disk)
    assert status == 2 and "no space is left; free some; what was saved" in said, said
    (disk / "filler").unlink()
    check_intact(tiny, disk / "run", whole)
    tracked(tiny, disk / "run", tracker("full", f"sqlite:///{disk}/mlflow.db"), adapters=False)
    assert [run.status for run in search(f"sqlite:///{disk}/mlflow.db", ["full"])[0]] == ["FINISHED"]


def test_a_disk_that_becomes_read_only(tiny, disk, tmp_path, whole):
    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    status, said = run_with(lambda: remount("ro"), tiny, disk / "run", tmp_path / "log")
    assert status == 2 and "it has become read-only" in said, said
    remount("rw")
    check_intact(tiny, disk / "run", whole)


def test_a_folder_that_becomes_read_only(tiny, tmp_path, whole):
    """By its permissions, or where root ignores these, by an attribute."""
    folder = tmp_path / "run"
    lock, unlock = (["chmod", "a-w"], ["chmod", "u+w"]) if os.geteuid() else (["chattr", "+i"], ["chattr", "-i"])
    (tmp_path / "probe").touch()
    if subprocess.run([*lock, tmp_path / "probe"], capture_output=True).returncode:
        pytest.skip("needs a file system with attributes")
    subprocess.run([*unlock, tmp_path / "probe"], check=True)
    try:
        status, said = run_with(lambda: subprocess.run([*lock, folder], check=True), tiny, folder, tmp_path / "log")
    finally:
        subprocess.run([*unlock, folder], check=True)
    assert status == 2 and "writable again; what was saved before is intact" in said, said
    check_intact(tiny, folder, whole)


def test_a_limit_of_file_sizes(tiny, tmp_path, whole):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))

    status, said = run_with(limit, tiny, tmp_path / "run", tmp_path / "log")
    assert status == 2 and "raise the limit (ulimit -f)" in said, said
    check_intact(tiny, tmp_path / "run", whole)
