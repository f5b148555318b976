"""A table as a value, and how it reads: Markdown, HTML, LaTeX (booktabs), CSV, terminal. Whatever shows one makes one.

Every cell keeps its runs apart (one a seed) and, where it has one, the spread within each run, so that no rendering
mixes the two: `94.6 ± 3.6 (± 0.4)` is the mean, the standard deviation within a run (over clients, over layers for
GQ(l)), and that over seeds.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from rich.table import Table as RichTable

NONE = "–"
"""Where there is nothing."""


@dataclass(frozen=True)
class Cell:
    """One number over its seeds."""

    values: tuple[float, ...]
    """One a run; at least one."""
    within: tuple[float, ...] = ()
    """Standard deviation within each run (population: its clients, or layers, are all there are); empty: none."""
    clients: Mapping[int, np.ndarray] = field(default_factory=dict)
    """Seed -> [C] each client's value, for paired differences; empty: not a mean over clients."""
    interval: tuple[float, float] | None = None
    """Of a difference; it then stands in place of the spreads."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std_within(self) -> float:
        """Mean over runs of the spread within each; nan without."""
        return float(np.mean(self.within)) if self.within else math.nan

    @property
    def std_seeds(self) -> float:
        """Over runs, which are a sample (division by n - 1); nan for one."""
        return spread(self.values)


@dataclass(frozen=True)
class Column:
    """What a column holds and how it is written."""

    head: str
    latex: str = ""
    """The head as LaTeX writes it; empty: as it is."""
    block: str = ""
    """What several columns have in common, such as the setting."""
    scale: float = 1.0
    """100 for shares, which are written in % (CSV holds them as they are)."""
    digits: int = 2
    """After the point."""
    significant: int = 0
    """Significant digits in place of `digits`, for columns whose values span orders of magnitude."""
    signed: bool = False
    span: bool = False
    """Written as one number or lowest–highest, without spread: budgets, n."""
    best: int = 0
    """1: the highest is bold, -1: the lowest, 0: none."""
    within: Literal["clients", "layers", "seeds", ""] = "clients"
    """What `Cell.within` runs over. `seeds`: only the spread over seeds is written, without brackets; empty: none."""

    def rounded(self, value: float) -> float:
        """As it reads, on the column's scale."""
        scaled = self.scale * value
        return float(f"{scaled:.{self.significant}g}") if self.significant else round(scaled, self.digits)

    def show(self, value: float, signed: bool = False) -> str:
        """`0.00`, `+0.000412`, `1.20e-05`, `3,000`."""
        form = f"#.{self.significant}g" if self.significant else f",.{self.digits}f"
        return f"{self.rounded(value) + 0.0:{'+' if signed else ''}{form}}".removesuffix(".")  # + 0.0: no -0.0


@dataclass(frozen=True)
class Table:
    """Rows in the order in which they are shown; `cells[row][column]`, None where there is nothing."""

    name: str
    """Of its files, and its label in LaTeX."""
    title: str
    """Empty: none."""
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[Cell | str | None, ...], ...]
    """Text is written as it is."""
    apart: frozenset[str] = frozenset()
    """Rows that are there for reference: neither bold nor in a difference."""
    notes: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    """What a row's label begins with where rows come in blocks, such as its base model: the best of a column and
    differences are within a block. Empty: all rows are one."""
    unit: str = "accuracies in points"
    """What the means over clients are, for the caption of their differences."""

    def words(self, column: int) -> bool:
        """Whether there is text in it."""
        return any(isinstance(row[column], str) for row in self.cells)

    def block(self, row: int) -> str:
        return self.blocks[row] if self.blocks else ""

    def label(self, row: int) -> str:
        return f"{self.block(row)} {self.rows[row]}".strip()

    def bold(self, row: int, column: int) -> bool:
        """Whether the cell is its column's best as it reads when rounded; nothing is in a column of one."""
        how, shown = self.columns[column], self.cells[row][column]
        alike = [r for r in range(len(self.rows)) if self.block(r) == self.block(row)]
        others = [self.cells[r][column] for r in alike if self.rows[r] not in self.apart]
        rivals = [how.best * how.rounded(c.mean) for c in others if isinstance(c, Cell)]
        if not how.best or not isinstance(shown, Cell) or len(rivals) < 2 or self.rows[row] in self.apart:
            return False
        return how.best * how.rounded(shown.mean) == max(rivals)


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds, which are a sample (division by n - 1); nan for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def text(cell: Cell | str | None, column: Column) -> str:
    """`94.6 ± 3.6 (± 0.4)`; `-6.6 [-9.8, -3.1]` for a difference; `30–60` for a span."""
    if not isinstance(cell, Cell):
        return NONE if cell is None else cell
    show = column.show
    if column.span:
        return NONE.join(dict.fromkeys(show(v) for v in (min(cell.values), max(cell.values))))
    out = show(cell.mean, column.signed)
    if cell.interval is not None:
        low, high = (show(end, column.signed) for end in cell.interval)
        return f"{out} [{low}, {high}]"
    over_seeds = show(cell.std_seeds) if len(cell.values) > 1 else ""
    if column.within in ("seeds", ""):
        return f"{out} ± {over_seeds}" if over_seeds and column.within else out
    out += f" ± {show(cell.std_within)}" if cell.within else ""
    return f"{out} (± {over_seeds})" if over_seeds else out


