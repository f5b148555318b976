"""Configurations as plain values: nested or flat mappings to frozen dataclasses and back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from raypref.tools.errors import UserError, nearest

C = TypeVar("C")


def to_dict(config: Any) -> dict[str, Any]:
    """The tree as plain JSON-able values (tuples become lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys: {"experts": {"K": 4}} -> {"experts.K": 4}."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat.update(flatten(item, f"{prefix}{name}."))
        else:
            flat[prefix + name] = item
    return flat


def override(config: C, values: Mapping[str, Any]) -> C:
    """A new value with dotted keys replaced: `override(c, {"experts.K": 3})`.

    Raises `UserError` on an unknown key (naming the nearest) or a value of the wrong type.
    """
    known = flatten(dataclasses.asdict(config))  # type: ignore[call-overload]
    for dotted, value in values.items():
        if dotted not in known:
            raise UserError(f"unknown field {dotted!r}{nearest(dotted, known)}")
        config = _replace(config, dotted.split("."), value, dotted)
    return config


def _replace(node: Any, path: list[str], value: Any, dotted: str) -> Any:
    name, *rest = path
    if rest:
        return dataclasses.replace(node, **{name: _replace(getattr(node, name), rest, value, dotted)})
    return dataclasses.replace(node, **{name: _coerce(value, typing.get_type_hints(type(node))[name], dotted)})


def _coerce(value: Any, hint: Any, dotted: str) -> Any:
    """`value` as the annotated type, or `UserError`. Accepts JSON's forms (lists for tuples, ints for floats)."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in args:
            return value
        raise UserError(f"{dotted} is {value!r}; it must be one of {', '.join(map(repr, args))}")
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _coerce(value, next(a for a in args if a is not type(None)), dotted)
    if origin is tuple and isinstance(value, (list, tuple)):
        inner = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(inner) == len(value):
            return tuple(_coerce(v, t, dotted) for v, t in zip(value, inner, strict=True))
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    elif isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"{dotted} is {value!r}; it must be {getattr(hint, '__name__', None) or hint}")
