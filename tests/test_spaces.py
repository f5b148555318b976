"""Search spaces are data: what they name exists, and the papers' presets are the papers' numbers."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest

from raypref.algorithms import ALGORITHMS
from raypref.config import RunConfig, UserError, flatten, override
from raypref.config.spaces import Needed, Space, every_name, load_space, names
from raypref.evaluation.ranking import BEST
from raypref.objectives.choice import metrics

ROOT = Path(__file__).parents[1]
NAMES = sorted(f.stem for f in (ROOT / "tune_spaces").glob("*.py") if not f.stem.startswith("_"))
FIELDS = set(flatten(dataclasses.asdict(RunConfig())))

S2_A2 = {
    "federation.rounds": 400,  # "We run 400 communication rounds of federated learning,
    "federation.cohort": 5,  # sampling five clients per round (|S_r| = 5; |G_r| = 5 for group-debiased methods).
    "federation.local_steps": 30,  # Each selected client performs 30 local optimization steps
    "optim.batch_size": 16,  # with a batch size of 16
    "optim.betas": (0.9, 0.95),  # using AdamW with (β1, β2) = (0.9, 0.95)
    "optim.learning_rate": 1e-5,  # and a constant learning rate of 1 × 10^-5.
    "experts.T": 20,  # Client assignments are refreshed every T = 20 communication rounds
    "experts.K": 4,  # multi-global methods use K = 4,
    "fedgd.w": 0.6,  # and FedGD uses a mixing coefficient of w = 0.6."
    "model.base": "Qwen/Qwen2-0.5B",  # "We use Qwen2-0.5B for the synthetic experiments.
    "model.lora_r": 8,  # rank r = 8,
    "model.lora_alpha": 16.0,  # scaling factor α = 16,
    "model.lora_dropout": 0.05,  # and dropout rate 0.05.
    "model.lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"),
    "model.dtype": "bfloat16",  # A.1: "under bfloat16 mixed precision"
    "data.pairs_per_axis": 650,  # 2.3: "40 clients (650 samples per axis)"
    "data.exact_counts": (50, 50),
    "data.axes": ("education", "humor"),
}
"""S2, A.2 (and 2.3), typed in a second time, beside the words that say so."""

S2_ELSEWHERE = {
    # Section 3: "trained for 200 communication rounds with the same number of updates"; so Tables 1 and 2.
    "imbalance": {"federation.rounds": 200},
}
"""Where a space's table or figure has other settings than A.2."""


S1_TABLE_4 = {
    "federation.local_steps": 30,
    "federation.rounds": 50,
    "variational.beta": 0.01,
    "variational.lam": 1.0,
    "variational.gamma": 0.1,
    "variational.tau": 1.0,
    "variational.scale": 5.0,
    "variational.d": 32,
    "variational.balanced": True,  # "Orthogonal label assignment: Balanced k-means"
    "model.lora_r": 8,
    "model.lora_alpha": 16.0,
    "model.lora_dropout": 0.05,
    "data.kinds": ("helpful", "harmless"),  # C.1.1: "along two axes: helpfulness and harmlessness
    "data.validation": 0.1,  # Train: 80% Validation: 10% Test: 10%"
    "data.test": 0.1,
    "data.template": "hh",  # D.1.1
    "federation.cohort": 5,  # "K = 10: 5 clients per round"
    "variational.M": 2,  # 5.1: "we set the number of orthogonal prototypes to M = 2"
    "variational.form": "printed",  # Eq. 2, Algorithm 2
    "experts.K": 3,  # C.4: "FedBiscuit: ... (U = 3)"
    "dpo.beta": 0.1,  # "Reward coefficient"
    "rlhf.batch_size": 1,  # "RL Training" from here on
    "rlhf.local_steps": 30,
    "rlhf.rounds": 50,
    "rlhf.prompts": 50,  # "Max prompts for generation"
    "rlhf.generation_batch": 3,
    "rlhf.samples": 30,  # "Max samples for reward"
    "rlhf.temperature": 0.7,  # D.1.2
    "rlhf.top_p": 1.0,
    "rlhf.max_new_tokens": 512,
}
"""S1, Table 4, 5.1, C and D, typed in a second time."""

