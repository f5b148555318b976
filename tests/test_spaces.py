"""Search spaces are data: what they name exists, and the papers' presets are the papers' numbers."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest

from raypref.algorithms import ALGORITHMS
from raypref.config import RunConfig, UserError, flatten, override
from raypref.evaluation.ranking import BEST
from raypref.objectives.choice import metrics
from raypref.spaces import Space, load_space, names

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
    assert set(keys) <= FIELDS
    for smoke, preset in itertools.product((False, True), ("", *space.presets)):
        grid = space.smoke_grid if smoke else space.grid
        trials = list(space.trials(space.configured(preset, smoke), smoke))
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


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_preset_is_the_papers(name):
    config = load_space(name).configured("paper")
    flat = flatten(dataclasses.asdict(config))
    assert {key: flat[key] for key in S2_A2} == S2_A2
    if name == "real_world":
        assert {0, 80, 240} <= set(config.personalization.marks)  # Table 3: acc^0, acc^80, acc^240
        # 2.3: "34 clients who participate in all three train/valid1/valid2 splits with at least 100 samples each"
        assert (config.data.cover_column, config.data.cover_min_rows) == ("split", 100)
        assert config.data.client_column == "worker"
    else:  # "evaluated every 10 steps up to 80 local fine-tuning steps" (Fig. 2)
        assert config.personalization.marks == tuple(range(0, 81, 10))


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
    ],
)
def test_a_mistake_in_a_space_is_told(grid, message):
    with pytest.raises(UserError, match=message):
        list(Space("", RunConfig(), grid=grid).trials(RunConfig()))


def test_a_space_of_ones_own_is_found_and_hides_an_installed_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune_spaces").mkdir()
    own = "from raypref.config import RunConfig\nfrom raypref.spaces import Space\nSPACE = Space({!r}, RunConfig())\n"
    for name in ("mine", "local"):
        (tmp_path / "tune_spaces" / f"{name}.py").write_text(own.format(name.upper()))
    assert set(names()) == {*NAMES, "mine"}
    assert load_space("mine").about == "MINE" and load_space("local").about == "LOCAL"
    assert load_space("fedgd").base.algorithm == "fedgd"


def test_unknown_names_are_answered_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"no tune_spaces/fedgb\.py; did you mean 'fedgd'"):
        load_space("fedgb")
    with pytest.raises(UserError, match="unknown preset 'papr'; did you mean 'paper'"):
        load_space("fedgd").configured("papr")


def test_smoke_comes_on_top_of_a_preset():
    config = load_space("fedgd").configured("paper", smoke=True)
    assert config == override(load_space("fedgd").configured("paper"), load_space("fedgd").smoke)
