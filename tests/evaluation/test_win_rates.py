"""S1's tables and figure of policies: numbers worked out here, and which policies may stand beside each other."""

from dataclasses import replace

import pytest
from matplotlib.container import BarContainer

from raypref.config import RunConfig, flatten, override, to_dict
from raypref.config.identity import policy_key
from raypref.evaluation import paired
from raypref.evaluation.comparisons import win_rates
from raypref.evaluation.drawings import drawings
from raypref.evaluation.runs import ANSWERS, method
from raypref.evaluation.tables import markdown
from tests.evaluation.made import cells, judgement, policy, section

DPO = {"algorithm": "feddpo", "objective": "dpo"}
GP = {"algorithm": "fedvpa_gp", "objective": "variational"}
VPL = {"algorithm": "fedvpl", "objective": "variational"}
FIFTY = {"data.group_sizes": (25, 25), "federation.cohort": 10}
HALF, ALL, NONE = [1, 0, 0.5, 0.5], [1, 1, 1, 1], [0, 0, 0, 0]


def drawn(make, runs):
    return make(runs, "test")


def test_by_number_of_clients_worked_out_by_hand():
    """FedDPO helpful: 2/4 and 3/4 in two seeds: 62.5, std sqrt(2 · 12.5²) = 17.7; the mean of both axes 75 and 87.5."""
    runs = [
        policy(HALF, ALL, **DPO),
        policy([1, 1, 1, 0], ALL, seed=1, **DPO),
        policy(ALL, ALL, **GP),
        policy(HALF, ALL, seed=1, **GP),
        policy(NONE, HALF, **GP, **FIFTY),
    ]
    item = drawn(win_rates.by_count, runs)
    told = cells(item.content)
    assert list(told) == ["FedDPO", "FedVPA-GP (conditioned)"]  # S1's order
    assert told["FedDPO"] == {
        "10 clients harmless": "100.0 (± 0.0)",
        "10 clients helpful": "62.5 (± 17.7)",
        "10 clients mean": "81.2 (± 8.8)",
        "50 clients harmless": "–",
        "50 clients helpful": "–",
        "50 clients mean": "–",
        "n": "2",
    }
    assert told["FedVPA-GP (conditioned)"]["50 clients mean"] == "25.0" and len(item.runs) == 5
    assert item.missing[0].what == "policies by FedBiscuit, FedVPL"
    assert item.missing[0].command == "python -m raypref.sweep client_count, then python -m raypref.rlhf client_count"
    text = markdown(item.content)
    assert "**Win rates by style, by the number of clients**" in text and "a tie counts half" in text
    assert "5/5 clients (synthetic), 25/25 clients (synthetic); base embedded; R = 60, 5, 10 clients a round" in text
    assert "Stage 2: 25 rounds of 10 steps on 16 prompts, learning rate 0.0005, β = 0.1, temperature 0.7" in text
    assert "FedDPO's policies are stage 1's" in text
    # By client, helpful0 and helpful1, in seed 0 3/4 - 1 and 1/4 - 1, in seed 1 1 - 3/4 and 1/2 - 1/4: the means are
    # -1/2 and 1/4, their mean -1/8.
    assert item.reference == "FedVPA-GP (conditioned)"
    small = paired.against(item.content, item.reference)
    assert cells(small)["FedDPO"]["10 clients helpful"].startswith("-12.5 [")
    assert "win rates in points, paired by client" in small.notes[0]


def test_policies_of_other_settings_are_another_family():
    """Of two families the one with more methods; FedDPO's policy, which no stage 2 trains, is of either."""
    runs = [
        policy(HALF, HALF, **DPO),
        policy(ALL, ALL, **GP, **{"rlhf.rounds": 7}),
        policy(ALL, ALL, **VPL, **{"rlhf.rounds": 7}),
        policy(NONE, NONE, **VPL, started=9),
        policy(NONE, NONE, **GP, **{"dpo.beta": 0.3}, started=9),
        policy(NONE, NONE, **GP, **{"optim.learning_rate": 0.5}, started=9),
    ]
    item = drawn(win_rates.by_count, runs)
    told = cells(item.content)
    assert list(told) == ["FedDPO", "FedVPL (conditioned)", "FedVPA-GP (conditioned)"]
    assert all(row["10 clients mean"] == ("50.0" if name == "FedDPO" else "100.0") for name, row in told.items())
    assert "Stage 2: 7 rounds" in item.content.notes[1]
    # where it ran does not matter, nor what a choice run's variational section says
    alike = [policy(ALL, ALL, **GP, **{"rlhf.backend": "ray"}), policy(HALF, HALF, seed=1, **GP)]
    assert cells(drawn(win_rates.by_count, alike).content)["FedVPA-GP (conditioned)"]["n"] == "2"


