"""The pages of methods and objectives hold what is so: every field with its symbol and default, every metric that is
logged, what clients send, and no number that the pages of results lack."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from raypref.clients.ledger import SERVER, named
from raypref.config import RunConfig, identity, override, registry
from raypref.config.sections import FederationConfig, OptimConfig, PersonalizationConfig
from raypref.config.values import flatten, to_dict
from raypref.evaluation import diagnostics
from raypref.evaluation.curve import seen_and_unseen
from raypref.experiment import loop
from raypref.experiment.reports import Reports
from tests.test_packaging import ROOT, commands, every_name, flags

METHODS = ROOT / "docs" / "methods"
ALGORITHMS, OBJECTIVES = tuple(registry.algorithms()), tuple(registry.objectives())
SHARED = "metrics"
pytestmark = pytest.mark.xdist_group("docs_methods")


def kind(name: str) -> Any:
    return registry.algorithm(name) if name in ALGORITHMS else registry.objective(name)


def text(name: str) -> str:
    return (METHODS / f"{name}.md").read_text()


def rows(name: str) -> Iterator[list[str]]:
    """The cells of every row of a page's tables whose first cell begins with code."""
    for line in re.findall(r"^\| (`.*|\[`.*) \|$", text(name), re.M):
        yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]


def test_every_method_and_objective_has_a_page_and_a_row_in_the_index() -> None:
    assert {path.stem for path in METHODS.glob("*.md")} == {*ALGORITHMS, *OBJECTIVES, SHARED, "README"}
    listed = [row[0] for row in rows("README") if row[0].startswith("[")]
    assert listed == [f"[`{name}`]({name}.md)" for name in (*ALGORITHMS, *OBJECTIVES)]
    assert all(f"methods/{name}.md" in (ROOT / "README.md").read_text() for name in (*ALGORITHMS, *OBJECTIVES))


@pytest.mark.parametrize("name", [*ALGORITHMS, *OBJECTIVES])
def test_a_page_has_its_parts_its_source_and_its_command(name: str) -> None:
    parts = re.findall(r"^## (.*)$", text(name), re.M)
    assert parts == ["What it does", "Parameters", "Metrics", "Run it", "Result"]
    assert f"](../../{kind(name).__module__.replace('.', '/')}.py)" in text(name)
    assert re.search(r"^1\. ", text(name), re.M)
    shown = commands(METHODS / f"{name}.md").values()
    runs = [words for module, *words in shown if module == "raypref.run"]
    assert any(name in words or kind(words[0]).objective == name for words in runs)
    for module, *words in shown:
        assert words[0] in every_name()
        known = flags("raypref.compare") if module == "raypref.compare" else flags(module, "fedgd")
        assert {word for word in words if word.startswith("--")} <= known


# --- parameters -----------------------------------------------------------------------------------------------------


def documentation(section: type) -> dict[str, str]:
    """What stands beneath each field of a section."""
    (body,) = ast.parse(inspect.getsource(section)).body
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        field.target.id: " ".join(ast.literal_eval(below.value).split())
        for field, below in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }  # fmt: skip


def symbol(name: str, words: str) -> str:
    """The paper's, with which a field's documentation begins: a letter, or what no English word looks like. Else the
    name, where that is a letter."""
    found = re.match(r"(\([^)]*\)|[^`]{1,16}?)(?:[,:] | \(| of )", words)
    if found and (len(found[1]) == 1 or re.search(r"[^\x00-\x7f]|_", found[1])):
        return found[1]
    return name if len(name) == 1 else "–"


def shown(value: Any) -> str:
    """A default as pages have it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, list)):
        return " ".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value) or "–"


def test_a_symbol_is_read_off_a_fields_documentation() -> None:
    assert symbol("lam", "λ, weight of the pull (S1 Table 4: 1).") == "λ"
    assert symbol("eta", "η_g, the server's step size") == "η_g"
    assert symbol("log_variance_max", "log σ²_max (S1 4.1 does not say it).") == "log σ²_max"
    assert symbol("K", "Experts (S2 A.2).") == "K" and symbol("head", "Share of the τ local steps") == "–"


@pytest.mark.parametrize("name", [*ALGORITHMS, *OBJECTIVES, "README"])
def test_a_page_has_every_field_of_its_own_with_symbol_and_default(name: str) -> None:
    general = {"federation": FederationConfig, "optim": OptimConfig, "personalization": PersonalizationConfig}
    own = general if name == "README" else kind(name).parameters
    wanted = {
        f"{section}.{field.name}": [symbol(field.name, told.get(field.name, "")), shown(field.default)]
        for section, of in own.items()
        for told in [documentation(of)]
        for field in fields(of)
    }
    table = {row[0].strip("`"): row[1:3] for row in rows(name) if row[0].strip("`") in identity.described()}
    assert {field: cells for field, cells in table.items() if field.partition(".")[0] in own} == wanted
    sections = {field.partition(".")[0] for field in identity.described()}
    named = {word for word in re.findall(r"`(\w+\.\w+)[^`]*`", text(name)) if word.partition(".")[0] in sections}
    assert named - set(identity.described()) == set()
    usual = flatten(to_dict(RunConfig()))
    assert all(cells[1] == shown(usual[field]) for field, cells in table.items())


# --- metrics and what is sent ---------------------------------------------------------------------------------------


class Told:
    """Stands in for MLflow: the names of metrics that it is told."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.names |= set(values)

    def artifact(self, path: Path) -> None: ...

    def describe(self, words: str) -> None: ...


