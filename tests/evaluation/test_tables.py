"""A table reads as its numbers, worked out here, in every rendering."""

import csv
import io

import numpy as np
import pytest

from raypref.evaluation.tables import Cell, Column, Table, escape, latex, markdown, terminal, text, to_csv
from raypref.tools.console import say

ACC = Column("acc^10", r"$\mathrm{acc}^{10}$", "Balanced", scale=100, digits=1, best=1)
GQ = Column("GQ(l)", "$GQ(l)$", "Balanced", best=-1, within="layers")
N = Column("n", "$n$", digits=0, span=True)


def table(*rows, apart=()):
    """rows: (label, cells)."""
    labels, cells = zip(*rows, strict=True)
    columns = (ACC, GQ, N)[: len(cells[0])]
    return Table("table9", "Table 9. A_b", "method", columns, labels, cells, frozenset(apart), ("50 % of θ_0.",))


def test_a_cell_tells_the_spread_over_clients_from_that_over_seeds():
    """Runs 0.9 and 0.8: mean 85.0, std over seeds sqrt(2 · 5²) = 7.07; within the runs 4 and 6, so 5.0."""
    cell = Cell((0.9, 0.8), within=(0.04, 0.06))
    assert text(cell, ACC) == "85.0 ± 5.0 (± 7.1)"
    assert text(Cell((0.9,), (0.04,)), ACC) == "90.0 ± 4.0"
    assert text(Cell((0.9, 0.8)), ACC) == "85.0 (± 7.1)"
    assert text(None, ACC) == "–"


def test_other_forms_of_a_cell():
    signed = Column("d", "d", scale=100, digits=1, signed=True)
    assert text(Cell((-0.066,), interval=(-0.098, 0.0004)), signed) == "-6.6 [-9.8, +0.0]"
    assert text(Cell((-0.0001,)), signed) == "+0.0"
    assert text(Cell((30.0, 60.0, 30.0)), N) == "30–60" and text(Cell((3000.0, 3000.0)), N) == "3,000"


def test_a_column_over_orders_of_magnitude_keeps_three_significant_digits():
    small = Column("H0", "$H^0$", significant=3, signed=True, best=1)
    assert text(Cell((0.000412345,)), small) == "+0.000412" and text(Cell((-0.5887,)), small) == "-0.589"
    assert text(Cell((1.0,)), small) == "+1.00" and text(Cell((123.4,)), small) == "+123"
    assert text(Cell((0.0000123,)), small) == "+1.23e-05" and text(Cell((-0.0,)), small) == "+0.00"
    rows = tuple((Cell((value,)),) for value in (4.121e-4, 4.122e-4, 4.11e-4))
    told = Table("t", "T", "row", (small,), ("A", "B", "C"), rows)
    assert [told.bold(r, 0) for r in range(3)] == [True, True, False]  # a tie as it reads, 0.0 ± 0.0 no more


def test_bold_is_the_best_as_it_reads_the_lowest_where_less_is_better():
    told = table(
        ("A", (Cell((0.9001,)), Cell((0.1,)))),
        ("B", (Cell((0.9004,)), Cell((0.2,)))),
        ("C", (Cell((0.8,)), None)),
        ("reference", (Cell((0.99,)), Cell((0.01,)))),
        apart=("reference",),
    )
    assert [[told.bold(r, c) for c in range(2)] for r in range(4)] == [
        [True, True],
        [True, False],  # 90.0 twice: a tie
        [False, False],
        [False, False],  # for reference only
    ]
    assert not table(("A", (Cell((0.9,)),))).bold(0, 0)  # nothing to be better than


def test_markdown():
    lines = markdown(table(("FL_target", (Cell((0.9,)), Cell((0.5,)))), ("B", (None, Cell((0.7,)))))).splitlines()
    assert lines[0] == "**Table 9. A_b**"
    assert lines[2:6] == [
        "| method | Balanced acc^10 | Balanced GQ(l) |",
        "| --- | ---: | ---: |",
        "| FL\\_target | 90.0 | **0.50** |",
        "| B | – | 0.70 |",
    ]
    assert lines[-1] == "50 % of θ_0."


def test_latex_has_blocks_and_escapes():
    lines = latex(table(("A & B", (Cell((0.9, 0.8)), Cell((1.0,)), Cell((2.0,)))))).splitlines()
    assert r"\caption{Table 9. A\_b. 50 \% of $\theta$\_0.}" in lines
    assert r" & \multicolumn{2}{c}{Balanced} &  \\" in lines and r"\cmidrule(lr){2-3}" in lines
    assert r"method & $\mathrm{acc}^{10}$ & $GQ(l)$ & $n$ \\" in lines
    assert r"A \& B & 85.0 ($\pm$ 7.1) & 1.00 & 2 \\" in lines
    assert lines[:2] == [r"% needs \usepackage{booktabs}", r"\begin{table}"] and lines[-1] == r"\end{table}"