@pytest.mark.parametrize("key", [f"rlhf.{name}" for name in ANSWERS])
def test_how_a_policy_is_asked_tells_even_feddpos_apart(key):
    """What names a policy and what families are made by agree on which fields have a part in it."""
    dpo = override(RunConfig(), DPO)
    twice = 2 * flatten(to_dict(dpo))[key]
    assert policy_key(override(dpo, {key: twice})) != policy_key(dpo)
    assert policy(ALL, ALL, **DPO).identity() != policy(ALL, ALL, **DPO, **{key: twice}).identity()
    assert policy_key(override(dpo, {"rlhf.rounds": 7})) == policy_key(dpo)
    assert policy(ALL, ALL, **DPO).identity() == policy(ALL, ALL, **DPO, **{"rlhf.rounds": 7}).identity()


def test_one_table_has_one_judge():
    """Two policies have the endpoint's word, three that of style: style it is. With two each, win rates before scores,
    and a reward model under the same name with other weights is another judge."""
    runs = [policy(HALF, HALF, **how) for how in (DPO, VPL, GP)]
    other = judgement(section("helpful", ALL), section("harmless", ALL), model="gpt-4o-2024")
    runs[:2] = [replace(run, judgements={**run.judgements, "gpt-4o": other}) for run in runs[:2]]
    told = drawn(win_rates.by_count, runs).content
    assert {row["10 clients mean"] for row in cells(told).values()} == {"50.0"} and "by style" in told.title

    def scored(model):
        differences = {"helpful": [0.5, 1.5], "harmless": [-1.0]}
        return judgement(*(section(axis, of, wins=False) for axis, of in differences.items()), model=model)

    both = [replace(run, judgements={"reward-h": scored("OWNER/h"), **run.judgements}) for run in runs]
    assert "by style" in drawn(win_rates.by_count, both).content.title
    models = ("OWNER/h", "OWNER/h", "OTHER/h")
    only = [replace(run, judgements={"reward-h": scored(m)}) for run, m in zip(runs, models, strict=True)]
    told = drawn(win_rates.by_count, only).content
    assert list(cells(told)) == ["FedDPO", "FedVPL (conditioned)"]
    assert cells(told)["FedDPO"]["10 clients helpful, ours - theirs"] == "+1.000"
    assert "Reward scores by reward-h" in told.title and "by reward-h (OWNER/h)" in told.notes[0]


def test_where_there_was_a_choice_of_policies_it_is_told():
    runs = [policy(HALF, HALF, **DPO), *(policy(ALL, ALL, **how, **{"rlhf.rounds": 7}) for how in (VPL, GP))]
    other = [policy(ALL, ALL, **GP), policy(ALL, ALL, **GP, **{"data.group_sizes": (7, 3)})]

    def remarks(policies):
        return [*drawn(win_rates.by_count, policies).remarks]

    assert remarks(runs) == []
    words = "win-rates shows 3 of 4 policies, judged by style"
    assert remarks([*runs, *other]) == [
        f"{words}, rlhf.rounds 7 (the fullest, of equals the newest); left out: rlhf.rounds 25"
    ]
    elsewhere = [replace(run, judgements={"gpt-4o": run.judgements["style"]}) for run in other]
    assert remarks([*runs, *elsewhere]) == [
        f"{words}, rlhf.rounds 7 (the fullest, of equals the newest); left out: rlhf.rounds 25, 1 not judged by style"
    ]

    def by(model_tokens, run):  # the same judge, but it may write so much: never in one table
        return replace(run, judgements={"gpt": {**run.judgements["style"], "settings": model_tokens}})

    few, many = ({"samples": 0, "seed": 0, "max_tokens": n} for n in (8, 64))
    told = [by(few, runs[1]), by(few, runs[2]), by(many, replace(runs[0], started=9))]
    assert remarks(told) == [
        "win-rates shows 2 of 3 policies, judged by gpt, judge's max_tokens 8 (the fullest, of equals the newest); "
        "left out: judge's max_tokens 64"
    ]


