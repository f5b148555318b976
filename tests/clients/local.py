"""Local training at one worker, for tests that look inside it."""

import numpy as np
import torch

from raypref.clients.half import Message, Start
from raypref.clients.worker import LocalTraining, Stretch


def training(worker, clients, rows, steps, rate=1e-3, half=None, message=None, kept=None):
    """n clients' first round from rows [n, D]. half: the class of the algorithm's client half, with what it is sent and
    what clients keep; None: the default."""
    rows = torch.tensor(np.asarray(rows))
    kept = [{} for _ in clients] if kept is None else kept
    start = Start(np.array(clients), rows, message or Message(), kept, worker.layout, steps, worker.objective)
    made = half(worker.config, start) if half else None
    return LocalTraining(worker, clients, rows, Stretch("train", 0, steps, rate), made)
