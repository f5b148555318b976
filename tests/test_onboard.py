"""Somebody new to a finished run: what their choices become, what is said of it, and who knows them by name."""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from benchmarks import asking
from raypref import generate, onboard, rlhf, score
from raypref.config import UserError, override
from raypref.data.load import load
from raypref.experiment import loop
from raypref.onboarding import expecting, interview, terminal
from raypref.onboarding.learner import Learner
from raypref.storage import people
from raypref.tools import checkpoint

LATENT = {"variational.features": 8, "variational.encoder": 8, "variational.d": 4, "variational.context_marks": (1, 4)}
KINDS = {
    "z": {"algorithm": "fedvpa_gp", "objective": "variational", **LATENT},
    "weights": {"algorithm": "lore", "objective": "reward", "lore.B": 2, "fit.context_marks": (1, 4)},
    "bayes": {"algorithm": "fedavg", "objective": "bayes", "bayes.d": 3, "bayes.context_marks": (1, 4)},
    "head": {"algorithm": "fedrep", "objective": "choice", "fedrep.fit_steps": 2, "fit.context_marks": (1, 4)},
    "steps": {"algorithm": "fedavg", "objective": "choice"},
    "expert": {"algorithm": "fedbiscuit", "objective": "reward", "reward.hidden": 4},
    "mixture": {"algorithm": "soft_fl", "objective": "choice"},
    "policy": {"algorithm": "feddpo", "objective": "dpo"},
}
QUICK = ("z", "weights", "bayes")
BECAME = {
    "z": "a z of 4 numbers",
    "weights": "weights of 2 rewards",
    "bayes": "a z of 3 numbers",
    "head": "a head",
    "steps": "an adapter after 2 local steps",
    "expert": "a head after 2 local steps",
    "mixture": "an adapter after 2 local steps",
    "policy": "an adapter after 2 local steps",
}


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """Kind -> (configuration, folder) of a finished run with an unseen client of each of two groups."""
    made = {}

    def of(kind: str):
        if kind not in made:
            small = {"data.group_sizes": (3, 3), "federation.unseen": 1, "federation.cohort": 2, "experts.K": 2}
            config = override(tiny, {**small, "federation.rounds": 2, "personalization.marks": (0, 2), **KINDS[kind]})
            folder = tmp_path_factory.mktemp(kind) / "run"
            loop.run(config, folder)
            made[kind] = config, folder
        return made[kind]

    return of


def written(pairs, path):
    rows = [dict(zip(("prompt", "chosen", "rejected"), astuple(pair), strict=True)) for pair in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def typed(folder, path, *words, name="ann"):
    return onboard.command([str(folder), "--name", name, "--pairs", str(path), *words])


def stranger(config, folder):
    """(position, client) of somebody who took no part in the run."""
    c = checkpoint.read_json(folder / "result.json")["unseen"][0]
    return c, load(config.data, config.seed).clients[c]


@pytest.mark.parametrize("kind", [*QUICK, *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k not in QUICK)])
def test_choices_become_what_the_run_is(finished, kind, tmp_path, capsys):
    config, folder = finished(kind)
    c, client = stranger(config, folder)
    words = ["--steps", "2", "--no-measure"] if BECAME[kind].endswith("steps") else []
    assert typed(folder, written(client.train, tmp_path / "choices.jsonl"), *words) == 0
    person = people.needed(folder, "ann")
    assert person.said["became"] == BECAME[kind] and person.said["choices"] == len(client.train)
    assert f"ann: {len(client.train)} choices became {BECAME[kind]}" in capsys.readouterr().out
    assert list((people.folder_of(folder, "ann") / "adapter").iterdir())
    result = checkpoint.read_json(folder / "result.json")
    start = checkpoint.load(folder / "initialization.safetensors")[0]["rows"]
    if kind in ("z", "bayes"):  # what the run itself inferred of the same choices
        np.testing.assert_allclose(person.z, result["probes"]["mu"][c], atol=1e-5)
        assert torch.equal(person.row, start)
    if kind == "weights":
        torch.testing.assert_close(person.row, start[c], atol=1e-5, rtol=0)
    assert score.command([str(folder), str(tmp_path / "choices.jsonl"), "--client", "ann"]) == 0
    margins = [json.loads(line)["margin"] for line in capsys.readouterr().out.splitlines()]
    assert len(margins) == len(client.train) and np.isfinite(margins).all()


def test_local_steps_are_those_of_a_client(finished, tmp_path):
    """A newcomer with a client's choices and its place among batches becomes what that client has become."""
    config, folder = finished("steps")
    learner, client = Learner(folder), load(config.data, config.seed).clients[0]
    fold = interview.concatenate([chosen.fold for chosen in interview.usable(learner, client.train)])
    (row,) = learner.learn(fold, 2).rows
    torch.testing.assert_close(row, learner.of_client(0)[0], atol=1e-5, rtol=0)


