"""Starts of adapters."""

import numpy as np
import torch

from raypref.models.layout import last_block, lora_layout, orthogonal_init


def test_soft_fl_starts_in_orthogonal_subspaces_of_the_right_size():
    """ΔW_k = B_k A_k: ‖ΔW_k‖_F = ε ‖W‖_F (1 + jitter k) √r, and ⟨ΔW_j, ΔW_k⟩ = 0 with orthogonal rows and columns."""
    K, r, epsilon, jitter, norms = 3, 2, 0.005, 0.01, {"layers.0.q": 7.0, "layers.0.k": 2.0}
    layout = lora_layout([("layers.0.q", 10, 8), ("layers.0.k", 9, 6)], r)
    parts = layout.split(orthogonal_init(layout, K, norms, epsilon, jitter, seed=0))
    for name, norm in norms.items():
        updates = torch.bmm(parts[f"{name}.lora_B"], parts[f"{name}.lora_A"])
        for k in range(K):
            assert np.isclose(float(updates[k].norm()), epsilon * norm * (1 + jitter * k) * np.sqrt(r), rtol=1e-5)
            for j in range(k):
                assert float((updates[j] @ updates[k].T).abs().max()) < 1e-8
                assert float((updates[j].T @ updates[k]).abs().max()) < 1e-8


def test_the_last_block_is_the_head_and_of_one_block_its_last_module():
    """A [1, 2] and B [3, 1] a module: five parameters each."""
    two = lora_layout([("layers.0.q", 2, 3), ("layers.1.q", 2, 3), ("layers.1.up", 2, 3)], 1)
    assert last_block(two).tolist() == [False] * 5 + [True] * 10
    one = lora_layout([("layers.0.q", 2, 3), ("layers.0.up", 2, 3)], 1)
    assert last_block(one).tolist() == [False] * 5 + [True] * 5