def markdown(table: Table, padded: bool = False) -> str:
    """The table under its title, its notes beneath.

    padded: as it is printed to a terminal, too, with columns as wide as their widest cell and nothing escaped.
    """
    head = [table.corner, *(f"{c.block} {c.head}".strip() for c in table.columns)]
    underscore = "_" if padded else "\\_"
    lines = [[h.replace("_", underscore) for h in head]]
    for label, row in _written(table):
        lines.append([label.replace("_", underscore), *(f"**{cell}**" if bold else cell for cell, bold in row)])
    rule = ["---", *("---" if table.words(c) else "---:" for c in range(len(table.columns)))]
    if padded:
        widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
        lines = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
        rule = ["-" * (width - 1) + ":" for width in widths]
    body = "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))
    return "\n\n".join(filter(None, [f"**{table.title}**" * bool(table.title), body, *table.notes])) + "\n"


def html(table: Table, caption: str = "") -> str:
    """A `table` element with its caption (the table's title, unless another is given) and heads that screen readers
    read out with every cell; notes beneath. It scrolls sideways where the page is narrower, also by keyboard."""
    words = escape_html(caption or table.title or table.corner)
    kind = "words" if any(isinstance(c, str) and len(c) > 40 for row in table.cells for c in row) else "numbers"
    heads = "".join(f'<th scope="col">{escape_html(f"{c.block} {c.head}".strip())}</th>' for c in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape_html(label)}</th>'
        + "".join(f"<td>{f'<b>{escape_html(cell)}</b>' if bold else escape_html(cell)}</td>" for cell, bold in row)
        + "</tr>\n"
        for label, row in _written(table)
    )
    notes = "".join(f'<p class="note">{escape_html(note)}</p>\n' for note in table.notes)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{words}">\n'
        f'<table class="{kind}"><caption>{words}</caption>\n'
        f'<thead><tr><th scope="col">{escape_html(table.corner)}</th>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table></div>\n{notes}"
    )


def latex(table: Table) -> str:
    """A `table` environment for booktabs; title and notes are its caption. A table wider than `WIDE` is shrunk to the
    line, for which LaTeX needs graphicx."""
    blocks, rules = [], []
    at = 2
    for block, columns in itertools.groupby(c.block for c in table.columns):
        width = len(list(columns))
        blocks.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(block)}}}" if block else " & ".join([""] * width))
        rules += [rf"\cmidrule(lr){{{at}-{at + width - 1}}}"] if block else []
        at += width
    head = [" & ".join(["", *blocks]) + r" \\", " ".join(rules)] if rules else []
    head.append(" & ".join([escape(table.corner), *(c.latex or escape(c.head) for c in table.columns)]) + r" \\")
    rows = []
    for label, row in _written(table):
        cells = [rf"\textbf{{{escape(cell)}}}" if bold else escape(cell) for cell, bold in row]
        rows.append(" & ".join([escape(label), *cells]) + r" \\")
    written = [
        [table.corner, *(c.head for c in table.columns)],
        *([label, *(t for t, _ in r)] for label, r in _written(table)),
    ]
    wide = sum(2 + max(map(len, column)) for column in zip(*written, strict=True)) > WIDE
    return "\n".join(
        [
            rf"% needs \usepackage{{booktabs{', graphicx' if wide else ''}}}",
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{escape(' '.join([f'{table.title}.', *table.notes]))}}}",
            rf"\label{{tab:{table.name}}}",
            *[r"\resizebox{\linewidth}{!}{%"] * wide,
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"\toprule",
            *head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}" + "}" * wide,
            r"\end{table}",
            "",
        ]
    )


WIDE = 84
"""Characters, with two between columns, that a line of an article holds in small type."""


