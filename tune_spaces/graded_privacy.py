"""Accuracy against ε: DP-FedAvg's noise for 1,000 and 10,000 clients, on reward heads over frozen features."""

from dataclasses import replace

from raypref.config import ClientsConfig, FederationConfig, PersonalizationConfig
from raypref.config.spaces import Space
from tune_spaces._bases import GRADED, GRADED_SMOKE

FEW_PAIRS = replace(GRADED.data.graded, wishes=("11", "12"), train=(10, 40), validation=4, test=20)
"""Clients are many here, and each of them has little; they agree on one axis of two, so that one model can learn it."""

SPACE = Space(
    about="DP-FedAvg at six levels of noise beside FedAvg, 1,000 and 10,000 clients (graded, reward), five seeds.",
    base=replace(
        GRADED,
        algorithm="dp_fedavg",
        objective="reward",
        data=replace(GRADED.data, group_sizes=(500, 500), graded=FEW_PAIRS),
        federation=FederationConfig(rounds=60, cohort=100),
        optim=replace(GRADED.optim, learning_rate=3e-3),
        personalization=PersonalizationConfig(marks=(0, 10)),
        clients=ClientsConfig(backend="ray", stack=100),
    ),
    grid={
        ("data.group_sizes", "federation.cohort"): [
            ((500, 500), 100),
            ((5000, 5000), 500),
        ],
        ("algorithm", "dp.noise", "dp.clip"): [
            ("fedavg", 1.0, 1.0),  # DP-FedAvg's defaults, which have no part in it
            ("dp_fedavg", 0.0, 0.1),
            *(("dp_fedavg", noise, 0.1) for noise in (0.5, 0.7, 1.0, 2.0, 4.0)),
        ],
        "seed": [0, 1, 2, 3, 4],
    },
    smoke=GRADED_SMOKE,
    smoke_grid={
        ("data.group_sizes", "federation.cohort"): [((6, 6), 4)],
        ("algorithm", "dp.noise", "dp.clip"): [("fedavg", 1.0, 1.0), ("dp_fedavg", 1.0, 0.1)],
        "seed": [0],
    },
)
