"""Pages as runs leave them, and `python -m raypref.report`."""

import csv
from pathlib import Path

import pytest

from raypref import report
from raypref.config import UserError, override
from raypref.experiment import loop as experiment
from raypref.experiment import page


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> dict[str, Path]:
    """A finished run each of FedAvg and FedGD, as trials of a sweep over the algorithm."""
    sweep = tmp_path_factory.mktemp("runs") / "methods"
    made = {}
    for name in ("fedavg", "fedgd"):
        config = override(tiny, {"algorithm": name, "federation.unseen": 1})
        made[name] = sweep / f"{name}-seed0"
        experiment.run(config, made[name], adapters=False)
    ends = [{"trial": f"{name}-seed0", "algorithm": name, "seed": 0, "fate": "finished"} for name in made]
    ends.append({"trial": "local-seed0", "algorithm": "local", "seed": 0, "fate": "failed"})
    with (sweep / "trials.csv").open("w") as file:
        writer = csv.DictWriter(file, list(ends[0]))
        writer.writeheader()
        writer.writerows(ends)
    (sweep / "sweep.csv").write_text("rank,algorithm,validation_loss,validation_loss_std\n")
    return made


def test_a_run_leaves_its_page(folders):
    """With what it found, its unseen clients and the command that makes it again."""
    said = (folders["fedgd"] / page.PAGE).read_text()
    for words in (
        "Groups over rounds",
        "Who gains and who loses",
        "unseen",
        "--federation.unseen 1",
        "raypref.run fedgd",
    ):
        assert words in said
    assert "Groups over rounds" not in (folders["fedavg"] / page.PAGE).read_text()


def test_runs_beside_each_other(folders, tmp_path, capsys):
    both = tmp_path / "both.html"
    assert report.command([*map(str, folders.values()), "--out", str(both)]) == 0
    assert capsys.readouterr().out == f"report: {both}\n"
    said = both.read_text()
    assert "fedavg, fedgd: 2 runs beside each other" in said and "differences to fedavg" in said
    assert "fedgd against fedavg, after the last local step" in said


def test_the_page_of_a_sweep(folders, capsys):
    """Ranked by what the sweep ranked by; the trial that failed is counted."""
    sweep = folders["fedgd"].parent
    assert report.command([str(sweep)]) == 0
    said = (sweep / page.PAGE).read_text()
    assert "Sweep methods: 2 of 3 trials" in said and "3 trials: 2 finished, 1 failed" in said
    assert "validation loss" in said and "python -m raypref.sweep methods" in said
    (sweep / page.COMMAND).write_text("python -m raypref.sweep methods --seeds 0\n")
    page.write_sweep(sweep)
    assert "python -m raypref.sweep methods --seeds 0" in (sweep / page.PAGE).read_text()


def test_mistakes_are_a_line(folders, tmp_path):
    with pytest.raises(UserError, match="RUN or SWEEP comes first"):
        report.command(["--out", "x.html"])
    with pytest.raises(UserError, match="is a folder; give a file"):
        report.command([str(folders["fedgd"]), "--out", str(tmp_path)])
    with pytest.raises(UserError, match="no such folder"):
        report.command([str(tmp_path / "nothing")])
    with pytest.raises(UserError, match="give it alone"):
        report.command([str(folders["fedgd"].parent), str(folders["fedgd"])])
