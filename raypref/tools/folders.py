"""Where a command reads and writes."""

from __future__ import annotations

import os
from pathlib import Path

from raypref.tools.errors import UserError


def working_folder() -> Path:
    """The folder where the command was typed.

    For a Ray job started with --working-dir, whose folder is a copy that is soon deleted, `raypref` in the home folder.
    """
    here = Path.cwd()
    packaged = "working_dir_files" in here.parts or "_ray_pkg_" in str(here)
    return Path.home() / "raypref" if packaged else here


def output_folder(out: Path | None) -> Path:
    """The absolute folder for run folders, which is made; `UserError` where it cannot be made or written."""
    folder = (working_folder() / "runs" if out is None else out.expanduser()).absolute()
    try:
        check_makeable(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make --out {folder}: {error.strerror}") from error
    return folder


def check_makeable(out: Path) -> None:
    """Raises `UserError` where `out` cannot be made or written; makes nothing."""
    existing = next(path for path in (out, *out.parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"--out {out}: {existing} is a file; give a folder")
    if not os.access(existing, os.W_OK):
        raise UserError(f"--out {out}: {existing} is not writable; choose another folder")
