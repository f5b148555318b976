"""What a person sees, in a pipe and in a terminal: real processes, for both depend on real file descriptors."""

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from raypref.tools import console
from raypref.tools.console import Progress, clock
from raypref.tools.errors import nearest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENV = {k: v for k, v in os.environ.items() if k not in {*console.QUIET, "PYTHONWARNINGS", "COLUMNS"}}
ENV |= {"PYTHONPATH": ROOT, "TERM": "xterm"}

COMMAND = """
import sys
from raypref.config import UserError
from raypref.tools import console
from raypref.tools.console import main, say

def command(argv):
    {body}

sys.exit(main(command, sys.argv[1:]))
"""


def script(body: str, *argv: str, template: str = COMMAND) -> list[str]:
    return [sys.executable, "-c", template.format(body=textwrap.indent(body, "    ").strip()), *argv]


def pipe(body: str, *argv: str) -> subprocess.CompletedProcess:
    return subprocess.run(script(body, *argv), capture_output=True, text=True, env=ENV, timeout=60)


def terminal(body: str, *argv: str, stdout: int | None = None) -> tuple[int, str]:
    """Exit status and what a terminal showed; standard output may go elsewhere."""
    master, slave = pty.openpty()
    process = subprocess.Popen(script(body, *argv), stdin=slave, stdout=stdout or slave, stderr=slave, env=ENV)
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    return process.wait(timeout=60), seen.decode()


def test_a_user_error_is_one_line_and_status_2():
    done = pipe('raise UserError("no file x; give a path")')
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "raypref: no file x; give a path\n")


def test_debug_shows_where_it_came_from_and_is_not_passed_on():
    done = pipe("raise UserError(f'argv {argv}')", "name", "--debug", "--x", "1")
    assert done.returncode == 2 and done.stderr.startswith("Traceback")
    assert done.stderr.endswith("raypref: argv ['name', '--x', '1']\n")


def test_a_user_error_from_a_ray_actor_is_one_line_too():
    body = """
from ray.exceptions import RayTaskError
raise RayTaskError("Actor.f", "Traceback: many lines", UserError("no file x; give a path")).as_instanceof_cause()
"""
    done = pipe(body)
    assert (done.returncode, done.stderr) == (2, "raypref: no file x; give a path\n")


def test_our_own_faults_show_a_traceback_and_status_1():
    done = pipe("1 / 0")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr and "Traceback" in done.stderr


def test_a_broken_pipe_that_is_not_our_output_is_a_fault_like_any_other():
    done = pipe('raise BrokenPipeError("to some worker")')
    assert done.returncode == 1 and "to some worker" in done.stderr


def test_status_is_the_commands_own():
    assert pipe("return None").returncode == 0
    assert pipe("return 3").returncode == 3
    assert pipe("sys.exit(5)").returncode == 5


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("debug", [False, True])
def test_an_interruption_is_one_line_and_its_status(debug, number, status):
    body = "import time; print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        script(body, *["--debug"] * debug), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status and err.endswith("raypref: interrupted\n")
    assert err.startswith("Traceback") is debug


def test_how_to_go_on_is_said_where_there_is_something_to_go_on_with():
    stop = "raise KeyboardInterrupt"
    assert pipe(stop).stderr == "raypref: interrupted\n"
    begun = pipe(f"with console.resumable('the same words go on'): {stop}")
    assert begun.returncode == 130 and begun.stderr == "raypref: interrupted; the same words go on\n"


@pytest.mark.parametrize(("word", "known"), [("nope", "lore"), ("run", "arguments"), ("trust", "rounds")])
def test_what_is_far_away_is_not_meant(word, known):
    assert nearest(word, [known, "other"]) == f"; there are: {', '.join(sorted([known, 'other']))}"


@pytest.mark.parametrize(("word", "known"), [("loer", "lore"), ("fed", "fedgd"), ("--expert.K", "--experts.K")])
def test_what_is_near_is(word, known):
    assert nearest(word, [known, "other"]) == f"; did you mean {known!r}?"


