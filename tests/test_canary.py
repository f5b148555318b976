"""Three rounds of each kind of training come to the numbers that kept results stand for.

A change that moves them is a change of results: raise `raypref.storage.kept.VERSION`, write the new numbers here, and
make the kept results anew (`python -m raypref.results --make`).
"""

import numpy as np
import pytest

from raypref.config import override
from raypref.experiment import loop
from raypref.storage import kept
from raypref.tools import checkpoint

VERSION = 1
"""The version whose numbers these are."""
MOVED = {
    "fedavg choice": (0.026806, -0.000694),
    "fedavg dpo": (0.031332, -0.019159),
    "ditto choice": (0.024764, 0.022203),
    "fedavg reward": (0.0048722, 0.0038295),
    "fedvpa_gp variational": (0.186125, -0.118633),
    "fedvpa_gp variational adapted": (0.194306, -0.065499),
}
"""How far the first client's row has come over two local steps after three rounds: its length, and its part along one
direction, which other batches, masks or initial rows would turn by about as much as it is long."""


@pytest.mark.parametrize("name", MOVED)
def test_three_rounds_come_to_the_numbers_of_this_version(name, tiny, tmp_path):
    algorithm, objective = name.split()[:2]
    values = {"algorithm": algorithm, "objective": objective, "federation.rounds": 3, "personalization.marks": (0, 2)}
    if name.endswith("adapted"):
        values |= {"variational.lora": True, "variational.adapted": True}
    loop.run(override(tiny, values), tmp_path, adapters=False)
    assert kept.VERSION == VERSION
    start = checkpoint.load(tmp_path / "initialization.safetensors")[0]["rows"].numpy()
    row = checkpoint.load(tmp_path / "clients" / "00000.safetensors")[0]["rows"][0].numpy()
    way = (row - (start if start.ndim == 1 else start[0])).astype(np.float64)
    length = np.linalg.norm(way)
    direction = np.random.default_rng(0).standard_normal(len(way))
    # Machines round differently, and a first step of Adam has the sign of whatever is next to nothing.
    assert (length, way @ direction) == pytest.approx(MOVED[name], abs=0.03 * length), (length, way @ direction)
