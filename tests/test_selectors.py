"""A run as a model of MLflow: what a fresh process that loads it says is what `raypref.score` says."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from raypref import score
from raypref.config import UserError, override
from raypref.data.federation import Pair
from raypref.experiment import loop
from raypref.experiment.tracked import mlflow_record, tracked, tracker
from raypref.storage import people, selectors, tracking
from raypref.tools import checkpoint

ROOT = Path(__file__).resolve().parents[1]
LATENT = {"variational.features": 8, "variational.encoder": 8, "variational.d": 4, "variational.context_marks": (1,)}
KINDS = {
    "adapter": {"algorithm": "fedavg"},
    "z": {"algorithm": "fedvpa_gp", "objective": "variational", **LATENT},
}
PAIRS = (
    ("Why is the sky blue?", "Light scatters.", "Because it is, and nobody knows better."),
    ("What is rain?", "Water, falling.", "A form of precipitation that clouds release."),
)
CLIENT = """
import json, sys
import mlflow, pandas
uri, model, people = sys.argv[1:]
mlflow.set_tracking_uri(uri)
loaded = mlflow.pyfunc.load_model(model, model_config={"people": people})
lines = pandas.DataFrame(json.loads(sys.stdin.read()))
schemas = [[column["name"] for column in schema.to_dict()] for schema in (loaded.metadata.signature.inputs,
           loaded.metadata.signature.outputs)]
said = [loaded.predict(lines, params={"at": at}).to_dict("list") for at in ("personalized", "initialization")]
print(json.dumps({"said": said, "schemas": schemas, "example": loaded.predict(loaded.input_example).to_dict("list")}))
"""


def small(tiny, kind):
    few = {"data.group_sizes": (2, 2), "federation.cohort": 2, "federation.rounds": 1}
    return override(tiny, {**few, "personalization.marks": (0, 2), **KINDS[kind]})


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """(folder, its tracker) of a finished run that MLflow has a model of, and that knows ann."""
    folder = tmp_path_factory.mktemp("adapter")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        to = tracker("fedavg", f"sqlite:///{folder}/mlflow.db")
    tracked(small(tiny, "adapter"), folder / "run", to, adapters=True)
    row = checkpoint.load(folder / "run" / "initialization.safetensors")[0]["rows"]
    ann = people.Person("ann", row + 0.1, None, {"choices": 1})
    people.save(folder / "run", ann, [Pair(*PAIRS[0])])
    return folder / "run", to


def scores(folder, tmp_path, name, at) -> list[float]:
    """The margins of PAIRS by `raypref.score`."""
    lines = [dict(zip(("prompt", "chosen", "rejected"), pair, strict=True)) for pair in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [str(folder), str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "out.jsonl"), "--client", name]
    assert score.command([*words, "--at", at]) == 0
    return [line["margin"] for line in checkpoint.read_lines(tmp_path / "out.jsonl")]


@pytest.mark.slow
def test_a_fresh_process_says_what_score_says(finished, tmp_path):
    folder, to = finished
    lines = [
        dict(zip(selectors.INPUTS, (name, *pair), strict=True)) for pair in PAIRS for name in ("c00", "ann", "c03")
    ]
    lines.append(dict(zip(selectors.INPUTS, ("c00", "Why?", "", "so"), strict=True)))
    uri = f"runs:/{mlflow_record(folder)['run_id']}/{selectors.NAME}"
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, to.uri, uri, str(folder)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, input=json.dumps(lines), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["schemas"] == [list(selectors.INPUTS), list(selectors.OUTPUTS)]
    assert 0 < answer["example"]["probability"][0] < 1
    for at, said in zip(("personalized", "initialization"), answer["said"], strict=True):
        expected = {name: scores(folder, tmp_path, name, at) for name in ("c00", "ann", "c03")}
        margins = [expected[line["client"]][i // 3] for i, line in enumerate(lines[:-1])]
        assert said["margin"][:-1] == margins  # the same passes: the same bits
        assert said["probability"][:-1] == pytest.approx([1 / (1 + math.exp(-m)) for m in margins], abs=1e-12)
        assert said["note"] == [""] * 6 + ["a response is missing or empty"]
        assert math.isnan(said["probability"][-1]) and math.isnan(said["margin"][-1])
    assert expected["c00"] != scores(folder, tmp_path, "c00", "personalized")


def test_of_a_latent_the_z_goes_along(tiny, tmp_path):
    """Without a local step and after some: a client's z is another one then."""
    loop.run(small(tiny, "z"), tmp_path / "run")
    selectors.write(tmp_path / "run", tmp_path / "model")
    loaded = selectors._load_pyfunc(str(tmp_path / "model"))
    lines = pandas.DataFrame([dict(zip(selectors.INPUTS, ("c03", *pair), strict=True)) for pair in PAIRS])
    said = [loaded.predict(lines, {"at": at})["margin"].tolist() for at in ("personalized", "initialization")]
    for at, margins in zip(("personalized", "initialization"), said, strict=True):
        assert margins == pytest.approx(scores(tmp_path / "run", tmp_path, "c03", at), abs=1e-7)
    assert said[0] != said[1]


def test_the_model_is_rows_and_names_logged_once(finished):
    folder, to = finished
    run_id = mlflow_record(folder)["run_id"]
    with tracking.Run(to.uri, to.experiment_id, "again", {}, run_id=run_id) as run:
        run.model(selectors.model(folder, ["c00"]))
    (model,) = tracking._mlflow().MlflowClient(to.uri).search_logged_models([to.experiment_id])
    assert model.source_run_id == run_id and model.status == "READY"
    files = {file.name: file.read_bytes() for file in Path(model.artifact_location).rglob("*") if file.is_file()}
    assert {"config.json", "result.json", "initialization.safetensors", "00000.safetensors"} < set(files)
    assert not any(b"curves/" in data or PAIRS[0][0].encode() in data for data in files.values())


def test_what_cannot_be_is_one_line(finished, tmp_path):
    folder, _ = finished
    selectors.write(folder, tmp_path / "model")
    loaded = selectors._load_pyfunc(str(tmp_path / "model"))
    frame = pandas.DataFrame([dict(zip(selectors.INPUTS, ("ann", *PAIRS[0]), strict=True))])
    with pytest.raises(UserError, match="client 'ann' took no part; there are 4"):  # people stay where they are
        loaded.predict(frame)
    with pytest.raises(UserError, match="at is 'before'; give personalized or initialization"):
        loaded.predict(frame.assign(client="c00"), {"at": "before"})
    with pytest.raises(UserError, match=r"no such folder; .* load_model takes model_config=\{'base': …\}"):
        selectors._load_pyfunc(str(tmp_path / "model"), {"base": str(tmp_path / "nowhere")})
