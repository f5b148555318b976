"""Pieces that the spaces share."""

from raypref.config import ClientsConfig, DataConfig, FederationConfig, PersonalizationConfig, RunConfig, override
from raypref.config.spaces import Space
from tune_spaces._papers import S1, S1_GEMMA, S2

TWO_ACTORS = ClientsConfig(backend="ray", clients_per_actor=20)
"""Forty clients on two actors: both cores of a small laptop."""

SMOKE: dict[str, object] = {
    "clients.clients_per_actor": 0,
    "data.group_sizes": (4, 4, 2, 2),
    "data.pairs_per_axis": 24,
    "data.exact_counts": (0, 0),  # under `paper` it holds out more pairs than there are
    "federation.rounds": 4,
    "federation.cohort": 4,
    "federation.local_steps": 3,
    "experts.T": 1,
    "optim.batch_size": 8,
    "personalization.marks": (0, 2, 5),
    "fit.context_marks": (1, 4),
    "fedrep.fit_steps": 2,
    "rlhf.rounds": 2,
    "rlhf.local_steps": 2,
    "rlhf.batch_size": 4,
    "rlhf.max_new_tokens": 16,
    "rlhf.samples": 8,
}
"""Seconds on a laptop: whether everything works, not how well."""

OPPOSED = override(
    RunConfig(
        algorithm="fedvpa_gp",
        objective="variational",
        data=DataConfig(axes=("education", "humor", "manners"), group_sizes=(5, 5)),
        personalization=PersonalizationConfig(marks=(0,)),
        clients=ClientsConfig(backend="ray"),
    ),
    {"variational.M": 2, "experts.K": 3},  # FedBiscuit's U (S1 C.4)
)
"""S1's setting on the embedded benchmark: in the place of helpful and harmless two groups that wish the opposite on
every axis, and z inferred without a gradient step. All styles that the base writes are judged in training: a policy is
drawn to whatever its selector has never seen."""

OPPOSED_SMOKE: dict[str, object] = {
    **SMOKE,
    # Whether the methods work, on data that need no download.
    "data.source": "synthetic",
    "data.kinds": (),
    "data.group_sizes": (3, 3),
    "data.template": "short",
    "federation.cohort": 3,
    "experts.K": 2,
    "personalization.marks": (0,),
}
"""`SMOKE` for spaces that start from `OPPOSED`."""

VARIATIONAL = [(name, "variational") for name in ("fedvpl", "fedvpl_ortho", "fedvpl_prior", "fedvpa_gp")]
"""Values of ("algorithm", "objective"): S1's method and what it is made of (5.4)."""

S1_METHODS = [("feddpo", "dpo"), ("fedbiscuit", "choice"), ("fedvpl", "variational"), ("fedvpa_gp", "variational")]
"""Values of ("algorithm", "objective"): FedDPO and the selectors of S1 Table 1, all at one learning rate."""

GRADED = RunConfig(
    data=DataConfig(source="graded", group_sizes=(15, 15, 5, 5)),
    federation=FederationConfig(rounds=120),
    clients=TWO_ACTORS,
)
"""The graded benchmark, which wants twice the rounds of the one whose answers are in one style."""

GRADED_SMOKE: dict[str, object] = {
    **SMOKE,
    "data.graded.train": (10, 20),
    "data.graded.validation": 4,
    "data.graded.test": 8,
}
"""`SMOKE` for spaces that start from `GRADED`."""

GRADED_METHODS = ("algorithm", "objective", "variational.lora", "variational.adapted", "reward.features")
SEVERAL = [
    ("fedgd", "choice", False, False, "frozen"),  # which has no use for the three
    ("fedvpl", "variational", True, True, "frozen"),
    ("fedvpa_gp", "variational", True, True, "frozen"),
    ("fedvpl", "variational", False, False, "frozen"),
    *(
        (name, "choice", False, False, "frozen")
        for name in ("fedavg", "fedbiscuit", "soft_fl", "local", "multi_cl", "fl_target")
    ),
    ("fedavg", "bayes", False, False, "adapted"),
]
"""Values of `GRADED_METHODS`: S2's methods and its references, S1's conditioned form on adapted and on frozen features,
and the Bayesian reward model."""

S2_METHOD = Space(
    about="A method in S2's setting, balanced and imbalanced.",
    base=RunConfig(clients=TWO_ACTORS),
    grid={"data.group_sizes": [(10, 10, 10, 10), (15, 15, 5, 5)], "seed": [0, 1, 2]},
    smoke_grid={"seed": [0, 1]},
    ranges={"optim.learning_rate": ("about", 0.2, 5.0)},
    presets={"paper": S2},
    smoke=SMOKE,
    against=("fedavg",),
)
"""Of methods that have no file here, with their own name and objective."""

S1_METHOD = Space(
    about="A method in S1's setting.",
    base=OPPOSED,
    grid={"seed": [0, 1, 2]},
    ranges={"optim.learning_rate": ("about", 0.2, 5.0)},
    presets={"paper": S1, "gemma2b": S1_GEMMA},
    smoke=OPPOSED_SMOKE,
    smoke_grid={"seed": [0]},
)
"""The same of methods with a latent, or that train a policy."""
