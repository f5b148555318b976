"""Makes the pictures of README.md and, in a real browser, of docs/looking.md: `python docs/pictures/make.py RUNS`.

RUNS is a folder where `python -m raypref.sweep NAME` was typed, with its mlflow.db and runs/; where `python -m
raypref.run NAME` was typed, too, its figure is README's, else that stays. A server is started on loopback, and ended.
Needs playwright (the extra dev) and chromium.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from raypref.storage import tracking

HERE = Path(__file__).parent
COLOURS = 64
"""Of a picture, so that it stays small."""


@contextmanager
def server(uri: str) -> Iterator[str]:
    """The address of an MLflow server of this database."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "mlflow",
        "server",
        "--backend-store-uri",
        uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("mlflow server does not start") from None
                time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait()


def keep(page: Page, name: str, **how: Any) -> None:
    """A PNG of what is shown, of few colours."""
    path = HERE / f"{name}.png"
    page.screenshot(path=path, **how)
    lighten(path, path)


def lighten(source: Path, path: Path) -> None:
    """The same picture in few colours."""
    with Image.open(source) as image:
        image.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1000} kB")


def main(folder: Path) -> int:
    """Make all of them."""
    for figure in folder.glob("runs/*/comparison.png"):
        lighten(figure, HERE / "run.png")
    uri = f"{tracking.SQLITE}{folder / 'mlflow.db'}"
    parents = [run for run in tracking.search(uri, tracking.search(uri, ())[1])[0] if run.tags.get(tracking.FOLDER)]
    sweep = next(run for run in parents if (Path(run.tags[tracking.FOLDER]) / "trials.csv").exists())
    trial = next(run for run in parents if run.tags.get("mlflow.parentRunId") == sweep.id)
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with server(uri) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])

        def shown(url: str, wait: str, width: int = 1280, **how: Any) -> Page:
            page = browser.new_page(viewport={"width": width, "height": 800}, **how)
            page.set_default_timeout(120_000)
            page.goto(url)
            page.wait_for_selector(wait)
            page.wait_for_timeout(4000)  # what is drawn after it has come
            return page

        (experiment,) = [
            e for e in tracking._mlflow().MlflowClient(uri).search_experiments() if e.name == sweep.experiment
        ]
        at = {
            "experiment": tracking.address(address, experiment.experiment_id),
            "sweep": tracking.address(address, experiment.experiment_id, run=sweep.id),
            "run": tracking.address(address, experiment.experiment_id, run=trial.id),
        }
        for name, url in at.items():
            page = shown(url, "text=Description" if "/runs/" in url else "text=Run Name")
            assistant = page.locator("button[aria-label='Close']")
            if assistant.count():
                assistant.first.click()
                page.wait_for_timeout(3000)
            keep(page, f"mlflow-{name}")
            page.close()
        report = (Path(trial.tags[tracking.FOLDER]) / "report.html").as_uri()
        keep(shown(f"{report}#accuracy", "[data-drawn=all]"), "report")
        keep(shown(f"{report}#clients", "[data-drawn=all]", 390, color_scheme="dark"), "report-phone")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