def test_whoever_calls_main_has_their_handler_of_sigterm_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    assert console.main(lambda argv: 3, ["--verbose"]) == 3
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_reader_that_leaves_early_is_no_error():
    body = "for i in range(100000): print('row', i)"
    process = subprocess.Popen(script(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
    assert process.stdout.readline() == "row 0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


NOISE = """
import logging, os, subprocess, warnings
warnings.warn("a library warns")
logging.getLogger("transformers.modeling").warning("weights were not used")
print(os.environ.get("TRANSFORMERS_VERBOSITY"), flush=True)
subprocess.run([sys.executable, "-c", "import warnings; warnings.warn('a child warns')"])
"""


def test_libraries_are_silent_here_and_in_child_processes_unless_verbose():
    done = pipe(NOISE)
    assert (done.stdout, done.stderr) == ("error\n", "")
    loud = pipe(NOISE, "--verbose")
    assert loud.stdout == "None\n"
    assert all(words in loud.stderr for words in ("a library warns", "weights were not used", "a child warns"))


def test_what_a_person_has_set_stands():
    env = ENV | {"TRANSFORMERS_VERBOSITY": "info", "PYTHONWARNINGS": "default"}
    done = subprocess.run(script(NOISE), capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout == "info\n" and "a library warns" in done.stderr and "a child warns" in done.stderr


def test_console_imports_nothing_heavy():
    body = "print({'rich', 'torch', 'ray', 'transformers', 'mlflow', 'datasets', 'numpy'} & set(sys.modules))"
    assert pipe(body).stdout == "set()\n"


class Clock:
    """A clock that the test turns."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


def test_plain_lines_come_at_every_tenth_or_15_seconds_whichever_is_rarer(monkeypatch, capsys):
    clock_ = Clock(monkeypatch)
    with Progress(100, "slow") as progress:
        for _ in range(95):
            clock_.now += 60  # a minute each: the tenth decides
            progress.advance()
    slow = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in slow] == [f"slow {n}/100" for n in (10, 20, 30, 40, 50, 60, 70, 80, 90, 95)]
    assert slow[0] == "slow 10/100, 10:00, 1:30:00 left"
    with Progress(100, "fast") as progress:
        for _ in range(100):
            clock_.now += 0.4  # 40 seconds in all: the 15 seconds decide
            progress.advance(note="loss 0.5")
    assert capsys.readouterr().err.splitlines() == [
        "fast 38/100, 0:15, 0:25 left, loss 0.5",
        "fast 76/100, 0:30, 0:10 left, loss 0.5",
        "fast 100/100, 0:40, loss 0.5",
    ]


def test_a_resumed_run_judges_the_time_left_by_its_own_pace_and_says_where_it_broke(monkeypatch, capsys):
    clock_ = Clock(monkeypatch)
    with pytest.raises(ZeroDivisionError), Progress(100, "run", done=80) as progress:
        clock_.now += 10
        progress.advance(10)
        raise ZeroDivisionError
    assert capsys.readouterr().err == "run 90/100, 0:10, 0:10 left\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65, "1:05"), (3599.6, "1:00:00"), (3725, "1:02:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text


BAR = """
from raypref.tools.console import Progress, warn
with Progress(3, "fed[gd]") as progress:
    for i in range(3):
        progress.advance(note=f"loss [{i}]")
    say("a sentence")
    warn("careful")
say("done")
"""


def test_a_terminal_gets_a_bar_and_sentences_above_it():
    status, seen = terminal(BAR)
    assert status == 0 and "\x1b[" in seen
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert re.search(r"fed\[gd\] ━+ +3/3 0:00:0\d 0:00:00 loss \[2\]", plain), plain
    lines = [line.strip() for line in re.split(r"[\r\n]+", plain)]
    assert "a sentence" in lines and "raypref: warning: careful" in lines and "done" in lines
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # the cursor is back


def test_a_bar_on_the_terminal_leaves_a_redirected_output_clean(tmp_path):
    with open(tmp_path / "out.txt", "w") as out:
        status, seen = terminal(BAR, stdout=out.fileno())
    assert status == 0 and (tmp_path / "out.txt").read_text() == "a sentence\ndone\n"
    assert "3/3" in seen and "a sentence" not in seen


def test_a_pipe_gets_plain_lines_even_where_colour_is_forced():
    done = subprocess.run(script(BAR), capture_output=True, text=True, env=ENV | {"FORCE_COLOR": "1"}, timeout=60)
    assert done.stdout == "a sentence\ndone\n"
    assert done.stderr == "raypref: warning: careful\nfed[gd] 3/3, 0:00, loss [2]\n"


TABLE = """
from rich.table import Table
table = Table(*(f"column {i}" for i in range(12)))
table.add_row(*"abcdefghijkl")
say(table)
say("[bold] is not markup")
"""


def test_a_wide_table_is_whole_in_a_pipe():
    out = pipe(TABLE).stdout
    assert "column 11" in out and "…" not in out and "[bold] is not markup\n" in out


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        ("OSError(28, 'No space left on device', 'runs/x')", "runs/x: no space is left; free some; what was saved"),
        ("OSError(27, 'File too large')", "the disk: a file may not grow so large here"),
        ("Exception('I/O error: No space left on device (os error 28)')", "the disk: no space is left"),
    ],
)
def test_a_disk_that_takes_no_more_is_one_line(raised, line):
    """Also in the words of a library in Rust, and behind another error."""
    for body in (
        f"raise {raised}",
        f"try:\n    raise {raised}\nexcept Exception as e:\n    raise ValueError('x') from e",
    ):
        done = pipe(body)
        assert done.returncode == 2 and done.stderr.startswith(f"raypref: {line}") and done.stderr.count("\n") == 1


def test_a_file_size_limit_in_a_real_process(tmp_path):
    body = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        with open(argv[0], "w") as file:
            file.write("x" * 500)
    """
    done = pipe(textwrap.dedent(body), str(tmp_path / "file"))
    assert done.returncode == 2 and "ulimit -f" in done.stderr and "Traceback" not in done.stderr