def test_what_to_expect_is_measured_once_on_people_that_never_trained(finished, tmp_path, capsys):
    config, folder = finished("steps")
    _c, client = stranger(config, folder)
    file = written(client.train[:3], tmp_path / "few.jsonl")
    assert typed(folder, file, name="bo") == 0
    kept = checkpoint.read_json(folder / expecting.FILE)
    assert kept["unseen"] and np.shape(kept["accuracy"]) == (2, 6) and set(kept["steps"]) <= {0, 2}
    assert "after 3 choices (too few people for an interval, from" in (out := capsys.readouterr().out)
    assert "from 2 people that the run never trained on" in out
    changed = (folder / expecting.FILE).stat().st_mtime_ns
    assert typed(folder, file, name="bo") == 0 and (folder / expecting.FILE).stat().st_mtime_ns == changed


def test_choices_add_up_and_are_forgotten_when_told(finished, tmp_path, capsys):
    config, folder = finished("z")
    _, client = stranger(config, folder)
    first, second = (written(client.train[i : i + 3], tmp_path / f"{i}.jsonl") for i in (0, 2))
    for file in (first, second):
        assert typed(folder, file, name="cy") == 0
    assert people.choices_of(folder, "cy") == list(client.train[:5])  # the third was in both
    assert "known by 3 choices already" in capsys.readouterr().out
    assert typed(folder, second, "--anew", name="cy") == 0
    assert people.choices_of(folder, "cy") == list(client.train[2:5])
    assert people.folder_of(folder, "cy").stat().st_mode & 0o077 == 0


def test_how_far_the_model_agrees_with_its_person_is_said(finished, tmp_path, capsys):
    """Two files in one command; a pair that was chosen both ways is said, and the margins of `score` are counted."""
    config, folder = finished("bayes")
    _, client = stranger(config, folder)
    first = client.train[0]
    files = [
        written(client.train[:4], tmp_path / "some.jsonl"),
        written([replace(first, chosen=first.rejected, rejected=first.chosen)], tmp_path / "other.jsonl"),
    ]
    words = [str(folder), "--name", "flo", "--pairs", *map(str, files)]
    assert onboard.command(words) == 0
    out = capsys.readouterr().out
    assert "1 pair was chosen both ways" in out
    right = 0
    for file in files:
        assert score.command([str(folder), str(file), "--client", "flo"]) == 0
        right += sum(json.loads(line)["margin"] > 0 for line in capsys.readouterr().out.splitlines())
    assert f"it agrees with {right} of these 5" in out
    with pytest.raises(UserError, match="--pairs is given twice"):
        onboard.command([*words, "--pairs", str(files[0])])


def test_an_interview_by_keys(finished, monkeypatch, capsys):
    _config, folder = finished("z")
    keys = iter("1x02u2q")  # a choice, a key of no meaning, cannot say, a choice, taken back, a choice, done
    monkeypatch.setattr(terminal, "read_key", lambda: next(keys))
    monkeypatch.setattr(terminal.ask, "__defaults__", (terminal.read_key,))
    assert onboard.command([str(folder), "--name", "di", "--ask", "--look", "12"]) == 0
    assert "di: 2 choices became a z of 4 numbers" in (out := capsys.readouterr().out)
    assert out.count("of at most 16. ") == 6 and "expect" in out
    assert len(people.choices_of(folder, "di")) == 2


@pytest.mark.parametrize("kind", QUICK)
def test_an_interview_shows_no_pair_twice_and_ends(finished, kind):
    _config, folder = finished(kind)
    learner = Learner(folder)
    talk = interview.Interview(learner, "ed", interview.usable(learner, interview.generated(learner, 5)))
    shown = []
    while (i := talk.next()) is not None:
        shown.append(i)
        talk.answer(i, None if len(shown) == 2 else len(shown) % 2 == 0)
    assert sorted(shown) == list(range(len(talk.candidates))) and len(talk.known()) == len(shown) - 1
    turned = talk.known()[0]  # answered by the second
    pair = talk.candidates[shown[0]].pair
    assert (turned.pair.chosen, turned.pair.rejected) == (pair.rejected, pair.chosen)
    places, own = talk.map()
    assert places.shape == (4, 2) and own is not None and np.isfinite(own).all()


@pytest.mark.parametrize("kind", QUICK)
def test_the_committee_is_read_as_one_by_one(finished, kind):
    """Rows, each with its z, in one call as in a call each."""
    _, folder = finished(kind)
    learner = Learner(folder)
    talk = interview.Interview(learner, "flo", interview.usable(learner, interview.generated(learner, 5)))
    fold = interview.concatenate([chosen.fold for chosen in talk.candidates])
    each = [learner.of_client(c) for c in talk.committee]
    alone = [learner.margins(row[None], None if z is None else z[None], fold)[0] for row, z in each]
    np.testing.assert_allclose(learner.margins(*talk.models, fold), alone, atol=1e-5)


