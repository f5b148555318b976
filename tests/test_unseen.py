"""Clients that take no part in the global phase: nothing of them reaches it, and every result tells them apart."""

import csv
import dataclasses
import functools
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from raypref.clients.half import Message
from raypref.clients.pool import InProcess
from raypref.clients.protocol import Trained, Usage
from raypref.clients.seen import Part, parted, unseen
from raypref.config import RunConfig, UserError, override
from raypref.data.encode import concatenate
from raypref.evaluation import ranking, report, seeds
from raypref.evaluation.comparisons.unseen import by_group
from raypref.evaluation.curve import seen_and_unseen
from raypref.experiment import loop as experiment
from raypref.experiment.forecast import Costs, predict
from raypref.experiment.publish import diagnostic_metrics, mark_metrics
from raypref.storage.results import Store
from raypref.tools import checkpoint
from tests.evaluation.made import finished
from tests.evaluation.made import result as made

VARIATIONAL = {"objective": "variational", "variational.d": 4, "variational.features": 4, "variational.encoder": 4}
METHODS = {
    "fedavg": {},
    "fedgd": {},
    "fedgd_z": {"objective": "bayes"},
    "fedbiscuit": {},
    "soft_fl": {},
    "ditto": {},
    "fedrep": {},
    "lore": {},
    "cl": {},
    "multi_cl": {},
    "fl_target": {},
    "fedvpa_gp": VARIATIONAL,
}


def configured(tiny, algorithm="fedavg", **values):
    """Ten clients in four groups, one of each unseen; two rounds of three clients, no local step after."""
    small = {
        "algorithm": algorithm,
        "federation.unseen": 1,
        "federation.rounds": 2,
        "federation.cohort": 3,
        "federation.local_steps": 2,
        "experts.K": 2,
        "personalization.marks": (0,),
        "optim.batch_size": 4,
    }
    return override(tiny, small | METHODS.get(algorithm, {}) | {k.replace("__", "."): v for k, v in values.items()})


def away(inputs):
    return unseen(inputs.config, inputs.data.groups, inputs.data.group_of)


@pytest.fixture(scope="module")
def prepared(tiny):
    return experiment.prepare(configured(tiny))


