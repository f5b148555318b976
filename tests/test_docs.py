"""What the pages say exists: files, commands, spaces, flags. And the first page is one that is read to its end."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from raypref.data.__main__ import COMMANDS
from raypref.tools import cli
from tests.test_packaging import ROOT, check_command, commands, flags

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = commands(*PAGES)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """The names of a page's headings in links: lower case, hyphens for spaces, nothing else but letters and digits."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_lines_fit_a_screen(path: Path) -> None:
    """Rows of tables apart."""
    assert [line for line in path.read_text().splitlines() if len(line) > 120 and not line.startswith("|")] == []


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


@pytest.mark.parametrize("command", SHOWN.values(), ids=SHOWN)
def test_pages_show_commands_that_exist(command: list[str]) -> None:
    check_command(*command)


def test_every_flag_in_the_pages_is_one_of_some_command() -> None:
    known = {"--help"}
    for module in ("run", "sweep", "rlhf"):
        known |= flags(f"raypref.{module}", "fedgd")
    for module in ("compare", "claims", "results", "judge", "generate", "score"):
        known |= flags(f"raypref.{module}")
    for part in COMMANDS:
        known |= flags("raypref.data", part)
    for part in ("speed", "rounds", "prepare", "gpu", "sweeps"):
        benchmark = importlib.import_module(f"benchmarks.{part}")
        known |= {f"--{flag}" for flag in cli.flags(benchmark.Options)}
    for path in PAGES:
        words = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*[\w]", path.read_text()))
        assert words - known - {"--rlhf"} == set(), name(path)  # `--rlhf.…` is any of a section
