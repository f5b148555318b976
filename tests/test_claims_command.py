"""python -m raypref.claims: what it says of a small folder of kept results, of one claim, and of none."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from raypref import claims
from raypref.config import UserError
from raypref.evaluation import claims as catalogue
from raypref.evaluation.claims.needed import EVEN
from raypref.storage import kept
from tests.evaluation.made import result


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """FL and Multi-CL with balanced groups, three seeds: FL starts at 50 and is 1.9, 2 and 2.1 points ahead after ten
    steps, Multi-CL starts at 90 and stays there."""
    space = tmp_path / "results" / "graded_main"
    for seed in range(3):
        for algorithm, first, tenth in (("fedavg", 0.5, 0.919 + 0.001 * seed), ("multi_cl", 0.9, 0.9)):
            curves = np.tile([first, tenth, tenth], (40, 1))
            made = result(curves, algorithm=algorithm, seed=seed, **EVEN)
            folder = tmp_path / "runs" / f"{algorithm}-seed{seed}-{made['key']}"
            folder.mkdir(parents=True)
            made |= {"unseen": [], "sizes": [60] * 40, "assignment": None, "margins": {"test": [[[1.0]] * 3] * 40}}
            (folder / "result.json").write_text(json.dumps(made))
            kept.keep(folder, space, "words")
    return tmp_path / "results"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert claims.command([*words]) == 0
    return capsys.readouterr().out


def test_a_table_of_all_claims(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "--results", str(results))
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "+2.0 [+1.8, +2.2] points" in lines["fl-overtakes-multi-cl"] and "holds" in lines["fl-overtakes-multi-cl"]
    assert "+40.0 [+40.0, +40.0] points" in lines["multi-cl-starts-ahead"] and "holds" in lines["multi-cl-starts-ahead"]
    assert "not testable here" in lines["real-fedgd-best"]
    assert "– (runs are missing)" in lines["fl-overtakes-cl"]
    assert "python -m raypref.results graded_main --make: runs of CL (fl-overtakes-cl)" in out
    assert f"by 6 runs in {results}" in out
    assert "S2: 53 claims: " in out and "S1: 30 claims: 29 without runs, 1 not testable here" in out


def test_one_claim_in_full(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "fl-overtakes-multi-cl", "--results", str(results))
    (file,) = (results / "graded_main").glob("fedavg-seed1-*.parquet")
    for line in (
        "fl-overtakes-multi-cl (S2 3.1, 5.1, Tables 1, 3)",
        "statistic, a number a seed: acc^10, FL minus Multi-CL (points)",
        "claimed: above 0.0; no effect: the interval within 1.0 points of it",
        "  Multi-CL: algorithm=multi_cl",
        f"    seed 1: {file}",
        "by seed: 0: +1.9, 1: +2.0, 2: +2.1",
        "verdict: holds",
    ):
        assert line in out.splitlines()
    assert "by Holm within S2" in out


def test_what_a_claim_lacks_and_what_cannot_be_tested(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "fl-overtakes-cl", "real-fedgd-best", "--results", str(results))
    assert "missing: runs of CL: python -m raypref.results graded_main --make" in out
    assert "verdict: not testable here; needs Reddit TL;DR" in out and "verdict: holds" not in out


def test_the_list_reads_no_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = said(capsys, "--list", "--results", str(tmp_path / "nowhere")).splitlines()
    assert len(lines) == len(catalogue.every())
    assert lines[0].startswith("fl-starts-at-chance (S2 3.1, Tables 1, 3): With balanced groups")


def test_files_for_a_page(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "--results", str(results), "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "claims.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| fl-overtakes-multi-cl "))
    assert row.endswith("| +2.0 [+1.8, +2.2] points | 0.7 | 3 | holds |")
    assert "FL's one model is ahead of a model for each true group" in row
    lines = list(csv.DictReader((tmp_path / "out" / "claims.csv").read_text().splitlines()))
    (line,) = (line for line in lines if line["claim"] == "fl-overtakes-multi-cl")
    assert float(line["mean"]) == pytest.approx(2.0, abs=1e-3) and line["verdict"] == "holds"
    assert len(lines) == len(catalogue.every())


def test_results_of_another_version_are_counted_and_not_read(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "VERSION", kept.VERSION + 1)
    assert claims.command(["--results", str(results)]) == 0
    out, err = capsys.readouterr()
    assert "6 of the kept results are of another version and count for nothing" in err and "by 0 runs" in out


def test_a_name_that_no_claim_has_is_one_line() -> None:
    with pytest.raises(UserError, match=r"no claim 'fl-overtake-cl'; did you mean 'fl-overtakes-cl'"):
        claims.command(["fl-overtake-cl"])
    with pytest.raises(UserError, match=r"no claim 'xyz'; python -m raypref\.claims --list shows them"):
        claims.command(["xyz"])
