"""Shows people progress, sentences and errors. Imports no library that it silences."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import shlex
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

from raypref.tools.errors import UserError
from raypref.tools.secrets import hidden

TERMINATED = 128 + signal.SIGTERM
"""Exit status after SIGTERM."""

QUIET = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Environment of this process and of those that it starts; what a person has set stands."""


def quiet() -> None:
    """Silence the libraries' warnings and progress bars, here and in processes started later; errors stay.

    Call it before they are imported, and in every process that others start and whose output people see (a Ray actor).
    Our own words go through `say` and `warn`, which it leaves alone.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if "PYTHONWARNINGS" not in os.environ and not sys.warnoptions:
        os.environ["PYTHONWARNINGS"] = "ignore"
        warnings.simplefilter("ignore")
    # On import Ray resets its top logger, DeepSpeed (transformers imports it where it is installed) its only one.
    for name in ("alembic", "datasets", "mlflow", "ray._private", "torch", "transformers", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("DeepSpeed").addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def say(what: Any) -> None:
    """Print a sentence, or anything that rich can draw such as a table, on standard output."""
    if isinstance(what, str):
        print(hidden(what), flush=True)
        return
    from rich.console import Console

    width = None
    if not sys.stdout.isatty():  # a pipe has no width; rich would assume 80 and cut what a file could hold
        width = max(160, Console(width=10_000).measure(what).maximum)
    Console(width=width).print(what)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a sentence on standard error, apart from the output proper."""
    print(hidden(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    print(f"raypref: warning: {hidden(text)}", file=sys.stderr, flush=True)


class Progress:
    """Shows progress on standard error: `with Progress(100, "fedgd") as progress: … progress.advance(note="loss 0.4")`.

    In a terminal a bar with elapsed and remaining time. Elsewhere (a pipe, a Ray job's log) plain lines: one when both
    a tenth of `total` and `SECONDS` have passed since the last, and always one at the end, however it ends.
    """

    SECONDS = 15.0

    def __init__(self, total: int, label: str, done: int = 0) -> None:
        """done: what an earlier run has done already; time remaining is judged from the rest."""
        self.total, self.label, self.done, self.note = total, label, done, ""
        self._start = done
        self._bar: Any = None

    def __enter__(self) -> Progress:
        self._began = self._said_at = time.monotonic()
        self._said = self.done
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._bar, self._task = self._open_bar()
        return self

    def advance(self, n: int = 1, note: str = "") -> None:
        """`n` more are done. note: something short, such as the loss; an empty one leaves the last."""
        self.done += n
        self.note = note or self.note
        if self._bar:
            self._bar.update(self._task, completed=self.done, note=self.note)
        elif self.done - self._said >= self.total / 10 and time.monotonic() - self._said_at >= self.SECONDS:
            self._line()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        elif self.done != self._said:
            self._line()

    def _line(self) -> None:
        self._said, self._said_at = self.done, time.monotonic()
        spent = self._said_at - self._began
        parts = [f"{self.label} {self.done}/{self.total}", clock(spent)]
        if self._start < self.done < self.total:
            parts.append(f"{clock(spent / (self.done - self._start) * (self.total - self.done))} left")
        print(", ".join(parts + [self.note] * bool(self.note)), file=sys.stderr, flush=True)

    def _open_bar(self) -> tuple[Any, Any]:
        from rich import progress
        from rich.console import Console

        bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            console=Console(stderr=True),
            refresh_per_second=4,
            # Only what goes to the same terminal may be drawn above the bar; a redirected stdout stays where it is.
            redirect_stdout=sys.stdout.isatty(),
        )
        task = bar.add_task(self.label, total=self.total, completed=self.done, note="")
        bar.start()
        return bar, task


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 3725 -> '1:02:05'; 65 -> '1:05'."""
    minutes, s = divmod(round(seconds), 60)
    h, m = divmod(minutes, 60)
    return f"{h}:{m:02}:{s:02}" if h else f"{m}:{s:02}"


def typed() -> str:
    """The command that this process was started with, without secrets: `python -m raypref.run fedgd --smoke`."""
    return hidden(shlex.join(["python", *sys.orig_argv[1:]]))


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """Inside, what an interruption is told with also says how to go on: there is something to go on with by now."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        stop.add_note(how)
        raise


def main(function: Callable[[list[str]], int | None], argv: Sequence[str]) -> int:
    """Run a command line and return its exit status: `sys.exit(main(command, sys.argv[1:]))`.

    `--debug` and `--verbose` are taken out of argv here. A `UserError` becomes one line and status 2, Ctrl-C one line
    and 130, SIGTERM one line and 143; `--debug` shows where they came from. Any other exception is our fault:
    traceback, status 1. Libraries are kept `quiet` unless `--verbose` (or `--debug`).
    """
    debug, verbose = "--debug" in argv, "--verbose" in argv
    if not (debug or verbose):
        quiet()
    try:
        with _terminable():
            status = function([word for word in argv if word not in ("--debug", "--verbose")]) or 0
        sys.stdout.flush()
        return status
    except (UserError, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != TERMINATED:
            raise
        if debug:
            _trace()
        # From a Ray actor it arrives wrapped, the remote traceback in its text; `cause` is the original.
        line = "; ".join(["interrupted", *getattr(error, "__notes__", ())])
        line = str(getattr(error, "cause", error)) if isinstance(error, UserError) else line
        print(f"raypref: {line}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, UserError) else 130 if isinstance(error, KeyboardInterrupt) else TERMINATED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_gone():
            return 141
        if (full := _disk(error)) and not debug:
            print(f"raypref: {full}", file=sys.stderr, flush=True)
            return 2
        _trace()
        return 1


def _trace() -> None:
    """Print where the exception at hand came from."""
    print(hidden(traceback.format_exc()), file=sys.stderr, end="", flush=True)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit, so that what is open is closed in order; another's handler stands."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _disk(error: BaseException) -> str:
    """The line for an error of a disk that takes no more, in whatever library's words; '' for any other."""
    chain = error
    while chain is not None:
        number = getattr(chain, "errno", None)
        for code, what in DISK.items():
            if number == code or f"os error {code})" in str(chain) or f"[Errno {code}]" in str(chain):
                where = getattr(chain, "filename", None)
                return f"{where or 'the disk'}: {what}; what was saved before is intact, --resume goes on from there"
        chain = chain.__cause__ or chain.__context__
    return ""


DISK = {
    errno.ENOSPC: "no space is left; free some",
    errno.EDQUOT: "the quota is used up; free some",
    errno.EFBIG: "a file may not grow so large here; raise the limit (ulimit -f)",
    errno.EROFS: "it has become read-only; make it writable again",
    errno.EPERM: "writing is not permitted, as where lsattr shows an attribute; make it writable again",
    errno.EACCES: "permission is denied; make it readable and writable again",
}
"""Errors of a disk, and what to do."""


def _reader_gone() -> bool:
    """Whether what reads our output (such as `head`) has left; then nothing more is written."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:  # Python flushes once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone
