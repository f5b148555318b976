"""What fits on one card, by its size and the base; `--dry-run` shows the arithmetic, `tests/test_memory.py` holds it.

A `--card` is put over a paper's preset: where and in how large passes it runs. It changes what is computed in one place
alone, which says so.
"""

from collections.abc import Mapping

USABLE: Mapping[str, float] = {"24gb": 22.0, "80gb": 79.0}
"""GiB that torch finds on a card of this name: the least of those sold (A10, L4, 3090, 4090; A100, H100)."""

ONE_ACTOR: Mapping[str, object] = {
    "model.dtype": "bfloat16",
    "clients.gpus_per_actor": 1.0,
    "clients.clients_per_actor": 0,
    "clients.recompute": True,
    "rlhf.gpus_per_worker": 1.0,
    "rlhf.recompute": True,
}
"""One base on the card, and all clients beside it: copies for further actors would leave them less to train with."""

CARDS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "24gb": {
        "Qwen/Qwen2-0.5B": {"clients.stack": 2, "clients.eval_batch": 64},
        "Qwen/Qwen2.5-1.5B": {"clients.stack": 1, "clients.eval_batch": 32},
        # Of S1's 16 to 64 pairs an update (Table 4) the fewest, where `gemma2b` has 32: a step's are in one pass.
        "google/gemma-2b": {"clients.stack": 1, "clients.eval_batch": 16, "optim.batch_size": 16},
        "google/gemma-2-2b-it": {"clients.stack": 1, "clients.eval_batch": 32},
    },
    "80gb": {
        "Qwen/Qwen2-0.5B": {"clients.stack": 5, "clients.eval_batch": 256},
        "Qwen/Qwen2.5-1.5B": {"clients.stack": 5, "clients.eval_batch": 128},
        "google/gemma-2b": {"clients.stack": 2, "clients.eval_batch": 128},
        "google/gemma-2-2b-it": {"clients.stack": 2, "clients.eval_batch": 128},
    },
}
"""Card -> base -> further settings: how many clients train in one pass of at most 1,024 tokens a comparison, and how
many comparisons are evaluated in one."""
