import copy
import csv
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from raypref.evaluation import figures, report
from raypref.evaluation.report import Result


def result(algorithm: str, accuracy: list[list[float]], marks=(0, 10), **changes) -> Result:
    """Four clients in two groups; order accuracy, agreement and loss follow from the accuracy so that one can count."""
    acc = np.array(accuracy)
    curves = {
        "accuracy": acc.tolist(),
        "order_accuracy": (acc / 2).tolist(),
        "agreement": (acc / 4).tolist(),
        "loss": (1 - acc).tolist(),
    }
    return {
        "algorithm": algorithm,
        "marks": list(marks),
        "test": curves,
        "validation": copy.deepcopy(curves),
        "groups": {"names": ["G1", "G2"], "of": [0, 0, 1, 1]},
        "rounds": 100,
        "client_steps": 5000,
        "bytes_up": 12_000_000,
        "bytes_down": 24_500_000,
        "weights": "by N_c",
        "ari": None,
        **changes,
    }


FEDAVG = result("fedavg", [[0.8, 0.9], [0.8, 0.9], [0.2, 0.5], [0.2, 0.5]])
FEDGD = result("fedgd", [[0.5, 0.9], [0.7, 0.9], [0.5, 0.8], [0.3, 1.0]], rounds=50, ari=1.0)


def cells(markdown: str) -> dict[str, dict[str, str]]:
    """{algorithm: {column: cell}} of a Markdown table."""
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in markdown.splitlines() if line.startswith("|")]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def test_the_table_holds_the_numbers_worked_out_by_hand():
    table = cells(report.markdown([FEDAVG, FEDGD]))
    assert table["fedavg"]["acc^0"] == "50.0 ± 30.0"
    assert table["fedavg"]["acc^10"] == "70.0 ± 20.0"
    assert table["fedgd"]["acc^10"] == "**90.0 ± 7.1**"  # deviations 0, 0, -10, 10: √50
    assert (table["fedavg"]["G1"], table["fedavg"]["G2"]) == ("**90.0**", "50.0")
    assert (table["fedgd"]["G1"], table["fedgd"]["G2"]) == ("**90.0**", "**90.0**")  # a tie: both are best
    assert (table["fedavg"]["worst tenth"], table["fedgd"]["worst tenth"]) == ("50.0", "**80.0**")
    assert table["fedgd"]["order acc"] == "**45.0**" and table["fedgd"]["agreement"] == "**22.5**"
    assert (table["fedavg"]["ARI"], table["fedgd"]["ARI"]) == ("–", "1.00")
    assert (table["fedgd"]["rounds"], table["fedgd"]["client steps"]) == ("50", "5,000")
    assert (table["fedgd"]["MB up"], table["fedgd"]["MB down"], table["fedgd"]["weights"]) == ("12.0", "24.5", "by N_c")


def test_before_personalization_nothing_is_best_and_neither_is_a_run_alone():
    table = cells(report.markdown([FEDAVG, FEDGD], at=0))
    assert table["fedgd"]["acc^0"] == "50.0 ± 14.1" and table["fedgd"]["G2"] == "40.0"
    assert "| **" not in report.markdown([FEDGD])


def test_unknown_groups_and_marks_that_a_run_lacks():
    real = result("tldr", [[0.5, 0.6]] * 3, marks=(0, 240), groups={"names": [], "of": []})
    table = cells(report.markdown([FEDAVG, real]))
    assert list(table["tldr"])[1:4] == ["acc^0", "acc^10", "acc^240"]
    assert (table["tldr"]["acc^10"], table["fedavg"]["acc^240"], table["tldr"]["G1"]) == ("–", "–", "–")
    alone = cells(report.markdown([real]))["tldr"]
    assert not {"G1", "ARI"} & set(alone) and alone["worst tenth"] == "60.0"  # at the last mark, as 10 is not read


def test_the_fold_is_the_one_asked_for_and_says_so():
    other = copy.deepcopy(FEDGD)
    other["validation"]["accuracy"] = [[0.0, 0.25]] * 4
    assert cells(report.markdown([other], fold="validation"))["fedgd"]["acc^10"] == "25.0 ± 0.0"
    assert "on the validation pairs" in report.markdown([other], fold="validation")
    assert "over 4 clients" in report.markdown([other])


def test_clients_without_pairs_are_not_counted():
    gap = result("fedavg", [[0.4, 0.4], [0.6, 0.6], [float("nan")] * 2, [float("nan")] * 2])
    text = report.markdown([gap])
    assert cells(text)["fedavg"]["acc^10"] == "50.0 ± 10.0" and "over 2 clients" in text
    assert cells(text)["fedavg"]["order acc"] == "25.0" and "G2" not in cells(text)["fedavg"]


