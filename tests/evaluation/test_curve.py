import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from raypref.evaluation.curve import adjusted_rand_index, interval, summary, worst_tenth

matrices = arrays(np.float64, st.tuples(st.integers(1, 25), st.integers(1, 4)), elements=st.floats(0, 1, width=32))


def test_summary_of_four_clients_by_hand():
    values = np.array([[0.2, 0.9], [0.4, 0.9], [0.6, 0.7], [0.8, 0.5]])
    s = summary(values, [0, 0, 1, 1], ["G1", "G2"])
    assert s["mean"] == pytest.approx([0.5, 0.75])
    assert s["std"] == pytest.approx([np.sqrt(0.05), np.sqrt(0.0275)])  # squared deviations / 4: 0.2 / 4, 0.11 / 4
    assert s["worst_tenth"] == pytest.approx([0.2, 0.5])  # ⌈4/10⌉ = 1: another client at each mark
    assert s["groups"] == {"G1": pytest.approx([0.3, 0.9]), "G2": pytest.approx([0.7, 0.6])}
    assert s["clients"] == 4
    assert json.loads(json.dumps(s)) == s


def test_a_client_without_pairs_is_left_out_and_a_group_without_clients_too():
    values = np.array([[0.2], [np.nan], [0.4]])
    s = summary(values, [0, 1, 0], ["G1", "G2"])
    assert (s["clients"], s["mean"], s["groups"]) == (2, pytest.approx([0.3]), {"G1": pytest.approx([0.3])})
    with pytest.raises(ValueError, match="no client"):
        summary(np.full((2, 1), np.nan))
    with pytest.raises(ValueError, match="do not fit"):
        summary(values, [0, 1], ["G1", "G2"])


@pytest.mark.parametrize(("clients", "counted"), [(10, 1), (11, 2), (40, 4)])
def test_worst_tenth_counts_rounded_up(clients, counted):
    values = np.arange(clients, dtype=float)[::-1, None]
    assert worst_tenth(values) == pytest.approx([(counted - 1) / 2])  # mean of 0 .. counted - 1


@given(matrices)
def test_order_of_clients_does_not_matter_and_the_mean_lies_between(values):
    s, t = summary(values), summary(values[::-1])
    for key in ("mean", "std", "worst_tenth"):
        np.testing.assert_allclose(s[key], t[key], atol=1e-12)
    assert np.all(np.array(s["worst_tenth"]) <= np.array(s["mean"]) + 1e-12)
    assert np.all(np.array(s["low"]) <= np.array(s["high"]))
    assert np.all((values.min(0) - 1e-9 <= s["low"]) & (s["high"] <= values.max(0) + 1e-9))


def test_the_groups_means_weighted_by_size_are_the_mean():
    rng = np.random.default_rng(3)
    values, group = rng.random((40, 3)), np.repeat([0, 1, 2, 3], [15, 15, 5, 5])
    s = summary(values, group, ["G1", "G2", "G3", "G4"])
    weighted = sum(n * np.array(s["groups"][g]) for n, g in zip((15, 15, 5, 5), s["groups"], strict=True)) / 40
    assert weighted == pytest.approx(s["mean"])


def test_interval_is_seeded_keeps_marks_together_and_covers_as_it_says():
    rng = np.random.default_rng(0)
    values = rng.random((40, 1)).repeat(2, axis=1)
    low, high = interval(values, seed=1)
    assert low[0] == pytest.approx(low[1]) and high[0] == pytest.approx(high[1])
    np.testing.assert_array_equal(interval(values, seed=1), interval(values, seed=1))
    assert interval(values, seed=1)[0][0] != interval(values, seed=2)[0][0]
    normal = 1.96 * values[:, 0].std() / np.sqrt(40)  # the mean of 40 is close to normal
    assert low[0] == pytest.approx(values[:, 0].mean() - normal, abs=0.01)
    assert high[0] == pytest.approx(values[:, 0].mean() + normal, abs=0.01)
    covered = 0
    for trial in range(100):
        low, high = interval(rng.binomial(1, 0.7, (60, 1)).astype(float), seed=trial)
        covered += bool(low[0] <= 0.7 <= high[0])
    assert 88 <= covered <= 100


def test_adjusted_rand_index_ignores_names_and_knows_the_unknown():
    true = [0, 0, 1, 1, 2, 2]
    assert adjusted_rand_index([2, 2, 0, 0, 1, 1], true) == 1.0
    assert adjusted_rand_index([0, 0, 0, 0, 0, 0], true) == 0.0
    # S2 Fig. 4, K = 2 on 15/15/5/5: {G1, G2} and {G3, G4}. Pairs together in both partitions: 2·C(15,2) + 2·C(5,2) =
    # 230, in the true one 230, in the found C(30,2) + C(10,2) = 480, of C(40,2) = 780; e = 230·480/780 by chance.
    e = 230 * 480 / 780
    found, groups = np.repeat([0, 1], [30, 10]), np.repeat([0, 1, 2, 3], [15, 15, 5, 5])
    assert adjusted_rand_index(found, groups) == pytest.approx((230 - e) / (355 - e))
    assert adjusted_rand_index([0, 1], [-1, -1]) is None
    assert adjusted_rand_index([], []) is None
