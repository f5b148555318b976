"""`make tables`: writes those tables of the pages anew that are computed from the kept results (`results/`).

A page says where one stands and which command prints it; a test compares every page with what this would write:

    <!-- table: compare graded_tuning --table trials -->
    | … |
    <!-- end -->
"""

import contextlib
import importlib
import io
import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(r"(<!-- table: (?P<words>[^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def printed(words: str) -> str:
    """What a command of raypref writes as Markdown from the kept results, such as `compare graded_main --table 3`."""
    name, *argv = words.split()
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        command = importlib.import_module(f"raypref.{name}").command
        assert command([*argv, "--results", str(ROOT / "results"), "--out", out]) == 0, words
        return "\n".join(path.read_text() for path in sorted(Path(out).glob("*.md")))


def rendered(page: str) -> str:
    """The page with all of its tables as they are now."""
    return PLACE.sub(lambda place: f"{place[1]}{printed(place['words'])}{place[3]}", page)


if __name__ == "__main__":
    for path in sorted(ROOT.glob("docs/**/*.md")):
        page = path.read_text()
        if (now := rendered(page)) != page:
            path.write_text(now)
            print(f"{path.relative_to(ROOT)}: written anew")
