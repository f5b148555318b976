"""What many tests share: a base small enough that a whole run takes a second, and the configuration that uses it.

Set before anything heavy is imported: one thread (results depend on the count), no network, no telemetry.
"""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from raypref.config import RunConfig, override

for name, value in {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAYPREF_FEATURES": (features := tempfile.mkdtemp(prefix="raypref-features-")),
    "RAY_TMPDIR": (clusters := tempfile.mkdtemp(prefix="ray-")),  # two processes of tests never join each other's
}.items():
    os.environ.setdefault(name, value)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background, from where all processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
for folder in (features, clusters):
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

# The same cases every time, and no deadlines: a busy machine is no failure.
settings.register_profile("raypref", deadline=None, derandomize=True)
settings.load_profile("raypref")

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory) -> Path:
    """A random one-layer Qwen2 with the embedded tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from raypref.models.embedded import PATH

    folder = tmp_path_factory.mktemp("tiny_base")
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_base) -> RunConfig:
    """Ten clients in four groups, four rounds: about a second in process."""
    return override(
        RunConfig(),
        {
            "model.base": str(tiny_base),
            "model.lora_r": 2,  # four orthogonal adapters (Soft-FL) fit its narrowest layer, of 8
            "data.group_sizes": (3, 3, 2, 2),
            "data.pairs_per_axis": 20,
            "federation.rounds": 4,
            "federation.local_steps": 3,
            "optim.batch_size": 8,
            "experts.T": 1,
            "personalization.marks": (0, 2, 4),
            "clients.stack": 3,
            "clients.cpus_per_actor": 0.1,
        },
    )


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data and models beside the checkout; tests that need them skip where they are absent."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside the checkout (real data and models)")
    return SHARED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests late, clusters last: a mistake should show within seconds, not after those have come and gone. Where
    several processes share the tests, the slow ones of a file stay together, as they share what is costly to make."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is not None for name in ("cluster", "slow")])
    for item in items:
        if item.get_closest_marker("cluster") or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
