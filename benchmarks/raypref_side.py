"""Rounds of FedAvg by raypref's client actors, for comparison with `flower_side.py`.

`python benchmarks/raypref_side.py FOLDER`: FOLDER holds `config.json`. A round's row goes to `raypref-ROUND.npy`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.measuring import Turns, own_ray  # noqa: E402
from raypref.config import read_config, registry  # noqa: E402
from raypref.experiment.loop import connect, prepare  # noqa: E402


def main(folder: Path) -> None:
    """All rounds of the configuration."""
    from raypref.clients import actors

    config, turns = read_config(folder), Turns()
    inputs = prepare(config)
    if config.clients.backend == "ray":
        actors.start_ray()
    with contextlib.closing(connect(inputs)) as clients:
        algorithm = registry.algorithm(config.algorithm)(config, clients)
        state = algorithm.init()
        while state.round < algorithm.rounds:
            turns.wait()
            state, _ = algorithm.round(state)
            np.save(folder / f"raypref-{state.round}.npy", state.theta.numpy())
            turns.done()


if __name__ == "__main__":
    with own_ray():
        main(Path(sys.argv[1]))
