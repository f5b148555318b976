"""The main comparison: every method as it was tuned, at equal client steps, on the graded benchmark."""

from raypref.config.spaces import Space
from tune_spaces._bases import GRADED_SMOKE
from tune_spaces._tuned import MAIN, SEEDS, SMALL, with_chosen

SPACE = Space(
    about="Every method as it was tuned, at equal client steps, on the graded benchmark: four groups uneven and even.",
    base=MAIN,
    grid={**SEEDS, **with_chosen()},
    smoke=GRADED_SMOKE,
    smoke_grid=SMALL,
)
