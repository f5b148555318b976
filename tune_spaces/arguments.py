"""Real people: which of two arguments convinces more, by each of 99 crowd workers (UKPConvArg1).

Of Habernal and Gurevych, "Which argument is more convincing?" (ACL 2016, CC BY 4.0), the votes of single workers, as
rows `client_id, prompt, chosen, rejected, topic`: people disagree on three of ten pairs, and nobody knows groups.
Reward models and latents look at what SmolLM2-135M-Instruct makes of each of 647 arguments, which is read once, so that
a run takes seconds:

    python -m raypref.sweep arguments --data.source arguments.jsonl.gz --model.base HuggingFaceTB/SmolLM2-135M-Instruct

Folds are cut by pair, or by topic, so that nobody was asked about a test pair's topic in training. `data.shuffled` is
the control: what a method gains there cannot be people's own.
"""

from raypref.config import ClientsConfig, DataConfig, FederationConfig, ModelConfig, PersonalizationConfig, RunConfig
from raypref.config.spaces import Space
from tune_spaces._bases import SMOKE

KINDS = ("algorithm", "objective", "federation.rounds", "reward.hidden")
METHODS = [
    *((name, "reward", 60, 0) for name in ("local", "fedavg", "fedgd", "soft_fl", "fedprox", "scaffold", "lore")),
    ("cl", "reward", 300, 0),  # as many client steps
    ("fedbiscuit", "reward", 45, 0),  # and its warm-up
    ("ditto", "reward", 30, 0),  # two passes a round
    ("fedrep", "reward", 60, 32),  # which needs a body
    ("fedvpl", "variational", 60, 0),
    ("fedvpa_gp", "variational", 60, 0),
    ("fedavg", "bayes", 60, 0),
]
"""Values of `KINDS`, at equal client steps."""

SPACE = Space(
    about="Real people's votes between arguments (UKPConvArg1), on SmolLM2's features: every method, ten seeds.",
    against=("fedavg", "local"),
    base=RunConfig(
        objective="reward",
        data=DataConfig(source="arguments.jsonl.gz", min_rows=60),
        model=ModelConfig(base="HuggingFaceTB/SmolLM2-135M-Instruct"),
        federation=FederationConfig(rounds=60, cohort=10),
        personalization=PersonalizationConfig(marks=(0, 1, 5, 10, 40)),
        clients=ClientsConfig(),
    ),
    grid={
        ("data.split", "data.shuffled"): [("pair", False), ("topic", False), ("pair", True), ("topic", True)],
        KINDS: METHODS,
        "variational.responses": ["apart"],
        "variational.logits": [False],
        "variational.context": [64],  # choices that a step infers z from, of hundreds that a person made
        "experts.T": [5],
        "optim.learning_rate": [3e-3],
        "seed": list(range(10)),
    },
    smoke={**SMOKE, "data.source": "synthetic", "model.base": "embedded", "data.min_rows": 1},
    smoke_grid={KINDS: [("fedavg", "reward", 4, 0), ("fedavg", "bayes", 4, 0)]},
)
