"""A run as a value: one frozen dataclass tree, from which everything else follows.

Nothing here imports torch, ray or transformers, so that `--help` answers at once. Cited papers: S1 and S2, see
`raypref/__init__.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypref.config import identity, registry
from raypref.config.fields import check_range
from raypref.config.sections import GENERATED as GENERATED
from raypref.config.sections import ClientsConfig as ClientsConfig
from raypref.config.sections import DataConfig as DataConfig
from raypref.config.sections import DiagnosticsConfig as DiagnosticsConfig
from raypref.config.sections import FederationConfig as FederationConfig
from raypref.config.sections import GradedConfig as GradedConfig
from raypref.config.sections import ModelConfig as ModelConfig
from raypref.config.sections import OptimConfig as OptimConfig
from raypref.config.sections import PersonalizationConfig as PersonalizationConfig
from raypref.config.sections import RLHFConfig as RLHFConfig
from raypref.config.values import flatten as flatten
from raypref.config.values import override as override
from raypref.config.values import to_dict as to_dict
from raypref.tools import checkpoint
from raypref.tools.errors import UserError as UserError
from raypref.tools.errors import nearest as nearest

if TYPE_CHECKING:
    from raypref.config.tree import RunConfig as RunConfig


def __getattr__(name: str) -> Any:
    """`RunConfig`, put together when it is first used: its sections stand in the files of methods and objectives, which
    import this package."""
    if name != "RunConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from raypref.config.tree import RunConfig

    return RunConfig


def from_dict(value: Mapping[str, Any]) -> RunConfig:
    """Inverse of `to_dict`. Missing fields take their defaults; unknown ones, and an unknown method or objective, raise
    `UserError`."""
    from raypref.config.tree import RunConfig

    if not isinstance(value, Mapping):
        raise UserError(f"a configuration is an object of sections, not {type(value).__name__}")
    config = RunConfig()
    registry.algorithm(value.get("algorithm", config.algorithm))  # before the fields that came with it
    registry.objective(value.get("objective", config.objective))
    return override(config, flatten(value))


def read_config(folder: Path) -> RunConfig:
    """What a run or a policy was configured with, from its `config.json`. Fields that it lacks, as one of an earlier
    version may, have their defaults. Raises `UserError` as `raypref.tools.checkpoint.read_json` does, and for fields
    that there are no more."""
    values = checkpoint.read_json(folder / "config.json", "algorithm", "data")
    try:
        return from_dict(values)
    except UserError as error:
        raise UserError(f"{folder / 'config.json'}: {error}; it may be of another version of raypref") from error


def by_another(config: RunConfig, algorithm: str) -> RunConfig:
    """The same run by another method, without what only one's own method promises (a section with a `promise`)."""
    others = registry.algorithm(algorithm).parameters
    sections = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    reset = {k: type(v)() for k, v in sections.items() if hasattr(v, "promise") and k not in others}
    return dataclasses.replace(config, algorithm=algorithm, **reset)


def validate(config: RunConfig) -> None:
    """What can be said without the data: raises `UserError` with one line that says what to do."""
    algorithm, objective = registry.algorithm(config.algorithm), registry.objective(config.objective)
    values = flatten(dataclasses.asdict(config))
    for name, field in identity.described().items():
        check_range(name, values[name], field)
    for name, section in ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config)):
        if hasattr(section, "check"):
            section.check()
        if hasattr(section, "promise") and name not in algorithm.parameters and section != type(section)():
            needs = algorithm.needed()
            why = f", and its server reads {', '.join(needs)} of each client" if needs else ""
            raise UserError(f"{config.algorithm} does nothing with {name}.*{why}; {section.promise}")
    marks, diagnosed = config.personalization.marks, config.diagnostics.marks
    if list(diagnosed) != sorted(set(diagnosed) & set(marks)):
        raise UserError(f"diagnostics.marks is {diagnosed}; give some of personalization.marks {marks}, rising")
    if diagnosed and not objective.diagnoses:
        raise UserError(
            f"diagnostics.marks are S2's, of a selector's choice; leave them empty with objective {config.objective}"
        )
    objective.check(config)
    algorithm.check(config)
