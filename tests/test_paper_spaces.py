"""Every experiment of the papers, small: its sweep on real Ray, then S2's tables and figures from what MLflow holds."""

import pytest
import ray

from raypref import compare, sweep

SPACES = ("main_results", "imbalance", "k_robustness", "phase2_start", "local_steps")

S1_SPACES = {
    "unseen": ("fedavg", "fedbiscuit", "fedvpl", "fedvpa_gp"),
    "ablation": ("fedvpl", "fedvpl_ortho", "fedvpl_prior", "fedvpa_gp"),
}


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


@pytest.mark.slow
def test_smoke_sweeps_of_s1_and_what_compare_draws_of_them(tiny_base, tmp_path, monkeypatch, capsys):
    """Unseen clients and the ablation, each with its methods; objectives mixed, and variants. Counts and ratios, which
    need nothing further, are rehearsed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    small = ["--smoke", "--model.base", str(tiny_base), "--model.lora-r", "2", "--clients.cpus-per-actor", "0.9"]
    names = (*S1_SPACES, "mix", "variants")
    for name in ("fedvpa_gp", "client_count", "client_ratio"):
        assert sweep.command([name, *small, "--dry-run"]) == 0
    try:
        for name in names:
            assert sweep.command([name, *small]) == 0
    finally:
        ray.shutdown()
    told = {name: (tmp_path / "runs" / f"{name}-smoke" / "sweep.md").read_text() for name in S1_SPACES}
    for name, methods in S1_SPACES.items():
        assert all(method in told[name] for method in methods), told[name]
    assert compare.command(list(names)) == 0
    out, printed = tmp_path / "runs" / "compare", capsys.readouterr().out
    for name in ("mix", "context", "latent", "overhead", "unseen"):
        assert (out / f"{name}.md").exists(), printed
    for name in ("figure-latent", "figure-latent-numbers"):
        assert (out / f"{name}.png").exists(), printed
    rows = (out / "mix.md").read_text()
    assert all(row in rows for row in ("| FL |", "| FedGD |", "FedVPA-GP (printed)", "FedGD (conditioned)"))
    assert "Alone: logistic regression" in (out / "context.md").read_text()
