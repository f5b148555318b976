"""Which runs fill which table, and with what numbers: all worked out here."""

from dataclasses import replace

import numpy as np
import pytest

from raypref.evaluation.comparisons import fedgd_figures, fedgd_tables
from raypref.evaluation.drawings import drawings
from raypref.evaluation.figures import settled
from raypref.evaluation.rows import steps
from tests.evaluation.made import BALANCED, cells, finished, flat

ROUNDS = list(range(61))
SPACES = ("main_results", "imbalance", "k_robustness", "phase2_start", "local_steps")
GROUPS = {"true": {"names": ["G1 a", "G2 b"], "of": [0, 0, 0, 1]}, "rounds": ROUNDS}


def test_settled_is_the_last_round_in_which_a_client_moved():
    assert settled([0, 5, 10, 15], [[0, 1, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]) == 5
    assert settled([0, 5, 10], [[0, 1, 1], [0, 1, 1], [1, 1, 1]]) == 10
    assert settled([0, 5], [[0, 1], [0, 1]]) == 0 and settled([], []) is None
    assert settled([0, 5, 10], [[0, 2, 2], [1, 2, 1], [0, 1, 0]]) == 5  # an empty expert discarded: renumbered


def test_table3_by_hand():
    """FedGD imbalanced, two seeds: acc^10 over clients 0.9, 0.7, 0.9, 0.7 (mean 0.8, std 0.1) and 0.6 for all (std 0):
    70.0 ± 5.0, over seeds sqrt(2 · 10²) = 14.1."""
    one = [[0.5, t, 1.0] for t in (0.9, 0.7, 0.9, 0.7)]
    runs = [
        finished(one, algorithm="fedgd", seed=0),
        finished(flat(0.5, 0.6, 0.8), algorithm="fedgd", seed=1),
        finished(flat(0.6, 0.65, 0.95), algorithm="fedavg", seed=0),
        finished(flat(0.5, 0.9, 0.9), algorithm="fedavg", seed=0, **{"data.group_sizes": BALANCED}),
        finished(flat(0.5, 0.55), algorithm="fedgd", seed=0, **{"data.source": "people.jsonl"}),
    ]
    item = fedgd_tables.table3(runs, "test")
    told = cells(item.content)
    assert list(told) == ["FL", "FedGD"]
    assert told["FedGD"]["Imbalanced acc^10"] == "70.0 ± 5.0 (± 14.1)"
    assert told["FedGD"]["Balanced acc^10"] == "–" and told["FL"]["Balanced acc^10"] == "90.0 ± 0.0"
    assert told["FedGD"]["Real acc^10"] == "55.0 ± 0.0"  # its only mark stands for acc^80 and acc^240
    assert told["FL"]["Imbalanced acc^40"] == "95.0 ± 0.0"
    assert (told["FL"]["rounds"], told["FL"]["MB down"], told["FedGD"]["n"]) == ("60", "4.0", "1–2")
    best = [c.head for i, c in enumerate(item.content.columns) if item.content.bold(1, i)]
    assert best == ["acc^10"]  # 70 beats 65; 90.0 at acc^40 does not beat 95; acc^0 is never bold
    assert "3/1 clients (synthetic)" in item.content.notes[2] and "seeds 0 1" in item.content.notes[2]
    lacks = {m.what: m.command for m in item.missing}
    assert lacks["balanced: Local, CL, Multi CL, FedBiscuit, Soft-FL, FedGD"] == "python -m raypref.sweep main_results"
    assert lacks["real: Local, CL, FL, FedBiscuit, Soft-FL"] == "python -m raypref.sweep real_world"


def test_rounds_that_are_not_R_of_training_are_explained():
    runs = [finished(flat(0.5, 0.6, 0.8), algorithm=a) for a in ("cl", "multi_cl", "fedavg", "fedbiscuit", "fedgd")]
    for run, rounds in zip(runs, (0, 0, 60, 90, 60), strict=True):
        run.result["rounds"] = rounds
    assert fedgd_tables.table3(runs, "test").content.notes[-1] == (
        "Rounds: FedBiscuit's include its warm-up (K·T + R - T); FedGD's model gets R/2 of R, the others find the "
        "groups; CL and Multi CL have none (R·τ steps on pooled data)."
    )
    notes = fedgd_tables.table3(runs[2:3], "test").content.notes
    assert not any(note.startswith("Rounds") for note in notes)
    assert notes[0].endswith("Bold: the best of a column, of acc^t once personalized.")


def test_marks_are_the_nearest_that_were_read():
    marks = {"personalization.marks": (0, 2, 5)}
    told = fedgd_tables.table3([finished(flat(0.5, 0.6, 0.7), algorithm="fedgd", **marks)], "test").content
    assert [c.head for c in told.columns if c.block == "Imbalanced"] == ["acc^0", "acc^5"]
    assert steps([]) == (10, 10)


def test_what_differs_in_anything_else_is_another_family():
    """Two methods at R = 4 (a smoke test) and three at R = 60: the latter; of R = 4 nothing is mixed in."""
    small = {"federation.rounds": 4}
    runs = [
        finished(flat(0.1, 0.1, 0.1), algorithm="local", started=9, **small),
        finished(flat(0.1, 0.1, 0.1), algorithm="cl", started=9, **small),
        *(finished(flat(0.5, 0.8, 0.9), algorithm=a, started=1) for a in ("fedavg", "cl", "fedgd")),
    ]
    chosen = fedgd_tables.by_algorithm(runs, ("local", "cl", "fedgd"), setting="imbalanced")
    assert [bool(s) for s in chosen.values()] == [True, True, False]
    assert chosen["Local"][0].started == 9  # two points against two
    assert list(cells(fedgd_tables.table3(runs, "test").content)) == ["CL", "FL", "FedGD"]


@pytest.mark.parametrize("objective", ["variational", "dpo"])
def test_other_objectives_are_kept_out_of_s2s_tables(objective):
    """However many and however new; what may follow a run, and the others' sections, make no other family."""
    runs = [
        finished(flat(0.5, 0.8, 0.9), algorithm="cl", **{"dpo.beta": 0.3, "rlhf.rounds": 3}),
        finished(flat(0.5, 0.6, 0.9), algorithm="fedgd"),
        *(
            finished(flat(0.1, 0.1, 0.1), algorithm=a, objective=objective, started=9)
            for a in ("fedavg", "cl", "fedgd")
        ),
    ]
    told = cells(fedgd_tables.table3(runs, "test").content)
    assert {label: row["Imbalanced acc^10"] for label, row in told.items()} == {
        "CL": "80.0 ± 0.0",
        "FedGD": "60.0 ± 0.0",
    }


def test_where_and_how_it_ran_does_not_make_another_family():
    runs = [
        finished(flat(0.5, 0.8, 0.9), algorithm="cl", **{"clients.stack": 2}),
        finished(flat(0.5, 0.8, 0.9), algorithm="fedgd", **{"diagnostics.marks": (0,)}),
    ]
    assert list(cells(fedgd_tables.table3(runs, "test").content)) == ["CL", "FedGD"]


def test_a_synthetic_file_dealt_into_groups_is_not_real_data():
    run = finished(flat(0.5, 0.8), **{"data.source": "pairs.jsonl"})
    assert run.setting == "real"
    groups = {"names": ["G1 a", "G2 b"], "of": [0, 0, 0, 1]}
    assert replace(run, result={**run.result, "groups": groups}).setting == "imbalanced"


def diagnosed(start, later, **settings):
    """One client a line: margins of two test pairs at marks 0 and 10; headroom +1 on the first, -1 on the other."""
    margins = [[a, b, b] for a, b in zip(start, later, strict=True)]
    accuracy = np.mean(np.array(margins) > 0, axis=2)
    return finished(accuracy, margins=margins, headroom=[[1.0, -1.0]] * len(start), **settings)


START, LATER = [[2.0, -4.0]] * 4, [[1.0, 1.0]] * 2 + [[-1.0, 1.0]] * 2


def test_tables_1_and_2_have_the_diagnostics():
    """Every client starts with its first pair right (m0 2, headroom 1), its second wrong (-4, -1). After 10 steps the
    right one stays so for half of the clients, the wrong one is corrected for all: acc^10 = (1 + 1 + 0.5 + 0.5)/4."""
    runs = [diagnosed(START, LATER, algorithm=a) for a in ("cl", "fedavg", "fl_target")]
    runs.append(diagnosed(START, [[1.0, 1.0]] * 4, algorithm="fedavg", **{"data.group_sizes": BALANCED}))
    item = fedgd_tables.table2(runs, "test")
    told = cells(item.content)
    assert list(told) == ["FL (balanced)", "CL", "FL", "FL_target"]
    line = told["FL_target"]
    assert line["GQ(l)"] == "2.00 ± 1.00" and (line["GQ_B"], line["GQ_H"]) == ("1.00", "3.00")
    assert (line["m0_R"], line["m0_W"], line["H0_R"], line["H0_W"]) == ("+2.00", "-4.00", "+1.00", "-1.00")
    assert (line["H+_R"], line["H+_W"], line["P^10_R"], line["P^10_W"]) == ("100.0", "0.0", "50.0", "100.0")
    assert line["acc^10"] == "75.0 ± 25.0" and line["acc^0"] == "50.0 ± 0.0"
    assert told["FL (balanced)"]["P^10_R"] == "100.0" and not item.content.bold(0, 0)
    assert [m.what for m in item.missing] == ["imbalanced: Multi CL"]
    assert item.missing[0].command == "python -m raypref.sweep imbalance"
    first = fedgd_tables.table1(runs, "test").content
    assert first.rows == ("FL",)


def test_without_diagnostics_their_columns_are_left_out_and_it_says_so():
    runs = [finished(flat(0.5, 0.8, 0.9), algorithm=a, **{"data.group_sizes": BALANCED}) for a in ("cl", "fedavg")]
    item = fedgd_tables.table1(runs, "test")
    assert [c.head for c in item.content.columns][:3] == ["acc^10", "acc^0", "rounds"]
    assert "--diagnostics.marks 0" in item.missing[-1].command


def test_tables_by_K_and_by_the_start_of_phase_2():
    runs = [finished(flat(0.5, 0.8, 0.9), algorithm=a, **{"experts.K": 4}) for a in ("soft_fl", "fedgd")]
    runs.append(finished(flat(0.5, 0.7, 0.85), algorithm="fedgd", **{"experts.K": 2}))
    item = fedgd_tables.table5(runs, "test")
    assert list(cells(item.content)) == ["FedGD (K=2)", "FedGD (K=4)"]
    assert item.missing[0].what == "imbalanced: FedGD (K=3)" and "k_robustness" in item.missing[0].command
    told = cells(fedgd_tables.table6(runs, "test").content)
    assert (
        told["FedGD"]["Imbalanced acc^40 K=2"] == "85.0 ± 0.0"
        and told["Soft-FL"]["Imbalanced acc^40 K=4"] == "90.0 ± 0.0"
    )
    assert told["Soft-FL"]["Imbalanced acc^40 K=2"] == "–"
    nothing = fedgd_tables.table7(runs, "test")
    assert nothing.content is None
    assert ("phase 2 continue: every row", "python -m raypref.sweep phase2_start") in nothing.missing
    runs.append(finished(flat(0.5, 0.6, 0.8), algorithm="fedgd", **{"fedgd.phase2_start": "continue"}))
    told = cells(fedgd_tables.table7(runs, "test").content)
    assert told["Continue"]["Imbalanced acc^10"] == "60.0 ± 0.0" and told["Random"]["Imbalanced acc^10"] == "80.0 ± 0.0"


def test_table4_has_a_block_a_base():
    runs = [
        finished(flat(0.5, 0.6, t), algorithm=a, **{"data.source": "people.jsonl", "model.base": base})
        for base, t in (("Qwen/Qwen2-1.5B", 0.7), ("google/gemma-2b", 0.8))
        for a in ("local", "fedgd")
    ]
    told = cells(fedgd_tables.table4(runs, "test").content)
    assert told["FedGD"]["Qwen2-1.5B acc^40"] == "70.0 ± 0.0" and told["Local"]["gemma-2b acc^40"] == "80.0 ± 0.0"


def test_figures_hold_the_curves_and_the_round_in_which_groups_settle():
    early = [[0, 1, 0, 1]] * 10 + [[0, 0, 0, 1]] * 51
    late = [[0, 1, 0, 1]] * 20 + [[0, 0, 0, 1]] * 20 + [[0, 1, 0, 1]] * 21  # what comes after phase 1 is not its
    runs = [
        finished(flat(0.5, 0.8, 0.9), algorithm="fedgd", seed=0, groups=GROUPS | {"assignment": early}),
        finished(flat(0.5, 0.8, 0.9), algorithm="fedgd", seed=1, groups=GROUPS | {"assignment": late}),
        *(finished([[0.2, 0.4, 0.6]] * 3 + [[0.9, 0.9, 1.0]], algorithm="cl", seed=s) for s in (0, 1)),
    ]
    item = fedgd_figures.figure6(runs, "test")
    assert "phase 1 (30 rounds)" in item.caption and "imbalanced 10, 20." in item.caption
    (ax,) = item.content.axes
    assert list(ax.lines[0].get_xdata()) == [9.5, 9.5]  # where round 10 begins, so that its cells are seen
    assert ax.get_title() == "imbalanced (seed 0): settled in round 10" and ax.get_xlim() == (-0.5, 30.5)
    cells = ax.collections[0].get_array()
    assert cells.shape == (4, 31) and cells[1].tolist() == [1] * 10 + [0] * 21
    assert [t.get_text() for t in item.content.legends[0].get_texts()] == ["expert 1", "expert 2"]
    assert all(tick.is_integer() for tick in ax.get_xticks())
    (ax,) = fedgd_figures.figure3(runs, "test").content.axes
    curves = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert curves["G1 a (3)"] == pytest.approx([20, 40, 60]) and curves["G2 b (1)"] == pytest.approx([90, 90, 100])
    figure = fedgd_figures.figure4(runs, "test").content
    (ax,) = figure.axes
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["expert 1", "expert 2"]
    rows = {y for scatter in ax.collections for y in scatter.get_offsets()[:, 1].tolist()}
    assert set(ax.get_yticks()) == rows == {0.0, 1.0}  # one row a group: each tick is at its row


def test_figure5_has_a_row_a_learning_rate_and_a_line_a_method():
    runs = [
        finished(flat(0.5, 0.5 + tau / 100, 0.9), algorithm=a, **{
            "data.group_sizes": BALANCED, "federation.local_steps": tau, "optim.learning_rate": rate
        })
        for a in ("cl", "fedavg") for tau in (1, 30) for rate in (1e-3, 1e-4)
    ]  # fmt: skip
    item = fedgd_figures.figure5(runs, "test")
    assert not item.missing and [ax.get_title() for ax in item.content.axes] == [
        f"acc^{t}, learning rate {rate}" for rate in ("0.001", "0.0001") for t in (0, 10)
    ]
    assert list(item.content.axes[1].containers[0].lines[0].get_ydata()) == pytest.approx([51, 80])
    assert fedgd_figures.figure5(runs[:1], "test").content is None


def test_nothing_is_drawn_of_nothing_and_every_item_names_its_command():
    for drawing in drawings().values():
        if drawing.name == "overhead":  # whatever runs there are fill it
            continue
        item = drawing([], "test")
        assert item.content is None and item.missing
        commands = ("python -m raypref.", "the same with --diagnostics.marks 0")
        assert all(m.command.startswith(commands) for m in item.missing)


def test_commands_name_spaces_that_make_the_runs():
    """What a table says it lacks, the sweep that it names has."""
    from raypref.config import flatten, to_dict
    from raypref.config.spaces import load_space

    configs = [c for name in SPACES for c in load_space(name).trials(load_space(name).base)]
    runs = [finished(flat(0.5, 0.5, 0.5, 0.5, C=40), **flatten(to_dict(c))) for c in configs]
    for number in (1, 2, 3, 5, 6, 7):
        lacks = [m.what for m in drawings()["table", str(number)](runs, "test").missing]
        assert all(what.startswith(("real", "GQ")) for what in lacks), lacks
    for number in (2, 3, 5):
        assert not drawings()["figure", str(number)](runs, "test").missing
