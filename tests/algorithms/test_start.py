"""Where `dpo.start` names an adapter, every method starts from it."""

import pytest
import torch

from raypref.algorithms import ALGORITHMS
from raypref.config import registry
from raypref.models.peft_io import export_peft
from raypref.objectives.dpo import DPO
from tests.algorithms.rule import Rule, config

TAKE_IT = [a for a in ALGORITHMS if a not in ("soft_fl", "fedrep") and not a.startswith("fedvp")]
"""FedRep refuses a row of one module, which is a head alone."""


@pytest.mark.parametrize("algorithm", TAKE_IT)
def test_every_policy_starts_from_the_given_adapter(algorithm, tmp_path):
    clients = Rule()
    clients.start = lambda: DPO.start(told, clients.layout)
    row = torch.arange(1.0, clients.layout.width + 1)
    told = config(algorithm, objective="dpo", dpo__start=str(tmp_path), lore__B=1)
    export_peft(tmp_path, row, clients.layout, told.model)
    made = registry.algorithm(algorithm)(told, clients)
    state = made.init()
    rows = [made.initialization(state), *(getattr(state, name) for name in ("theta", "phi") if hasattr(state, name))]
    for tensor in rows:
        assert torch.equal(tensor, row.expand_as(tensor))
