"""The table of accuracy by the share of clients that do not answer, from runs by hand."""

from raypref.evaluation.comparisons.dropout import by_dropout
from raypref.evaluation.runs import describe
from tests.evaluation.made import BALANCED, cells, finished, flat


def run(algorithm: str, dropout: float, last: float, seed: int = 0, **more):
    of = {"algorithm": algorithm, "federation.dropout": dropout, "seed": seed, "data.group_sizes": BALANCED}
    return finished(flat(0.5, 0.6, last), **of, **more)


def test_accuracy_by_share_with_a_row_a_method():
    runs = [run("fedavg", d, a, seed) for seed in (0, 1) for d, a in ((0.0, 0.9), (0.3, 0.8 + 0.02 * seed))]
    runs += [run("fedgd", 0.0, 0.95), run("fedgd", 0.3, 0.91)]
    runs.append(run("fedavg", 0.9, 0.1, **{"federation.rounds": 7}))  # of another family
    lines = cells(by_dropout(runs, "test").content)
    last = {(row, share): lines[row][f"acc^40, dropout {share}%"][:4] for row in lines for share in (0, 30)}
    assert last == {("FL", 0): "90.0", ("FL", 30): "81.0", ("FedGD", 0): "95.0", ("FedGD", 30): "91.0"}
    assert not any("90%" in head for head in lines["FL"])


def test_a_caption_says_who_did_not_answer_and_nothing_where_all_did():
    assert "clients a round, of whom a share of 0, 0.3 does not answer, τ" in describe(
        [run("fedavg", d, 0.8) for d in (0.0, 0.3)]
    )
    assert "clients a round, τ" in describe([run("fedavg", 0.0, 0.8)])


def test_one_share_alone_is_no_table():
    item = by_dropout([run("fedavg", 0.3, 0.8)], "test")
    assert item.content is None and "federation.dropout" in item.missing[0].what
