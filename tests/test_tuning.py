"""What Tune is given: who is stopped beside whom, worked out by hand; what Optuna proposes; what is refused."""

import csv
import sys
from types import SimpleNamespace

import pytest

from raypref.config import RunConfig, UserError, override, to_dict
from raypref.config.spaces import Space, load_space
from raypref.experiment import loop as experiment
from raypref.experiment.sweeping.ending import conclude
from raypref.experiment.sweeping.options import Options, check_budget
from raypref.experiment.sweeping.tracked import mark_stopped, unstop
from raypref.experiment.sweeping.trials import Search, Trial, plan
from raypref.experiment.sweeping.tuning import Asha, Proposals
from raypref.experiment.sweeping.tuning import proposals as proposals_of
from raypref.experiment.tracked import tracked, tracker
from raypref.storage import fates, tracking
from raypref.sweep import command
from raypref.tools import checkpoint
from raypref.tools.errors import Stopped

# --- asha -----------------------------------------------------------------------------------------------------------


class Halving:
    """`Asha` with readings typed in; the kind of a trial is its name's first letter."""

    def __init__(self, mode: str = "max", **how: float) -> None:
        self.stopped: list[tuple[str, int]] = []
        how = {"grace": 2, "reduction": 2, "rounds": 9} | how
        self.asha = Asha(
            lambda name: name[0], "v", mode, stop=lambda name, read: self.stopped.append((name, read["round"])), **how
        )
        self.known: dict[str, SimpleNamespace] = {}

    def read(self, name: str, round: int, value: float) -> str:
        if name not in self.known:
            self.known[name] = SimpleNamespace(trial_id=name, config={"trial": name})
            self.asha.on_trial_add(None, self.known[name])
        return self.asha.on_trial_result(None, self.known[name], {"round": round, "v": value})


def test_the_better_half_goes_on_at_each_rung():
    """Rungs at 2, 4, 8 rounds, η = 2: who is below the median of those that came before is stopped."""
    halving = Halving()
    assert halving.read("a1", 1, 0.1) == "CONTINUE"  # below the grace
    assert halving.read("a1", 2, 0.6) == "CONTINUE"  # the first
    assert halving.read("a2", 2, 0.5) == "STOP"  # below 0.6
    assert halving.read("a3", 2, 0.56) == "CONTINUE"  # the median of 0.6 and 0.5 is 0.55
    assert halving.read("a1", 3, 0.0) == "CONTINUE"  # between rungs nobody is compared
    assert halving.read("a1", 4, 0.7) == "CONTINUE"
    assert halving.read("a3", 4, 0.69) == "STOP"
    assert halving.stopped == [("a2", 2), ("a3", 4)]


def test_trials_of_other_data_or_seed_and_results_are_not_compared():
    halving = Halving()
    assert halving.read("a1", 2, 0.9) == halving.read("b1", 2, 0.1) == "CONTINUE"
    assert halving.asha.on_trial_result(None, halving.known["b1"], {"v": 0.0}) == "CONTINUE"  # the result: no round
    assert not halving.stopped


@pytest.mark.parametrize(("mode", "good"), [("max", -5.0), ("min", 5.0)])
def test_a_number_that_is_none_is_the_worst(mode, good):
    halving = Halving(mode)
    assert halving.read("a1", 2, good) == "CONTINUE" and halving.read("a2", 2, float("nan")) == "STOP"


def test_trials_of_an_earlier_command_are_remembered():
    halving = Halving()
    halving.asha.remember("a0", [{"round": 1, "v": 0.0}, {"round": 2, "v": 0.8}])
    assert halving.read("a1", 2, 0.7) == "STOP"


# --- optuna ---------------------------------------------------------------------------------------------------------

RANGES = {"x": ("loguniform", 1e-3, 1e-1), "y": ("uniform", -1.0, 1.0), "k": ("int", 2, 4)}


