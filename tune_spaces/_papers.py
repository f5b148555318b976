"""The papers' settings, typed in once; `tests/test_spaces.py` holds them to the papers' tables."""

from raypref.config.spaces import Needed

PROMPTS = "HuggingFaceH4/ultrafeedback_binarized"
"""UltraFeedback's prompts (openbmb/UltraFeedback, Cui et al. 2024) in a column `prompt`. S2 takes those of P-Soups
(Jang et al. 2023, github.com/joeljang/RLPHF) beside them, 52,000 together (2.3)."""

S2: dict[str, object] = {
    "model.base": "Qwen/Qwen2-0.5B",  # section 5
    "model.dtype": "bfloat16",  # A.1
    "model.lora_r": 8,
    "model.lora_alpha": 16.0,
    "model.lora_dropout": 0.05,
    # 2.3: "we generate two candidate responses per prompt", by GPT-4o-mini. The embedded generator's template phrases
    # are no stand-in: counting words tells them apart.
    "data.source": Needed(
        "synthetic",
        "S2's pairs are a language model's answers to UltraFeedback's prompts (2.3), and the embedded generator has "
        f"template phrases; python -m raypref.data synthesize {PROMPTS} --limit 52000 --out pairs.jsonl makes such "
        "pairs (--dry-run tells the cost), then add --data.source pairs.jsonl",
    ),
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

S1: dict[str, object] = {
    "model.base": "Qwen/Qwen2-0.5B",  # C.2.1
    "model.dtype": "bfloat16",  # the paper does not say
    "model.lora_r": 8,  # Table 4
    "model.lora_alpha": 16.0,
    "model.lora_dropout": 0.05,
    "data.source": "Anthropic/hh-rlhf",  # C.1.1
    "data.kinds": ("helpful", "harmless"),  # 5.1: each client holds one of the two only
    "data.group_sizes": (5, 5),  # 5.1: half of 10 clients each
    "data.validation": 0.1,  # C.1.1
    "data.test": 0.1,
    "data.template": "hh",  # D.1.1
    "data.max_length": 1024,  # the paper does not say
    "federation.rounds": 50,  # Table 4
    "federation.cohort": 5,  # C.1.1: for 10 clients; 10 for 50 and 100
    "federation.local_steps": 30,
    "optim.learning_rate": 1e-4,  # Table 4: 1e-5 to 1e-4 by model; the smaller model gets the larger
    "optim.weight_decay": 0.0,  # the paper does not say; nor whether it is AdamW
    "optim.batch_size": 32,  # Table 4: 4 to 8, accumulated over 4 to 8 steps: 16 to 64 pairs an update
    "experts.K": 3,  # C.4: FedBiscuit's U = 3
    "experts.T": 10,  # the paper does not say
    "variational.form": "printed",
    "variational.lora": True,
    "variational.responses": "joint",
    "variational.d": 32,  # Table 4
    "variational.features": 512,  # with `encoder`, the 0.9 M of 5.5
    "variational.encoder": 256,
    "variational.M": 2,  # 5.1
    "variational.beta": 0.01,  # Table 4
    "variational.lam": 1.0,
    "variational.gamma": 0.1,
    "variational.tau": 1.0,
    "variational.scale": 5.0,
    "variational.logit_dropout": 0.5,  # 4.4: on Qwen2-0.5B
    "variational.balanced": True,
    "dpo.beta": 0.1,
    "personalization.marks": (0,),  # a client infers its z, without a gradient step
    "rlhf.rounds": 50,  # Table 4, RL training
    "rlhf.local_steps": 30,
    "rlhf.batch_size": 1,
    "rlhf.accumulation": 16,  # Table 4: 4 to 32 by model
    "rlhf.learning_rate": 1e-4,  # Table 4: 1e-5 to 1e-4 by model
    "rlhf.prompts": 50,
    "rlhf.generation_batch": 3,
    "rlhf.samples": 30,
    "rlhf.temperature": 0.7,  # D.1.2
    "rlhf.top_p": 1.0,
    "rlhf.max_new_tokens": 512,
}
"""S1, Table 4, B and C."""

S1_GEMMA: dict[str, object] = {
    **S1,
    "model.base": "google/gemma-2b",  # C.2.1
    "optim.learning_rate": 1e-5,  # Table 4: see above
    "rlhf.learning_rate": 1e-5,
    "variational.logit_dropout": 0.0,  # 4.4
}
"""S1's other base."""
