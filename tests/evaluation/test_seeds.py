"""The table over seeds, by numbers worked out here."""

from raypref.evaluation.seeds import markdown

GROUPS = {"names": ["G1 a", "G2 b"], "of": [0, 0, 1]}


def result(algorithm, curves, ari=None):
    """Three clients, marks 0 and 10."""
    return {
        "algorithm": algorithm, "marks": [0, 10], "test": {"accuracy": curves}, "validation": {}, "groups": GROUPS,
        "rounds": 4, "client_steps": 60, "bytes_up": 2_000_000, "bytes_down": 4_000_000, "weights": "", "ari": ari,
    }  # fmt: skip


def test_mean_and_spread_over_seeds_by_hand():
    """acc^10 over clients is (1 + 0.8 + 0.6)/3 = 0.8 for one seed and (0.9 + 0.9 + 0.3)/3 = 0.7 for the other: mean
    75.0, standard deviation sqrt(2 · 0.05²) = 0.0707. Group b: 0.6 and 0.3, so 45.0 ± 21.2, and the worst tenth is that
    one client."""
    runs = [
        ({"algorithm": "fedgd"}, result("fedgd", [[0.5, 1.0], [0.5, 0.8], [0.5, 0.6]], ari=1.0)),
        ({"algorithm": "fedgd"}, result("fedgd", [[0.5, 0.9], [0.5, 0.9], [0.5, 0.3]], ari=0.5)),
        ({"algorithm": "local"}, result("local", [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])),
    ]
    head, _, fedgd, local = markdown(runs).splitlines()[:4]
    columns = dict(zip(head.split(" | "), fedgd.split(" | "), strict=True))
    assert columns["acc^0"] == "50.0 ± 0.0"
    assert columns["acc^10"] == "75.0 ± 7.1"
    assert columns["G2 acc^10"] == columns["worst tenth acc^10"] == "45.0 ± 21.2"
    assert columns["ARI"] == "0.75" and columns["n |"] == "2 |"
    assert local.split(" | ")[:3] == ["| local", "50.0", "50.0"]