SMALL = {
    "federation.rounds": 2, "federation.cohort": 2, "federation.local_steps": 2, "data.group_sizes": (2, 2),
    "data.pairs_per_axis": 12, "experts.K": 2, "variational.M": 2, "personalization.marks": (0, 1),
}  # fmt: skip
WHOLE: dict[str, dict[str, Any]] = {
    "fedbiscuit": {"diagnostics.marks": (0,), "federation.unseen": 1},
    "fedvpa_gp": {"objective": "variational", "variational.form": "printed", "variational.lora": True},
}
"""Runs to their end, which together log all that is the same for all methods."""
ADDED = "fedprox"
"""A method that adds a part to the loss, so that the objective's own is logged, too."""


@pytest.fixture(scope="module")
def logged(tiny, tmp_path_factory) -> tuple[dict[tuple[str, str], set[str]], dict[str, set[str]]]:
    """(method, objective) -> metrics of its rounds, all methods with their usual objective and all objectives; method
    -> the kinds of what its clients have sent to the server."""
    pytest.importorskip("opacus", reason="ε is counted by Opacus: pip install raypref[privacy]")
    metrics: dict[tuple[str, str], set[str]] = {}
    sent: dict[str, set[str]] = {}
    for name, objective in [(n, kind(n).objective) for n in ALGORITHMS] + [(ADDED, n) for n in OBJECTIVES]:
        inputs = loop.prepare(override(tiny, SMALL | {"algorithm": name, "objective": objective}))
        loop.read_once(inputs)
        names, kinds = metrics.setdefault((name, objective), set()), sent.setdefault(name, set())
        for record in loop.records(inputs, loop.Saved()):
            if isinstance(record, loop.PersonalizationStarts):
                break
            names |= set(record.metrics) if isinstance(record, loop.RoundDone) else set()
            kinds |= {what for what in record.left if named(what).reader == SERVER}
    return metrics, sent


def documented(name: str) -> set[str]:
    """Names of metrics in a page's tables; … stands for any word, FOLD for a fold of clients seen or unseen."""
    return {metric for row in rows(name) for metric in re.findall(r"`([^`]*/[^`]*)`", row[0])}


def matching(names: set[str], patterns: set[str]) -> set[str]:
    """Which of these names a page has."""
    fold = "(unseen )?(test|validation)"
    ways = [re.compile(re.escape(way).replace("…", r"\w+").replace("FOLD", fold)) for way in patterns]
    return {name for name in names if any(way.fullmatch(name) for way in ways)}


def unknown(patterns: set[str], names: set[str]) -> set[str]:
    """Which entries of a page name nothing that is logged."""
    return {pattern for pattern in patterns if not matching(names, {pattern})}


def test_a_page_has_every_metric_of_its_own_and_no_other(logged) -> None:
    shared = documented(SHARED)
    for (name, objective), names in logged[0].items():
        own = names - matching(names, shared)
        assert own - matching(own, documented(name) | documented(objective)) == set(), (name, objective)
        if objective == kind(name).objective:
            assert unknown(documented(name), own) == set(), name
        if name == ADDED:
            assert unknown(documented(objective), own) == set(), objective


def test_the_page_of_all_methods_has_every_metric_of_whole_runs_and_no_other(logged, tiny, tmp_path) -> None:
    everything = set().union(*logged[0].values())
    for name, values in WHOLE.items():
        told = Told()
        config = override(tiny, SMALL | {"algorithm": name} | values)
        result = loop.run(config, tmp_path / name, track=told, adapters=False, reports=Reports(1, 1))
        pages = documented(SHARED) | documented(name) | documented(config.objective)
        assert told.names - matching(told.names, pages) == set()
        everything |= told.names
        if config.diagnostics.marks:  # also those that are not defined for one block
            numbers = diagnostics.summary(seen_and_unseen(result)[0])
            everything |= {f"after local steps/{k}" for k, v in numbers.items() if not isinstance(v, list)}
    parts = {f"total/{part} parameters of a client" for part in ("adapter", "latent", "head")}
    assert unknown(documented(SHARED), everything | parts) == set()


SENT = {
    "update": "update",
    "training pairs": "training pairs",
    "true group": "true group",
    "readings/validation/loss": "validation loss",
    "readings/validation/accuracy": "validation accuracy",
    "statistics/mu": "μ",
    "latent/mu": "μ",
    "statistics/variance": "σ²",
    "statistics/delta_c": "Δc",
}
"""Kind of what clients send -> its words in the index."""


def test_the_index_says_what_clients_send(logged) -> None:
    cells = {row[0][2:].partition("`")[0]: row[3] for row in rows("README") if row[0].startswith("[")}
    for name in ALGORITHMS:
        kinds = {what for what in logged[1][name] if not what.startswith("readings")} | set(kind(name).needed() or ())
        assert kinds <= {*SENT, "number of pairs", "pooled model"}, name
        wanted = {words for what, words in SENT.items() if what in kinds}
        assert {words for words in SENT.values() if words in cells[name]} == wanted, name
        assert wanted or cells[name] == "nothing"


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ALGORITHMS, *OBJECTIVES])
def test_numbers_are_those_of_the_pages_that_are_linked(name: str) -> None:
    result = text(name).partition("## Result")[2]
    pages = [(METHODS / link).read_text() for link in re.findall(r"\]\(([^)#]+\.md)", result)]
    for number in re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", result):
        assert any(re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", page) for page in pages), number
