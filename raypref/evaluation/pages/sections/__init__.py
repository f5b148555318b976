"""The sections of a page, in their order. To add one: a file here with a function, and its line in `SECTIONS`."""

from __future__ import annotations

from collections.abc import Callable

from raypref.evaluation.pages.page import Material, Section
from raypref.evaluation.pages.sections import (
    bearing,
    budgets,
    choices,
    clients,
    curves,
    glance,
    groups,
    latent,
    ledger,
    setting,
    training,
    trials,
)

SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    glance.section,
    trials.section,
    curves.section,
    clients.section,
    choices.section,
    groups.section,
    latent.section,
    training.section,
    budgets.section,
    ledger.section,
    bearing.section,
    setting.configuration,
    setting.repeat,
)


def written(material: Material) -> list[Section]:
    """Those that the material has something for."""
    return [section for make in SECTIONS if (section := make(material)) is not None]