def with_others(inputs):
    """Every unseen client's choices turned round in every fold, and half of its pairs gone."""

    def other(fold):
        half = [j for i in range(max(1, fold.pairs // 2)) for j in (2 * i + 1, 2 * i)]
        cut = [(fold.tokens[fold.offsets[j] : fold.offsets[j + 1]], fold.spans[j : j + 1]) for j in half]
        lengths = np.cumsum([0, *(len(tokens) for tokens, _ in cut)])
        tokens, spans = (np.concatenate(part) for part in zip(*cut, strict=True))
        return dataclasses.replace(concatenate([]), tokens=tokens, offsets=lengths, spans=spans)

    clients = list(inputs.data.clients)
    for c in away(inputs):
        folds = {name: other(clients[c].fold(name)) for name in ("train", "validation", "test")}
        clients[c] = dataclasses.replace(clients[c], **folds)
    return dataclasses.replace(inputs, data=dataclasses.replace(inputs.data, clients=tuple(clients)))


def global_phase(inputs):
    """(all that the last round left, what was spent, the initialization)"""
    last = None
    for record in experiment.records(inputs, experiment.Saved()):
        if isinstance(record, experiment.RoundDone):
            last = record
        if isinstance(record, experiment.PersonalizationStarts):
            tensors, values = checkpoint.take_apart(last.state)
            return tensors | values | last.metrics | dataclasses.asdict(last.used), record.initialization


@pytest.fixture(scope="module")
def trained(tiny, prepared):
    """Algorithm -> (inputs, what its global phase left, the initialization), each run once."""

    @functools.cache
    def of(algorithm):
        inputs = experiment.prepare_like(prepared, configured(tiny, algorithm))
        return inputs, *global_phase(inputs)

    return of


@pytest.mark.parametrize("algorithm", METHODS)
def test_their_data_change_no_bit_of_the_global_phase(trained, algorithm):
    inputs, left, start = trained(algorithm)
    again, other = global_phase(with_others(inputs))
    assert left.keys() == again.keys() and len(left) > 3
    assert all(np.array_equal(left[name], again[name]) for name in left)
    assert (start.dim() == 2) == (algorithm in ("fedbiscuit", "soft_fl", "ditto", "fedrep", "lore", "cl", "multi_cl"))
    if start.dim() == 2:
        assert len(start) == len(other) == 10
        start, other = (np.delete(rows.numpy(), away(inputs), axis=0) for rows in (start, other))
    assert np.array_equal(start, other)
    assert not np.array_equal(with_others(inputs).sizes, inputs.sizes)  # something was there to leak


@pytest.mark.parametrize("algorithm", ["fedbiscuit", "soft_fl", "cl", "multi_cl"])
def test_a_newcomer_starts_from_what_its_own_data_pick(trained, algorithm):
    """Worked out from the last state, over clients addressed by their positions in the pool."""
    inputs, left, start = trained(algorithm)
    U = away(inputs)
    told = InProcess(inputs).evaluate(left["theta"], "validation")
    match algorithm:
        case "fedbiscuit":
            expected = left["theta"][told["loss"][:, U].argmin(0).tolist()]
        case "soft_fl":
            a = told["accuracy"][:, U]
            expected = (torch.from_numpy((a / a.sum(0)).T) @ left["theta"].double()).float()
        case "cl":
            expected = left["theta"][[0] * len(U)]
        case "multi_cl":
            expected = left["theta"][inputs.data.group_of[U].tolist()]
    assert torch.equal(start[U.tolist()], expected)


@pytest.mark.parametrize("algorithm", ["fedbiscuit", "fedvpa_gp"])
def test_a_run_infers_judges_and_leaves_every_parameter(tiny, tmp_path, algorithm):
    """At mark 0: rows of unseen (and of all) clients are the initialization, bit for bit; and what is published."""
    config = configured(tiny, algorithm)
    result = experiment.run(config, tmp_path, adapters=False)
    start = checkpoint.load(tmp_path / "initialization.safetensors")[0]["rows"]
    for file in (tmp_path / "clients").glob("*"):
        part = checkpoint.load(file)[0]
        assert torch.equal(part["rows"], start[part["clients"]] if start.dim() == 2 else start.expand_as(part["rows"]))
    assert len(result["unseen"]) == 4 and np.array(result["test"]["accuracy"]).shape == (10, 1)
    assert sorted(np.array(result["groups"]["of"])[result["unseen"]]) == [0, 1, 2, 3]
    assert len(result["assignment"]) == 6
    seen, others = seen_and_unseen(Store(tmp_path, config).result())
    groups = json.loads((tmp_path / "groups.json").read_text())
    assert len(groups["clients"]) == len(groups["assignment"][-1]) == len(groups["true"]["of"]) == 6
    assert set(seen["clients"]) | set(others["clients"]) == set(result["clients"])
    assert "| unseen |" in (tmp_path / "table.md").read_text() and (tmp_path / "curve.png").stat().st_size
    assert mark_metrics(result)[0][1]["after local steps/unseen test accuracy"] == pytest.approx(
        np.mean(others["test"]["accuracy"])
    )
    told = predict(experiment.prepare(config), Costs())
    used = (told.used.client_steps, told.used.bytes_up, told.used.bytes_down, told.rounds)
    assert used == tuple(result[k] for k in ("client_steps", "bytes_up", "bytes_down", "rounds"))


def test_without_unseen_clients_there_is_no_view(tiny, prepared):
    config = configured(tiny, federation__unseen=0)
    pool = InProcess(experiment.prepare_like(prepared, config))
    assert parted(pool) == (pool, None)
    assert config.key != configured(tiny).key


class Told:
    """Five clients in two groups that say what they were asked."""

    layout, groups, group_of, sizes = None, ("a", "b"), np.array([0, 1, 0, 1, 0]), np.array([10, 11, 12, 13, 14])
    used = Usage(rounds=7)

    def __init__(self):
        self.asked = []

    def train(self, cohort, rows, round, message, kept):
        self.asked.append((cohort.tolist(), message.about.tolist()))
        cohort = np.sort(cohort)
        return Trained(cohort, rows, self.sizes[cohort], np.zeros(len(cohort)))

    def train_pooled(self, pools, *how):
        return [pool.tolist() for pool in pools]

    def evaluate(self, rows, fold, clients):
        return fold, clients.tolist()

    def posterior(self, clients, rows):
        return clients.tolist()


def test_positions_are_translated_both_ways():
    """Clients 1, 3 and 4 of five, here 0, 1 and 2."""
    part = Part(Told(), np.array([1, 3, 4]))
    assert part.sizes.tolist() == [11, 13, 14] and part.group_of.tolist() == [1, 1, 0] and part.groups == ("a", "b")
    assert part.keys.tolist() == [1, 3, 4]
    returned = part.train([2, 0], torch.zeros(2, 1), 0, Message(about=part.keys[[0, 2]]), None)
    assert part.pool.asked == [([4, 1], [1, 4])]
    assert returned.cohort.tolist() == [0, 2] and returned.sizes.tolist() == [11, 14]
    assert part.train_pooled([np.array([0, 1]), np.array([2])], None, None, 0, 1) == [[1, 3], [4]]
    assert part.evaluate(torch.zeros(1), "validation") == ("validation", [1, 3, 4])
    assert part.posterior([2], torch.zeros(1)) == [4]
    assert part.used.rounds == 7
    rows = part.beside(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0], [4.0]]))
    assert rows.ravel().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_only_those_asked_judge(prepared):
    """The columns of all, and bytes for the six alone."""
    pool = InProcess(prepared)
    rows = torch.randn(2, pool.layout.width, generator=torch.Generator().manual_seed(0)) / 10
    every, spent = pool.evaluate(rows, "validation"), pool.used
    seen, _ = parted(pool)
    own = seen.evaluate(rows, "validation")
    assert all(np.array_equal(own[name], np.delete(every[name], away(prepared), axis=1)) for name in every)
    assert pool.used.bytes_down - spent.bytes_down == 6 * rows.numpy().nbytes


