"""Where a command reads and writes."""

from __future__ import annotations

import os
from pathlib import Path

from raypref.tools.errors import UserError


def working_folder() -> Path:
    """Where the command was typed; for a Ray job started with --working-dir, whose folder is a copy that is soon
    deleted, `raypref` in the home directory."""
    here = Path.cwd()
    packaged = "working_dir_files" in here.parts or "_ray_pkg_" in str(here)
    return Path.home() / "raypref" if packaged else here


def output_folder(out: Path | None) -> Path:
    """The absolute base of run folders, made and found writable, else `UserError`."""
    folder = (working_folder() / "runs" if out is None else out.expanduser()).absolute()
    if folder.is_file():
        raise UserError(f"--out {folder} is a file; give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make --out {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {folder} is not writable; choose another folder")
    return folder


def check_makeable(out: Path) -> None:
    """Raises `UserError` where `out` cannot be made or written; makes nothing."""
    there = next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--out {out}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK):
        raise UserError(f"--out {out}: {there} is not writable; choose another folder")
