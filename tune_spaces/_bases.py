"""Pieces that the spaces share."""

from raypref.config import ClientsConfig

TWO_ACTORS = ClientsConfig(backend="ray", clients_per_actor=20)
"""Forty clients on two actors: both cores of a small laptop."""

SMOKE: dict[str, object] = {
    "clients.clients_per_actor": 0,
    "data.group_sizes": (4, 4, 2, 2),
    "data.pairs_per_axis": 24,
    "federation.rounds": 4,
    "federation.cohort": 4,
    "federation.local_steps": 3,
    "experts.T": 1,
    "optim.batch_size": 8,
    "personalization.marks": (0, 2, 5),
}
"""Seconds on a laptop: whether everything works, not how well."""