S1_BASES = {  # C.2.1 and 4.4: "We use p_logit = 0.5 for Qwen-2 0.5B and 0.0 for Gemma-2B"
    "paper": {"model.base": "Qwen/Qwen2-0.5B", "variational.logit_dropout": 0.5},
    "gemma2b": {"model.base": "google/gemma-2b", "variational.logit_dropout": 0.0},
}
S1_NAMES = [
    *("ablation", "client_count", "client_ratio", "unseen"),
    *("feddpo", "fedvpa_gp", "fedvpl", "fedvpl_ortho", "fedvpl_prior"),
]
OURS = [name for name in names() if name.startswith("graded")] + ["arguments", "dropout", "mix", "variants"]
"""Spaces of no paper."""


def valid(config: RunConfig) -> None:
    """What FedGD asks of its rounds, which `validate` cannot know."""
    if config.algorithm.startswith("fedgd"):
        assert config.federation.rounds % (2 * config.experts.T) == 0


def test_the_spaces_are_those_of_the_folder():
    assert list(names()) == NAMES
    assert "fedgd" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_dotted_key_exists_and_every_value_fits(name):
    space = load_space(name)
    keys = itertools.chain(space.grid, space.draws, space.smoke, space.smoke_grid, *space.presets.values())
    assert set(space.preset_grid) <= set(space.presets)
    assert all(set(grid) <= set(space.grid) for grid in space.preset_grid.values())  # in the place of those values
    assert {key for one in keys for key in ((one,) if isinstance(one, str) else one)} <= FIELDS
    for smoke, preset in itertools.product((False, True), ("", *space.presets)):
        grid = space.smoke_grid if smoke else space.under(preset).grid
        trials = list(space.under(preset).trials(space.configured(preset, smoke), smoke))
        assert len({t.key for t in trials}) == len(trials)
        assert len(trials) == math.prod(map(len, grid.values())) * (space.samples if space.draws and not smoke else 1)
        for config in trials:
            valid(config)


@pytest.mark.parametrize("name", NAMES)
def test_algorithms_and_metrics_are_known(name):
    space = load_space(name)
    assert {space.base.algorithm, *space.against} <= set(ALGORITHMS)
    assert space.rank in BEST


def test_what_can_rank_is_what_is_measured():
    import torch

    assert set(BEST) == set(metrics(torch.zeros(1, 2)))


def test_fedgd_searches_experts_mixing_interval_and_group_sizes():
    """K, w, T and group sizes; 2.3's two settings among them."""
    grid = load_space("fedgd").grid
    assert {"experts.K", "experts.T", "fedgd.w", "data.group_sizes", "seed"} <= set(grid)
    assert {(10, 10, 10, 10), (15, 15, 5, 5)} <= set(grid["data.group_sizes"])
    assert len(grid["seed"]) >= 3


@pytest.mark.parametrize("preset", S1_BASES)
@pytest.mark.parametrize("name", S1_NAMES)
def test_the_preset_is_s1s(name, preset):
    flat = flatten(dataclasses.asdict(load_space(name).configured(preset)))
    table = S1_TABLE_4 | S1_BASES[preset]
    assert {key: flat[key] for key in table} == table
    # Ranges by model: learning rate; and 4 to 8 pairs, accumulated over 4 to 8 steps.
    assert 1e-5 <= flat["optim.learning_rate"] <= 1e-4 and 16 <= flat["optim.batch_size"] <= 64
    assert 1e-5 <= flat["rlhf.learning_rate"] <= 1e-4 and 4 <= flat["rlhf.accumulation"] <= 32
    sizes = {"client_ratio": (7, 3), "unseen": (10, 10)}.get(name, (5, 5))
    assert (flat["data.group_sizes"], flat["federation.unseen"]) == (sizes, 5 if name == "unseen" else 0)


