"""What leaves clients is counted, all of it, and what a method says that its server needs is what it needs."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import raypref
from raypref.algorithms import ALGORITHMS
from raypref.clients.kept import Kept
from raypref.clients.ledger import KINDS, READERS, Ledger, kind_of
from raypref.clients.pool import InProcess
from raypref.clients.protocol import Trained, Usage
from raypref.clients.work import Train, Work
from raypref.config import flatten, override, registry, to_dict
from raypref.evaluation.comparisons.privacy import secure, secure_aggregation
from raypref.evaluation.runs import FinishedRun
from raypref.evaluation.tables import markdown
from raypref.experiment import ledger as shown
from raypref.experiment import loop
from raypref.objectives.base import row_layout
from raypref.storage.results import Left, Store, totals
from raypref.tools.rng import torch_stream
from tests.test_packaging import ROOT

SOURCES = Path(raypref.__file__).parent


def test_a_value_without_a_kind_does_not_pass_the_door():
    @dataclasses.dataclass(frozen=True)
    class Result:
        rows: np.ndarray
        diary: np.ndarray

    work = Train(np.arange(2), np.zeros((2, 3)), 0, None, [])
    with pytest.raises(LookupError, match="train/diary would leave clients uncounted"):
        Ledger().result(work, Result(np.zeros(3), np.zeros(3)))
    with pytest.raises(TypeError, match="train/rows is a str"):
        Ledger().result(work, Result("a pair of mine", np.zeros(3)))
    with pytest.raises(TypeError, match="train/rows is a ndarray"):  # of objects, such as texts
        Ledger().result(work, Result(np.array(["a", None]), np.zeros(3)))


def test_there_is_one_door():
    """`call` and `gather` start work at clients and fetch what comes of it: `Pool.ask` alone uses them, and no method's
    file goes around the protocol to the data behind it."""
    users = []
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and file.parent.name == "clients":
                owner = ast.unparse(node.func.value)
                if node.func.attr in ("call", "gather") and owner in ("self", "pool", "clients"):
                    users.append((file.name, node.func.attr))
            if file.parent.name == "algorithms" and isinstance(node, ast.Attribute):
                assert node.attr not in ("inputs", "worker", "pool", "ledger", "call", "gather", "ask"), file
    assert sorted(users) == [("pool.py", "call"), ("pool.py", "gather")]
    works = {kind.method for kind in Work.__subclasses__()}
    assert works - {"hold"} == {path.partition("/")[0] for path in KINDS} - {"join"}  # `hold` brings nothing back


def test_bytes_are_those_of_the_numbers():
    ledger = Ledger()
    ledger.add("train/rows", np.zeros((3, 5), np.float32), 3)
    ledger.add("train/rows", np.zeros((1, 5), np.float32), 1)
    ledger.add("train/parts", {"choice": np.zeros(3), "pull": np.zeros(3)}, 3)
    ledger.add("personalize/diagnoses", {10: [{"gq": np.zeros(4)}] * 2}, 2)
    ledger.add("evaluate/validation", {"loss": np.zeros((4, 6))}, 6)
    assert ledger.take() == {
        "measurements": [2, 64],
        "readings/validation/loss": [6, 192],
        "training loss": [3, 48],  # once, though in two parts
        "update": [4, 80],
    }
    assert ledger.take() == {}
    assert kind_of("train/statistics/mu")[0] == "statistics/mu" and all(k.reader in READERS for k in KINDS.values())


def test_totals_of_a_run_and_its_pages(tiny, tmp_path):
    """SCAFFOLD: 4 rounds of 5 clients, each of whom sends a row and as long a Δc; ten clients in all."""
    config = override(tiny, {"algorithm": "scaffold"})
    result = loop.run(config, tmp_path, adapters=False)
    D = row_layout(config).width
    entries = result["ledger"]
    for kind in ("update", "statistics/delta_c", "kept state"):
        assert {k: entries[kind][k] for k in ("rounds", "clients", "bytes")} == {
            "rounds": 4,
            "clients": 20,
            "bytes": 4 * 20 * D,
        }
    assert entries["update"]["bytes"] + entries["statistics/delta_c"]["bytes"] == result["bytes_up"]
    assert entries["number of pairs"] == {"reader": "server", "rounds": 0, "clients": 10, "bytes": 80}
    assert entries["own row"]["bytes"] == 4 * 10 * D and entries["own row"]["reader"] == "client"
    left = Store(tmp_path, config).left()
    assert (tmp_path / "ledger.csv").read_text() == shown.to_csv(left)
    assert left[:2] == [Left("start", 0, "number of pairs", 10, 80), Left("start", 0, "true group", 10, 80)]
    assert Left("round", 3, "update", 5, 4 * 5 * D) in left
    page = (tmp_path / "ledger.md").read_text()
    assert "Under secure aggregation: **yes** (it takes one weighted sum of each at most)." in page
    assert f"| update | {KINDS['train/rows'].what} | server | 4 | 20 | {80 * D / 1000:,.1f} |" in page


SMALL = {"federation.rounds": 2, "federation.local_steps": 2, "experts.K": 2, "experts.T": 1, "variational.lora": True}


@pytest.fixture(scope="module")
def ledgers(tiny):
    """Algorithm -> (configuration, the totals of what it has clients send up to the initialization)."""
    made, out = {}, {}
    for name in ALGORITHMS:
        kind = registry.algorithm(name)
        alone = {"dp.noise": 0.0, "dp.clip": None} if name == "dp_fedavg" else {}  # no ε, and so no Opacus
        config = override(tiny, SMALL | {"algorithm": name, "objective": kind.objective} | alone)
        like = made.get(kind.objective)
        inputs = made[kind.objective] = loop.prepare_like(like, config) if like else loop.prepare(config)
        pool = InProcess(inputs)
        algorithm = kind(config, pool)
        state = algorithm.init()
        while state.round < algorithm.rounds:
            state, _ = algorithm.round(state)
        algorithm.initialization(state)
        left = [Left("round", 1, kind, *entry) for kind, entry in pool.ledger.take().items()]
        out[name] = config, totals(left, algorithm.needed() or {})
    return out


def test_the_page_says_which_methods_could_run_under_secure_aggregation(ledgers):
    """docs/privacy.md holds the table that `python -m raypref.compare --table secure-aggregation` draws."""
    runs = [
        FinishedRun(name, 0, flatten(to_dict(config)), {"ledger": entries, "seed": 0, "algorithm": name})
        for name, (config, entries) in ledgers.items()
    ]
    item = secure(runs)
    body = markdown(dataclasses.replace(item.content, title="", notes=())).strip()
    assert body in (ROOT / "docs" / "privacy.md").read_text(), f"docs/privacy.md should hold\n{body}"


class Straight:
    """Eight clients in two true groups who answer at once, each by itself: its row moves by a direction of its own and
    by whatever it is sent, and its statistics are numbers of its own. `masked`: the kind to which numbers are added
    that vanish from any one sum over a cohort that is weighted evenly, by N_c, or by N_c within true groups."""

    groups, group_of, keys, used = ("a", "b"), np.array([0, 0, 0, 1, 1, 0, 1, 0]), np.arange(8), Usage()
    sizes = np.array([4, 9, 2, 7, 3, 8, 5, 6])

    def __init__(self, config, masked=""):
        self.config, self.masked, self.layout = config, masked, row_layout(config)
        self.half, self.random = registry.algorithm(config.algorithm).client, np.random.default_rng(1)
        if masked == "true group":
            self.group_of = self.group_of[::-1]

    def mask(self, cohort, shape):
        """[n, …], large beside what it is added to."""
        sizes, group = self.sizes[cohort], self.group_of[cohort]
        sums = np.stack([np.ones(len(cohort)), sizes, sizes / np.bincount(group, sizes)[group]])
        noise = self.random.standard_normal((len(cohort), int(np.prod(shape))))
        return (noise - np.linalg.pinv(sums) @ (sums @ noise)).reshape(len(cohort), *shape)

    def start(self):
        return registry.objective(self.config.objective).start(self.config, self.layout)

    def train(self, cohort, rows, round, message=None, kept=None):
        order = np.argsort(cohort)
        cohort = np.asarray(cohort)[order]
        start = rows.expand(len(cohort), -1) if rows.dim() == 1 else rows[order]
        sent = torch.zeros(len(cohort), 1)
        if message:
            sent += sum(float((v**2).mean()) for v in message.shared.values())
            for values in message.each.values():
                sent += torch.from_numpy(values[order]).float().reshape(len(cohort), -1).mean(1, keepdim=True)
        pulls = torch.stack([torch.randn(start.shape[1], generator=torch_stream(0, "pull", int(c))) for c in cohort])
        back = start + 0.1 * pulls + 0.1 * sent
        shapes = self.half.reports(self.config, self.layout)
        statistics = {
            name: np.stack([np.random.default_rng((c, round)).uniform(1, 2, shape) for c in cohort]).astype(np.float32)
            for name, shape in shapes.items()
        }
        if self.masked == "update":
            back = back + torch.from_numpy(self.mask(cohort, back.shape[1:])).float()
        for name in statistics:
            if self.masked == f"statistics/{name}":
                statistics[name] += self.mask(cohort, statistics[name].shape[1:]).astype(np.float32)
        return Trained(cohort, back, self.sizes[cohort], np.zeros(len(cohort)), {}, statistics, Kept())

    def evaluate(self, rows, fold):
        means = rows.mean(1, keepdim=True).numpy()
        tastes = np.random.default_rng(len(rows)).uniform(0, 3, (len(rows), 8))
        loss = 1 + np.abs(means - np.linspace(-0.1, 0.1, 8)) + tastes
        out = {"loss": loss, "accuracy": 1 / (1 + loss)}
        for name in out:
            if self.masked == f"readings/{fold}/{name}":
                out[name] = np.abs(out[name] + self.mask(np.arange(8), (len(rows),)).T)
        return out

    def latents(self, row):
        """Two heaps, which are the true groups."""
        heaps = np.stack([Straight.group_of, np.linspace(0, 0.1, 8)], axis=1)
        return heaps + (self.mask(np.arange(8), (2,)) if self.masked == "latent/mu" else 0)

    def compose(self, clients, rows, kept):
        return rows.expand(len(clients), -1)

    def weight_norms(self):
        return {name: 3.0 for name in {s.name.rpartition(".lora")[0] for s in self.layout.segments}}


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if not registry.algorithm(name).pooled])
def test_what_a_server_needs_is_what_changes_its_model(ledgers, tiny, name):
    """Of each kind that the server reads: numbers that vanish from sums are added, and either nothing changes, or the
    method's file says that it needs each client's own. Nobody's word is taken."""
    config, entries = ledgers[name]
    config = override(config, {"federation.rounds": 4, "federation.cohort": 6, "variational.M": 2, "experts.K": 2})

    def ends(masked=""):
        algorithm = registry.algorithm(name)(config, Straight(config, masked))
        state = algorithm.init()
        while state.round < algorithm.rounds:
            state, _ = algorithm.round(state)
        return algorithm.initialization(state)

    kinds = ("update", "statistics/", "readings/", "latent/", "true group")
    sent = [kind for kind in entries if kind.startswith(kinds)]
    whole = ends()
    needed = {kind for kind in sent if (ends(kind) - whole).abs().max() > 1e-3}
    assert needed == set(registry.algorithm(name).needs), sent


def test_who_does_not_say_what_the_server_needs_is_not_taken_for_safe():
    """Rounds of one's own need words of one's own."""
    from raypref.algorithms.fedavg import FedAvg

    class Curious(FedAvg):
        def round(self, state):
            return super().round(state)

    class Quiet(FedAvg):
        pass

    assert Curious.needed() is None and Quiet.needed() == {}
    assert secure_aggregation("of my own", {})[0] == "not known"