def proposals(ranges=RANGES, seed=0, done=(), begun=()):
    made: list[dict] = []
    names = {tuple(values.values()) for values, _ in done}

    def make(values):
        if tuple(values.values()) in names:
            return None
        names.add(tuple(values.values()))
        made.append(values)
        return f"t{len(made)}"

    return Proposals(ranges, "v", "max", seed, make, done, begun), made


def drawn(count: int, **how):
    searcher, made = proposals(**how)
    for i in range(count):
        assert searcher.suggest(f"id{i}") == {"trial": f"t{i + 1}"}
        searcher.on_trial_complete(f"id{i}", {"v": -abs(made[-1]["y"])})
    return made


def test_proposals_are_within_their_ranges_and_a_seed_repeats_them():
    first = drawn(15)
    assert all(1e-3 <= p["x"] <= 1e-1 and -1 <= p["y"] <= 1 and p["k"] in (2, 3, 4) for p in first)
    assert drawn(15) == first and drawn(3, seed=1) != first[:3]
    assert sum(p["x"] < 1e-2 for p in first) > 3  # on a logarithmic scale half of them are


def test_what_was_begun_comes_first_and_what_is_done_is_known():
    begun = [{"x": 0.01, "y": 0.5, "k": 2}, {"x": 0.02, "y": -0.25, "k": 3}]
    done = [({"x": 0.05, "y": 0.125, "k": 4}, 0.5)]
    made = drawn(3, begun=begun, done=done)
    assert made[:2] == begun
    assert made[2] != drawn(1)[0]  # a command that goes on does not draw the first numbers again


def test_whole_numbers_run_out():
    searcher, made = proposals({"k": ("int", 2, 4)}, done=[({"k": 3}, 0.1)])
    assert searcher.suggest("a") and searcher.suggest("b") and searcher.suggest("c") == "FINISHED"
    assert sorted(p["k"] for p in made) == [2, 4]


def test_trials_that_failed_or_diverged_end_no_sweep():
    searcher, made = proposals()
    for i, result in enumerate(({"v": float("nan")}, None, {"v": 0.5})):
        searcher.suggest(f"id{i}")
        searcher.on_trial_complete(f"id{i}", result, error=result is None)
    assert searcher.suggest("next") and len(made) == 4


def test_without_optuna_a_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'raypref\[optuna\]'"):
        proposals()


def test_a_trial_that_a_killed_sweep_finishes_meanwhile_is_still_one_to_run(tiny_base, tmp_path):
    """What a killed command leaves behind writes a result after the next one has counted what it has to run."""
    space = load_space("fedgd")
    config = override(space.configured(smoke=True), {"model.base": str(tiny_base), "clients.backend": "local"})
    first = Trial(config, tmp_path / "proposal", {})
    search = Search("accuracy", Options(config, max_trials=2), tmp_path, [], first, space.searched(config))
    proposed = proposals_of(search, []).suggest("begun")["trial"]
    (begun,) = missing = search.missing
    assert begun.folder.name == proposed
    begun.folder.mkdir()
    checkpoint.write_json(begun.folder / "result.json", {})
    assert not search.missing
    searcher = proposals_of(search, missing)
    assert searcher.suggest("again") == {"trial": proposed} and searcher.suggest("new")["trial"] != proposed


def test_what_a_space_has_optuna_search():
    """Of fedvpa_gp S1's four weights; `about` are multiples of what the base has; others' sections are left out."""
    fedvpa = load_space("fedvpa_gp")
    found = fedvpa.searched(fedvpa.base)
    assert {"variational.beta", "variational.lam", "variational.gamma", "variational.tau"} < found.keys()
    assert found["variational.beta"] == ("loguniform", 1e-3, 1e-1)
    fedgd = load_space("fedgd")
    base = override(fedgd.base, {"optim.learning_rate": 1e-5})
    found = fedgd.searched(base)
    assert found.keys() == {"experts.K", "fedgd.w", "optim.learning_rate"}
    kind, low, high = found["optim.learning_rate"]
    assert kind == "loguniform" and low < 1e-5 < high and low == pytest.approx(1e-10 / high)
    assert "fedgd.w" not in fedgd.searched(override(base, {"algorithm": "fedbiscuit"}))
    given = {key: None for key in found}
    with pytest.raises(UserError, match="nothing is left to search"):
        fedgd.without(given).searched(base)
    with pytest.raises(UserError, match="seed is searched by 'uniforn'; did you mean 'uniform'"):
        Space("", base, ranges={"seed": ("uniforn", 0, 1)}).searched(base)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_trials": -1}, "--max-trials is -1; it must not be negative"),
        ({"reduction": 1.0}, "--reduction is 1; it must be above 1"),
        ({"report_clients": 0}, "--report-clients is 0"),
        ({"scheduler": "asha", "grace": 60}, "after 60 rounds at the earliest.*federation.rounds is 60"),
        ({"search": "optuna", "seeds": (0, 1)}, "give --seed in the place of --seeds"),
    ],
)
def test_budgets_that_cannot_be_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        check_budget(Options(RunConfig(), **values))


