"""Kept results: a file a run that says what the run's folder says, and the command that lists and makes them."""

import json

import numpy as np
import pytest

from raypref import results
from raypref.config import UserError, flatten, override
from raypref.evaluation import calibration, diagnostics
from raypref.evaluation.curve import seen_and_unseen
from raypref.evaluation.latent import Latent
from raypref.experiment import loop
from raypref.storage import kept


def made(config, folder, values):
    """A run of these values: its result."""
    return loop.run(override(config, {"federation.rounds": 2, "personalization.marks": (0, 2)} | values), folder)


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    """Two finished runs: FedGD with diagnostics, FedVPA-GP with a client of each group left out."""
    where = tmp_path_factory.mktemp("runs")
    made(tiny, where / "fedgd", {"diagnostics.marks": (0,)})
    latent = {"algorithm": "fedvpa_gp", "objective": "variational", "federation.unseen": 1}
    made(tiny, where / "fedvpa_gp", latent)
    return where


def test_a_kept_result_says_what_the_run_says(folders, tmp_path):
    """All numbers of the clients, at five digits; diagnostics and calibration come to the same."""
    whole = json.loads((folders / "fedgd" / "result.json").read_text())
    file = kept.keep(folders / "fedgd", tmp_path, "python -m words")
    run = kept.read(file)
    assert file.name == "fedgd.parquet" and run.id == str(file) and run.config == flatten(whole["config"])
    for part in ("test", "validation"):
        assert set(run.result[part]) == set(whole[part])
        for name, values in whole[part].items():
            assert np.array(run.result[part][name]) == pytest.approx(np.array(values), rel=2e-5)
    same = ("algorithm", "key", "seed", "clients", "sizes", "groups", "assignment", "ari", "marks", "client_steps")
    assert all(run.result[name] == whole[name] for name in same)
    assert run.result["command"] == "python -m words" and run.groups["rounds"] == [0, 1, 2]
    for name, value in diagnostics.summary(whole).items():
        assert run.diagnosed[name] == pytest.approx(value, rel=1e-2, nan_ok=True)
    assert calibration.summary(run.result)["nll"] == pytest.approx(calibration.summary(whole)["nll"], rel=1e-3)


def test_of_a_latent_the_last_posteriors_are_kept_and_unseen_clients_stay_apart(folders, tmp_path):
    whole = json.loads((folders / "fedvpa_gp" / "result.json").read_text())
    latent = Latent.load(folders / "fedvpa_gp" / "latent.npz")
    run = kept.read(kept.keep(folders / "fedvpa_gp", tmp_path, ""))
    seen, unseen = seen_and_unseen(whole)
    assert run.latent.rounds.tolist() == [latent.rounds[-1]]
    assert run.latent.mu[0] == pytest.approx(latent.mu[-1], rel=1e-3, abs=1e-6)
    assert run.latent.prototypes[0] == pytest.approx(latent.prototypes[-1], rel=1e-3)
    assert len(run.result["clients"]) == 6 and run.unseen["clients"] == unseen["clients"]
    assert run.unseen["assignment"] is None
    assert np.array(run.result["probes"]["context_accuracy"]) == pytest.approx(
        np.array(seen["probes"]["context_accuracy"]), rel=2e-5
    )
    # Margins are gone; what was read of them is of the clients that trained.
    assert run.result["margins"] == {} and calibration.summary(run.unseen) == {}
    for name, values in calibration.summary(seen).items():
        assert calibration.summary(run.result)[name] == pytest.approx(values, rel=2e-5)
    for one, other in zip(diagnostics.retention_curve(run.result), diagnostics.retention_curve(seen), strict=True):
        assert one == pytest.approx(other, nan_ok=True)


def test_the_same_run_is_kept_to_the_same_bytes(folders, tmp_path):
    one, other = (kept.keep(folders / "fedgd", tmp_path / name, "words") for name in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_what_is_no_kept_result_is_one_line(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"broken\.parquet is no kept result"):
        kept.read(tmp_path / "broken.parquet")


SPACE = """
from raypref.config import override, RunConfig
from raypref.config.spaces import Space

SPACE = Space(about="Two seeds of FL and of Local.", base=RunConfig(algorithm="fedavg"), smoke=%r,
              smoke_grid={"algorithm": ["fedavg", "local"], "seed": [0, 1]})
"""


@pytest.fixture
def space(tiny, tmp_path, monkeypatch):
    """A space of four runs of a second in an empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune_spaces").mkdir()
    small = {"federation.rounds": 2, "personalization.marks": (0, 2), "model.base": tiny.model.base}
    small |= {"data.group_sizes": (3, 3, 2, 2), "data.pairs_per_axis": 20, "federation.local_steps": 2}
    (tmp_path / "tune_spaces" / "pairs.py").write_text(SPACE % small)
    return tmp_path


def test_missing_results_are_listed_made_once_and_made_again_under_a_later_version(space, capsys, monkeypatch):
    words = ["pairs", "--smoke", "--seeds", "0"]
    assert results.command(words) == 0
    out = capsys.readouterr().out
    assert (
        "pairs --smoke: 0 of 2 kept; missing 2: fedavg 1, local 1; python -m raypref.results pairs --smoke --make"
        in out
    )
    assert results.command([*words, "--make", "--concurrency", "2"]) == 0
    assert "pairs --smoke: 2 of 2 kept" in capsys.readouterr().out
    (fedavg, _) = sorted((space / "results" / "pairs-smoke").glob("*.parquet"))
    before = fedavg.stat().st_mtime_ns
    assert results.command([*words, "--make"]) == 0 and fedavg.stat().st_mtime_ns == before
    command = kept.read(fedavg).result["command"]
    assert command == "python -m raypref.results pairs --smoke --seeds 0 --make"
    # A run that a sweep has left is kept as it is.
    fedavg.unlink()
    capsys.readouterr()
    assert results.command(words) == 0 and "2 of 2 kept" in capsys.readouterr().out and fedavg.exists()
    monkeypatch.setattr(kept, "VERSION", kept.VERSION + 1)
    assert results.command(words) == 0
    assert "0 of 2 kept; of an earlier version 2: fedavg 1, local 1" in capsys.readouterr().out
    assert kept.read_all(space / "results") == []


def test_what_cannot_be_run_is_said_and_the_others_are_kept(space, capsys):
    text = (space / "tune_spaces" / "pairs.py").read_text()
    (space / "tune_spaces" / "pairs.py").write_text(text.replace('"local"]', '"fl_target"]'))
    words = ["pairs", "--smoke", "--seeds", "0", "--make"]
    assert results.command(words) == 0
    (space / "tune_spaces" / "pairs.py").write_text(text.replace("'model.base': '", "'model.base': '/nowhere"))
    assert results.command(words) == 1
    out = capsys.readouterr().out
    assert "FAILED fedavg-seed0-" in out and "/nowhere" in out


def test_an_unknown_name_and_an_empty_folder_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no space gradde; did you mean 'graded'"):
        results.command(["gradde"])
    with pytest.raises(UserError, match=r"holds no kept results; python -m raypref\.results NAME"):
        results.command([])
