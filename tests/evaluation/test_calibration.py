"""Calibration by hand: how likely the choices were, and whether a selector is as often right as it is sure."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypref.evaluation import calibration, report
from raypref.evaluation.comparisons.calibration import calibrated, diagrams
from raypref.evaluation.curve import seen_and_unseen
from raypref.experiment.publish import calibration_metrics
from tests.evaluation.made import BALANCED, cells, finished, flat, result


def logit(p: float) -> float:
    return math.log(p / (1 - p))


# Three pairs of one client, two of another, at two marks: p of the chosen response.
P = [[[0.5, 0.82, 0.18], [0.92, 0.92, 0.38]], [[0.62, 0.23], [0.97, 0.72]]]
MARGINS = [[[logit(p) for p in at] for at in client] for client in P]
NLL = [
    [-(math.log(0.5) + math.log(0.82) + math.log(0.18)) / 3, -(2 * math.log(0.92) + math.log(0.38)) / 3],
    [-(math.log(0.62) + math.log(0.23)) / 2, -(math.log(0.97) + math.log(0.72)) / 2],
]
# Pooled, t = 0. Confidences 0.5 (a tie, half right), 0.82 (right) and 0.82 (wrong: p = 0.18), 0.62 (right), 0.77
# (wrong), each in a bin of its own but the two 0.82: gaps 0, |1/2 - 0.82| twice, 0.38, 0.77, over five pairs.
# Then 0.92 twice (right), 0.62 (wrong), 0.97 (right), 0.72 (right).
ECE = [(0 + 2 * 0.32 + 0.38 + 0.77) / 5, (2 * 0.08 + 0.62 + 0.03 + 0.28) / 5]


def test_negative_log_likelihood_is_each_clients_mean():
    arrays = calibration.margins_of({"margins": {"test": MARGINS}})
    np.testing.assert_allclose(calibration.nll(arrays), NLL, rtol=1e-12)
    assert np.isnan(calibration.nll([np.zeros((2, 0))])).all()
    np.testing.assert_allclose(calibration.nll([np.array([[-800.0], [800.0]])]), [[800.0, 0.0]])  # no overflow


def test_a_tie_knows_nothing():
    tie = np.zeros((1, 4))
    assert calibration.nll([tie])[0, 0] == pytest.approx(math.log(2))
    assert calibration.reliability(tie[0]).ece == 0 and calibration.reliability(tie[0]).right[0] == 0.5


def test_expected_calibration_error_of_all_clients_pairs_together():
    arrays = calibration.margins_of({"margins": {"test": MARGINS}})
    assert [calibration.pooled(arrays, m).ece for m in (0, 1)] == pytest.approx(ECE, rel=1e-12)
    first = calibration.pooled(arrays, 0)
    assert first.pairs.tolist() == [1, 0, 1, 0, 0, 1, 2, 0, 0, 0]
    assert first.right[6] == 0.5 and first.confidence[6] == pytest.approx(0.82) and math.isnan(first.right[1])
    assert math.isnan(calibration.reliability(np.zeros(0)).ece)


def test_bins_are_of_equal_width():
    for k in range(1, 10):
        edge = 0.5 + k / 20
        below, above = logit(edge - 1e-9), logit(edge + 1e-9)
        assert calibration.reliability(np.array([below, -above])).pairs.nonzero()[0].tolist() == [k - 1, k]
    assert calibration.reliability(np.array([0.0, 60.0, -60.0])).pairs.tolist() == [1, *[0] * 8, 2]


def test_a_calibrated_selector_has_no_error_and_chance_leaves_little():
    """Seventy right of a hundred pairs at p = 0.7 are calibrated; drawn at random the bound holds on average."""
    exact = np.repeat([logit(0.7), -logit(0.7)], [70, 30])
    assert calibration.reliability(exact).ece == pytest.approx(0, abs=1e-12)
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(300):
        p = rng.uniform(0.5, 1, 200)
        errors.append(calibration.reliability(np.log(p / (1 - p)) * np.where(rng.random(200) < p, 1, -1)).ece)
    assert 0.5 * calibration.by_chance(200) < np.mean(errors) < calibration.by_chance(200)
    assert calibration.by_chance(1000) == pytest.approx(0.0399, abs=1e-4)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=40))
def test_what_holds_of_any_margins(margins):
    m = np.array(margins)
    bins = calibration.reliability(m)
    assert bins.pairs.sum() == len(m) and 0 <= bins.ece <= 1
    turned = calibration.reliability(-m)  # whoever chooses the other way is right where this one is wrong
    there = bins.pairs > 0
    np.testing.assert_allclose(turned.confidence[there], bins.confidence[there])
    np.testing.assert_allclose(turned.right[there], 1 - bins.right[there])
    np.testing.assert_allclose(
        calibration.nll([m[None]])[0, 0] - calibration.nll([-m[None]])[0, 0], -m.mean(), atol=1e-9
    )


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=9))
def test_the_loss_of_both_orders_is_never_lower(orders):
    import torch

    from raypref.objectives.choice import metrics, pair_margins

    m = torch.tensor(orders, dtype=torch.float64)
    assert float(metrics(m)["loss"]) >= calibration.nll([pair_margins(m).numpy()[None]])[0, 0] - 1e-12


# --- where it is shown


def run(p: float, seed: int = 0, **how):
    """Four clients of ten pairs with margins ± logit(p) afterwards, eight of the ten right; nothing known before."""
    m = [[0.0] * 10, [logit(p)] * 8 + [-logit(p)] * 2]
    return finished(flat(0.0, 0.8), margins=[m] * 4, seed=seed, **how)


def test_the_table():
    runs = [run(0.8, algorithm="fedavg"), run(0.9, algorithm="fedgd"), run(0.7, algorithm="fedgd", seed=1)]
    item = calibrated([*runs, finished(flat(0.5, 0.8), algorithm="local")], "test")
    told = cells(item.content)
    assert list(told) == ["FL", "FedGD"]  # a run without margins has no row

    def nll(p: float) -> float:
        return -(0.8 * math.log(p) + 0.2 * math.log(1 - p))

    assert told["FL"] == {
        "Imbalanced acc^0": "0.0 ± 0.0",
        "Imbalanced NLL^0": "0.693 ± 0.000",
        "Imbalanced ECE^0": "0.0",
        "Imbalanced acc^10": "80.0 ± 0.0",
        "Imbalanced NLL^10": f"{nll(0.8):.3f} ± 0.000",
        "Imbalanced ECE^10": "0.0",
        "n": "1",
    }
    mean, spread = (nll(0.9) + nll(0.7)) / 2, abs(nll(0.9) - nll(0.7)) / math.sqrt(2)
    assert told["FedGD"]["Imbalanced NLL^10"] == f"{mean:.3f} ± 0.000 (± {spread:.3f})"
    assert told["FedGD"]["Imbalanced ECE^10"] == "10.0 ± 0.0"  # 0.9 and 0.7 are both 0.1 away from 0.8
    assert "pairs pooled" in item.content.notes[0] and "40 pairs" in item.content.notes[0]
    assert "up to 19.9 by chance" in item.content.notes[0]
    (one, other), columns = item.content.cells, [c.head for c in item.content.columns]
    assert item.content.bold(0, columns.index("NLL^10")) and item.content.bold(0, columns.index("ECE^10"))
    assert one and other and not item.content.bold(0, columns.index("NLL^0"))


def test_settings_stand_apart_and_unseen_clients_are_left_out():
    runs = [run(0.8), run(0.9, **{"data.group_sizes": BALANCED})]
    told = cells(calibrated(runs, "test").content)["FedGD"]
    assert (told["Balanced ECE^10"], told["Imbalanced ECE^10"]) == ("10.0", "0.0")
    away = run(0.8).result | {"unseen": [3]}
    away["margins"]["test"][3] = [[0.0] * 10, [-logit(0.9)] * 10]
    seen, unseen = seen_and_unseen(away)
    assert calibration.summary(seen)["ece"][1] == pytest.approx(0, abs=1e-12)
    assert calibration.summary(unseen)["ece"][1] == pytest.approx(0.9)
    metrics = calibration_metrics(away)[1]
    assert metrics[0] == 10 and metrics[1]["after local steps/unseen test ECE"] == pytest.approx(0.9)
    assert set(metrics[1]) == {f"after local steps/{w}test {n}" for w in ("", "unseen ") for n in ("NLL", "ECE")}


def test_without_margins_nothing_is_shown():
    bare = finished(flat(0.5, 0.8))
    assert calibration.summary(bare.result) == {} and calibration_metrics(bare.result) == [(0, {}), (10, {})]
    for drawing in (calibrated, diagrams):
        item = drawing([bare], "test")
        assert item.content is None and "margins" in item.missing[0].what


def test_the_csv_has_both_numbers():
    with_margins, bare = ({**one, "weights": "by N_c"} for one in (run(0.9).result, result(flat(0.5, 0.8))))
    lines = list(csv.DictReader(io.StringIO(report.to_csv([with_margins, bare]))))
    assert float(lines[1]["ece"]) == pytest.approx(0.1) and float(lines[0]["nll"]) == pytest.approx(math.log(2))
    assert lines[2]["ece"] == "" and "ece" not in report.to_csv([bare])
    assert "ece" not in report.to_csv([with_margins], "validation")


def test_the_figure_has_a_panel_a_method_and_a_line_a_mark():
    item = diagrams([run(0.8, algorithm="fedavg"), run(0.9), run(0.9, seed=1)], "test")
    first, second = item.content.axes
    assert first.get_title() == "FL\nECE 0.0 → 0.0 %" and second.get_title() == "FedGD\nECE 0.0 → 10.0 %"
    perfect, before, after = second.get_lines()
    assert perfect.get_xydata().tolist() == [[0.5, 0.5], [1, 1]]
    np.testing.assert_allclose(before.get_xydata(), [[0.5, 0.5]])
    np.testing.assert_allclose(after.get_xydata(), [[0.9, 0.8]])
    assert (before.get_label(), after.get_label()) == ("0 local steps", "10 local steps")
    assert "confidence" in item.caption and len(item.runs) == 3
