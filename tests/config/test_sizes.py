"""What a run of one's own data is sized to, by hand, and that nothing given is touched."""

import pytest

from raypref import run
from raypref.config import RunConfig, override, validate
from raypref.config.sizes import sizes
from raypref.experiment.loop import read

OWN = RunConfig(algorithm="fedgd")


@pytest.mark.parametrize(
    ("people", "pairs", "expected"),
    [
        # A round is 5 clients of 10 steps of 8 pairs: 20 passes over 191 pairs are 9.55 rounds, for an interval of
        # 10 in 60 rounds 1.6.
        (6, 191, {"experts.K": 3, "experts.T": 2, "federation.rounds": 12}),
        # 20 passes over 60 pairs are 7.5 rounds of 2 clients, for an interval 1.25.
        (2, 60, {"federation.cohort": 2, "experts.K": 2, "experts.T": 1, "federation.rounds": 6}),
        # A client with 4 pairs takes them all in a step: 20 · 24 / (5 · 10 · 4) = 2.4.
        (6, 24, {"experts.K": 3, "experts.T": 1, "federation.rounds": 6}),
        (1, 30, {"federation.cohort": 1, "experts.K": 1, "experts.T": 1, "federation.rounds": 6}),
        (40, 5400, {}),
    ],
)
def test_by_hand(people, pairs, expected):
    found = sizes(OWN, people, pairs)
    assert found == expected
    small = override(OWN, found)
    validate(small)
    assert small.federation.rounds % (2 * small.experts.T) == 0  # as FedGD needs it


def test_what_is_given_stands():
    assert sizes(OWN, 6, 191, {"federation.rounds"}) == {"experts.K": 3}
    assert sizes(OWN, 6, 191, {"experts.T", "experts.K", "seed"}) == {}
    assert sizes(override(OWN, {"experts.K": 2, "federation.rounds": 6, "experts.T": 1}), 6, 191) == {}


def test_a_file_is_measured_and_said(tmp_path, capsys):
    """191 of 300 choices happen to be for training; two of the six people take no part in rounds."""
    lines = [f"p{i % 6},question {i},answer {i},other {i}\n" for i in range(300)]
    (tmp_path / "own.csv").write_text("".join(["client_id,prompt,chosen,rejected\n", *lines]))
    config = override(OWN, {"data.source": str(tmp_path / "own.csv"), "federation.unseen": 2})
    small = run.fitted(config, read(config), {"federation.rounds"})
    assert (small.federation.cohort, small.experts.K, small.federation.rounds) == (4, 2, 60)
    said = capsys.readouterr().out
    assert said.startswith("sized to ") and "training pairs of 4 people: --federation.cohort 4 --experts.K 2" in said
    assert run.fitted(small, read(small), set()).federation.rounds < 60