def test_policies_that_were_not_judged_on_the_same_comparisons_are_told_of():
    """Of FedVPL's four, of FedVPA-GP's two helpful prompts; seeds of the sample matter where it is one."""
    runs = [policy(HALF, HALF, **VPL), policy(ALL[:2], HALF, **GP)]
    assert [*drawn(win_rates.by_count, runs).remarks] == [
        "win-rates: policies were judged on different numbers of comparisons, such as of one group 2: FedVPA-GP "
        "(conditioned); 4: FedVPL (conditioned)"
    ]
    for other in ({"seed": 7}, {"data.group_sizes": [2, 2, 2, 2]}):  # whose test prompts are others
        runs[1] = replace(runs[1], config=runs[0].config | {"algorithm": "fedvpa_gp"} | other)
        assert not any("different numbers" in line for line in win_rates.remarks("win-rates", runs, runs))
    for samples, lines in (
        (0, []),
        (4, ["win-rates: policies were judged on comparisons that different seeds drew: 0, 1"]),
    ):
        runs = [
            replace(run, judgements={"style": {**run.judgements["style"], "settings": {"samples": samples, "seed": s}}})
            for s, run in enumerate(policy(HALF, HALF, **how) for how in (VPL, GP))
        ]
        assert [*drawn(win_rates.by_count, runs).remarks] == lines


@pytest.mark.parametrize(
    ("params", "items"),
    [
        ({"algorithm": "fedvpl"}, {"win-rates", "figure-win-rates"}),
        ({"algorithm": "fedbiscuit", "data.group_sizes": "(5, 5)"}, {"win-rates"}),
        ({"algorithm": "fedvpl", "data.group_sizes": "(7, 3)"}, {"win-rates-ratio"}),
        ({"algorithm": "fedvpl", "data.group_sizes": "(7, 3)", "federation.unseen": "5"}, {"win-rates-unseen"}),
        (
            {"algorithm": "feddpo", "objective": "dpo", "data.source": "hh.jsonl", "data.group_sizes": "(7, 3)"},
            {"win-rates"},
        ),
    ],
)
def test_where_a_policy_would_be_by_its_parameters(params, items):
    of_policies = [drawing for drawing in drawings().values() if drawing.of == "policies"]
    assert {drawing.name for drawing in of_policies if drawing.waits_for(params)} == items
    assert method(params) in ("FedVPL", "FedBiscuit", "FedDPO")


def test_of_two_cohorts_for_as_many_clients_one_is_shown():
    runs = [policy(HALF, HALF, **how, **FIFTY) for how in (VPL, GP)]
    runs.append(policy(ALL, ALL, **GP, **FIFTY | {"federation.cohort": 3}, started=9))
    told = cells(drawn(win_rates.by_count, runs).content)
    assert {row["50 clients mean"] for row in told.values()} == {"50.0"}


def test_unequal_groups_are_blocks_of_rows():
    """Each has its own best, and differences are within it: clients of another ratio are other people."""
    runs = [
        policy(HALF, HALF, **DPO, **{"data.group_sizes": (7, 3)}),
        policy(ALL, HALF, **GP, **{"data.group_sizes": (7, 3)}),
        policy(NONE, NONE, **DPO, **{"data.group_sizes": (2, 8)}),
        policy(HALF, NONE, **GP, **{"data.group_sizes": (2, 8)}),
        policy(HALF, NONE, **GP),  # equal groups are another table's
    ]
    item = drawn(win_rates.by_ratio, runs)
    assert [item.content.label(r) for r in range(4)] == [
        "7/3 FedDPO",
        "7/3 FedVPA-GP (conditioned)",
        "2/8 FedDPO",
        "2/8 FedVPA-GP (conditioned)",
    ]
    text = markdown(item.content)
    assert "| 7/3 FedVPA-GP (conditioned) | **50.0** | **100.0** |" in text
    assert "| 2/8 FedVPA-GP (conditioned) | **0.0** | **50.0** |" in text
    small = markdown(paired.against(item.content, item.reference))
    assert "| 7/3 FedDPO | +0.0 [" in small and "| 2/8 FedDPO | +0.0 [+0.0, +0.0] | -50.0 [" in small
    assert item.missing[0].what == "policies by FedBiscuit"
    assert len(drawn(win_rates.by_count, runs).runs) == 1


