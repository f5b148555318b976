"""Cohorts as properties (S2 3.2, 4.1)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypref.rounds.sampling import answering, group_debiased_sample, uniform_sample
from raypref.tools.rng import stream

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda s: sum(s) > 0)


def split(counts):
    ends = np.cumsum(counts)
    return [np.arange(e - c, e) for c, e in zip(counts, ends, strict=True)]


@given(sizes, st.integers(1, 20), st.integers(0, 10**6))
def test_quotas(counts, wanted, seed):
    wanted = min(wanted, sum(counts))
    groups = split(counts)
    cohort = group_debiased_sample(wanted, groups, stream(seed, "cohort"))
    assert len(cohort) == len(set(cohort.tolist())) == wanted
    assert (np.diff(cohort) > 0).all()
    filled = [g for g in groups if len(g)]
    got = [int(np.isin(cohort, g).sum()) for g in filled]
    if len(filled) <= wanted:
        quota = wanted // len(filled)
        assert all(n >= min(quota, len(g)) for n, g in zip(got, filled, strict=True))
    else:
        assert max(got) == 1


def test_five_of_four_groups_is_one_each_and_one_more():
    """S2 3.2: one client of each of the four groups and one more drawn from all. At 15/15/5/5 the extra one falls on
    each not yet chosen client alike: 14, 14, 4, 4 of 36, so group 0 gets it 7/18 of the time."""
    groups = split([15, 15, 5, 5])
    counts = np.array(
        [
            [np.isin(group_debiased_sample(5, groups, stream(0, "cohort", r)), g).sum() for g in groups]
            for r in range(2000)
        ]
    )
    assert (counts.min(0) == 1).all() and (counts.sum(1) == 5).all()
    # standard error of a share of 2000: 0.011
    assert np.allclose(counts.mean(0) - 1, [14 / 36, 14 / 36, 4 / 36, 4 / 36], atol=0.04)


def test_too_many_wanted_is_an_error():
    with pytest.raises(ValueError, match="4 clients wanted of 3"):
        group_debiased_sample(4, split([2, 1]), stream(0, "cohort"))


def test_cohorts_differ_between_seeds_and_rounds_and_repeat():
    """A peer's fault: cohorts that are the same for every seed."""
    drawn = [tuple(uniform_sample(5, 40, stream(s, "cohort", r))) for s in range(3) for r in range(5)]
    assert len(set(drawn)) == 15
    assert drawn == [tuple(uniform_sample(5, 40, stream(s, "cohort", r))) for s in range(3) for r in range(5)]


def test_uniform_sampling_is_uniform():
    """Each of 8 clients is in a cohort of 2 a quarter of the time (2000 rounds: standard error 0.01)."""
    hits = np.bincount(np.concatenate([uniform_sample(2, 8, stream(1, "cohort", r)) for r in range(2000)]), minlength=8)
    assert np.allclose(hits / 2000, 0.25, atol=0.04)


def test_who_answers_by_hand():
    """p = 0.5: those with a draw below it drop out, but the last of them to do so are waited for."""
    draws = np.array([0.9, 0.2, 0.4, 0.1, 0.5])
    assert answering(range(5), 0.5, 1, draws).tolist() == [True, False, False, False, True]
    assert answering(range(5), 0.5, 3, draws).tolist() == [True, False, True, False, True]
    assert answering(range(5), 0.95, 1, draws).tolist() == [True, False, False, False, False]
    assert answering(range(5), 0.0, 1, np.zeros(5)).all() and answering(range(5), 0.99, 9, draws).all()
