"""A run as one frozen dataclass tree: the sections that every run has, and those of all methods and objectives.

The class is put together from the registry when it is first used, so that a method's parameters stand in the method's
own file alone. What those files import must therefore not need it while they are imported: they name `RunConfig` in
annotations only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from raypref.config import identity, registry
from raypref.config.fields import setting
from raypref.config.sections import (
    ClientsConfig,
    DataConfig,
    DiagnosticsConfig,
    FederationConfig,
    ModelConfig,
    OptimConfig,
    PersonalizationConfig,
    RLHFConfig,
)

S = TypeVar("S")


@dataclass(frozen=True)
class General:
    """What every run has, whatever trains it."""

    algorithm: str = "fedgd"
    objective: str = setting("choice", neutral="choice")
    seed: int = setting(0, least=0)
    """Of everything random: synthetic data, initialization, cohorts, batches, slots, dropout."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    rlhf: RLHFConfig = field(default_factory=RLHFConfig)
    personalization: PersonalizationConfig = field(default_factory=PersonalizationConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    clients: ClientsConfig = field(default_factory=ClientsConfig)

    def of(self, section: type[S]) -> S:
        """The section of this type, as a method's file asks for its own."""
        return next(v for f in dataclasses.fields(self) if isinstance(v := getattr(self, f.name), section))

    @property
    def method(self) -> str:
        """What folders and lines call it: the algorithm, with the objective where it is not its usual one."""
        usual = registry.algorithm(self.algorithm).objective
        return self.algorithm if self.objective == usual else f"{self.algorithm}-{self.objective}"

    @property
    def key(self) -> str:
        """Eight hex digits that name what is computed, see `raypref.config.identity`."""
        return identity.key(self)


if TYPE_CHECKING:

    class RunConfig(General):
        """One run. Two equal values give equal results; `key` names the value."""

        def __getattr__(self, section: str) -> Any: ...

else:
    for _name in registry.sections():
        if _name in General.__dataclass_fields__:
            registry.stop(f"the section {_name} of a method or an objective is there for every run; call it otherwise")

    def _named(kind: str, names: Any) -> Any:
        """A word of these, with a help text that lists them."""
        return Annotated[str, tyro.conf.arg(help=f"{kind}: {', '.join(names)}.")]

    RunConfig = dataclasses.make_dataclass(
        "RunConfig",
        [
            ("algorithm", _named("Who trains what with whom", registry.algorithms()), General.algorithm),
            (
                "objective",
                _named("What clients minimise", registry.objectives()),
                General.__dataclass_fields__["objective"],
            ),
            *((name, kind, field(default_factory=kind)) for name, kind in registry.sections().items()),
        ],
        bases=(General,),
        frozen=True,
        namespace={
            "__doc__": "One run. Two equal values give equal results; `key` names the value.",
            "__module__": "raypref.config",
        },
    )
