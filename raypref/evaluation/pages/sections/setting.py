"""The configuration, and how to repeat it."""

from __future__ import annotations

from dataclasses import replace

from raypref.config import RunConfig, flatten, to_dict
from raypref.config.identity import described, own_sections
from raypref.evaluation.pages.page import Hidden, Material, Section
from raypref.evaluation.pages.sections.common import texts
from raypref.evaluation.runs import Config, show, varying
from raypref.evaluation.tables import NONE, Table


def configuration(material: Material) -> Section:
    """What varies between the entries first, then what differs from the defaults, then all that has a part."""
    configs = [entry.first.config for entry in material.entries]
    keys = [key for key in described() if any(_own(key, config) for config in configs)]
    usual = flatten(to_dict(RunConfig()))
    differ = [key for key in varying(configs) if key in keys]
    other = [key for key in keys if key not in differ and key != "seed" and configs[0].get(key) != usual.get(key)]
    parts: list[Table | Hidden | str] = []
    if differ:
        rows = [(entry.label, [_said(key, entry.first.config) for key in differ]) for entry in material.entries]
        parts.append(_titled("What varies", texts("of", differ, rows)))
    if other:
        rows = [(key, [_said(key, configs[0]), _said(key, usual)]) for key in other]
        parts.append(_titled("Other than the default", texts("field", ("here", "default"), rows)))
    if not parts:
        parts.append("Every field has its default.")
    rows = [(key, [_said(key, config) for config in configs[:1]]) for key in keys if key not in differ]
    parts.append(Hidden(f"All {len(rows)} fields that have a part", texts("field", ("here",), rows)))
    seeds = sorted({run.seed for entry in material.entries for run in entry.runs})
    lead = f"Seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}. --help behind a command says what a field is."
    return Section("configuration", "Configuration", lead, parts)


def repeat(material: Material) -> Section:
    """The commands."""
    lead = (
        "On a CPU the same words give the same bits, with the same versions on the same kind of machine; runs that are "
        "there already are shown again at once."
    )
    return Section("repeat", "How to repeat it", lead, [f"$ {command}" for command in material.commands])


def _own(key: str, config: Config) -> bool:
    return (key.partition(".")[0] if "." in key else "") in own_sections(config) and key in config


def _said(key: str, config: Config) -> str:
    value = show(config[key]) if key in config else ""
    return value or NONE


def _titled(title: str, table: Table) -> Table:
    return replace(table, title=title)
