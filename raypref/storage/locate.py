"""A run, by what a person types for it: its folder, or its MLflow run id."""

from __future__ import annotations

import re
from pathlib import Path

from raypref.tools.errors import UserError, nearest
from raypref.tools.folders import working_folder

CACHE = Path("~/.cache/raypref/runs")
"""Where a run's artifacts are fetched to when its folder is not on this machine."""


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
    if not (path / needed).is_file():
        other = {"result.json": "policy.json", "policy.json": "result.json"}[needed]
        what = "stage-1 run" if needed == "result.json" else "policy"
        if (path / other).is_file():
            kind = "a policy" if other == "policy.json" else "a stage-1 run"
            raise UserError(f"{run} is {kind}, not a finished {what}; {how}")
        raise UserError(f"{run} holds no finished {what} (no {needed}); {how}")
    return path


def position(client: str, ids: list[str], why: str) -> int:
    """Where a client stands among those of the run; `UserError` where it is none of them. why: one is needed."""
    if client not in ids:
        what = f"client {client!r} took no part" if client else f"--client is missing: {why}"
        hint = nearest(client, ids)
        few = f"; there are {len(ids)}, such as {', '.join(ids[:3])}"
        raise UserError(f"{what}{hint if 'did you mean' in hint else few}")
    return ids.index(client)
