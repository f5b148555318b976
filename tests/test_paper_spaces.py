"""Every experiment of the paper's, small: its sweep on real Ray, then all tables and figures from what MLflow holds."""

import pytest
import ray

from raypref import compare, sweep

SPACES = ("main_results", "imbalance", "k_robustness", "phase2_start", "local_steps")


@pytest.mark.slow
def test_smoke_sweeps_fill_the_tables_and_figures(tiny_base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    small = ["--smoke", "--model.base", str(tiny_base), "--model.lora-r", "2", "--clients.cpus-per-actor", "0.9"]
    try:
        for name in SPACES:
            assert sweep.command([name, *small]) == 0
    finally:
        ray.shutdown()
    assert compare.command(list(SPACES)) == 0
    out = tmp_path / "runs" / "compare"
    told = capsys.readouterr().out
    for number in (1, 2, 3, 5, 6, 7):
        for kind in ("md", "csv", "tex"):
            assert (out / f"table{number}.{kind}").exists(), told
    for number in (2, 3, 4, 5, 6):
        for kind in ("png", "pdf"):
            assert (out / f"figure{number}.{kind}").exists(), told
    table3 = (out / "table3.md").read_text()
    assert all(name in table3 for name in ("Local", "CL", "Multi CL", "FL", "FedBiscuit", "Soft-FL", "FedGD"))