def test_s1s_counts_ratios_and_ablation_are_all_tried():
    def tried(name, *keys):
        space = load_space(name)
        trials = [flatten(dataclasses.asdict(c)) for c in space.trials(space.configured("paper"))]
        return {tuple(t[key] for key in keys) for t in trials}

    # Tables 1 and 2: "FedDPO FedBiscuit FedVPL FedVPA-GP"; Table 3 has the second and the last alone.
    four = {("feddpo", "dpo"), ("fedbiscuit", "choice"), ("fedvpl", "variational"), ("fedvpa_gp", "variational")}
    # C.1.1: "K = 10: 5 clients per round; K in {50, 100}: 10 clients per round", half of each kind
    sizes = {((5, 5), 5), ((25, 25), 10), ((50, 50), 10)}
    found = tried("client_count", "data.group_sizes", "federation.cohort", "algorithm", "objective")
    assert found == {(*size, *method) for size in sizes for method in four}
    # 5.4: "70/30, 30/70, 80/20, and 20/80 ... with N = 10 clients"
    found = tried("client_ratio", "data.group_sizes", "algorithm", "objective")
    assert found == {(size, *method) for size in ((7, 3), (3, 7), (8, 2), (2, 8)) for method in four}
    assert tried("unseen", "algorithm", "objective") == four
    assert tried("ablation", "algorithm", "objective") == {
        (name, "variational") for name in ("fedvpl", "fedvpl_ortho", "fedvpl_prior", "fedvpa_gp")
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*S1_NAMES, *OURS)])
def test_the_paper_preset_is_the_papers(name):
    config = load_space(name).configured("paper")
    flat = flatten(dataclasses.asdict(config))
    table = S2_A2 | S2_ELSEWHERE.get(name, {})
    assert {key: flat[key] for key in table} == table
    if name == "real_world":
        assert {0, 80, 240} <= set(config.personalization.marks)  # Table 3: acc^0, acc^80, acc^240
        # 2.3: "34 clients who participate in all three train/valid1/valid2 splits with at least 100 samples each"
        assert (config.data.cover_column, config.data.cover_min_rows) == ("split", 100)
        assert config.data.client_column == "worker"
    else:  # "evaluated every 10 steps up to 80 local fine-tuning steps" (Fig. 2)
        assert config.personalization.marks == tuple(range(0, 81, 10))


def test_fig_5_varies_the_papers_learning_rates_and_local_steps():
    """C.2: "τ in {1, 5, 15, 30} ... either the default learning rate or a learning rate that is 10 x smaller", and A.2:
    "a constant learning rate of 1 x 10^-5"."""
    space = load_space("local_steps").under("paper")
    trials = list(space.trials(space.configured("paper")))
    assert {t.optim.learning_rate for t in trials} == {1e-5, 1e-6}
    assert {t.federation.local_steps for t in trials} == {1, 5, 15, 30}
    assert {t.data.group_sizes for t in trials} == {(10, 10, 10, 10)}  # "on the balanced synthetic dataset"
    assert {t.algorithm for t in trials} == {"fedavg", "cl"} and len(trials) == 16


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OURS])
def test_no_paper_preset_trains_on_template_phrases(name):
    """S2's pairs must be given, and the line says how to make them (2.3); S1's and TL;DR's are on the hub."""
    space = load_space(name)
    for preset in space.presets:
        config = space.configured(preset)
        space.check(space.configured(preset, smoke=True), preset, smoke=True)
        if config.data.source != "synthetic":
            space.check(config, preset)
            continue
        with pytest.raises(UserError) as refused:
            space.check(config, preset)
        line = str(refused.value)
        assert line.startswith(f"--preset {preset} needs another --data.source than 'synthetic': ")
        assert "python -m raypref.data synthesize HuggingFaceH4/ultrafeedback_binarized --limit 52000" in line
        assert line.endswith("then add --data.source pairs.jsonl") and "\n" not in line
        space.check(override(config, {"data.source": "pairs.jsonl"}), preset)
    space.check(space.base)


