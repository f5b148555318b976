"""What MkDocs makes pages of: the checkout's Markdown where it lies, and whatever file it links to."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def on_files(files: Files, config) -> Files:
    """The navigation's pages, and the files that they link to: other pages of the checkout, its sources, pictures."""
    waiting = [entry for part in config.nav for entry in _paths(part)]
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(path) is not None or not (ROOT / path).is_file():
            continue
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            linked = ((ROOT / path).parent / target for target in LINK.findall(text))
            waiting += [str(target.resolve().relative_to(ROOT)) for target in linked if target.is_file()]
    return files


def _paths(entry):
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [path for value in values for path in _paths(value)]
