"""One file a paper. To add one: write its file, add its line here."""

from __future__ import annotations

from raypref.algorithms.base import Algorithm
from raypref.algorithms.centralized import CL, MultiCL
from raypref.algorithms.fedavg import FedAvg, FLTarget
from raypref.algorithms.fedbiscuit import FedBiscuit
from raypref.algorithms.fedgd import FedGD, FedGDTarget
from raypref.algorithms.fedvpa_gp import FedVPAGP, FedVPL, FedVPLOrtho, FedVPLPrior
from raypref.algorithms.local import Local
from raypref.algorithms.soft_fl import SoftFL

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fl_target": FLTarget,
    "fedgd": FedGD,
    "fedgd_target": FedGDTarget,
    "fedbiscuit": FedBiscuit,
    "soft_fl": SoftFL,
    "cl": CL,
    "multi_cl": MultiCL,
    "fedvpl": FedVPL,
    "fedvpl_ortho": FedVPLOrtho,
    "fedvpl_prior": FedVPLPrior,
    "fedvpa_gp": FedVPAGP,
    "local": Local,
}
