"""The commands of stage 2 as a person types them, on a tiny base: rlhf, judge, generate, score."""

from __future__ import annotations

import json
import shutil

import pytest

from raypref import generate, judge, rlhf, run, score
from raypref.config import UserError, flatten, from_dict
from raypref.experiment import publish
from raypref.judges import judgement
from raypref.storage import locate, tracking
from raypref.tools import checkpoint

STAGE1 = [
    *("--clients.backend", "local", "--against", "none", "--variational.features", "8", "--variational.encoder", "8"),
    *("--variational.d", "4", "--federation.unseen", "1", "--federation.cohort", "2", "--personalization.marks", "0"),
    *("2", "--model.lora-r", "2"),
]
STAGE2 = [
    *("--rlhf.rounds", "2", "--rlhf.local-steps", "2", "--rlhf.batch-size", "4", "--rlhf.max-new-tokens", "6"),
    *("--rlhf.samples", "4", "--rlhf.accumulation", "2", "--rlhf.prompts", "10"),
]


@pytest.fixture(scope="module")
def made(tiny_base, tmp_path_factory):
    """(folder where commands are typed, stage-1 folder, policy folder) after run and rlhf."""
    here = tmp_path_factory.mktemp("stage2")
    patch = pytest.MonkeyPatch()
    patch.chdir(here)
    patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{here / 'mlflow.db'}")
    patch.setenv("HOME", str(here / "home"))
    assert run.command(["fedvpa_gp", "--smoke", "--model.base", str(tiny_base), *STAGE1]) == 0
    assert rlhf.command(["fedvpa_gp", *STAGE2]) == 0
    (stage1,) = (here / "runs").iterdir()
    (policy,) = stage1.glob("policy-*")
    yield here, stage1, policy
    patch.undo()


def test_a_policy_is_trained_answered_and_judged(made):
    _here, stage1, policy = made
    result = checkpoint.read_json(policy / "policy.json")
    assert (result["rounds"], result["steps"], result["parameters"]["z_to_embedding"]) == (2, 4, 16 * 4)
    assert [json.loads(line)["round"] for line in (policy / "rounds.jsonl").read_text().splitlines()] == [1, 2]
    answers = [json.loads(line) for line in (policy / "responses.jsonl").read_text().splitlines()]
    assert {(a["group"][:2], a["unseen"]) for a in answers} == {(g, u) for g in ("G1", "G8") for u in (False, True)}
    told = checkpoint.read_json(policy / "judgements" / "style.json")
    assert sum(section["prompts"] for section in told["sections"]) == len(answers) == 16
    config = from_dict(checkpoint.read_json(policy / "config.json"))
    assert (config.rlhf.rounds, config.rlhf.prompts) == (2, 10) and config.key == checkpoint.read_json(
        stage1 / "result.json"
    )["key"]


def test_mlflow_has_it_beneath_its_stage_1_run(made):
    here, _stage1, _policy = made
    uri = f"sqlite:///{here / 'mlflow.db'}"
    runs, _ = tracking.search(uri, ["fedvpa_gp"])
    (first,) = [r for r in runs if "raypref.key" in r.tags]
    (second,) = [r for r in runs if "raypref.policy" in r.tags]
    assert second.tags["mlflow.parentRunId"] == first.id and second.status == "FINISHED"
    assert second.params["rlhf.rounds"] == "2" and "raypref.key" not in second.tags
    files = tracking.read_artifacts(
        uri, second.id, ("policy.json", "judgements.json", "responses.jsonl", "config.json")
    )
    assert len(files) == 4 and "style" in json.loads(files["judgements.json"])


def test_a_judgement_made_later_reaches_mlflow(made):
    here, _, policy = made
    id = checkpoint.read_json(policy / "mlflow.json")["run_id"]
    assert judge.command([id, "--by", "style", "--samples", "2"]) == 0
    told = tracking.read_artifacts(f"sqlite:///{here / 'mlflow.db'}", id, ("judgements.json",))["judgements.json"]
    assert {section["prompts"] for section in json.loads(told)["style"]["sections"]} == {2}
    assert judge.command([str(policy)]) == 0  # all of them again


