"""One file a paper, its client half included. To add one: write its file, add its line here."""

from __future__ import annotations

ALGORITHMS: dict[str, str] = {
    "local": "raypref.algorithms.local:Local",
    "cl": "raypref.algorithms.centralized:CL",
    "multi_cl": "raypref.algorithms.centralized:MultiCL",
    "fedavg": "raypref.algorithms.fedavg:FedAvg",
    "dp_fedavg": "raypref.algorithms.dp_fedavg:DPFedAvg",
    "fl_target": "raypref.algorithms.fedavg:FLTarget",
    "fedbiscuit": "raypref.algorithms.fedbiscuit:FedBiscuit",
    "soft_fl": "raypref.algorithms.soft_fl:SoftFL",
    "fedprox": "raypref.algorithms.fedprox:FedProx",
    "scaffold": "raypref.algorithms.scaffold:Scaffold",
    "ditto": "raypref.algorithms.ditto:Ditto",
    "fedrep": "raypref.algorithms.fedrep:FedRep",
    "lore": "raypref.algorithms.lore:LoRe",
    "fedgd": "raypref.algorithms.fedgd:FedGD",
    "fedgd_z": "raypref.algorithms.fedgd:FedGDLatent",
    "fedgd_target": "raypref.algorithms.fedgd:FedGDTarget",
    "feddpo": "raypref.algorithms.fedavg:FedDPO",
    "fedvpl": "raypref.algorithms.fedvpa_gp:FedVPL",
    "fedvpl_ortho": "raypref.algorithms.fedvpa_gp:FedVPLOrtho",
    "fedvpl_prior": "raypref.algorithms.fedvpa_gp:FedVPLPrior",
    "fedvpa_gp": "raypref.algorithms.fedvpa_gp:FedVPAGP",
}
"""Name -> `module:Class`, in the order in which tables show them."""