def test_who_is_unseen_is_drawn_by_seed_from_each_group():
    of = np.repeat([0, 1, 2], [5, 4, 3])
    drawn = {
        seed: unseen(override(RunConfig(), {"federation.unseen": 2, "seed": seed}), ("a", "b", "c"), of)
        for seed in range(5)
    }
    assert all(np.bincount(of[d]).tolist() == [2, 2, 2] and (np.diff(d) > 0).all() for d in drawn.values())
    assert len({tuple(d) for d in drawn.values()}) > 1
    assert len(unseen(override(RunConfig(), {"federation.unseen": 2}), (), np.full(12, -1))) == 2


def test_what_does_not_fit_is_refused(tiny, prepared):
    for values, message in (
        ({"federation.unseen": 2}, r"group 'G[34].*' has 2 clients.* to at most 1"),
        ({"federation.cohort": 7}, "federation.cohort is 7 but there are 6 seen clients"),
        ({"algorithm": "fedbiscuit", "experts.K": 7}, "experts.K is 7 but there are 6 seen clients"),
        ({"federation.unseen": -1}, "federation.unseen is -1"),
    ):
        with pytest.raises(UserError, match=message):
            experiment.prepare_like(prepared, override(configured(tiny), values))
    with pytest.raises(UserError, match="there are 3 clients"):
        unseen(override(RunConfig(), {"federation.unseen": 3}), (), np.full(3, -1))


def one(algorithm, shares, **how):
    """Clients 0, 1, 2 of group 1 and 3, 4 of group 2, at one mark; 1 and 4 unseen."""
    how = {"algorithm": algorithm, "data.group_sizes": (3, 2), "federation.unseen": 1} | how
    told = made([[x] for x in shares], **how)
    return told | {"unseen": [1, 4], "weights": "", "ari": 0.5, "assignment": [0, 0, 1]}


def test_tables_means_and_ranks_are_over_the_seen():
    """Seen 0.5, 0.7 | 0.6: mean 60, group 1 60, group 2 60. Unseen 0.1 | 0.3: mean 20 ± 10."""
    result = one("fedavg", [0.5, 0.1, 0.7, 0.6, 0.3])
    text = report.markdown([result])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert rows[2][:4] == ["fedavg", "60.0 ± 8.2", "60.0", "60.0"]
    assert rows[3][:4] == ["unseen", "20.0 ± 10.0", "10.0", "30.0"]
    assert rows[0][rows[2].index("0.50")] == "ARI" and rows[3][rows[0].index("rounds")] == "–"
    assert "over 3 clients" in text and "unseen: the 2 others" in text
    lines = list(csv.DictReader(io.StringIO(report.to_csv([result]))))
    assert [(line["clients_are"], line["clients"]) for line in lines] == [("seen", "3"), ("unseen", "2")]
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(report.terminal([result]))
    assert "unseen 20.0±10.0" in " ".join(console.file.getvalue().split())
    assert ranking.last(result, "validation", "accuracy") == pytest.approx(0.6)
    table = seeds.markdown([({"algorithm": "fedavg"}, result)]).splitlines()
    assert table[2].startswith("| fedavg | 60.0 |") and table[3].startswith("| fedavg, unseen | 20.0 |")
    assert mark_metrics(result)[0][1]["after local steps/test loss"] == pytest.approx(0.6)


