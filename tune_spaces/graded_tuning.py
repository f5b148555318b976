"""Equal chances on the graded benchmark: six trials of every method, judged by validation on three seeds of their own.

What comes best is what `graded_main` runs (`_tuned.py`). No test pair has a part in it, nor a seed of what is reported.
"""

from dataclasses import replace

from raypref.config import ClientsConfig, PersonalizationConfig
from raypref.config.spaces import Space
from tune_spaces._bases import GRADED, GRADED_METHODS, GRADED_SMOKE, SEVERAL
from tune_spaces._tuned import TRIED, points

SPACE = Space(
    about="Six trials of every method on the graded benchmark, judged by validation on three seeds of their own.",
    base=replace(
        GRADED,
        data=replace(GRADED.data, graded=replace(GRADED.data.graded, test=20)),  # which nobody looks at
        personalization=PersonalizationConfig(marks=(0, 10)),
        clients=ClientsConfig(),
    ),
    grid={"seed": [100, 101, 102], **points(TRIED)},
    smoke=GRADED_SMOKE,
    smoke_grid={GRADED_METHODS: SEVERAL[:2]},
)