def test_a_wide_table_is_shrunk_to_the_line_and_names_graphicx():
    cells = (Cell((0.9,)), Cell((1.0,)), Cell((2.0,)))
    lines = latex(table(("a row whose name alone " * 5, cells))).splitlines()
    assert lines[0] == r"% needs \usepackage{booktabs, graphicx}"
    assert lines[lines.index(r"\begin{tabular}{lrrr}") - 1] == r"\resizebox{\linewidth}{!}{%"
    assert r"\end{tabular}}" in lines
    assert not any("resizebox" in line for line in latex(table(("A", cells))).splitlines())


@pytest.mark.parametrize(
    ("words", "escaped"),
    [
        ("a_b^c", r"a\_b\textasciicircum{}c"),
        ("100 % & #1", r"100 \% \& \#1"),
        ("{$}~\\", r"\{\$\}\textasciitilde{}\textbackslash{}"),
        ("1–3 ± τ", r"1--3 $\pm$ $\tau$"),
    ],
)
def test_escape(words, escaped):
    assert escape(words) == escaped


def test_csv_is_unrounded_and_names_what_each_spread_is_over():
    cells = (Cell((0.91234, 0.8), (0.1, 0.3)), Cell((0.5,), (0.25,)), Cell((1.0, 3.0)))
    lines = list(csv.DictReader(io.StringIO(to_csv(table(("A", cells), ("B", (None, None, None)))))))
    acc, gq, n = lines
    assert acc["row"] == "A" and acc["block"] == "Balanced" and acc["column"] == "acc^10"
    assert float(acc["mean"]) == np.mean([0.91234, 0.8]) and float(acc["std_within"]) == pytest.approx(0.2)
    assert float(acc["std_seeds"]) == np.std([0.91234, 0.8], ddof=1) and acc["runs"] == "2"
    assert (acc["within"], gq["within"], gq["std_seeds"]) == ("clients", "layers", "")
    assert (n["low"], n["high"], n["std_seeds"]) == ("1.0", "3.0", "")


def test_a_terminal_shows_the_same_cells():
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(terminal(table(("A", (Cell((0.9, 0.8), (0.04, 0.06)), Cell((1.0,)))))))
    assert "85.0±5.0 (±7.1)" in console.export_text()


def test_a_pipe_gets_every_letter_and_a_narrow_terminal_folds(capsys):
    from rich.console import Console

    columns = tuple(Column(f"acc^{i}", "", "A block of words", scale=100, digits=1) for i in range(20))
    wide = Table("t", "T", "row", columns, ("A",), ((Cell((0.9, 0.8), (0.04, 0.06)),) * 20,))
    say(terminal(wide))
    out = capsys.readouterr().out
    assert out.count("85.0±5.0 (±7.1)") == 20 and "…" not in out
    narrow = Console(width=60, file=io.StringIO())
    narrow.print(terminal(table(("A", (Cell((0.9, 0.8), (0.04, 0.06)), Cell((1.0,), (123456.789,)))))))
    assert "…" not in narrow.file.getvalue()


def test_what_does_not_fit_goes_beneath_with_its_rows_and_a_block_is_named_once():
    from rich.console import Console

    columns = (*(Column(f"acc^{i}", "", "Uneven", digits=1) for i in range(4)), Column("client steps", digits=0))
    cell = Cell((90.0,), (4.0,))
    wide = Table("t", "T", "row", columns, ("A",), ((cell,) * 4 + (Cell((1234.0,)),),))

    def drawn(width):
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(terminal(wide, "the caption"))
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    whole, parts = drawn(80), drawn(30)
    # Labels of 3, four columns of 8 and one of 12, two blanks before each, one at the end: 58.
    assert max(map(len, whole)) == 58 and sum("Uneven" in line for line in whole) == 1
    assert drawn(58) == whole and drawn(57) != whole
    assert max(map(len, parts)) <= 30 and parts[0] == "T" and parts[-1] == "the caption"
    two, one = ["A", "90.0±4.0", "90.0±4.0"], ["A", "1,234"]
    assert [line.split() for line in parts if line.startswith("A")] == [two, two, one]
    assert sum("Uneven" in line for line in parts) == 2  # once a part
