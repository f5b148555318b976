"""The store of features: equal to reading directly, read once, and right whatever happens to its writers and files."""

import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from raypref.clients.pool import InProcess
from raypref.config import UserError, override
from raypref.data.__main__ import command
from raypref.data.encode import concatenate, sequences_of
from raypref.experiment import loop as experiment
from raypref.models import features
from raypref.models.features import Features, Store, fill, key_of, read, write
from raypref.models.identity import base_digest
from raypref.models.selector import Selector, load_selector
from raypref.objectives.variational import responses_apart

TEXTS = [np.arange(2, 2 + n, dtype=np.int32) for n in (3, 5, 17, 4, 30, 16)]


@pytest.fixture
def config(tiny, tmp_path):
    return override(
        tiny, {"algorithm": "fedavg", "objective": "reward", "model.feature_cache": str(tmp_path / "cache")}
    )


@pytest.fixture
def selector(config):
    return load_selector(config.model, (), 0)


@pytest.fixture
def passes(monkeypatch):
    """The shapes of all passes through a base."""
    shapes, states = [], Selector.states

    def counted(self, rows, ids, at, dropout=None):
        shapes.append(tuple(ids.shape[1:]))
        return states(self, rows, ids, at, dropout)

    monkeypatch.setattr(Selector, "states", counted)
    return shapes


def shards(config):
    return sorted(Store(config.model).folder.glob("*.safetensors"))


def test_what_is_stored_is_what_transformers_reads(config, selector, passes):
    """Each text alone through the plain model, its last token's state; of a text twice there is one row."""
    made = Features(selector, config)
    places = made.places([*TEXTS, TEXTS[1]])
    assert places.tolist() == [0, 1, 2, 3, 4, 5, 1] and made.table.shape == (6, 16)
    model = AutoModelForCausalLM.from_pretrained(config.model.base).eval()
    for text, place in zip(TEXTS, places, strict=False):
        with torch.no_grad():
            expected = model.model(input_ids=torch.from_numpy(text)[None].long()).last_hidden_state[0, -1]
        assert torch.allclose(made.table[place], expected, atol=1e-6)
    assert passes == [(8, 32), (8, 16)]
    again = Features(selector, config)
    assert again.places(TEXTS).tolist() == list(range(6))
    assert torch.equal(again.table, made.table) and len(passes) == 2
    assert torch.equal(again.states(TEXTS[:2], keep=True), made.table[:2]) and len(passes) == 2
    assert torch.equal(again.states(TEXTS[:2]), made.table[:2]) and len(passes) == 3
    assert len(shards(config)) == 1


def test_neighbours_change_no_bit(config, selector):
    """Of passes of one shape, whoever else is in them: so two runs read the same, whatever each of them lacked."""
    together = dict(read(selector, {key_of(t): t for t in TEXTS}, 64))
    for text in TEXTS:
        ((key, alone),) = read(selector, {key_of(text): text}, 64)
        assert torch.equal(alone, together[key])


def test_in_bfloat16_nothing_is_lost(config):
    half = override(config, {"model.dtype": "bfloat16"})
    made = Features(load_selector(half.model, (), 0), half)
    places = made.places(TEXTS)
    assert load_file(shards(half)[0])["states"].dtype == torch.bfloat16 and made.table.dtype == torch.float32
    (_, direct), *_ = read(made.selector, {key_of(TEXTS[0]): TEXTS[0]}, 64)
    assert torch.equal(made.table[places[0]], direct.float())
    assert not shards(config)  # of another dtype: another store