def test_what_the_papers_prompts_are_enough_for():
    """2.3: "40 clients (650 samples per axis)" take 26,000 pairs an axis, 52,000 in all: "52K unique prompts"."""
    config = load_space("fedgd").configured("paper").data
    assert sum(config.group_sizes) * config.pairs_per_axis * len(config.axes) == 52_000


def test_a_preset_may_leave_any_field_to_be_given():
    space = Space("", RunConfig(), presets={"mine": {"experts.K": Needed(4, "count your groups"), "experts.T": 5}})
    assert space.configured("mine").experts == dataclasses.replace(RunConfig().experts, T=5)
    with pytest.raises(UserError, match=r"^--preset mine needs another --experts\.K than 4: count your groups$"):
        space.check(space.configured("mine"), "mine")
    space.check(override(space.configured("mine"), {"experts.K": 3}), "mine")
    space.check(space.configured("mine"), "mine", smoke=True)


def test_a_preset_may_try_other_values():
    """Those keys only; a field that is given on the command line is fixed there, too."""
    space = Space(
        "", RunConfig(), grid={"experts.K": [2, 3], "seed": [0, 1]}, presets={"wide": {}, "narrow": {}},
        preset_grid={"wide": {"experts.K": [5, 6, 7]}},
    )  # fmt: skip
    tried = {name: [(t.experts.K, t.seed) for t in space.under(name).trials(space.base)] for name in ("", "narrow")}
    assert tried[""] == tried["narrow"] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    wide = space.under("wide")
    assert [(t.experts.K, t.seed) for t in wide.trials(space.base)] == [(k, s) for k in (5, 6, 7) for s in (0, 1)]
    assert wide.without({"experts.K": 4}).grid == {"seed": [0, 1]}


def test_draws_are_within_bounds_and_the_same_every_time():
    space = Space(
        "", RunConfig(), grid={"seed": [0, 1]}, samples=50,
        draws={"optim.learning_rate": ("loguniform", 1e-4, 1e-2), "fedgd.w": ("uniform", 0.2, 0.8)},
    )  # fmt: skip
    trials = list(space.trials(space.base))
    assert trials == list(space.trials(space.base))
    assert len(trials) == 100
    rates = [t.optim.learning_rate for t in trials if t.seed == 0]
    assert rates == [t.optim.learning_rate for t in trials if t.seed == 1]  # the same points for every seed
    assert all(1e-4 <= rate <= 1e-2 for rate in rates) and sum(rate < 1e-3 for rate in rates) in range(15, 36)
    assert all(0.2 <= t.fedgd.w <= 0.8 for t in trials) and len({t.fedgd.w for t in trials}) == 50


TOGETHER = Space(
    "",
    RunConfig(),
    grid={
        ("data.group_sizes", "federation.cohort"): [((3, 3, 2, 2), 4), ((6, 6, 4, 4), 8)],
        ("algorithm", "experts.K"): [("fedgd", 2), ("fedgd", 4), ("fedbiscuit", 3)],
        "seed": [0, 1],
    },
)


def tried(space: Space, *keys: str) -> list[tuple]:
    flat = [flatten(dataclasses.asdict(config)) for config in space.trials(space.base)]
    return list(dict.fromkeys(tuple(f[key] for key in keys) for f in flat))


def test_keys_that_vary_together():
    assert tried(TOGETHER, "data.group_sizes", "federation.cohort") == [((3, 3, 2, 2), 4), ((6, 6, 4, 4), 8)]
    assert tried(TOGETHER, "algorithm", "experts.K") == [("fedgd", 2), ("fedgd", 4), ("fedbiscuit", 3)]
    assert len(list(TOGETHER.trials(TOGETHER.base))) == 2 * 3 * 2


