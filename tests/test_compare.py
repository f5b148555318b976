"""`raypref.compare` on a real MLflow database that hand-made runs have filled."""

import csv
import json

import numpy as np
import pytest

from raypref.compare import command
from raypref.config import UserError
from raypref.config.conditions import matches
from raypref.evaluation.latent import Latent
from raypref.storage import tracking
from tests.evaluation.made import BALANCED, flat, judgement, policy_result, result, section

GROUPS = {
    "clients": ["c0", "c1", "c2", "c3"],
    "true": {"names": ["G1 a", "G2 b"], "of": [0, 0, 0, 1]},
    "rounds": [0, 10, 20, 30, 60],
    "assignment": [[0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """FL and FedGD, seeds 0 and 1, a real-looking sweep; and all that must be left out."""
    base = tmp_path_factory.mktemp("typed here")
    uri = tracking.tracking_uri(base)
    ids = {name: tracking.prepare(uri, name) for name in ("main_results", "k_robustness", "ablation")}

    def log(experiment, told, groups=None, fail=False, latent=None, **tags):
        tags = {"raypref.key": told["key"], "raypref.folder": "/of/another/machine"} | tags
        params = {"algorithm": told["algorithm"], "seed": told["seed"]}
        with tracking.Run(uri, ids[experiment], "run", params, tags) as run:
            for name, value in (("result.json", told), ("groups.json", groups)):
                if value is not None:
                    (base / name).write_text(json.dumps(value))
                    run.artifact(base / name)
                    (base / name).unlink()
            if latent is not None:
                latent.save(base / "latent.npz")
                run.artifact(base / "latent.npz")
                (base / "latent.npz").unlink()
            if fail:
                raise ValueError("no good")
        return run.id

    log("main_results", result(flat(0.1, 0.1, 0.1), algorithm="fedgd"))  # run again below: the older duplicate
    for seed, gain in ((0, 0.0), (1, 0.1)):
        log("main_results", result(flat(0.6, 0.5, 0.9), algorithm="fedavg", seed=seed))
        log("main_results", result(flat(0.5, 0.6 + gain, 0.9), algorithm="fedgd", seed=seed), GROUPS)
    log("main_results", result(flat(0.5, 0.8, 0.9), algorithm="fedgd", **{"federation.rounds": 4}))
    log("k_robustness", result(flat(0.5, 0.7, 0.8), algorithm="fedgd", **{"experts.K": 2}))
    log(
        "k_robustness",
        result(flat(0.5, 0.5, 0.5), algorithm="cl", **{"data.group_sizes": BALANCED}) | {"config": {"new": 1}},
    )
    with pytest.raises(ValueError, match="no good"):
        log("k_robustness", result(flat(0.5, 0.7, 0.8), algorithm="soft_fl"), fail=True)
    for algorithm, mu in (("fedvpl", np.zeros((4, 2))), ("fedvpa_gp", np.array([[0, 0], [0, 0], [0, 0], [5, 0]]))):
        told = result(flat(0.5, 0.6, 0.7), algorithm=algorithm, objective="variational")
        log("ablation", told, latent=Latent.of(1, mu, np.zeros((4, 2))))
    from mlflow import MlflowClient

    MlflowClient(uri).create_run(ids["main_results"], tags={"raypref.key": "0", "mlflow.runName": "still running"})
    with tracking.Run(uri, ids["main_results"], "sweep main_results", {}):
        pass  # the sweep's own run holds no result
    return base


@pytest.fixture
def here(base, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(base)
    return base


def test_tables_figures_and_what_became_of_every_run(here, capsys):
    assert command(["main_results", "k_robustness", "--out", "all"]) == 0
    out = capsys.readouterr().out
    table = (here / "all" / "table3.md").read_text()
    assert "| FedGD | 50.0 ± 0.0 (± 0.0) | **65.0 ± 0.0 (± 7.1)** | **90.0 ± 0.0 (± 0.0)** |" in table
    # FL - FedGD: seeds -0.1 and -0.2, alike for every client
    assert (
        "| FL | +10.0 [+10.0, +10.0] | -15.0 [-20.0, -10.0] |" in (here / "all" / "table3-differences.md").read_text()
    )
    assert r"\toprule" in (here / "all" / "table3.tex").read_text()
    assert (
        "settle (no client moves afterwards) in round, by seed: imbalanced 10, 10"
        in (here / "all/compare.md").read_text()
    )
    for name in ("figure4", "figure6"):
        assert (here / "all" / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert (here / "all" / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
    assert "runs: 5 used; left out: " in out
    for why in ("1 failed", "1 unfinished", "1 older duplicate", "1 other configuration", "1 of another version"):
        assert why in out
    (line,) = (line for line in out.splitlines() if line.startswith("not drawn"))  # one line, whatever is not there
    assert "table7 (python -m raypref.sweep phase2_start and python -m raypref.sweep main_results)" in line
    assert "mix (python -m raypref.sweep mix)" in line
    assert "table2 has no row" not in out  # FL is there alone: no differences to take
    assert "win-rates" not in out and "policies" not in out  # nobody trained one
    with open(here / "all" / "runs.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 10 and {line["fate"] for line in lines if "table3" in line["in"]} == {"used"}


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """A stage-1 run, policies beneath it and beneath others, and those that must be left out."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    uri = tracking.tracking_uri(tmp_path)
    ids = {name: tracking.prepare(uri, name) for name in ("client_count", "ablation")}

    def log(experiment, told, judged=None, parent=None, fail=False):
        name, tag = ("result", "key") if "marks" in told else ("policy", "policy")
        params = {"algorithm": told["algorithm"], "seed": told["seed"]}
        with tracking.Run(uri, ids[experiment], "run", params, {f"raypref.{tag}": told["key"]}, parent) as run:
            for file, value in ((f"{name}.json", told), ("judgements.json", judged)):
                if value is not None:
                    (tmp_path / file).write_text(json.dumps(value))
                    run.artifact(tmp_path / file)
            if fail:
                raise ValueError("no good")
        return run.id

    def judged(helpful, harmless):
        return judgement(section("helpful", helpful), section("harmless", harmless))

    how = {"algorithm": "fedvpa_gp", "objective": "variational"}
    dpo = {"algorithm": "feddpo", "objective": "dpo"}
    parent = log("client_count", result(flat(0.5, 0.6, 0.7, C=10), **how, **{"data.group_sizes": (5, 5)}))
    log("client_count", policy_result(**how), {"style": judged([0], [0])}, parent)  # trained again: an older duplicate
    for seed, score in ((0, 1.0), (1, 0.5)):
        log("client_count", policy_result(**how, seed=seed), {"style": judged([1, 0.5], [score, score])}, parent)
        both = {"style": judged([0, 0], [1, 0.5]), "gpt-4o": judged([1, 1], [seed, seed])}
        log("client_count", policy_result(**dpo, seed=seed), both)
    log("client_count", policy_result(**how, seed=2), None, parent)
    with pytest.raises(ValueError, match="no good"):
        log("client_count", policy_result(**how, seed=3), None, parent, fail=True)
    for algorithm in ("fedvpl", "fedvpl_ortho"):
        log("ablation", policy_result(algorithm=algorithm, objective="variational"), {"style": judged([1], [1])})
    return tmp_path


def test_policies_beside_the_runs_that_they_followed(followed, capsys):
    assert command(["client_count"]) == 0
    out = followed / "runs" / "compare"
    table = (out / "win-rates.md").read_text()
    assert "Win rates by style" in table and "gpt-4o" not in table
    assert "| FedDPO | **75.0 (± 0.0)** | 0.0 (± 0.0) | 37.5 (± 0.0) | 2 |" in table
    assert "| FedVPA-GP (conditioned) | **75.0 (± 35.4)** | **75.0 (± 0.0)** | **75.0 (± 17.7)** | 2 |" in table
    assert "| FedDPO | +0.0 [" in (out / "win-rates-differences.md").read_text()
    told = capsys.readouterr().out
    assert "runs: 1 used; left out: none" in told
    (line,) = (line for line in told.splitlines() if line.startswith("policies: "))
    for why in ("4 used", "1 failed", "1 not judged (python -m raypref.judge)", "1 older duplicate"):
        assert why in line
    assert line in (out / "compare.md").read_text()
    lacks = "win-rates lacks policies by FedBiscuit, FedVPL (python -m raypref.sweep client_count, then "
    assert lacks in (out / "compare.md").read_text() and lacks not in told
    (short,) = (line for line in told.splitlines() if "lack some of their runs, which the end of compare.md" in line)
    assert "win-rates" in short and "overhead" in short
    with open(out / "runs.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8 and sum(line["in"] == "win-rates" for line in lines) == 4
    assert [line["in"] for line in lines if line["key"] != "0"] == ["overhead"]  # the stage-1 run's


def test_policies_alone_and_by_one_judge(followed, capsys):
    words = ["client_count", "--table", "win-rates", "--judge", "gpt-4o", "--reference", "feddpo", "--out", "judged"]
    assert command(words) == 0
    table = (followed / "judged" / "win-rates.md").read_text()
    assert "| FedDPO | 50.0 (± 70.7) | 100.0 (± 0.0) | 75.0 (± 35.4) | 2 |" in table and "FedVPA-GP" not in table
    told = capsys.readouterr().out
    assert "4 not judged by gpt-4o" in told and "runs: " not in told  # no run could be in the table
    with pytest.raises(UserError, match="no policy of these experiments was judged by 'gpt-4'; did you mean 'gpt-4o'"):
        command(["client_count", "--judge", "gpt-4"])
    assert command(["ablation"]) == 0
    assert "policies: 2 used; left out: none" in (told := capsys.readouterr().out) and "\nruns: " not in told
    assert (followed / "runs" / "compare" / "figure-win-rates.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    full = (followed / "runs" / "compare" / "compare.md").read_text()
    assert "figure-win-rates lacks policies by FedVPL+GB Prior, FedVPA-GP (python -m raypref.sweep ablation" in full


def test_policies_that_wait_are_said_to(followed, capsys):
    from mlflow import MlflowClient

    client = MlflowClient(tracking.tracking_uri(followed))
    run = client.create_run(client.create_experiment("fedvpl"), tags={"raypref.policy": "0"})
    for name, value in {"algorithm": "fedvpl", "objective": "variational", "data.group_sizes": "(5, 5)"}.items():
        client.log_param(run.info.run_id, name, value)
    goes_on = "the same words of python -m raypref.rlhf go on"
    assert command(["fedvpl", "--table", "win-rates"]) == 1
    told = capsys.readouterr().out
    assert f"win-rates not drawn, for want of 1 policy that is unfinished ({goes_on})\n" in told
    assert f"policies: 0 used; left out: 1 unfinished ({goes_on})" in told
    with pytest.raises(UserError, match=rf"no run to show: policies: 0 used; left out: 1 unfinished \({goes_on}\)$"):
        command(["fedvpl"])
    assert command(["client_count", "fedvpl", "--table", "win-rates"]) == 0
    told = capsys.readouterr().out
    assert "win-rates lacks policies by FedBiscuit, FedVPL; 1 policy that is unfinished (" in told
    assert f"rlhf client_count; {goes_on})" in told


def test_only_what_is_asked_for_of_the_runs_asked_for(here, capsys):
    assert command(["main_results", "--table", "3", "--where", "federation.rounds=4", "--out", "some"]) == 0
    assert sorted(p.name for p in (here / "some").iterdir()) == [
        "table3.csv",
        "table3.md",
        "table3.tex",
    ]
    assert "| FedGD | 50.0 ± 0.0 | 80.0 ± 0.0 | 90.0 ± 0.0 |" in (here / "some" / "table3.md").read_text()
    assert "runs: 1 used" in capsys.readouterr().out


def test_what_cannot_be_drawn_is_told_and_leaves_what_was_there(here, capsys):
    assert command(["main_results", "--out", "kept"]) == 0
    before = {path: path.read_bytes() for path in (here / "kept").iterdir()}
    assert command(["main_results", "local_steps", "--figure", "5", "--table", "4", "--out", "kept"]) == 1
    assert {path: path.read_bytes() for path in (here / "kept").iterdir()} == before
    assert command(["main_results", "--figure", "5", "--out", "none"]) == 1 and not (here / "none").exists()
    out, told = capsys.readouterr()
    assert "local_steps: no runs in MLflow yet; python -m raypref.sweep local_steps" in out
    assert "figure5 not drawn, for want of FL and CL at several τ and two learning rates" in out
    assert "nothing that was asked for could be drawn" in told


def test_the_latent_space_is_drawn_from_what_runs_recorded(here, capsys):
    words = ["ablation", "--table", "latent", "overhead", "--figure", "latent", "latent-numbers", "--out", "latent"]
    assert command(words) == 0
    table = (here / "latent" / "latent.md").read_text()
    assert "| FedVPL (conditioned) | – | 0.00 | 0.00 | 0.0 | 1 |" in table
    # a client alone in its group has silhouette 0, the others 1; KL ½ · 25 / 4; variance of (0, 0, 0, 5) 4.7
    assert "| FedVPA-GP (conditioned) | 0.75 | **1.00** | 3.12 | 1.0 | 1 |" in table
    assert "| FedVPL (conditioned) | 6.7 | 13.3 | 1 |" in (here / "latent" / "overhead.md").read_text()
    assert "overhead lacks FL on the same work (python -m raypref.sweep fedavg)" in capsys.readouterr().out
    for name in ("figure-latent", "figure-latent-numbers"):
        assert (here / "latent" / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert command(["main_results", "--figure", "latent", "--out", "none"]) == 1
    assert "figure-latent not drawn, for want of variational runs (python -m raypref.sweep ablation)" in (
        capsys.readouterr().out
    )


def test_a_table_without_the_reference_says_which_row_it_took(here, capsys):
    assert command(["main_results", "--table", "3", "--reference", "soft_fl", "--out", "other"]) == 0
    assert "table3 has no row Soft-FL; differences to FedGD" in capsys.readouterr().out
    assert command(["main_results", "--table", "3", "--reference", "fedavg", "--out", "other"]) == 0
    assert "has no row" not in capsys.readouterr().out
    assert "differences to FL**" in (here / "other" / "table3-differences.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["main_result"], "no experiment 'main_result'; did you mean 'main_results'"),
        (["main_results", "--table", "9"], "there is no --table 9; there are: 1, 2, 3"),
        (["main_results", "--where", "rounds"], "--where takes FIELD=VALUE"),
        (["main_results", "--where", "federation.round=4"], "unknown field 'federation.round'; did you mean"),
        (["main_results", "--where", "experts.kay=4"], "unknown field 'experts.kay'; did you mean"),
        (["main_results", "--where", "zzz=1"], "unknown field 'zzz'; python -m raypref.run NAME --help lists"),
        (
            ["main_results", "--where", "federation.rounds=5"],
            "no run fits --where federation.rounds=5; the runs have federation.rounds 4, 60$",
        ),
        (["main_results", "--where", "algorithm=fedgdd"], "the runs have algorithm fedavg, fedgd$"),
        (["local_steps"], "no run to show"),
        (["fedgdd", "main_results"], "no experiment 'fedgdd'; did you mean 'fedgd'"),
        (["defaul"], "there are: ablation, arguments, cl"),
        (["--table", "3", "main_results"], "NAMEs come first"),
        (["main_results", "--table", "3", "--table", "1"], "--table is given twice, and only the last would count"),
        (["--where", "seed=0", "main_results"], "NAMEs come first"),
        (
            ["main_results", "--reference", "Nonsense"],
            "no table has a row 'Nonsense' for --reference; there are: Local",
        ),
        (["main_results", "--out", "file/below"], "file is a file; give a folder"),
    ],
)
def test_mistakes_are_one_line_and_make_no_folder(here, words, message):
    (here / "file").touch()
    with pytest.raises(UserError, match=message) as error:
        command(words)
    assert "\n" not in str(error.value) and not (here / "runs").exists()


@pytest.mark.parametrize(
    "words", [["--where", "foo"], ["--reference", "Nonsense"], ["--out", __file__], ["--table", "9"]]
)
def test_options_are_checked_before_anything_is_read(words, monkeypatch):
    monkeypatch.setattr(tracking, "search", lambda *_: pytest.fail("MLflow was asked"))
    with pytest.raises(UserError):
        command(["main_results", *words])


def test_a_folder_without_a_database_is_told_and_none_is_made(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"there is no MLflow database .*MLFLOW_TRACKING_URI"):
        command(["main_results"])
    assert not (tmp_path / "mlflow.db").exists()


def test_fields_match_as_people_type_them():
    assert matches(0.001, "1e-3") and matches(60, "60") and matches("fedgd", "fedgd")
    assert matches([15, 15, 5, 5], "15 15 5 5") and not matches([15, 5], "15 15")
    assert not matches(60, "sixty") and not matches(0.001, "0.01")
