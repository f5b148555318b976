"""Finds a run by what a person types for it: its folder, or its MLflow run id."""

from __future__ import annotations

import re
from pathlib import Path

from raypref.tools.errors import UserError, nearest
from raypref.tools.folders import working_folder

CACHE = Path("~/.cache/raypref/runs")
"""Where a run's artifacts are fetched to when its folder is not on this machine."""
KINDS = {"result.json": "stage-1 run", "policy.json": "policy"}
"""What a folder is that holds this file."""


def stage1(run: str) -> Path:
    """The folder of a finished run of `raypref.run` or `raypref.sweep`."""
    return _checked(run, "result.json", "python -m raypref.run makes one")


def policy(run: str) -> Path:
    """The folder of a finished policy of `raypref.rlhf`."""
    return _checked(run, "policy.json", "python -m raypref.rlhf makes one")


def folder(run: str) -> Path:
    """The folder of either. Raises `UserError` in one line where there is none."""
    path = Path(run).expanduser().absolute()
    if path.is_dir():
        return path
    if not re.fullmatch(r"[0-9a-f]{32}", run):
        raise UserError(f"{run}: there is no such folder, and it is no MLflow run id; give a run's folder or its id")
    from raypref.storage import tracking

    return tracking.fetch(tracking.tracking_uri(working_folder()), run, CACHE.expanduser() / run)


def _checked(run: str, needed: str, how: str) -> Path:
    path = folder(run)
    if (path / needed).is_file():
        return path
    for file, kind in KINDS.items():
        if (path / file).is_file():
            raise UserError(f"{run} is a {kind}, not a finished {KINDS[needed]}; {how}")
    raise UserError(f"{run} holds no finished {KINDS[needed]} (no {needed}); {how}")


def position(client: str, ids: list[str], why: str) -> int:
    """The client's place among the `ids` of the run; `UserError` where it is none of them. why: one is needed."""
    if client not in ids:
        what = f"client {client!r} took no part" if client else f"--client is missing: {why}"
        hint = nearest(client, ids)
        few = f"; there are {len(ids)}, such as {', '.join(ids[:3])}"
        raise UserError(f"{what}{hint if 'did you mean' in hint else few}")
    return ids.index(client)
