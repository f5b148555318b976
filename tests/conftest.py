"""Before anything is imported: one thread (results depend on the count), no network, no telemetry. Slow tests last."""

from __future__ import annotations

import os

import pytest

for name, value in {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A mistake should show within seconds, not after the clusters have come and gone."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
