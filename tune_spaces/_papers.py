"""The papers' settings, typed in once; `tests/test_spaces.py` holds them to the papers' tables."""

S2: dict[str, object] = {
    "model.base": "Qwen/Qwen2-0.5B",  # section 5
    "model.dtype": "bfloat16",  # A.1
    "model.lora_r": 8,
    "model.lora_alpha": 16.0,
    "model.lora_dropout": 0.05,
    "data.pairs_per_axis": 650,  # 2.3
    "data.exact_counts": (50, 50),  # 2.3: 50 samples each for validation and testing
    "data.template": "hh",
    "data.max_length": 1024,  # the paper does not say
    "federation.rounds": 400,  # A.2
    "federation.cohort": 5,
    "federation.local_steps": 30,
    "optim.learning_rate": 1e-5,
    "optim.betas": (0.9, 0.95),
    "optim.weight_decay": 0.0,  # the paper does not say
    "optim.batch_size": 16,
    "experts.K": 4,
    "experts.T": 20,
    "fedgd.w": 0.6,
    "fedgd.phase2_start": "random",
    "personalization.marks": (0, 10, 20, 30, 40, 50, 60, 70, 80),  # Figs. 2 and 3
}
"""S2, section 5 and A.2."""

TLDR: dict[str, object] = {
    "data.source": "openai/summarize_from_feedback:comparisons",  # 2.3
    "data.client_column": "worker",
    "data.cover_column": "split",  # 2.3: who take part in all three train/valid1/valid2 splits
    "data.cover_min_rows": 100,  # 2.3: with at least 100 samples each
    "data.exact_counts": (50, 50),  # 2.3: 50 samples each for validation and testing
    "data.template": "tldr",
    "personalization.marks": (0, 40, 80, 120, 160, 200, 240),  # Tables 3 and 4: 0, 80 and 240
}
"""S2's real-world setting (2.3), over what differs from `S2`."""
