"""Methods and objectives by name, loaded when they are first asked for.

`raypref.algorithms.ALGORITHMS` and `raypref.objectives.OBJECTIVES` map a name to `module:Class`. Modules that
RAYPREF_PLUGINS names (`my_methods` or several, with commas) are imported first and may add lines of their own, so that
a method can live outside this package; a cluster's workers are told the same.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from raypref.tools.errors import UserError, nearest

PLUGINS = "RAYPREF_PLUGINS"
"""Environment variable: modules to import, with commas between them."""
ELSEWHERE = f"one of your own is known where {PLUGINS} names its module"


def algorithms() -> Mapping[str, str]:
    """Name -> `module:Class` of every method, in the order in which tables show them."""
    import_plugins()
    return importlib.import_module("raypref.algorithms").ALGORITHMS


def objectives() -> Mapping[str, str]:
    """Name -> `module:Class` of every objective, in the order in which tables show them."""
    import_plugins()
    return importlib.import_module("raypref.objectives").OBJECTIVES


def algorithm(name: str) -> Any:
    """The class of a method (`raypref.algorithms.base.Algorithm`). Raises `UserError` where there is none."""
    return _load(_known("algorithm", name, algorithms()))


def objective(name: str) -> Any:
    """The class of an objective (`raypref.objectives.base.Objective`). Raises `UserError` where there is none."""
    return _load(_known("objective", name, objectives()))


def _known(what: str, name: object, known: Mapping[str, str]) -> str:
    """Where the class of this name is."""
    if not isinstance(name, str) or name not in known:  # a file may hold anything
        raise UserError(f"unknown {what} {name!r}{nearest(str(name), known)}; {ELSEWHERE}")
    return known[name]


def sections() -> dict[str, type]:
    """Section -> its dataclass, of the parameters of every objective and every method."""
    every: dict[str, type] = {}
    for reference in (*algorithms().values(), *objectives().values()):
        for name, kind in _load(reference).parameters.items():
            if every.setdefault(name, kind) is not kind:
                stop(f"{reference}: the section {name} is {every[name].__qualname__}'s already; call it otherwise")
    return every


@functools.cache
def import_plugins() -> None:
    """Import what RAYPREF_PLUGINS names, once; `stop` where that fails, or takes a name that is taken."""
    known = [importlib.import_module("raypref.algorithms").ALGORITHMS]
    known.append(importlib.import_module("raypref.objectives").OBJECTIVES)
    for name in filter(None, map(str.strip, os.environ.get(PLUGINS, "").split(","))):
        before = [dict(names) for names in known]
        try:
            importlib.import_module(name)
        except Exception as error:
            stop(f"{PLUGINS} names {name!r}, which cannot be imported", error)
        for old, new in zip(before, known, strict=True):
            if taken := [word for word, reference in old.items() if new.get(word) != reference]:
                stop(f"{name} gives the name {taken[0]!r} to something else; choose another")


@functools.cache
def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        stop(f"{reference} cannot be loaded", error)


def stop(what: str, error: Exception | None = None) -> NoReturn:
    """End the process with a line: commands read their flags off the methods' parameters before they run."""
    why = f": {type(error).__name__}, {error}" if error else ""
    if "RunConfig" in why:
        why += "; a method's file imports RunConfig under `if TYPE_CHECKING:`, for it is made of these files"
    print(f"raypref: {what}{why}", file=sys.stderr)
    raise SystemExit(2) from error