def test_seen_and_unseen_clients():
    away = {"data.group_sizes": (10, 10), "federation.unseen": 5}
    run = policy(HALF, ALL, **GP, **away)
    both = [*run.judgements["style"]["sections"], section("helpful", NONE, unseen=True)]
    item = drawn(win_rates.of_unseen, [replace(run, judgements={"style": judgement(*both)}), policy(ALL, ALL, **GP)])
    assert cells(item.content)["FedVPA-GP (conditioned)"] == {
        "Seen harmless": "100.0",
        "Seen helpful": "50.0",
        "Unseen helpful": "0.0",
        "n": "1",
    }
    assert drawn(win_rates.by_count, [run]).content is None


def test_a_section_without_a_readable_answer_has_no_number():
    run = policy([], ALL, **GP)
    assert cells(drawn(win_rates.by_count, [run]).content)["FedVPA-GP (conditioned)"] == {
        "10 clients harmless": "100.0",
        "n": "1",
    }


def test_two_bases_are_blocks_of_rows_by_one_judge():
    bases = [{"model.base": "OWNER/large", "optim.learning_rate": 1e-4}, {}]
    runs = [policy(HALF if base else ALL, ALL, **how, **base) for base in bases for how in (VPL, GP)]
    told = drawn(win_rates.by_count, runs).content
    assert [told.label(r) for r in range(4)] == [
        f"{base} {name} (conditioned)" for base in ("large", "embedded") for name in ("FedVPL", "FedVPA-GP")
    ]
    assert [c[1].mean for c in told.cells] == [0.5, 0.5, 1.0, 1.0]
    assert len(told.notes) == 3  # what the numbers are, and a line a base


def test_the_ablation_has_a_bar_a_method_and_axis():
    """Heights are means over seeds in %, error bars ± std: 50 and 100 give 75 ± 35.4."""
    parts = [policy(HALF, NONE, algorithm=a, objective="variational") for a in win_rates.ABLATION]
    runs = [*parts, policy(ALL, NONE, seed=1, **GP), policy(ALL, ALL, **DPO)]
    item = drawn(win_rates.ablation, runs)
    (ax,) = item.content.axes
    names = ["FedVPL", "FedVPL+Ortho", "FedVPL+GB Prior", "FedVPA-GP"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["harmless", "helpful"]
    drawings = [held for held in ax.containers if isinstance(held, BarContainer)]
    heights = {held.get_label(): [patch.get_height() for patch in held] for held in drawings}
    assert list(heights) == [f"{name} (conditioned)" for name in names]
    assert heights["FedVPL (conditioned)"] == [0, 50] and heights["FedVPA-GP (conditioned)"] == [0, 75]
    (error,) = (held.errorbar for held in drawings if held.errorbar)
    low, high = error.lines[2][0].get_segments()[1][:, 1]
    assert (high - low) / 2 == pytest.approx(50 / 2**0.5)
    assert not item.missing and len(item.runs) == 5
    one = drawn(win_rates.ablation, parts[:1])
    assert one.content is None and one.missing[0].what == "policies by FedVPL+Ortho, FedVPL+GB Prior, FedVPA-GP"


@pytest.mark.parametrize("make", [win_rates.by_count, win_rates.of_unseen, win_rates.by_ratio, win_rates.ablation])
def test_without_policies_the_commands_that_make_them_are_told(make):
    item = drawn(make, [])
    assert item.content is None and "then python -m raypref.rlhf" in item.missing[0].command
