"""What a client and a round cost, worked out by hand: made runs move 2 MB up and 4 MB down."""

from dataclasses import replace

from raypref.evaluation.comparisons.overhead import overhead
from raypref.evaluation.tables import text
from tests.evaluation.made import finished, flat


def run(algorithm, seed=0, seconds=None, latent=None, started=0, **settings):
    objective = "choice" if latent is None else "variational"
    made = finished(flat(0.5, 0.6), algorithm=algorithm, seed=seed, started=started, objective=objective, **settings)
    more = {} if seconds is None else {"seconds": {"median_round": seconds}}
    more |= {"parameters": {"adapter": 26_000, "latent": latent or 0}}
    return replace(made, id=f"{algorithm} {seed} {started}", result={**made.result, **more})


def rows(item):
    table = item.content
    heads = [column.head for column in table.columns]
    return {
        label: dict(zip(heads, (text(*pair) for pair in zip(row, table.columns, strict=True)), strict=True))
        for label, row in zip(table.rows, table.cells, strict=True)
    }


def test_overhead_by_hand():
    """60 rounds of 5 clients: 2 MB / 300 = 6.7 kB up. Ratios of the same seed: 1.5 / 1 and 2.2 / 2, mean 1.3."""
    runs = [
        run("fedavg", 0, 1.0),
        run("fedavg", 1, 2.0),
        run("fedvpa_gp", 0, 1.5, latent=12_000, **{"optim.learning_rate": 3e-3}),
        run("fedvpa_gp", 1, 2.2, latent=12_000),
        run("fedvpa_gp", 2, 9.0, latent=12_000),  # FedAvg has no such seed: timed, without a ratio
    ]
    told = rows(overhead(runs, "test"))
    assert list(told) == ["FL", "FedVPA-GP (conditioned)"]
    assert told["FedVPA-GP (conditioned)"] == {
        "adapter parameters": "26,000",
        "latent parameters": "12,000",
        "kB up": "6.7",
        "kB down": "13.3",
        "s a round": "4.23 (± 4.14)",
        "× FL's": "1.30 (± 0.28)",
        "n": "3",
    }
    assert told["FL"]["latent parameters"] == "0" and told["FL"]["× FL's"] == "1.00 (± 0.00)"


def test_a_ratio_is_taken_to_the_same_work_run_in_the_same_way_only():
    longer = {"federation.local_steps": 20}
    runs = [run("fedavg", 0, 1.0), run("fedavg", 1, 1.0), run("fedgd", 0, 3.0, **{"clients.stack": 4})]
    item = overhead([*runs, run("fedbiscuit", 0, 8.0, started=9, **longer)], "test")
    told = rows(item)
    assert list(told) == ["FL", "FedGD"] and told["FedGD"]["× FL's"] == "–" and told["FedGD"]["s a round"] == "3.00"
    assert "fedbiscuit 0 9" not in {r.id for r in item.runs}
    (lacks,) = overhead([run("fedgd", 0, 3.0)], "test").missing
    assert lacks == ("FL on the same work", "python -m raypref.sweep fedavg")


def test_variants_have_rows_of_their_own_repeats_have_not():
    runs = [
        run("fedavg", 0, 1.0, **{"variational.form": form}, started=i)
        for i, form in enumerate(("printed", "conditioned"))
    ]
    runs += [
        run("fedvpa_gp", 0, t, latent=9, **{"variational.form": f}) for t, f in ((2, "printed"), (3, "conditioned"))
    ]
    runs += [run("fedvpa_gp", 0, 4.0, latent=9, started=5, **{"variational.every": 5})]  # newer, conditioned
    told = rows(overhead(runs, "test"))
    assert list(told) == ["FL", "FedVPA-GP (printed)", "FedVPA-GP (conditioned)"]
    assert [row["× FL's"] for row in told.values()] == ["1.00", "2.00", "4.00"]
    assert [row["n"] for row in told.values()] == ["1", "1", "1"]


def test_what_older_results_lack_is_left_out():
    old = finished(flat(0.5, 0.6), algorithm="fedavg")
    told = rows(overhead([old, replace(run("cl"), result=run("cl").result | {"rounds": 0})], "test"))
    assert told["FL"] == {
        "adapter parameters": "–",
        "latent parameters": "–",
        "kB up": "6.7",
        "kB down": "13.3",
        "n": "1",
    }
    assert told["CL"]["kB up"] == "–" and told["CL"]["adapter parameters"] == "26,000"