def test_clients_without_a_known_group_are_all_in_one_section(tmp_path):
    """MLflow takes no metric whose name ends with a slash."""
    section = {"axis": "", "unseen": False, "win_rate": 0.75, "prompts": 1, "scores": [1.0]}

    def keep(judge: str, **changed) -> None:
        sections = [section | changed, section | {"unseen": True}]
        assert judgement.keep(tmp_path, {"judge": judge, "settings": {}, "sections": sections})

    keep("style")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with tracking.Run(uri, tracking.prepare(uri, "own"), "policy", {}) as track:
        publish.publish_judgements(tmp_path, track)
    for rate in (0.5, 0.5, 0.25):  # the second says nothing new
        keep("gpt", win_rate=rate)
        with tracking.Run(uri, "", "", {}, run_id=track.id) as again:
            publish.publish_judgements(tmp_path, again)
    # Each judgement is a point of its own; that of another judge is no new one.
    client = tracking._mlflow().MlflowClient(uri)
    points = {
        name: [(m.step, m.value) for m in client.get_metric_history(track.id, f"win_rate/{name}")]
        for name in ("style/all", "style/unseen all", "gpt/all")
    }
    assert points == {"style/all": [(0, 0.75)], "style/unseen all": [(0, 0.75)], "gpt/all": [(0, 0.5), (1, 0.25)]}


def test_what_is_done_is_not_done_again(made, capsys):
    _, _, policy = made
    before = {path: path.stat().st_mtime_ns for path in (policy / "row.safetensors", policy / "policy.json")}
    assert rlhf.command(["fedvpa_gp", *STAGE2]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    said = capsys.readouterr().out
    assert "1 of 1, fedvpa_gp seed 0, finished before: " in said and "G8 PhD/non-humorous/blunt, unseen" in said


def test_answers_that_are_gone_are_written_again(made):
    _, _, policy = made
    held = (policy / "responses.jsonl").read_bytes()
    (policy / "responses.jsonl").unlink()
    assert rlhf.command(["fedvpa_gp", *STAGE2]) == 0
    assert (policy / "responses.jsonl").read_bytes() == held


def test_two_commands_do_not_share_a_policys_folder(made):
    _, _, policy = made
    with checkpoint.locked(policy), pytest.raises(UserError, match=f"another command is at work in {policy}; wait"):
        rlhf.command(["fedvpa_gp", *STAGE2])


def test_other_settings_are_another_policy(made):
    _, stage1, policy = made
    assert rlhf.command(["fedvpa_gp", *STAGE2, "--rlhf.z", "prior", "--run", str(stage1), "--no-track"]) == 0
    others = set(stage1.glob("policy-*")) - {policy}
    (other,) = others
    assert checkpoint.read_json(other / "config.json")["rlhf"]["z"] == "prior"
    shutil.rmtree(other)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fedvpl"], "no finished stage-1 run of fedvpl; python -m raypref.run fedvpl makes one"),
        (
            ["client_count"],
            "experiment fedvpa_gp holds one: python -m raypref.rlhf fedvpa_gp --where algorithm=fedvpa_gp",
        ),
        (["fedvpa_gp", "--where", "seed=7"], "no finished stage-1 run of fedvpa_gp fits --where seed=7"),
        (["fedvpa_gp", "--run", "nowhere"], "nowhere: there is no such folder"),
        (["fedvpa_gp", "--rlhf.temperature", "0"], "rlhf.temperature"),
        (["fedvpa_gp", "--rlhf.round", "3"], "did you mean '--rlhf.rounds'"),
        (["nothing"], "there is no tune_spaces/nothing.py"),
    ],
)
def test_mistakes_are_told_in_one_line(made, words, says):
    with pytest.raises(UserError) as caught:
        rlhf.command(words)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_generate_answers_a_client_from_folder_or_mlflow_alone(made, capsys):
    here, _stage1, policy = made
    id = checkpoint.read_json(policy / "mlflow.json")["run_id"]
    words = ["--client", "c01", "--prompt", "What is tea?", "Why?", "--n", "2", "--seed", "3"]
    assert generate.command([str(policy), *words]) == 0
    told = capsys.readouterr().out
    assert generate.command([id, *words]) == 0  # its own folder is there
    assert capsys.readouterr().out == told
    away = here / "away"
    (here / "runs").rename(away)
    try:
        assert locate.policy(id) != policy
        assert generate.command([id, *words]) == 0
        assert capsys.readouterr().out == told
        assert generate.command([id, *words, "--frozen"]) == 0
        assert capsys.readouterr().out.count("frozen: ") == 4
    finally:
        away.rename(here / "runs")


