"""Clients that answer by rule instead of by training, so that rounds can be worked out by hand."""

import numpy as np
import torch

from raypref.clients.protocol import Trained, Usage
from raypref.config import RunConfig, override
from raypref.models.layout import initial_row, lora_layout


class Rule:
    """Six clients in two true groups; client c returns its row plus pull[c], and prefers experts near its target."""

    layout = lora_layout([("layers.0.q_proj", 2, 2)], 1)
    groups = ("a", "b")
    group_of = np.array([0, 0, 0, 0, 1, 1])
    keys = np.arange(6)

    def __init__(self, sizes=(1, 2, 3, 4, 5, 6)):
        self.sizes = np.array(sizes)
        self.used = Usage()
        self.asked = []

    def pull(self, c):
        return 1.0 if self.group_of[c] == 0 else -1.0

    def start(self):
        return initial_row(self.layout, 0)

    def train(self, cohort, rows, round, message=None, kept=None):
        cohort = np.sort(np.asarray(cohort))
        start = rows.expand(len(cohort), -1) if rows.dim() == 1 else rows
        self.asked.append(cohort)
        moved = start + torch.tensor([[self.pull(c)] for c in cohort])
        return Trained(cohort, moved, self.sizes[cohort], np.zeros(len(cohort)))

    def compose(self, clients, rows, kept):
        """Nobody keeps anything, nor makes anything of what it is sent."""
        return rows.expand(len(clients), -1) if rows.dim() == 1 else rows

    def evaluate(self, rows, fold):
        """Validation loss: distance of the row's mean from ±10, the side a client pulls to; accuracy falls with it."""
        assert fold == "validation"
        means = rows.mean(1).numpy()
        loss = np.array([[abs(m - 10 * self.pull(c)) for c in range(6)] for m in means])
        return {"loss": loss, "accuracy": 1 / (1 + loss)}

    def latents(self, row):
        """On the side that a client pulls to, the further from 0 the higher its number."""
        return np.array([[self.pull(c) * (10 + c), 0.5] for c in range(6)], dtype=np.float32)

    def weight_norms(self):
        return {"layers.0.q_proj": 3.0}


def config(algorithm, **values):
    small = {"algorithm": algorithm, "federation.rounds": 8, "federation.cohort": 3, "experts.K": 2, "experts.T": 2}
    return override(RunConfig(), small | {k.replace("__", "."): v for k, v in values.items()})
