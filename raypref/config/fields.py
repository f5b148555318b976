"""A field of the configuration says itself which values it takes and what part it has in a run.

`raypref.config.identity` reads the parts, `raypref.config.validate` the ranges; nothing else keeps lists of fields.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from raypref.tools.errors import UserError

T = TypeVar("T")

Part = Literal["computed", "rounding", "where", "shown", "answers"]
"""What a field has a part in. `computed`: the parameters that are trained. `rounding`: which clients share a pass; it
changes no more than rounding, but the bits. `where`: on what machine the same is computed. `shown`: what is read out
beside it. `answers`: of stage 2, how every policy is asked, also one that stage 1 has trained."""

ALWAYS: Any = object()
"""No neutral value: the field is always part of a run's key."""


@dataclass(frozen=True)
class Range:
    """The numbers that a field takes; None: no bound."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """`be in (0, 1]`, as it follows "it must"."""
        low, high = self.least if self.above is None else self.above, self.most if self.below is None else self.below
        if low is not None and high is not None:
            return f"be in {'[' if self.above is None else '('}{low:g}, {high:g}{']' if self.below is None else ')'}"
        if high is not None:
            return f"be {'at most' if self.below is None else 'below'} {high:g}"
        if self.least == 0:
            return "not be negative"
        return f"be at least {low:g}" if self.above is None else f"be above {low:g}"


def setting(
    default: T,
    *,
    part: Part = "computed",
    neutral: Any = ALWAYS,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> T:
    """A field of a section with this default.

    neutral: of a field that is younger than its section, the value under which earlier code computed the same. At it
    the field is left out of the key, so that earlier runs keep theirs. It is a record and never changes, also where
    the default does.
    """
    values = Range(least, above, most, below)
    return dataclasses.field(default=default, metadata={"part": part, "neutral": neutral, "range": values})


def part(field: dataclasses.Field[Any]) -> Part:
    """A plain field is part of what is computed."""
    return field.metadata.get("part", "computed")


def neutral(field: dataclasses.Field[Any]) -> Any:
    """See `setting`."""
    return field.metadata.get("neutral", ALWAYS)


def of_part(section: type, *parts: Part) -> tuple[str, ...]:
    """The names of a section's fields that have one of these parts."""
    return tuple(field.name for field in dataclasses.fields(section) if part(field) in parts)


def check_range(name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    """`UserError` where a number (or one in a tuple) is not finite or out of the field's range."""
    numbers = [n for n in (value if isinstance(value, tuple) else (value,)) if isinstance(n, (int, float))]
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{name} is {shown}; it must be a finite number")
    values = field.metadata.get("range", Range())
    if not all(map(values.holds, numbers)):
        raise UserError(f"{name} is {shown}; it must {values}")
