"""What the pages say exists: files, commands, spaces, flags. And the first page is one that is read to its end."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

from raypref.config import by_another, override
from raypref.config.spaces import every_name, load_space
from raypref.data.__main__ import COMMANDS
from raypref.experiment.loop import check
from raypref.run import Options
from raypref.tools import cli
from tests.test_packaging import ROOT, check_command, commands, flags

METHODS = sorted((ROOT / "docs" / "methods").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += METHODS
WITH_FILES = ROOT / "docs" / "extending.md"
"""Its commands know the files that it shows; `tests/test_tenants.py` runs them."""
ELSEWHERE = {*METHODS, WITH_FILES}  # the methods' commands: tests/test_docs_methods.py
SHOWN = commands(*(page for page in PAGES if page not in ELSEWHERE))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """The names of a page's headings in links: lower case, hyphens for spaces, nothing else but letters and digits."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [page for page in PAGES if "<!-- table: " in page.read_text()], ids=name)
def test_tables_are_what_the_kept_results_say(path: Path) -> None:
    """Each is computed again by the command that it names; `make tables` mends it."""
    rendered = runpy.run_path(str(ROOT / "docs" / "tables.py"))["rendered"]
    assert rendered(path.read_text()) == path.read_text()


def test_the_readme_is_one_page() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    assert sum(bool(re.fullmatch(r"\|[-:| ]+\|", line)) for line in lines) == 1  # one table


def test_the_run_that_the_readme_shows_is_this_versions() -> None:
    """Its folders have the key of what is computed now; where it changes, the run is to be shown anew."""
    config = load_space("fedgd").configured(smoke=True)
    for one in (config, override(config, {"algorithm": "fedavg"})):
        assert f"/{one.algorithm}-seed0-{one.key}\n" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_lines_fit_a_screen(path: Path) -> None:
    """Rows of tables apart, and what a command has printed."""
    written = re.sub(r"<!-- table: .*?<!-- end -->", "", path.read_text(), flags=re.DOTALL)
    assert [line for line in written.splitlines() if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("path", [*PAGES, ROOT / "cluster" / "README.md"], ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        target = path.parent / place if place else path
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_listed_where_a_reader_starts() -> None:
    for start, folder in (("README.md", "docs/"), ("docs/README.md", "")):
        text = (ROOT / start).read_text()
        assert [p.name for p in (ROOT / "docs").glob("*.md") if f"({folder}{p.name}" not in text] in ([], ["README.md"])


KNOWN = set(every_name())
RUNS = [words for module, *words in commands(*PAGES).values() if module == "raypref.run" and set(words[:1]) & KNOWN]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_runs_that_are_shown_fit_together(words: list[str]) -> None:
    """Their fields are values that a run takes, before it reads any data."""
    name, *rest = (word.replace("$seed", "0") for word in words)
    space = load_space(name)
    options = cli.parse(Options, rest, "", Options(space.typed(rest), against=space.against))
    space.check(options.config, options.preset, options.smoke)
    for config in (options.config, *(by_another(options.config, a) for a in options.against if a != "none")):
        check(config)


@pytest.mark.parametrize("command", SHOWN.values(), ids=SHOWN)
def test_pages_show_commands_that_exist(command: list[str]) -> None:
    check_command(*command)


def test_every_flag_in_the_pages_is_one_of_some_command() -> None:
    known = {"--help"}
    for module in ("run", "sweep", "rlhf"):
        known |= flags(f"raypref.{module}", "fedgd")
    for module in ("compare", "report", "claims", "results", "judge", "generate", "score", "onboard"):
        known |= flags(f"raypref.{module}")
    for part in COMMANDS:
        known |= flags("raypref.data", part)
    for part in ("speed", "rounds", "prepare", "gpu", "sweeps", "asking"):
        benchmark = importlib.import_module(f"benchmarks.{part}")
        known |= {f"--{flag}" for flag in cli.flags(benchmark.Options)}
    known |= {"--rlhf", "--backend-store-uri", "--env-manager"}  # any of a section; MLflow's
    for path in PAGES:
        words = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*[\w]", path.read_text()))
        assert words - known - ({"--fedavgm.beta"} if path == WITH_FILES else set()) == set(), name(path)


def test_troubleshooting_quotes_what_is_said() -> None:
    """What it puts in quotation marks as seen is in the code, but for names in between."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    seen = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (?!what one)(.*?) \|", page, re.M)))
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(p.read_text() for p in (ROOT / "raypref").rglob("*.py")))
    options = {"--data.shuffled", "data.max_length", "pip"}
    for words in set(seen) - options:
        assert re.search(".*".join(map(re.escape, words.split("…"))), code), words


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Every page, with links and anchors that hold; none is forgotten in the navigation, and nothing is fetched."""
    mkdocs = pytest.importorskip("mkdocs.commands.build", reason="needs the extra docs")
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    mkdocs.build(config)
    built = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.html")}
    wanted = {"README.html", "CHANGELOG.html", "cluster/README.html"}
    wanted |= {name(p.with_suffix(".html")) for p in PAGES[3:]}
    assert wanted <= {page.replace("index.html", "README.html") for page in built}
    shown = (ROOT / "mkdocs.yml").read_text()
    assert [name(p) for p in PAGES[3:] if f": {name(p)}\n" not in shown] == ["docs/README.md"]
    for page in built:
        assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', (tmp_path / page).read_text()), page


def test_the_citation_is_one() -> None:
    import yaml

    told = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert told["cff-version"] == "1.2.0" and {"message", "title", "authors"} <= set(told)
    shown = (ROOT / "README.md").read_text()
    assert all(ref["identifiers"][0]["value"].replace("arXiv:", "arXiv ") in shown for ref in told["references"])