def to_csv(table: Table) -> str:
    """A line a cell, unrounded, shares in [0, 1]; `std_within` is over what `within` names, `runs` are seeds."""
    names = ("row", "block", "column", "mean", "std_within", "within", "std_seeds", "runs", "low", "high", "best")
    lines = []
    for r, row in enumerate(table.cells):
        for c, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
            if not isinstance(cell, Cell):
                continue
            stds = ["" if math.isnan(std) or column.span else std for std in (cell.std_within, cell.std_seeds)]
            low, high = cell.interval or ((min(cell.values), max(cell.values)) if column.span else ("", ""))
            within = column.within if cell.within else ""
            line = [table.label(r), column.block, column.head, cell.mean, stds[0], within, stds[1], len(cell.values)]
            lines.append(dict(zip(names, (*line, low, high, int(table.bold(r, c))), strict=True)))
    return csv_text(lines)


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Lines of the same columns as CSV, their names on top; empty without any."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def terminal(table: Table, caption: str = "", narrow: bool = False) -> Fitting:
    """The same for a terminal, which elides nothing; notes left out.

    narrow: one space between columns in place of two, and heads broken at their words.
    """
    return Fitting(table, caption, narrow)


@dataclass(frozen=True)
class Fitting:
    """A table that rich draws within any width: columns that do not fit beside the others go beneath them, with their
    rows' labels once more; text folds."""

    table: Table
    caption: str
    narrow: bool

    def __rich_measure__(self, console: Any, options: Any) -> Any:
        from rich.measure import Measurement

        return Measurement(1, self._width(range(len(self.table.columns)), self.narrow))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        width, every = options.max_width, range(len(self.table.columns))
        broken = self.narrow or self._width(every, False, FOLDED) > width
        beside = max(FOLDED, width // 2) if broken else width
        parts: list[list[int]] = [[]]
        for c in every:
            if parts[-1] and self._width([*parts[-1], c], broken, FOLDED, beside) > width:
                parts.append([])
            parts[-1].append(c)
        if self.table.title:
            yield Text(self.table.title, "table.title")
        for i, part in enumerate(parts):
            if i:
                yield ""
            yield self._drawn(part, broken, min(beside, self._labels()))
        if self.caption:
            yield Text(self.caption, "table.caption")

    def _labels(self) -> int:
        """Letters of the longest label."""
        return max(map(len, (self.table.corner, *map(self.table.label, range(len(self.table.rows))))))

    def _width(self, part: Sequence[int], broken: bool, most: int = 0, beside: int = 10**9) -> int:
        """Letters of these columns beside the labels. most: 0, or what columns that fold are taken to need at most.
        beside: what labels take at most, which fold, too."""
        width = min(self._labels(), beside) + (not self.narrow)
        for before, c in zip([None, *part], part, strict=False):
            cells = [_close(text(row[c], self.table.columns[c])) for row in self.table.cells]
            needs = max(map(len, [*self._head(c, broken, before).split("\n"), *cells]))
            width += 2 - self.narrow + (min(needs, most) if most and self.table.words(c) else needs)
        return width

    def _head(self, c: int, broken: bool, before: int | None) -> str:
        """With its block, where the column before it has another one."""
        column = self.table.columns[c]
        block = "" if before is not None and self.table.columns[before].block == column.block else column.block
        words = [*block.split(), *re.split(r" |(?<=/)", column.head)] if broken else [block, column.head]
        return "\n".join(words).strip()

    def _drawn(self, part: Sequence[int], broken: bool, beside: int) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, int(not self.narrow), 0, 0))
        shown.add_column(self.table.corner, width=beside, overflow="fold")
        for before, c in zip([None, *part], part, strict=False):
            folds, head = self.table.words(c), Text(self._head(c, broken, before))
            side: Any = "left" if folds else "right"
            shown.add_column(head, justify=side, overflow="fold", no_wrap=len(part) > 1 and not folds)
        for label, row in _written(self.table):
            shown.add_row(Text(label), *(Text(_close(row[c][0]), "bold" * row[c][1]) for c in part))
        return shown


FOLDED = 24
"""Letters of a line of text in a column that folds, at least."""


def _close(cell: str) -> str:
    """Without blanks around its ±, where room is scarce."""
    return cell.replace("± ", "±").replace(" ±", "±")


def escape(words: str) -> str:
    """Words as LaTeX writes them: its ten special characters, and the symbols that pdfTeX has no letter for."""
    return "".join(ESCAPES.get(letter, letter) for letter in words)


ESCAPES = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "·": r"$\cdot$",
    "τ": r"$\tau$",
    "θ": r"$\theta$",
    "η": r"$\eta$",
    "≤": r"$\leq$",
}


def _written(table: Table) -> list[tuple[str, list[tuple[str, bool]]]]:
    """(row, its cells as text and whether each is bold)."""
    return [
        (
            table.label(r),
            [
                (text(cell, column), table.bold(r, c))
                for c, (cell, column) in enumerate(zip(row, table.columns, strict=True))
            ],
        )
        for r, row in enumerate(table.cells)
    ]
