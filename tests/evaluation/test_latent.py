"""Posterior collapse as a number, worked out by hand; and what the figures of S1 Fig. 3 show."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raypref.evaluation.comparisons.latent import figure_latent, figure_numbers, numbers_table
from raypref.evaluation.latent import Latent, active_units, kl_by_dimension, numbers, separation, silhouette
from raypref.evaluation.latent_figures import embed, latent_figure, latent_panels, numbers_figure
from raypref.evaluation.tables import text
from raypref.objectives.variational import gaussian_kl
from tests.evaluation.made import BALANCED, finished, flat

SQUARE = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0], [4.0, 1.0]])
"""Two groups of two clients: 1 apart within, 4 and √17 between."""
APART, CROSSED = [0, 0, 1, 1], [0, 1, 0, 1]
GROUPS = {"names": ["G1 a", "G2 b"], "of": APART}


def made(rounds=(0, 10, 20), spread=1.0, P=0, M=0) -> Latent:
    """The square, growing from nothing to `spread` times its size."""
    out = None
    for r in rounds:
        mu = SQUARE * spread * r / max(rounds[-1], 1)
        pairs = np.repeat(mu[:, None], P, 1) + 0.1 * np.arange(P)[:, None] if P else None
        one = Latent.of(r, mu, np.zeros((4, 2)), pairs, np.eye(2)[:M] if M else None)
        out = one if out is None else out.append(one)
    return out


def test_what_is_saved_is_what_is_read_and_a_cut_short_run_is_overwritten(tmp_path):
    run = made(P=3, M=2)
    run.save(tmp_path / "latent.npz")
    read = Latent.load(tmp_path / "latent.npz")
    for name in ("rounds", "mu", "log_variance", "pair_mu", "prototypes"):
        np.testing.assert_array_equal(getattr(read, name), getattr(run, name))
    assert read.mu.dtype == np.float32 and read.pair_mu.shape == (3, 4, 3, 2) and read.prototypes.shape == (3, 2, 2)
    again = read.append(Latent.of(10, SQUARE, np.zeros((4, 2)), np.zeros((4, 3, 2)), np.eye(2)))
    assert again.rounds.tolist() == [0, 10]  # resumed before round 10: rounds 10 and 20 are made anew
    np.testing.assert_array_equal(again.mu[-1], SQUARE)
    with pytest.raises(ValueError, match="do not fit"):
        Latent.of(0, SQUARE, np.zeros((4, 3)))


def test_a_collapsed_latent_space_in_numbers():
    """q = N(0, I) for everybody: no KL, nothing active, no silhouette; one place, so k-means finds one cluster, whose
    agreement with two groups is by chance."""
    mu, log_variance = np.zeros((4, 3)), np.zeros((4, 3))
    assert numbers(mu, log_variance, APART) == {"ari": 0.0, "kl": 0.0, "active_units": 0.0}
    assert math.isnan(silhouette(mu, APART))
    # the same answer for everybody is collapse, too, wherever it lies: KL 3 · ½ 2² = 6, still nothing active
    assert numbers(mu + 2, log_variance, APART) == {"ari": 0.0, "kl": 6.0, "active_units": 0.0}


def test_a_separated_latent_space_in_numbers():
    """Silhouette of each: 1 - 1 / ((4 + √17) / 2). KL: ½ · (0 + 0 + 16 + 16) / 4 = 4 and ½ · (0 + 1 + 0 + 1) / 4."""
    told = numbers(SQUARE, np.zeros((4, 2)), APART)
    assert told == pytest.approx({"silhouette": 1 - 2 / (4 + 17**0.5), "ari": 1, "kl": 4.25, "active_units": 2})
    np.testing.assert_allclose(kl_by_dimension(SQUARE, np.zeros((4, 2))), [4.0, 0.25])
    np.testing.assert_allclose(kl_by_dimension(SQUARE, np.full((4, 2), -1.0)) - [4.0, 0.25], (math.exp(-1)) / 2)
    # groups that cross the clusters: Rand index 0 of an expected 2 · 2 / 6, at most 2
    assert separation(SQUARE, CROSSED) == pytest.approx((0 - 2 / 3) / (2 - 2 / 3))
    assert silhouette(SQUARE, CROSSED) < 0
    assert active_units(SQUARE * [0.1, 0.1]) == 1  # variances 0.04 and 0.0025 of 0.01
    assert active_units(SQUARE[:, None] * np.ones((4, 5, 1))) == 2  # over clients and pairs alike


def test_the_divergence_is_the_objectives():
    generator = np.random.default_rng(0)
    mu, log_variance = generator.normal(size=(2, 5, 3))
    want = gaussian_kl(torch.tensor(mu), torch.tensor(log_variance)).mean(0).numpy()
    np.testing.assert_allclose(kl_by_dimension(mu, log_variance), want)


def test_what_is_not_known_or_not_finite_is_left_out():
    zero = np.zeros((4, 2))
    assert set(numbers(SQUARE, zero, [])) == set(numbers(SQUARE, zero, [-1] * 4)) == {"kl", "active_units"}
    assert set(numbers(SQUARE, zero, [0] * 4)) == {"kl", "active_units"}
    far = np.vstack([SQUARE, [[100.0, 0.0], [np.nan, 0.0]]])  # of an unknown group; diverged
    of = [*APART, -1, 1]
    assert silhouette(far, of) == silhouette(SQUARE, APART) and separation(far, of) == 1
    assert numbers(far[[0, 1, 2, 3, 5]], np.zeros((5, 2)), [*APART, 0])["kl"] == 4.25
    assert numbers(SQUARE * np.nan, zero, APART) == {}
    assert set(numbers(SQUARE, zero, [0, 1, 2, 3])) == {"ari", "kl", "active_units"}  # a group each: no silhouette


def test_figure_3_has_a_row_a_method_and_draws_prototypes_as_stars(tmp_path):
    printed, ours = made(range(0, 70, 10), P=3), made((0, 30, 60), M=2)
    figure = latent_panels([("FedVPL", printed), ("FedVPA-GP", ours)], GROUPS)
    titles = [ax.get_title() for ax in figure.axes]
    assert [t.partition("\n")[0] for t in titles] == [f"round {r}" for r in (0, 20, 40, 60, 0, 30, 60)]
    assert titles[0].endswith("silhouette –, ARI 0.00") and titles[-1].endswith("silhouette 0.75, ARI 1.00")
    assert [figure.axes[i].get_ylabel() for i in (0, 4)] == ["FedVPL", "FedVPA-GP"]
    for ax, points, stars in ((figure.axes[3], 6, 0), (figure.axes[6], 2, 2)):  # two clients a group, of pairs three
        drawn = {c.get_label(): len(c.get_offsets()) for c in ax.collections}
        assert drawn == {"G1 a": points, "G2 b": points} | ({"prototype": stars} if stars else {})
    (star,) = (c for c in figure.axes[6].collections if c.get_label() == "prototype")
    assert len(star.get_paths()[0].vertices) == 11  # a star of five points, closed
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["G1 a", "G2 b", "prototype"]
    latent_figure([("FedVPL", printed)], GROUPS, tmp_path / "latent.png")
    assert (tmp_path / "latent.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_small_or_collapsed_case_is_drawn_by_principal_components():
    xy, how = embed(np.array([[0.0, 0, 0], [0, 3, 4]]))
    assert how == ", principal components"
    np.testing.assert_allclose(np.abs(xy), [[2.5, 0], [2.5, 0]], atol=1e-12)
    assert embed(np.ones((9, 4)))[1] == embed(np.arange(9.0)[:, None])[1] == how
    assert embed(np.zeros((0, 4)))[0].shape == (0, 2)
    assert embed(np.arange(9.0)[:, None])[0].shape == (9, 2) and not embed(SQUARE)[1]
    one = Latent.of(0, np.full((1, 4), np.nan), np.zeros((1, 4)))
    (ax,) = latent_panels([("one client, diverged", one)], {"names": [], "of": []}).axes
    assert ax.get_title() == "round 0, principal components\nsilhouette –, ARI –"


def test_groups_far_apart_stay_so_in_the_plane():
    z = np.random.default_rng(0).normal(size=(24, 8))
    z[12:] += 20
    xy, _ = embed(z)
    assert silhouette(xy, [0] * 12 + [1] * 12) > 0.5
    np.testing.assert_array_equal(embed(z)[0], xy)


def test_the_numbers_over_rounds_are_a_line_a_method_with_a_band_over_seeds():
    seeds = [(made(spread=s), APART) for s in (1.0, 3.0)]
    figure = numbers_figure({"FedVPL": [(made(spread=0.0), APART)], "FedVPA-GP": seeds})
    silhouettes, ari, kl, active, by_dimension = figure.axes
    assert [len(ax.collections) for ax in figure.axes] == [1] * 5  # bands of the method with two seeds
    line = {str(line.get_label()): line.get_ydata().tolist() for line in kl.get_lines()}
    assert line["FedVPL"] == [0, 0, 0]
    assert line["FedVPA-GP"] == pytest.approx([0, 4.25 * 10 / 2 / 4, 4.25 * 10 / 2])  # spreads squared: 1 and 9
    assert np.isnan(silhouettes.get_lines()[0].get_ydata()).all() and ari.get_lines()[-2].get_ydata()[-1] == 1
    assert active.get_lines()[1].get_ydata().tolist() == [0, 2, 2]
    assert by_dimension.get_lines()[1].get_ydata().tolist() == pytest.approx([20.0, 1.25])


def run(algorithm, seed=0, latent=None, **settings):
    settings = {"data.group_sizes": BALANCED, "objective": "variational"} | settings
    return replace(
        finished(flat(0.5, 0.6), algorithm=algorithm, seed=seed, **settings), id=f"{algorithm} {seed}", latent=latent
    )


def test_compare_takes_the_runs_that_recorded_posteriors():
    runs = [
        run("fedvpl", 0, made(spread=0.0)),
        run("fedvpl", 1, made(spread=0.0)),
        run("fedvpa_gp", 1, made(spread=1.0)),
        run("fedvpa_gp", 2, made(spread=3.0)),
        run("fedvpa_gp", 3),
        run("fedvpl_ortho", 0, made(spread=1.0)),
    ]
    item = figure_latent(runs, "test")
    assert [r.id for r in item.runs] == ["fedvpl 1", "fedvpa_gp 1"]  # the lowest seed of both
    assert [ax.get_ylabel() for ax in item.content.axes[::3]] == ["FedVPL (conditioned)", "FedVPA-GP (conditioned)"]
    assert not item.missing and "Balanced: recorded up to round 20; 2/2 clients" in item.caption
    table = numbers_table(runs, "test").content
    assert table.rows == tuple(f"{name} (conditioned)" for name in ("FedVPL", "FedVPL+Ortho", "FedVPA-GP"))
    told = [[text(cell, how) for cell, how in zip(row, table.columns, strict=True)] for row in table.cells]
    # KL 4.25 and 9 · 4.25: mean 21.25, std 34 / √2
    assert told[0] == ["–", "0.00 (± 0.00)", "0.00 (± 0.00)", "0.0 (± 0.0)", "2"]
    assert told[2] == ["0.75 (± 0.00)", "1.00 (± 0.00)", "21.25 (± 24.04)", "2.0 (± 0.0)", "2"]
    assert len(figure_numbers(runs, "test").runs) == 5


def test_compare_says_what_runs_lack():
    for draw in (numbers_table, figure_latent, figure_numbers):
        item = draw([run("fedavg", objective="choice")], "test")
        assert item.content is None and [m.what for m in item.missing] == ["variational runs"]
        (lacks,) = draw([run("fedvpa_gp")], "test").missing
        assert lacks == ("posteriors: the runs recorded none", "the same with --variational.every 10")
    one = run("fedgd", latent=made((0,)))
    item = figure_latent([one], "test")
    assert tuple(item.runs) == (one,) and not item.missing
    item = figure_latent([one, run("fedvpa_gp", latent=made((0,)))], "test")
    assert [r.id for r in item.runs] == ["fedvpa_gp 0"] and item.missing[0].what == "balanced: FedVPL"