def test_score_judges_pairs_as_a_client(made, tmp_path, capsys):
    here, stage1, _policy = made
    rows = [("q one?", "a first answer", "another"), ("q two?", "x", "y z"), ("q three?", "same", "same")]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(dict(zip(("prompt", "a", "b"), row, strict=True))) + "\n" for row in rows))
    columns = ["--first-column", "a", "--second-column", "b"]
    words = [str(file), "--client", "c02", *columns]
    assert score.command([str(stage1), *words]) == 0
    out = capsys.readouterr()
    lines = [json.loads(line) for line in out.out.splitlines()]
    assert [line["first"] for line in lines] == ["a first answer", "x"] and "1 chosen equals rejected" in out.err
    swapped = [str(file), "--client", "c02", "--first-column", "b", "--second-column", "a"]
    assert score.command([str(stage1), *swapped]) == 0
    turned = [json.loads(line)["margin"] for line in capsys.readouterr().out.splitlines()]
    assert turned == pytest.approx([-line["margin"] for line in lines], abs=1e-5)
    id = checkpoint.read_json(stage1 / "mlflow.json")["run_id"]
    away = here / "away"
    (here / "runs").rename(away)
    try:  # from the adapters in MLflow alone
        assert score.command([id, *words]) == 0
        again = [json.loads(line)["margin"] for line in capsys.readouterr().out.splitlines()]
        assert again == pytest.approx([line["margin"] for line in lines], abs=1e-6)
    finally:
        away.rename(here / "runs")


def test_another_base_is_refused(made, tmp_path):
    """The run's base at another place will do; another one, alike in shape, will not."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    _here, stage1, policy = made
    base = from_dict(checkpoint.read_json(stage1 / "config.json")).model.base
    same, other = tmp_path / "same", tmp_path / "other"
    shutil.copytree(base, same)
    shutil.copytree(base, other)
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base)).save_pretrained(other)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    commands = [
        (generate.command, [str(policy), "--client", "c00", "--prompt", "p"]),
        (score.command, [str(stage1), str(tmp_path / "pairs.jsonl"), "--client", "c00"]),
    ]
    for command, words in commands:
        assert command([*words, "--base", str(same)]) == 0
        with pytest.raises(UserError, match="was trained on another base than"):
            command([*words, "--base", str(other)])


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        (generate.command, ["{stage1}", "--prompt", "p"], "is a stage-1 run, not a finished policy"),
        (
            generate.command,
            ["{policy}", "--client", "c9", "--prompt", "p"],
            "client 'c9' took no part; there are 6, such as c00, c01",
        ),
        (generate.command, ["{policy}", "--client", "co1", "--prompt", "p"], "did you mean 'c01'"),
        (generate.command, ["{policy}", "--prompt", "p"], "--client is missing"),
        (score.command, ["{policy}", "{file}", "--client", "c00"], "is a policy, not a finished stage-1 run"),
        (score.command, ["{stage1}", "{file}", "--client", "c00"], "has no column 'prompt' but q; set --prompt-column"),
        (score.command, ["{stage1}"], "RUN and PAIRS come first"),
        (judge.command, ["0123456789abcdef0123456789abcdef"], "has no such run"),
    ],
)
def test_mistakes_of_use_are_told_in_one_line(made, tmp_path, command, words, says):
    _here, stage1, policy = made
    file = tmp_path / "f.jsonl"
    file.write_text('{"q": 1}\n')
    with pytest.raises(UserError) as caught:
        command([word.format(stage1=stage1, policy=policy, file=file) for word in words])
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_params_of_stage_2_can_be_asked_for(made):
    _, _, policy = made
    flat = flatten(checkpoint.read_json(policy / "config.json"))
    assert {"dpo.beta", "rlhf.local_steps", "rlhf.zero_stage"} <= set(flat)