def test_pairs_of_clients_are_not_shown_to_others(finished, tmp_path):
    _, folder = finished("z")
    learner = Learner(folder)
    learner.config = replace(learner.config, data=replace(learner.config.data, source="mine.jsonl"))
    with pytest.raises(UserError, match=r"the pairs of the run's clients are theirs; .* --candidates FILE"):
        interview.generated(learner, 3)


def test_nothing_is_sent_anywhere(finished, tmp_path):
    """Every address that a socket of this process turns to while somebody is made known, as Python's audit sees it."""
    config, folder = finished("z")
    _, client = stranger(config, folder)
    asked, watching = [], [True]

    def watch(event, arguments):
        if watching and event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
            asked.append((event, arguments))

    sys.addaudithook(watch)
    assert typed(folder, written(client.train[:4], tmp_path / "four.jsonl"), name="flo") == 0
    watching.clear()
    assert asked == []


def test_a_policy_answers_a_person_by_name(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    config, folder = finished("z")
    _, client = stranger(config, folder)
    assert typed(folder, written(client.train[:4], tmp_path / "four.jsonl"), name="gus") == 0
    small = [*("--rlhf.rounds", "1", "--rlhf.local-steps", "1", "--rlhf.batch-size", "2", "--rlhf.prompts", "4")]
    small += ["--rlhf.max-new-tokens", "4", "--rlhf.samples", "2"]
    assert rlhf.command(["fedvpa_gp", "--run", str(folder), *small, "--person", "gus"]) == 0
    (place,) = people.folder_of(folder, "gus").glob("policy-*")
    tensors, values = checkpoint.load(place / "row.safetensors")
    person = people.needed(folder, "gus")
    assert values["ids"] == ["gus"] and torch.equal(tensors["z"][0], person.z)
    assert not (tmp_path / "mlflow.db").exists()
    assert rlhf.command(["fedvpa_gp", "--run", str(folder), *small, "--no-track", "--no-judge"]) == 0
    (shared,) = folder.glob("policy-*")
    capsys.readouterr()
    for policy in (place, shared):  # their own, and the one that is conditioned on anybody's z
        assert generate.command([str(policy), "--client", "gus", "--prompt", "What is tea?"]) == 0
    capsys.readouterr()
    assert typed(folder, tmp_path / "four.jsonl", name="gus") == 0
    assert "before it knew gus: " in (out := capsys.readouterr().out) and "after: " in out
    with pytest.raises(UserError, match="client 'gun' took no part; did you mean 'gus'"):
        generate.command([str(shared), "--client", "gun", "--prompt", "What is tea?"])
    with pytest.raises(UserError, match=r"'hal' is not known to .*; there are: .*gus"):
        rlhf.command(["fedvpa_gp", "--run", str(folder), "--person", "hal"])


def test_chosen_pairs_are_measured_against_random_ones(finished, tmp_path, capsys):
    _, folder = finished("z")
    assert asking.command([str(folder), "--sizes", "1", "3", "--draws", "2", "--out", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [(line["choices"], line["pairs"]) for line in lines] == [
        (size, way) for size in (1, 3) for way in ("at random", "chosen")
    ]
    assert all(line["unseen"] and len(line["accuracy"]) == line["people"] == 2 for line in lines)
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out


def test_what_choosing_gains_is_counted_by_runs():
    """Two runs of two people gain 20 and 10 points: 15, with t = 12.706 times 5 on either side."""
    ways = {"at random": 0.5, "chosen": 0.7}
    lines = [
        {"method": "m", "choices": 2, "pairs": way, "accuracy": [a - less * (way == "chosen"), a]}
        for less in (0.0, 0.2)
        for way, a in ways.items()
    ]
    assert asking.summary(lines) == [("m", "2", "50.0", "65.0", "+15.0 (-48.5 to +78.5)", "2 x 2")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RUN comes first"),
        (["{run}", "--pairs", "x"], "--name is missing"),
        (["{run}", "--name", "ann"], "nothing says what the person prefers; give --pairs FILE, --ask or --web"),
        (["{run}", "--name", "ann", "--ask", "--web"], "are the same interview"),
        (["{run}", "--name", "{client}", "--pairs", "x.jsonl"], "is a client of the run, which has a model already"),
        (["{run}", "--name", "ann", "--pairs", "x.jsonl"], "x.jsonl: there is no such file"),
        (["{run}", "--name", "ann", "--pairs", "x.jsonl", "--steps", "2"], "here choices become a z of 4 numbers"),
        (["{run}", "--name", "ann", "--ask", "--choices", "0"], "--choices is 0; give at least 1"),
    ],
)
def test_what_cannot_be_done_is_one_line(finished, words, said):
    _, folder = finished("z")
    client = checkpoint.read_json(folder / "result.json")["clients"][0]
    with pytest.raises(UserError, match=said) as error:
        onboard.command([word.format(run=folder, client=client) for word in words] or [""])
    assert "\n" not in str(error.value)
