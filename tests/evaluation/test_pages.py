"""The page of finished runs: its numbers, what stands in it and what does not, and how it looks in a real browser."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raypref.config import RunConfig, override
from raypref.config.spaces import command_words, load_space
from raypref.evaluation.latent import Latent
from raypref.evaluation.pages import charts, render, written
from raypref.evaluation.pages.page import Entry, Material, Sweep
from raypref.evaluation.pages.sections.common import curve, group_curves
from raypref.evaluation.pages.sections.glance import DIFFERENT
from raypref.evaluation.pages.sections.glance import section as glanced
from raypref.evaluation.ranking import Line
from raypref.evaluation.tables import Cell, Column, Table, html
from raypref.tools.cli import parse

from .made import finished

ACCURACY = [[0.5, 0.8, 1.0], [0.25, 0.5, 0.5], [0.75, 0.7, 0.8], [0.0, 0.1, 0.2]]


def entry(label: str, **how) -> Entry:
    """A run of four clients in groups of 3 and 1 with everything that a section could show."""
    run = finished(ACCURACY, **how)
    probes = {
        name: np.linspace(0.4, 0.9, 24).reshape(4, 6).tolist() for name in ("context_accuracy", "linear_accuracy")
    }
    groups = {"clients": run.result["clients"], "true": run.result["groups"], "rounds": [0, 1, 2]}
    groups["assignment"] = [[-1, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]]
    mu = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    latent = Latent.of(1, mu, 0 * mu, prototypes=mu[:2]).append(Latent.of(2, mu, 0 * mu, prototypes=mu[:2]))
    whole = {**run.result, "sizes": [10, 12, 9, 30], "probes": probes}
    run = replace(run, result=whole, groups=groups, latent=latent)
    rounds = [{"round": r, "metrics": {"train/loss": 0.7 - r / 20}} for r in (1, 2, 3)]
    return Entry(label, (run,), whole, rounds)


def material() -> Material:
    runs = [entry("FL", algorithm="fedavg"), entry("VPA", algorithm="fedvpa_gp", objective="variational")]
    return Material("Two runs", runs, ["python -m raypref.run fedavg"])


def swept() -> Material:
    entries = [entry(f"K {k}", **{"experts.K": k}) for k in (2, 4, 8)]
    lines = [Line({"experts.K": k}, (0,), (0.7 - k / 50,), (0.6,)) for k in (2, 4, 8)]
    ends = [{"trial": f"t{k}", "experts.K": k, "seed": 0, "fate": "finished", "round": 4} for k in (2, 4, 8)]
    return Material("A sweep", entries, ["python -m raypref.sweep x"], Sweep(lines, "accuracy", ends))


# --- numbers --------------------------------------------------------------------------------------------------------


def test_curves_of_all_and_of_groups():
    """Of G1 the first three clients: (50 + 25 + 75) / 3 = 50 at the start; of several seeds the lowest and highest."""
    one = finished(ACCURACY)
    assert curve([one.result]).mean == pytest.approx([37.5, 52.5, 62.5])
    groups = group_curves([one])
    assert groups["G1 a"].mean == pytest.approx([50, 200 / 3, 230 / 3]) and groups["G2 b"].mean == pytest.approx(
        [0, 10, 20]
    )
    assert groups["G2 b"].low == groups["G2 b"].high == groups["G2 b"].mean  # one client: nothing to redraw
    other = finished((np.array(ACCURACY) / 2).tolist(), seed=1)
    both = curve([one.result, other.result])
    assert both.mean[0] == pytest.approx((37.5 + 18.75) / 2) and (both.low[0], both.high[0]) == (18.75, 37.5)


def test_unseen_clients_are_a_line_of_their_own():
    run = finished(ACCURACY)
    whole = {**run.result, "unseen": [3]}
    seen = finished(ACCURACY)
    seen = type(seen)("", 0, seen.config, whole)
    sections = written(Material("", [Entry("FL", (seen,), whole)], []))
    (accuracy,) = [s for s in sections if s.name == "accuracy"]
    assert [row for row in accuracy.parts[0].table.rows] == ["FL"] * 3 + ["FL, unseen"] * 3
    assert accuracy.parts[0].table.cells[3][1] == "0.0"


def test_words_of_a_command_make_the_run_again():
    base = load_space("fedgd").base
    values = {"data.group_sizes": (3, 3, 2, 2), "optim.learning_rate": 3e-4, "experts.K": 3, "seed": 5}
    config = override(base, values)
    words = command_words(config)
    assert words[:6] == ["python", "-m", "raypref.run", "fedgd", "--against", "none"]
    assert parse(RunConfig, words[6:], "", base) == config
    assert command_words(base) == words[:6]


# --- what stands in it ----------------------------------------------------------------------------------------------


def test_sections_are_those_that_the_runs_have_something_for():
    full = [s.name for s in written(material())]
    assert full == [
        "glance", "accuracy", "clients", "choices", "groups", "latent", "training", "budgets", "configuration",
        "repeat",
    ]  # fmt: skip
    bare = finished([[0.5], [0.6], [0.7], [0.8]], **{"personalization.marks": (0,)})
    assert [s.name for s in written(Material("", [Entry("FL", (bare,), bare.result)], []))] == [
        "glance", "budgets", "configuration", "repeat",
    ]  # fmt: skip
    assert "trials" in [s.name for s in written(swept())]


def test_runs_of_different_data_are_not_ranked():
    """Nothing is bold in the first table, and a sentence says why; of the same data the best is."""
    other = entry("Other", algorithm="fedavg", **{"data.source": "graded"})
    for second, alike in ((other, False), (entry("VPA", algorithm="fedprox"), True)):
        both = Material("Two", [entry("FL", algorithm="fedavg"), second], [])
        glance = glanced(both)
        (table,) = [part for part in glance.parts if isinstance(part, Table)][:1]
        assert any(column.best for column in table.columns) == alike
        assert (DIFFERENT in glance.parts) != alike


def test_words_of_others_are_text_and_nothing_is_fetched():
    one = entry("<img src=x onerror=alert(1)></script>")
    page = render(Material("a < b", [one], ["run --x '<y>'"]), written(Material("", [one], ["run --x '<y>'"])))
    assert "<img" not in page and page.count("</script>") == 3 and "<title>a &lt; b</title>" in page
    own = re.sub(r'<script type="text/plain" id="vega">.*?</script>', "", page)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', own) and "@import" not in own and "url(" not in own
    assert len(page) < 600_000


def test_a_table_in_html_reads_its_heads_out():
    """`<i>` is text, the best cell is bold, and each row and column has a head."""
    columns = (Column("acc", scale=100, digits=1, best=1),)
    table = Table(
        "t", "A <i>title", "method", columns, ("FL", "GD"), ((Cell((0.5,)),), (Cell((0.75,)),)), notes=("so",)
    )
    said = html(table)
    assert "<caption>A &lt;i&gt;title</caption>" in said and '<th scope="row">GD</th><td><b>75.0</b></td>' in said
    assert '<th scope="col">acc</th>' in said and 'tabindex="0"' in said and '<p class="note">so</p>' in said


def test_clients_of_a_true_group_stand_beneath_its_name():
    rows = [("a", "one", [0, 0, 1]), ("b", "two", [1, 1, 1]), ("c", "two", [0, 1, 1])]
    drawn, named = charts.cells([0, 1, 2], rows, says="", names={0: "group 1", 1: "group 2"})["layer"]
    head = charts.HEAD
    lines = drawn["encoding"]["y"]["scale"]["domain"]
    assert lines == [f"{head}0one", "a", f"{head}0two", "b", "c"]
    assert [(title["client"], title["group"]) for title in named["data"]["values"]] == [
        (f"{head}0one", "one"), (f"{head}0two", "two"),
    ]  # fmt: skip
    put = [(v["client"], v["from"], v["to"], v["put"]) for v in drawn["data"]["values"]]
    assert put[:2] == [("a", -0.5, 1.5, "group 1"), ("a", 1.5, 2.5, "group 2")] and len(put) == 5
    (one, _) = charts.cells([0], [("a", "all", [0])], says="", names={0: "group 1"})["layer"]
    assert one["encoding"]["y"]["scale"]["domain"] == ["a"]  # a single group needs no name


# --- as people see it -----------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOOK = """() => {
  const box = (e) => e.getBoundingClientRect(), all = (q, of = document) => [...of.querySelectorAll(q)];
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const overlaps = [];
  const check = (things) => things.forEach((a, i) => things.slice(i + 1).forEach((b) => {
    if (box(a).width && box(b).width && meet(box(a), box(b)))
      overlaps.push([a.outerHTML, b.outerHTML].map((t) => t.slice(0, 200)));
  }));
  all("section").forEach((s) => check([...s.children]));
  all(".figures").forEach((f) => check([...f.children]));
  all("figure").forEach((f) => check([...f.children]));
  const shown = (t) => t.textContent && getComputedStyle(t).opacity > 0;
  all("figure svg").forEach((s) => check(all("text", s).filter(shown)));
  const svgs = all("figure > .drawing").map((d) => d.querySelector("svg"));
  return {
    drawn: document.documentElement.dataset.drawn, overlaps,
    wide: document.documentElement.scrollWidth - innerWidth,
    figures: all("figure").length,
    there: svgs.filter((s) => s && box(s).width > 200 && box(s).height > 100).length,
    marked: svgs.filter((s) => s && all(".mark-symbol path, .mark-rect path, .mark-line path", s).length > 0).length,
    named: svgs.filter((s) => s && all("[aria-label]", s.parentElement).length > 0 && s.parentElement).length,
    outside: svgs.filter((s) => s && all("text", s).some((t) => box(t).right > innerWidth + 1)).length,
    scrolling: all(".scroll").filter((s) => s.scrollWidth > s.clientWidth + 1)
      .map((s) => [getComputedStyle(s).backgroundImage, getComputedStyle(s.querySelector("tbody th")).position]),
    headings: all("h1, h2, h3").map((h) => +h.tagName[1]),
    dark: +getComputedStyle(document.body).color.match(/\\d+/)[0] > 127,
  };
}"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["runs", "sweep"])
def test_a_page_in_a_browser(tmp_path: Path, kind: str):
    """On a screen and on a phone, in light and in dark: no error, no request, every figure drawn, nothing over another;
    and by keyboard alone."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra dev)")
    if CHROMIUM is None:
        pytest.skip("needs a chromium on PATH")
    made = material() if kind == "runs" else swept()
    (tmp_path / "report.html").write_text(render(made, written(made)))
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in ((1280, "light"), (360, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            errors, requests = [], []
            page.on("console", lambda message, to=errors: to.append(message.text))
            page.on("pageerror", lambda error, to=errors: to.append(str(error)))
            page.on("request", lambda request, to=requests: to.append(request.url))
            page.goto((tmp_path / "report.html").as_uri())
            page.wait_for_function("document.documentElement.dataset.drawn")
            seen = page.evaluate(LOOK)
            assert errors == [] and [r for r in requests if not r.startswith(("file:", "data:"))] == []
            assert seen["drawn"] == "all" and seen["overlaps"] == [] and seen["wide"] <= 0 and seen["outside"] == 0
            assert seen["figures"] == seen["there"] == seen["marked"] == seen["named"] > 5
            # A table that goes on shows it by a shadow at its side, and its rows keep their names.
            assert all("gradient" in image and name == "sticky" for image, name in seen["scrolling"])
            assert width > 360 or seen["scrolling"]
            assert seen["headings"][0] == 1 and max(np.diff(seen["headings"])) <= 1  # no level is skipped
            assert seen["dark"] == (scheme == "dark")
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.className") == "skip"
            page.keyboard.press("Tab")
            before = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.keyboard.press("Enter")  # as the system has them -> light -> dark
            page.keyboard.press("Enter" if scheme == "light" else "Shift")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
            page.close()
        browser.close()