def test_the_terminal_table_keeps_within_80_characters_for_four_groups():
    rng = np.random.default_rng(0)
    groups = {"names": ["G1", "G2", "G3", "G4"], "of": [0] * 15 + [1] * 15 + [2] * 5 + [3] * 5}
    runs = [
        result(n, rng.integers(0, 2, (40, 3)).tolist(), marks=(0, 10, 80), groups=groups, client_steps=20000)
        for n in ("fedbiscuit", "fedgd")
    ]
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(report.terminal(runs))
    text = console.file.getvalue()
    assert "…" not in text
    row = next(line for line in text.splitlines() if line.startswith("fedbiscuit"))
    table = cells(report.markdown(runs))["fedbiscuit"]
    for column in ("acc^0", "acc^10", "acc^80", "G1", "G2", "G3", "G4", "worst tenth", "rounds", "client steps"):
        assert table[column].strip("*").replace(" ", "") in row.split(), column


def test_csv_has_every_number_unrounded():
    rows = list(csv.DictReader(io.StringIO(report.to_csv([FEDAVG, FEDGD]))))
    assert [(r["algorithm"], r["local_steps"]) for r in rows] == [
        ("fedavg", "0"), ("fedavg", "10"), ("fedgd", "0"), ("fedgd", "10"),
    ]  # fmt: skip
    last = rows[-1]
    assert float(last["std"]) == pytest.approx(np.sqrt(0.005), rel=1e-12)
    assert float(last["low"]) <= float(last["mean"]) <= float(last["high"])
    assert float(last["group:G2"]) == pytest.approx(0.9) and float(last["loss"]) == pytest.approx(0.1)
    assert (last["client_steps"], last["bytes_up"], last["ari"], rows[0]["ari"]) == ("5000", "12000000", "1.0", "")


def test_a_result_survives_json():
    assert report.markdown([json.loads(json.dumps(FEDGD))]) == report.markdown([FEDGD])


def test_the_curve_figure_has_a_line_for_each_mean_and_group(tmp_path, monkeypatch):
    drawn = _drawn(monkeypatch)
    report.curve_figure([FEDAVG, FEDGD], tmp_path / "curve.png")
    overview, fedavg, fedgd = drawn[0].axes
    lines = {line.get_label(): list(line.get_ydata()) for line in overview.lines}
    assert lines["fedavg"] == pytest.approx([50, 70]) and lines["fedgd"] == pytest.approx([50, 90])
    lines = {line.get_label(): list(line.get_ydata()) for line in fedavg.lines}
    assert lines["G2 (2)"] == pytest.approx([20, 50]) and lines["mean"] == pytest.approx([50, 70])
    assert fedgd.get_title() == "fedgd"
    above, below = ([t.get_text() for t in one.get_texts()] for one in drawn[0].legends)
    assert above == ["fedavg", "fedgd"] and below == ["G1 (2)", "G2 (2)", "mean"]
    panels = [ax.get_window_extent() for ax in drawn[0].axes]
    assert not any(one.get_window_extent().overlaps(panel) for one in drawn[0].legends for panel in panels)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("words", "columns"), [(1, 4), (4, 2), (40, 1)])
def test_a_legend_takes_the_columns_that_fit_and_is_never_cut(words, columns):
    figure, (ax,) = figures.grid(1, 1, size=(4.2, 3.0))
    for i in range(4):
        ax.plot([0, 1], [i, i], label=f"{i} " + "word " * words)
    figures.legend(figure, [ax])
    figure.canvas.draw()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert len(legend.get_texts()) == 4 and legend._ncols == columns
    assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width + 1


def test_the_groups_figure_puts_clients_in_the_order_of_their_true_group(tmp_path, monkeypatch):
    drawn = _drawn(monkeypatch)
    groups = {"names": ["G1", "G2"], "of": [1, 0, 1, 0]}
    report.groups_figure([0, 5], [[2, 0, -1, 1], [2, 0, 2, 0]], tmp_path / "groups.png", groups, "K = 3")
    (ax,) = drawn[0].axes
    mesh = ax.collections[0]
    assert mesh.get_array().tolist() == [[0, 0], [1, 0], [2, 2], [-1, 2]]  # G1: clients 1, 3; G2: clients 0, 2
    assert [t.get_text() for t in ax.get_yticklabels()] == ["G1 (2)", "G2 (2)"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["none", "expert 1", "expert 2", "expert 3"]
    assert ax.get_xlim() == (-0.5, 5.5)  # round 0 to round 5, each centred on its tick
    colours = mesh.to_rgba(np.array([-1, 0, 1, 2]))
    assert len({tuple(c) for c in colours.tolist()}) == 4
    assert (tmp_path / "groups.png").read_bytes().startswith(b"\x89PNG")


def test_importing_the_module_draws_in_no_plotting_library():
    code = "import sys, raypref.evaluation.report; print({'matplotlib', 'rich', 'sklearn', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def _drawn(monkeypatch) -> list:
    """Collects the figures that are saved."""
    from matplotlib.figure import Figure

    drawn: list = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))[1])
    return drawn


def test_figures_are_files_whatever_backend_a_notebook_hands_down(tmp_path):
    code = "from raypref.evaluation.figures import grid; grid(1, 1)[0].savefig('figure.png')"
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    drawn = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (drawn.returncode, drawn.stderr) == (0, "") and (tmp_path / "figure.png").exists()
