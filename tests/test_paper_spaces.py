"""Every experiment of the papers, small, then their tables and figures from what MLflow holds. One space of each paper
is a sweep on real Ray; the others' trials run in this process, which gives the same numbers without processes of their
own."""

import pytest
import ray

from raypref import compare, sweep
from raypref.config import override
from raypref.config.spaces import load_space
from raypref.experiment.tracked import tracked, tracker
from raypref.storage.results import folder_name


def swept(name, base):
    small = ["--smoke", "--model.base", str(base), "--model.lora-r", "2", "--clients.cpus-per-actor", "0.9"]
    try:
        assert sweep.command([name, *small]) == 0
    finally:
        ray.shutdown()


def in_process(name, base, folder):
    """The trials that `swept` would run."""
    space, to = load_space(name), tracker(name)
    small = {"model.base": str(base), "model.lora_r": 2, "clients.backend": "local"}
    for config in space.trials(override(space.configured("", True), small), True, ()):
        tracked(config, folder / folder_name(config), to, adapters=False)


@pytest.mark.slow
def test_smoke_sweeps_fill_the_tables_and_figures(tiny_base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    names = ("main_results", "imbalance", "k_robustness", "phase2_start", "local_steps")
    for name in names:
        swept(name, tiny_base) if name == "phase2_start" else in_process(name, tiny_base, tmp_path / name)
    assert compare.command(list(names)) == 0
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
    for name in ("fedvpa_gp", "client_count", "client_ratio"):
        assert sweep.command([name, "--smoke", "--model.base", str(tiny_base), "--dry-run"]) == 0
    names = ("unseen", "ablation", "mix", "variants")
    for name in names:
        swept(name, tiny_base) if name == "ablation" else in_process(name, tiny_base, tmp_path / name)
    told = (tmp_path / "runs" / "ablation-smoke" / "sweep.md").read_text()
    assert all(method in told for method in ("fedvpl", "fedvpl_ortho", "fedvpl_prior", "fedvpa_gp")), told
    assert compare.command(list(names)) == 0
    out, printed = tmp_path / "runs" / "compare", capsys.readouterr().out
    for name in ("mix", "context", "latent", "overhead", "unseen"):
        assert (out / f"{name}.md").exists(), printed
    for name in ("figure-latent", "figure-latent-numbers"):
        assert (out / f"{name}.png").exists(), printed
    rows = (out / "mix.md").read_text()
    assert all(row in rows for row in ("| FL |", "| FedGD |", "FedVPA-GP (printed)", "FedGD (conditioned)"))
    assert "Alone: logistic regression" in (out / "context.md").read_text()