def test_a_second_run_reads_nothing(config, tmp_path, passes, capsys):
    """All clients, folds, methods and trials share it: two runs, one reading of each text."""
    small = override(config, {"federation.rounds": 1, "personalization.marks": (0, 1)})
    experiment.run(small, tmp_path / "one", adapters=False)
    said, count = capsys.readouterr().out, len(passes)
    inputs = experiment.prepare(small)
    folds = [client.fold(name) for client in inputs.data.clients for name in ("train", "validation", "test")]
    texts = {t.tobytes() for fold in folds for t in sequences_of(fold)}
    lengths = [-(-len(t) // 64) * 16 for t in texts]  # int32, 4 bytes a token
    assert count == sum(-(-lengths.count(n) // 8) for n in set(lengths))
    assert f"features: reading {len(texts)} of {len(texts)} texts through the base" in said
    assert f"{len(texts)} texts, {len(texts)} of them read now; " in said and " MB in " in said
    experiment.run(override(small, {"algorithm": "fedgd", "federation.rounds": 4}), tmp_path / "two", adapters=False)
    assert len(passes) == count
    assert f"{len(texts)} texts, 0 of them read now; " in capsys.readouterr().out


def test_apart_is_read_once_and_as_before(tiny, config, tmp_path, passes):
    """FedVPL's features of responses apart: the very passes' states, in a table of distinct responses; without the
    base's logits no comparison is read."""
    apart = {"algorithm": "fedvpl", "objective": "variational", "variational.responses": "apart"}
    joined = override(config, apart | {"variational.logits": False})
    pool = InProcess(experiment.prepare(joined))
    objective, fold = pool.worker.objective, pool.worker.reader.clients[0].train
    states = objective.states(0, "train")
    texts = list(responses_apart(fold, range(2 * fold.pairs)))
    assert len(objective.features.table) == len({t.tobytes() for t in texts}) < len(texts)
    count = len(passes)
    (direct,) = objective._read(None, [fold])
    assert torch.allclose(states.all_shown, direct.all_shown, atol=1e-5)
    assert not states.logits.any()
    assert count == len(passes) - 2 * -(-2 * fold.pairs // 64)
    with_logits = InProcess(experiment.prepare(override(config, apart))).worker.objective
    count = len(passes)
    known = with_logits.states(0, "train")
    assert torch.allclose(known.logits, with_logits._read(None, [fold])[0].logits, atol=1e-5)
    assert len(passes) > count  # the comparisons
    run = override(joined, {"federation.rounds": 2, "personalization.marks": (0, 1)})
    result = experiment.run(run, tmp_path / "run", adapters=False)
    count = len(passes)
    assert experiment.run(run, tmp_path / "again", adapters=False)["margins"] == result["margins"]
    assert len(passes) == count


def test_what_cannot_go_without_logits_is_refused(config):
    for more in ({"variational.lora": True}, {"variational.form": "printed", "variational.lora": True}):
        with pytest.raises(UserError, match=r"without variational\.logits nothing but z weighs responses"):
            experiment.prepare(
                override(
                    config, {"algorithm": "fedvpl", "objective": "variational", "variational.logits": False} | more
                )
            )


WRITER = """
import sys, time
import numpy as np, torch
from raypref.config import RunConfig, override
from raypref.models.features import Store, key_of
base, cache, first, last, pause = sys.argv[1:]
store = Store(override(RunConfig(), {"model.base": base, "model.feature_cache": cache}).model)
for n in range(int(first), int(last)):
    store.add([key_of(np.array([n], np.int32))], torch.full((1, 16), float(n)))
    print(n, flush=True)
    time.sleep(float(pause))
"""


def writer(config, first, last, pause=0.0):
    words = [config.model.base, config.model.feature_cache, *map(str, (first, last, pause))]
    return subprocess.Popen([sys.executable, "-c", WRITER, *words], stdout=subprocess.PIPE, text=True)


def whole(config, numbers):
    """The store has just these, each with its own number."""
    store = Store(config.model)
    keys = [key_of(np.array([n], np.int32)) for n in numbers]
    assert not store.lacking(keys) and len(store) == len(set(keys))
    assert store.get(keys)[:, 0].tolist() == list(numbers)


def test_two_processes_write_at_once(config):
    """Also the same texts: every one is there, and right."""
    writers = [writer(config, 0, 30), writer(config, 20, 50)]
    for one in writers:
        assert len(one.communicate(timeout=120)[0].split()) == 30 and one.returncode == 0
    whole(config, range(50))


def test_a_killed_writer_leaves_nothing_that_counts(config):
    process = writer(config, 0, 100000)
    written = [int(process.stdout.readline()) for _ in range(5)]
    process.send_signal(signal.SIGKILL)
    written += [int(word) for word in process.communicate()[0].split()]
    store = Store(config.model)
    (store.folder / f".half.safetensors.{process.pid}").write_bytes(b"half")  # where the kill came during a write
    there = len(Store(config.model))
    assert there in (len(written), len(written) + 1)
    whole(config, range(there))


def test_a_torn_or_foreign_file_is_a_line_and_never_a_number(config, selector, tmp_path, capsys):
    """Cut short, a bit turned, another base's, another program's: said, left out, and read again."""

    def damaged(change):
        store = Store(override(config, {"model.feature_cache": str(tmp_path / str(time.monotonic_ns()))}).model)
        write(store, read(selector, {key_of(t): t for t in TEXTS}, 64))
        (path,) = store.folder.glob("*.safetensors")
        change(path)
        fresh = Features(selector, override(config, {"model.feature_cache": str(store.folder.parent)}))
        capsys.readouterr()
        table = fresh.table.new_tensor(fresh.states(TEXTS, keep=True).tolist())
        err = [line for line in capsys.readouterr().err.splitlines() if "Loading" not in line]
        assert torch.equal(table, Features(selector, config).states(TEXTS))
        assert len(err) == 1 and str(path) in err[0] and "remove it" in err[0], err
        return err[0]

    def turned(path):
        data = bytearray(path.read_bytes())
        data[-300] ^= 64
        path.write_bytes(bytes(data))

    def foreign(path):
        save_file(load_file(path), path, metadata={"store": "0123456789abcdef-float32", "sum": ""})

    damaged(lambda path: path.write_bytes(path.read_bytes()[:-20]))
    assert "its checksum is wrong" in damaged(turned)
    assert "it is not of this base in this dtype" in damaged(foreign)
    damaged(lambda path: path.write_bytes(b"not a tensor in it"))


def test_a_base_that_was_trained_further_is_another(config, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(config.model.base)
    folder = tmp_path / "further"
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[-1, -1] += 1e-3
    model.save_pretrained(folder)
    assert base_digest(str(folder)) != base_digest(config.model.base)


def test_another_process_is_waited_for(config, capfd):
    """Whoever comes second finds what the first has read."""
    store = Store(config.model)
    with store.writing():
        code = (
            "import sys; from raypref.config import RunConfig, override; import numpy as np\n"
            "from raypref.models.features import fill\n"
            "config = override(RunConfig(), {'model.base': sys.argv[1], 'model.feature_cache': sys.argv[2]})\n"
            "print(fill(config, [np.array([7], np.int32)], 0).read)"
        )
        words = [sys.executable, "-c", code, config.model.base, config.model.feature_cache]
        other = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = other.stderr.readline()
        store.add([key_of(np.array([7], np.int32))], torch.ones(1, 16))
    out, _ = other.communicate(timeout=120)
    assert "waiting for another process that reads into" in line and out.split()[-1] == "0"


def test_a_cache_that_cannot_be_written_is_one_line(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"features cannot be kept in .*; give another --model.feature-cache"):
        fill(override(config, {"model.feature_cache": str(tmp_path / "file")}), TEXTS, 0)


def test_they_can_be_read_ahead(config, capsys):
    """By `python -m raypref.data features`, with a run's words; for an objective that looks nothing up, an error."""
    words = ["features", "synthetic", "--data.group-sizes", "1", "1", "0", "0", "--data.pairs-per-axis", "5"]
    words += ["--model.base", config.model.base, "--model.feature-cache", config.model.feature_cache]
    assert command(words) == 0
    first = re.search(r"features: (\d+) texts, (\d+) of them read now", capsys.readouterr().out)
    assert first[1] == first[2] and int(first[1]) == len(Store(config.model))
    assert command(words) == 0 and f"{first[1]} texts, 0 of them read now" in capsys.readouterr().out
    with pytest.raises(UserError, match="looks up nothing that can be read ahead; reward does with"):
        command([*words, "--objective", "choice"])


def test_where_features_are_kept(tiny, tmp_path, monkeypatch):
    """The field, else the variable, else the user's cache; a run's key knows none of it."""
    monkeypatch.setenv(features.FOLDER, str(tmp_path / "variable"))
    assert Store(tiny.model).folder.parent == tmp_path / "variable"
    given = override(tiny, {"model.feature_cache": str(tmp_path / "given")})
    assert Store(given.model).folder.parent == tmp_path / "given" and given.key == tiny.key
    monkeypatch.delenv(features.FOLDER)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store(tiny.model).folder.parent == tmp_path / ".cache" / "raypref" / "features"


def test_real_people_share_few_texts(shared, config, tmp_path, passes):
    """647 arguments at most behind thousands of choices; a worker's table holds each once."""
    real = override(
        config,
        {
            "model.base": str(shared / "models" / "stories260k-hf"),
            "data.source": str(shared / "data" / "ukp_arguments_by_annotator.jsonl.gz"),
            "data.min_rows": 900,
            "data.max_length": 256,
        },
    )
    inputs = experiment.prepare(real)
    folds = [client.fold(name) for client in inputs.data.clients for name in ("train", "validation", "test")]
    every = concatenate(folds)
    filled = fill(real, sequences_of(every), inputs.pad)
    assert 300 < filled.distinct == filled.read <= 647 < every.pairs
    count = len(passes)
    objective = InProcess(inputs).worker.objective
    for name in ("train", "validation", "test"):
        objective.places(range(len(inputs.data.clients)), name)
    assert len(objective.features.table) == filled.distinct and len(passes) == count