def test_of_keys_that_vary_together_one_may_be_given():
    assert TOGETHER.without({"model.lora_r": 4}) == TOGETHER
    left = TOGETHER.without({"algorithm": "fedgd", "federation.cohort": 8, "seed": 3})
    assert left.grid == {("data.group_sizes",): [((6, 6, 4, 4),)], ("experts.K",): [(2,), (4,)]}
    assert tried(left, "data.group_sizes", "experts.K") == [((6, 6, 4, 4), 2), ((6, 6, 4, 4), 4)]
    assert set(TOGETHER.without({"algorithm": "fedavg", "experts.K": 5}).grid) == {
        ("data.group_sizes", "federation.cohort"),
        "seed",
    }
    # No value goes with a cohort of 7: the group sizes are the base's.
    assert set(TOGETHER.without({"federation.cohort": 7}).grid) == {("algorithm", "experts.K"), "seed"}


def test_given_seeds_replace_those_of_the_space():
    space = load_space("fedgd")
    trials = list(space.trials(space.configured(smoke=True), smoke=True, seeds=(7, 8, 9)))
    assert sorted({t.seed for t in trials}) == [7, 8, 9]
    assert len(trials) == 3 * len(space.smoke_grid["experts.K"])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"expert.K": [1]}, "did you mean 'experts.K'"),
        ({"experts.K": ["two"]}, "experts.K is 'two'; it must be int"),
        ({"experts.K": [0]}, "experts.K is 0; it must be at least 1"),
        ({("experts.K", "experts.T"): [(2, 1), 4]}, "varies experts.K, experts.T together, so 4 must be 2 values"),
    ],
)
def test_a_mistake_in_a_space_is_told(grid, message):
    with pytest.raises(UserError, match=message):
        list(Space("", RunConfig(), grid=grid).trials(RunConfig()))


def test_a_space_of_ones_own_is_found_and_hides_an_installed_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune_spaces").mkdir()
    own = (
        "from raypref.config import RunConfig\nfrom raypref.config.spaces import Space\n"
        "SPACE = Space({!r}, RunConfig())\n"
    )
    for name in ("mine", "feddpo"):
        (tmp_path / "tune_spaces" / f"{name}.py").write_text(own.format(name.upper()))
    assert set(names()) == {*NAMES, "mine"}
    assert load_space("mine").about == "MINE" and load_space("feddpo").about == "FEDDPO"
    assert load_space("fedgd").base.algorithm == "fedgd"


def test_a_method_without_a_file_has_the_setting_of_its_paper():
    """The registry's docstring is its line in the list; S2's setting has its groups, S1's its prototypes."""
    assert set(every_name()) == {*NAMES, *ALGORITHMS} != set(NAMES)
    cl, ortho = load_space("cl"), load_space("fedvpl_ortho")
    assert cl.about.startswith("CL: one model on all data pooled") and cl.against == ("fedavg",)
    assert (cl.base.algorithm, ortho.base.algorithm, ortho.base.objective) == ("cl", "fedvpl_ortho", "variational")
    assert ortho.base.variational.M == 2 and set(ortho.presets) == {"paper", "gemma2b"} and set(cl.presets) == {"paper"}
    assert load_space("fedavg").against == ()


def test_unknown_names_are_answered_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"no tune_spaces/fedgb\.py; did you mean 'fedgd'"):
        load_space("fedgb")
    with pytest.raises(UserError, match="unknown preset 'papr'; did you mean 'paper'"):
        load_space("fedgd").configured("papr")
    with pytest.raises(UserError, match="unknown preset 'section3'; there are: paper"):  # its name before
        load_space("imbalance").configured("section3")


def test_smoke_comes_on_top_of_a_preset():
    config = load_space("fedgd").configured("paper", smoke=True)
    assert config == override(load_space("fedgd").configured("paper"), load_space("fedgd").smoke)