def test_unseen_clients_are_never_the_best_of_a_table():
    low = one("fedavg", [0.5, 0.9, 0.5, 0.5, 0.9], **{"personalization.marks": (10,)})
    high = one("fedgd", [0.6, 0.9, 0.6, 0.6, 0.9], **{"personalization.marks": (10,)})
    text = report.markdown([low, high])
    assert "**60.0 ± 0.0**" in text and "**90" not in text


def test_a_result_of_before_has_nobody_unseen():
    old = made([[0.5], [0.7], [0.6], [0.2]])
    assert seen_and_unseen(old) == (old, None) and "unseen" not in report.markdown([old | {"weights": ""}])


def test_the_parts_keep_each_client_s_own():
    margins, headroom = [[[c * 1.0]] for c in range(5)], [[c * 1.0] for c in range(5)]
    whole = one("fedavg", [0.5, 0.1, 0.7, 0.6, 0.3], margins=margins, headroom=headroom)
    seen, others = seen_and_unseen(whole | {"sizes": [1, 2, 3, 4, 5], "probes": {"x": [0, 1, 2, 3, 4]}})
    for part, clients in ((seen, [0, 2, 3]), (others, [1, 4])):
        assert part["clients"] == [f"c{c}" for c in clients] and part["sizes"] == [c + 1 for c in clients]
        assert part["margins"]["test"] == [[[float(c)]] for c in clients]
        assert part["diagnostics"][0]["headroom"] == [[float(c)] for c in clients]
        assert part["probes"]["x"] == clients and part["diagnostics"][0]["mark"] == 0
        assert part["groups"]["of"] == [whole["groups"]["of"][c] for c in clients]
        assert seen_and_unseen(part) == (part, None)
    assert others["ari"] is None and seen["ari"] == 0.5
    assert diagnostic_metrics(whole)[-1][1]["after local steps/gq"] == 2.0


def test_s1_table_2_by_hand():
    """FedVPA-GP, two seeds: seen group 1 0.5 and 0.7, unseen 0.1 and 0.3; FL, one seed, only seen better."""
    runs = []
    for seed, algorithm, shares in (
        (0, "fedvpa_gp", [0.5, 0.1, 0.5, 0.6, 0.3]),
        (1, "fedvpa_gp", [0.7, 0.3, 0.7, 0.6, 0.3]),
        (0, "fedavg", [0.9, 0.2, 0.9, 0.9, 0.2]),
    ):
        objective = "variational" if algorithm == "fedvpa_gp" else "choice"
        run = finished([[x] for x in shares], algorithm=algorithm, seed=seed, objective=objective,
                    **{"data.group_sizes": (3, 2), "federation.unseen": 1})  # fmt: skip
        runs.append(dataclasses.replace(run, result={**run.result, "unseen": [1, 4]}))
    table = by_group([*runs, finished([[0.5]] * 4)], "test").content
    columns = {f"{c.block} {c.head}": i for i, c in enumerate(table.columns)}
    (gp,) = (row for label, row in zip(table.rows, table.cells, strict=True) if label != "FL")
    assert gp[columns["Seen G1 a"]].values == (0.5, 0.7) and gp[columns["Unseen G1 a"]].values == (0.1, 0.3)
    assert gp[columns["Unseen G2 b"]].mean == pytest.approx(0.3)
    assert gp[columns["Unseen all"]].mean == pytest.approx(0.25)  # (0.1 + 0.3) / 2, and 0.3
    assert runs[0].setting == "imbalanced" and "1 of each group took no part in training" in table.notes[1]
    assert by_group([finished([[0.5]] * 4)], "test").content is None
