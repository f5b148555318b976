"""One file a paper. To add one: write its file, add its line here."""

from __future__ import annotations

from raypref.algorithms.base import Algorithm
from raypref.algorithms.fedavg import FedAvg, FLTarget
from raypref.algorithms.fedgd import FedGD, FedGDTarget
from raypref.algorithms.local import Local

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fl_target": FLTarget,
    "fedgd": FedGD,
    "fedgd_target": FedGDTarget,
    "local": Local,
}
