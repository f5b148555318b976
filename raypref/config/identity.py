"""Which runs are the same: one place that reads off the fields what part they have (`raypref.config.fields`).

Of a configuration count the general sections and those of its own method and objective; what other methods are set to
changes nothing. Local data count by their digest, not by where they lie.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from raypref.config import fields, registry
from raypref.config.fields import ALWAYS, Part
from raypref.config.sections import GENERATED
from raypref.config.values import flatten, to_dict

if TYPE_CHECKING:
    from raypref.config.tree import General

BITS: frozenset[Part] = frozenset({"computed", "rounding", "shown"})
"""Parts of which two runs must agree to be one run, whose bits a resume repeats."""
TRAINED: frozenset[Part] = frozenset({"computed"})
"""Parts of which two runs must agree to be compared: they differ in no trained parameter beyond rounding."""


def key(config: General) -> str:
    """Eight hex digits that name a run."""
    return _digest(known(flatten(to_dict(config)), BITS))


def policy_key(config: General) -> str:
    """Eight hex digits that name the policy that follows a run: by how stage 2 trains it, or where stage 1 has trained
    it already (`Objective.is_policy`) by how it is asked."""
    flat = flatten(to_dict(config))
    parts: set[Part] = {"answers"} if registry.objective(config.objective).is_policy else {"answers", "computed"}
    names = (name for name in described() if name.partition(".")[0] in following())
    stage2 = {name: flat[name] for name in names if fields.part(described()[name]) in parts}
    return _digest({"run": key(config)} | stage2)


def compared(flat: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs, maybe of different methods, must agree in where a table does not vary it: dotted name -> value.

    The sections of all methods are there, as each run was configured: a method that has no experts belongs beside those
    that were run with the same number of them. Those of other objectives are not.
    """
    foreign = set().union(*(registry.objective(name).parameters for name in registry.objectives()))
    foreign -= {*registry.objective(flat["objective"]).parameters}
    return known(flat, TRAINED, own_sections(flat) | {*registry.sections()} - foreign)


def known(flat: Mapping[str, Any], parts: Collection[Part], sections: Collection[str] | None = None) -> dict[str, Any]:
    """The fields of a run that have one of these parts: dotted name -> value, without those at their neutral value.

    flat: the whole configuration, as JSON has it. sections: whose fields; None: those of the run (`own_sections`).
    """
    sections = own_sections(flat) if sections is None else sections
    kept = {}
    for name, field in described().items():
        section = name.partition(".")[0] if "." in name else ""
        if name not in flat or section not in sections or fields.part(field) not in parts:
            continue
        generator = name.split(".")[1:-1]
        if generator and generator != [flat["data.source"]]:  # what another source is made with
            continue
        if fields.neutral(field) is ALWAYS or flat[name] != json.loads(json.dumps(fields.neutral(field))):
            kept[name] = flat[name]
    if kept.get("data.digest"):
        del kept["data.source"]
    return kept


def logged(flat: Mapping[str, Any], usual: Mapping[str, Any], policy: bool = False) -> dict[str, Any]:
    """The fields that whoever compares runs wants to see: those that have a part in what is computed or shown, and of
    where and in which passes it is computed those that are not as usual.

    flat: the whole configuration. usual: the defaults. policy: it is of a policy, so that stage 2 has a part, too.
    """
    sections = own_sections(flat) | (following() if policy else set())
    parts: set[Part] = {"computed", "shown", "answers"}
    kept = known(flat, parts, sections) | {"data.source": flat["data.source"]}
    where = known(flat, {"rounding", "where"}, sections)
    kept |= {name: value for name, value in where.items() if value != usual.get(name)}
    generated = flat["data.source"] in GENERATED  # which has no columns
    return {name: value for name, value in kept.items() if not (generated and name.endswith("_column"))}


def own_sections(flat: Mapping[str, Any]) -> set[str]:
    """The sections that have a part in a run: the general ones, its method's and its objective's; '' stands for the
    fields of no section."""
    own = {*registry.algorithm(flat["algorithm"]).parameters, *registry.objective(flat["objective"]).parameters}
    foreign = ({*registry.sections()} | following()) - own
    return {"", *(name.partition(".")[0] for name in described() if "." in name)} - foreign


@functools.cache
def following() -> frozenset[str]:
    """The sections of what may follow a run (their class says `follows`), which have no part in the run itself."""
    from raypref.config.tree import RunConfig

    return frozenset(f.name for f in dataclasses.fields(RunConfig) if getattr(f.default_factory, "follows", False))


@functools.cache
def described() -> Mapping[str, dataclasses.Field[Any]]:
    """Dotted name -> the dataclass field, of a whole configuration."""
    from raypref.config.tree import RunConfig

    return dict(_described(RunConfig(), ""))


def _described(value: Any, prefix: str) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            yield from _described(inner, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