def test_the_first_trials_of_the_grid(tiny_base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["fedgd", "--smoke", "--model.base", str(tiny_base), "--dry-run", "--max-trials"]
    assert command([*words, "3"]) == 0 and "trials: 3, of 2 configurations" in capsys.readouterr().out
    assert command([*words, "5", "--search", "optuna"]) == 0
    told = capsys.readouterr().out
    assert "up to 5 trials of experts.K int 2 to 6, fedgd.w uniform 0.1 to 1" in told and "trials: 1, of 1" in told


def test_a_stopped_trial_is_marked_in_mlflow_and_in_no_table(tiny_base, tmp_path, monkeypatch, capsys):
    """Two trials, of which one is stopped after a round; once it runs on, it is a trial like any other."""
    monkeypatch.chdir(tmp_path)
    space = load_space("fedgd")
    config = override(space.configured(smoke=True), {"model.base": str(tiny_base), "clients.backend": "local"})
    options = Options(config, smoke=True, scheduler="asha", seeds=(0,))
    trials = plan(space, options, tmp_path / "sweep")
    to, search = tracker("fedgd"), Search("accuracy", options, tmp_path / "sweep", trials)
    good, bad = trials
    tracked(good.config, good.folder, to, adapters=False, reports=search.reports)

    def stop(read):
        checkpoint.write_json(bad.folder / "stopped.json", {"round": 1, "validation": 0.25, "client_steps": 12})
        raise Stopped

    with pytest.raises(Stopped):
        tracked(bad.config, bad.folder, to, adapters=False, reports=search.reports, heard=stop)
    assert search.missing == [] and bad.stopped["round"] == 1
    mark_stopped(trials)

    def in_mlflow():
        kind = fates.Fates(tracking.search(to.uri, ["fedgd"])[0])
        return [run.id for run in kind.read(to.uri)], {run.status for run in kind.runs.values()}, kind.summary()

    read, statuses, told = in_mlflow()
    assert read == [good.mlflow["run_id"]] and statuses == {"FINISHED", "KILLED"}
    assert "1 stopped early" in told
    conclude(search, {}, None)
    assert "stopped early and in no table: 1 of 2 trials, with 12 of all 60 client steps" in capsys.readouterr().out
    lines = {line["trial"]: line for line in csv.DictReader((tmp_path / "sweep" / "trials.csv").open())}
    assert [lines[t.folder.name]["fate"] for t in trials] == ["finished", "stopped"]
    assert lines[bad.folder.name]["validation"] == "0.25"
    (ranked,) = csv.DictReader((tmp_path / "sweep" / "sweep.csv").open())
    assert ranked["experts.K"] == "2"

    unstop(bad)
    assert search.missing == [bad]
    tracked(bad.config, bad.folder, to, adapters=False)
    read, statuses, _ = in_mlflow()
    assert len(read) == 2 and statuses == {"FINISHED"} and search.missing == []
    plain = experiment.run(bad.config, tmp_path / "plain", adapters=False)
    assert plain["test"] == checkpoint.read_json(bad.folder / "result.json")["test"]
    assert to_dict(bad.config) == plain["config"]
