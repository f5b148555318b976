"""Gradient quotient, margins and headroom of initializations (S2 2.2, Tables 1, 2, 5), at one step size, 3 seeds."""

from dataclasses import replace

from raypref.config import DiagnosticsConfig
from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import EVEN, MAIN, UNEVEN, with_chosen

SPACE = Space(
    about="Gradient quotient, margins and headroom of initializations at one step size (graded), three seeds.",
    base=replace(MAIN, diagnostics=DiagnosticsConfig(marks=(0,), eta=1e-3)),
    grid={
        "data.group_sizes": [UNEVEN, EVEN],
        "seed": [0, 1, 2],
        **with_chosen("fedavg", "cl", "multi_cl", "fl_target", "fedgd"),
    },
    smoke=GRADED_SMOKE,
    smoke_grid={"algorithm": ["fedavg", "cl"]},
)
