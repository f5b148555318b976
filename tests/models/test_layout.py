"""Starts of adapters."""

import numpy as np
import torch

from raypref.models.layout import lora_layout, orthogonal_init


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
