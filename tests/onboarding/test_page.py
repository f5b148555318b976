"""The interview as a page, in a real browser without a head: what a person sees, and whom it asks for anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from raypref.config import override
from raypref.experiment import loop
from raypref.storage import people

pytest.importorskip("nicegui", reason="NiceGUI is not installed (the extra web)")
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (the extra dev)")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def listening(port: int) -> set[str]:
    """The addresses of this machine on which something listens at this port, in hexadecimal as the kernel has them."""
    files = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    lines = [line.split() for file in files if file.exists() for line in file.read_text().splitlines()[1:]]
    places = [words[1].split(":") for words in lines if words[3] == "0A"]
    return {address for address, at in places if int(at, 16) == port}


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_a_person_is_interviewed_in_a_browser(tiny, tmp_path):
    folder = tmp_path / "run"
    small = {"data.group_sizes": (3, 3), "federation.unseen": 1, "federation.cohort": 2, "federation.rounds": 2}
    latent = {"variational.features": 8, "variational.encoder": 8, "variational.d": 4}
    loop.run(override(tiny, {**small, **latent, "algorithm": "fedvpl", "objective": "variational"}), folder)
    # Under this variable NiceGUI takes itself for one of its own tests.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    words = ["--name", "ivy", "--web", "--look", "12", "--choices", "3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "raypref.onboard", str(folder), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        address, printed = "", []
        for line in process.stdout:
            printed.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                address = found[0]
                break
        assert address, "".join(printed)
        asked, errors = set(), []
        with sync_api.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 900})
            page.set_default_timeout(120_000)
            sync_api.expect.set_options(timeout=120_000)
            page.on("request", lambda request: asked.add(urlsplit(request.url).hostname))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(address)
            page.get_by_text("1 of at most 3").wait_for()
            page.locator("canvas").nth(1).wait_for()  # both drawings
            page.keyboard.press("1")
            page.get_by_text(re.compile("right after 1 choice ")).wait_for()
            first = page.get_by_role("button", name=re.compile("^1: "))
            before = first.inner_text()
            page.get_by_role("button", name="0: cannot say").click()
            sync_api.expect(first).not_to_have_text(before)  # a key before the next question is of no question
            page.keyboard.press("2")
            page.get_by_text(re.compile("right after 2 choices ")).wait_for()
            page.get_by_role("button", name=re.compile("^1: ")).click()
            page.get_by_text("That is enough, thank you.").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.keyboard.press("q")
            page.get_by_text("ivy: 3 choices became a z of 4 numbers").wait_for()
            assert listening(urlsplit(address).port) == {"0100007F"}  # 127.0.0.1 alone
            assert errors == []  # before the server goes, at which the page complains
            page.get_by_role("button", name="Close").click()
            assert process.wait(timeout=120) == 0
            browser.close()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    assert asked - {None} == {"127.0.0.1"}
    assert people.needed(folder, "ivy").said["choices"] == 3
