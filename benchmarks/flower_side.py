"""The rounds of `raypref_side.py` by Flower's simulation engine, in an environment of Flower's own.

`python benchmarks/flower_side.py FOLDER`: FOLDER holds `what.json` (base, LoRA, optimizer) and `batches.npz` (all
clients' batches of all rounds). A worker makes its base once and keeps it. A round's row goes to `flower-ROUND.npy`.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from benchmarks.measuring import Turns, own_ray  # noqa: E402

app = ClientApp()


@lru_cache(maxsize=1)
def loaded(folder: str) -> tuple[Any, dict[str, np.ndarray]]:
    """A worker's base and the batches, once."""
    from benchmarks.plain import Plain

    torch.set_num_threads(1)
    what = json.loads((Path(folder) / "what.json").read_text())
    with np.load(Path(folder) / "batches.npz") as arrays:
        return Plain(**what["plain"]), dict(arrays)


@app.train()
def train(message: Message, context: Context) -> Message:
    """The local steps of one client, from the row that it is sent."""
    plain, arrays = loaded(str(message.content["config"]["folder"]))
    at = (int(message.content["config"]["server-round"]) - 1, int(context.node_config["partition-id"]))
    steps = zip(*(torch.from_numpy(arrays[name][at]) for name in ("ids", "lengths", "slots")), strict=True)
    batches = [(ids[:, : int(lengths.max())], lengths, slots) for ids, lengths, slots in steps]
    row = plain.trained(torch.from_numpy(message.content["arrays"]["row"].numpy().copy()), batches)
    content = {
        "arrays": ArrayRecord({"row": Array(row.numpy())}),
        "metrics": MetricRecord({"num-examples": int(arrays["sizes"][at[1]])}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class InTurns(FedAvg):
    """FedAvg that begins a round when it is told to."""

    def __init__(self, folder: Path, **values: Any) -> None:
        super().__init__(**values)
        self.folder, self.turns = folder, Turns()

    def configure_train(self, server_round: int, *words: Any) -> Any:
        self.turns.wait()
        return super().configure_train(server_round, *words)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        np.save(self.folder / f"flower-{server_round}.npy", arrays["row"].numpy())
        self.turns.done()
        return arrays, metrics


def main(folder: Path) -> None:
    """All rounds that there are batches for."""
    what = json.loads((folder / "what.json").read_text())
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = InTurns(
            folder,
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=what["clients"],
            min_available_nodes=what["clients"],
        )
        start = ArrayRecord({"row": Array(np.load(folder / "start.npy"))})
        strategy.start(grid, start, num_rounds=what["rounds"], train_config=ConfigRecord({"folder": str(folder)}))

    share = {"num_cpus": 1.0, "num_gpus": 0.0}
    backend = {"client_resources": share, "init_args": {"num_cpus": what["actors"], "include_dashboard": False}}
    run_simulation(server, app, num_supernodes=what["clients"], backend_config=backend)


if __name__ == "__main__":
    from benchmarks.flower_side import main  # workers find what they cache in a module, not in a script

    with own_ray():
        main(Path(sys.argv[1]))
